//! The evidence about an event, and the answer that follows from it. No I/O.
//!
//! Only evidence decides: a position beyond the event, or a row without a mark, says nothing of its delivery.

use std::fmt;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use walrelay_observe::printable;
use walrelay_sink::EventPosition;

use super::store::{DeadLetter, Topic, Topics};
use crate::commands::inspect::behind_slot::Log;
use crate::commands::terminal::units::bytes;

/// Columns of the name of a place.
const NAME_WIDTH: usize = 14;

/// A row of the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// The event's id, as log and records have it.
    pub(super) id: String,
    /// The ten minutes of the account to which it belongs.
    pub(super) bucket: Option<i64>,
    pub(super) at_ms: Option<i64>,
    /// `None`: rows are not marked.
    pub(super) is_marked: Option<bool>,
    pub(super) is_to_be_marked: bool,
}

/// A table that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) name: String,
    /// The rows; `None`: the table or the column of the id does not exist. Or why it was not read.
    pub(super) look: Result<Option<Vec<Row>>, String>,
}

impl Table {
    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.look.iter().flatten().flatten()
    }
}

/// The state of the running relay.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Relay {
    pub(super) state: String,
    /// The worst problem.
    pub(super) problem: Option<String>,
    /// The position up to which it has read.
    pub(super) received: Option<u64>,
    /// The event that holds up the confirmed position.
    pub(super) first_in_flight: Option<String>,
    /// The destination's answer to the event, and the seconds until the next attempt, while it is sent again.
    pub(super) refused: Option<(String, Option<f64>)>,
    /// Destinations that accept no record.
    pub(super) unavailable: Vec<String>,
}

/// The evidence of all places.
#[derive(Debug)]
pub(super) struct Evidence {
    /// The sink's kind as texts name it.
    pub(super) sink: &'static str,
    pub(super) tables: Vec<Table>,
    /// Why the row cannot be routed.
    pub(super) unroutable: Option<String>,
    pub(super) log: Result<Log, String>,
    pub(super) relay: Result<Relay, String>,
    /// The rows of the ten minutes of the event's row are exactly those that were accounted as sent. `None`: no
    /// account is kept, or there is no row with a time.
    pub(super) accounted: Option<Result<bool, String>>,
    /// `None`: the sink keeps no dead letters.
    pub(super) dead_letters: Result<Option<Vec<DeadLetter>>, String>,
    pub(super) topics: Result<Topics, String>,
}

impl Default for Evidence {
    fn default() -> Self {
        let unknown = || "not looked at".to_owned();
        Self {
            sink: "",
            tables: Vec::new(),
            unroutable: None,
            log: Err(unknown()),
            relay: Err(unknown()),
            accounted: None,
            dead_letters: Err(unknown()),
            topics: Err(unknown()),
        }
    }
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// A topic has its record.
    Delivered,
    /// It is an open dead letter.
    DeadLetter,
    /// The relay has read it, and the destination has not acknowledged it.
    WaitsForSink,
    /// It is committed, and the slot has not confirmed it.
    BehindSlot,
    /// Its dead letter was sent again.
    Redriven,
    /// Its dead letter was dropped: it is not to be sent.
    Dropped,
    /// Its row has the mark that the relay makes after the acknowledgement.
    Marked,
    /// Its row counts as sent by the account of `[prune]`.
    Accounted,
    /// Nothing shows that it was sent or will be.
    NoEvidence,
}

impl Answer {
    const fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::DeadLetter => "dead-letter",
            Self::WaitsForSink => "waits-for-sink",
            Self::BehindSlot => "behind-slot",
            Self::Redriven => "redriven",
            Self::Dropped => "dropped",
            Self::Marked => "marked",
            Self::Accounted => "accounted",
            Self::NoEvidence => "no-evidence",
        }
    }
}

impl Evidence {
    fn answer(&self) -> Answer {
        let dead_letters = || self.dead_letters.iter().flatten().flatten();
        let has_outcome = |name| dead_letters().any(|one| one.outcome == Some(name));
        if self.record().is_some() {
            Answer::Delivered
        } else if dead_letters().any(|one| one.outcome.is_none()) {
            Answer::DeadLetter
        } else if self.position().is_some() {
            if self.is_read_by_relay() {
                Answer::WaitsForSink
            } else {
                Answer::BehindSlot
            }
        } else if has_outcome(walrelay_sink::dlq_headers::REDRIVEN) {
            Answer::Redriven
        } else if has_outcome(walrelay_sink::dlq_headers::DROPPED) {
            Answer::Dropped
        } else if self.rows().any(Row::is_acknowledged) {
            Answer::Marked
        } else if self.accounted == Some(Ok(true)) {
            Answer::Accounted
        } else {
            Answer::NoEvidence
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.tables.iter().flat_map(Table::rows)
    }

    /// Returns true if each table was read, and none has the event.
    fn is_in_no_table(&self) -> bool {
        let has_none = |table: &Table| matches!(&table.look, Ok(Some(rows)) if rows.is_empty());
        !self.tables.is_empty() && self.tables.iter().all(has_none)
    }

    /// Returns a topic that has the event's record.
    fn record(&self) -> Option<&Topic> {
        let topics = self.topics.iter().flatten();
        let mut topics = topics.filter_map(|(_, topic)| topic.as_ref().ok());
        topics.find(|topic| topic.record.is_some())
    }

    /// Returns the event's position behind that of the slot.
    fn position(&self) -> Option<EventPosition> {
        let log = self.log.as_ref().ok()?;
        Some(log.seen.first()?.position)
    }

    /// Returns true if the running relay has read the event.
    fn is_read_by_relay(&self) -> bool {
        let received = self.relay.as_ref().ok().and_then(|relay| relay.received);
        let refused = self
            .relay
            .as_ref()
            .is_ok_and(|relay| relay.refused.is_some());
        let position = self.position().map(|position| position.lsn);
        refused || position.zip(received).is_some_and(|(at, read)| read > at)
    }
}

impl Row {
    fn is_acknowledged(&self) -> bool {
        self.is_marked == Some(true) || self.is_to_be_marked
    }

    fn text(&self) -> String {
        let at = self.at_ms.map_or_else(
            || "without a time".to_owned(),
            |at| format!("of {}", rfc3339(at)),
        );
        let mark = match (self.is_marked, self.is_to_be_marked) {
            (Some(true), _) => ", marked as sent",
            (_, true) => ", acknowledged, and to be marked later",
            (Some(false), false) => ", not marked",
            (None, false) => "",
        };
        format!("the row is there, {at}{mark}")
    }
}

/// One line of the report.
struct Line {
    place: String,
    /// Whether the place has the event; `None`: it is not known.
    found: Option<bool>,
    text: String,
}

/// The report.
#[derive(Debug)]
pub(super) struct Report {
    event: String,
    evidence: Evidence,
}

impl Report {
    pub(super) fn new(event: String, evidence: Evidence) -> Self {
        Self { event, evidence }
    }

    /// Returns true if the event is anywhere.
    pub(super) fn has_evidence(&self) -> bool {
        self.evidence.answer() != Answer::NoEvidence
    }

    fn lines(&self) -> Vec<Line> {
        let evidence = &self.evidence;
        let mut lines: Vec<Line> = evidence.tables.iter().map(table_line).collect();
        if lines.is_empty() {
            lines.push(unknown(
                "table",
                "the route names no column for the id of events",
            ));
        }
        let unroutable = evidence.unroutable.iter();
        lines.extend(
            unroutable.map(|why| unknown("route", &format!("the row cannot be routed: {why}"))),
        );
        lines.extend(evidence.accounted.as_ref().map(account_line));
        lines.push(self.log_line());
        lines.push(self.relay_line());
        lines.push(self.dead_letter_line());
        match &evidence.topics {
            Ok(topics) => lines.extend(
                topics
                    .iter()
                    .map(|(name, topic)| self.topic_line(name, topic)),
            ),
            Err(why) => lines.push(unknown(evidence.sink, why)),
        }
        lines
    }

    fn log_line(&self) -> Line {
        let log = match &self.evidence.log {
            Ok(log) => log,
            Err(why) => return unknown("log", why),
        };
        let Log { confirmed, end, .. } = log;
        match self.evidence.position() {
            Some(_) => {
                let each = log.seen.iter().map(|seen| {
                    let at = seen.position;
                    format!(
                        "committed at {at}, {} behind the slot's position {confirmed}: not confirmed",
                        bytes(at.lsn.saturating_sub(confirmed.get()))
                    )
                });
                line("log", true, each.collect::<Vec<_>>().join("; "))
            }
            None if log.is_whole => line(
                "log",
                false,
                format!(
                    "not among the events behind the slot's position {confirmed}, read to {end}"
                ),
            ),
            None => unknown(
                "log",
                &format!(
                    "not between the slot's position {confirmed} and {}; the rest up to {end} was not read in time: pass a \
                     larger --timeout",
                    log.read_to
                ),
            ),
        }
    }

    fn relay_line(&self) -> Line {
        let relay = match &self.evidence.relay {
            Ok(relay) => relay,
            Err(why) => return unknown("relay", why),
        };
        let mut parts = vec![relay.state.clone()];
        parts.extend(relay.problem.clone());
        let is_read = self.evidence.is_read_by_relay();
        let text = self.evidence.position().map(|at| at.to_string());
        if is_read {
            parts.push(
                if relay.first_in_flight.is_some() && relay.first_in_flight == text {
                    "has read the event, which holds up the confirmed position"
                } else {
                    "has read the event, and nothing shows that the sink has acknowledged it"
                }
                .to_owned(),
            );
        }
        if let Some((why, next)) = &relay.refused {
            let next = next.map_or_else(String::new, |next| {
                format!(", the next attempt is in {next:.0} s")
            });
            parts.push(format!("the destination refuses the event: {why}{next}"));
        }
        if is_read && !relay.unavailable.is_empty() {
            parts.push(format!(
                "accept no records: {}",
                relay.unavailable.join(", ")
            ));
        }
        Line {
            place: "relay".to_owned(),
            found: if is_read { Some(true) } else { None },
            text: parts.join("; "),
        }
    }

    fn dead_letter_line(&self) -> Line {
        match &self.evidence.dead_letters {
            Err(why) => unknown("dead letters", why),
            Ok(None) => line(
                "dead letters",
                false,
                format!(
                    "none: {} keeps no dead letters that can be read",
                    self.evidence.sink
                ),
            ),
            Ok(Some(none)) if none.is_empty() => {
                line("dead letters", false, "none of this event".to_owned())
            }
            Ok(Some(found)) => {
                let each = found.iter().map(|one| {
                    let status = one.outcome.unwrap_or("open");
                    let cause = one.cause.iter().map(|cause| format!(": {cause}"));
                    format!(
                        "{} ({}, {status}){}",
                        one.name,
                        one.class,
                        cause.collect::<String>()
                    )
                });
                let each: Vec<String> = each.collect();
                line("dead letters", true, each.join("; "))
            }
        }
    }

    fn topic_line(&self, name: &str, topic: &Result<Topic, String>) -> Line {
        let sink = self.evidence.sink;
        let topic = match topic {
            Ok(topic) => topic,
            Err(why) => return unknown(sink, &format!("{name}: {why}")),
        };
        if let Some(record) = &topic.record {
            let entry = record.entry_id.as_ref();
            let place = entry.map_or_else(
                || format!("{name}[{}]@{}", record.partition, record.offset),
                |entry| format!("{name}, entry {entry}"),
            );
            let at = record.written_ms.map_or_else(
                || "at a time that the store does not tell".to_owned(),
                |at| format!("at {}", rfc3339(at)),
            );
            return line(sink, true, format!("{place}, written {at}"));
        }
        if !topic.exists {
            return line(sink, false, format!("there is no topic {name}"));
        }
        let read = topic.records_read;
        if !topic.is_whole {
            let what = format!(
                "{name}: not among the first {read} records, and the others were not read in time: pass a larger --timeout, \
                 or a later --since"
            );
            return unknown(sink, &what);
        }
        let trimmed = if topic.is_trimmed {
            ", which has lost its first records"
        } else {
            ""
        };
        line(
            sink,
            false,
            format!("not among {read} records of {name}{trimmed}"),
        )
    }

    pub(super) fn json(&self) -> Value {
        let evidence = &self.evidence;
        let places = self.lines().into_iter();
        let places = places
            .map(|line| json!({ "place": line.place, "found": line.found, "text": line.text }));
        let record = evidence.record().and_then(|topic| {
            let record = topic.record.as_ref()?;
            Some(json!({
                "topic": topic.name,
                "partition": record.partition,
                "offset": record.offset,
                "entry_id": record.entry_id,
                "written_ms": record.written_ms,
            }))
        });
        let behind = evidence.position().zip(evidence.log.as_ref().ok());
        let behind = behind.map(|(at, log)| {
            json!({
                "position": at.to_string(),
                "confirmed": log.confirmed.to_string(),
                "behind_bytes": at.lsn.saturating_sub(log.confirmed.get()),
            })
        });
        let dead_letters = evidence.dead_letters.iter().flatten().flatten();
        let dead_letters = dead_letters.map(|one| {
            json!({
                "id": one.name,
                "class": one.class,
                "cause": one.cause,
                "status": one.outcome.unwrap_or("open"),
            })
        });
        let rows = evidence.tables.iter().flat_map(|table| {
            table.rows().map(|row| {
                json!({ "table": table.name, "at_ms": row.at_ms, "marked": row.is_marked, "to_be_marked": row.is_to_be_marked })
            })
        });
        let refused = evidence.relay.as_ref().ok().and_then(|relay| {
            let (why, next) = relay.refused.as_ref()?;
            Some(json!({ "why": why, "next_seconds": next }))
        });
        json!({
            "id": self.event,
            "answer": evidence.answer().name(),
            "rows": rows.collect::<Vec<_>>(),
            "behind_slot": behind,
            "refused": refused,
            "dead_letters": dead_letters.collect::<Vec<_>>(),
            "record": record,
            "places": places.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = self.evidence.answer();
        writeln!(f, "{}: {}", printable(&self.event), answer.name())?;
        for Line { place, found, text } in self.lines() {
            let unknown = if found.is_none() && place != "relay" {
                "not known: "
            } else {
                ""
            };
            writeln!(f, "{place:NAME_WIDTH$} {unknown}{}", printable(&text))?;
        }
        let rows = self.evidence.rows().count();
        if rows > 1 {
            writeln!(
                f,
                "{rows} rows have this id: the answer is that of the one with the best evidence, and says nothing of the others"
            )?;
        }
        if answer == Answer::NoEvidence {
            let why = if self.evidence.rows().next().is_some() {
                "no evidence that the event was sent. The row may be of before the slot, or the publication has left it out; \
                 send it with walrelay resend"
            } else if self.evidence.is_in_no_table() {
                "no evidence of the event: the row was deleted, pruned or never committed"
            } else {
                "not known: no place that was looked at has the event, and its tables were not read"
            };
            writeln!(f, "{why}")?;
        }
        Ok(())
    }
}

fn table_line(table: &Table) -> Line {
    let place = table.name.clone();
    match &table.look {
        Err(why) => unknown(&place, why),
        Ok(None) => line(
            &place,
            false,
            "the table, or its column of the id, does not exist".to_owned(),
        ),
        Ok(Some(rows)) if rows.is_empty() => line(&place, false, "not in the table".to_owned()),
        Ok(Some(rows)) => {
            let texts: Vec<String> = rows.iter().map(Row::text).collect();
            line(&place, true, texts.join("; "))
        }
    }
}

fn account_line(accounted: &Result<bool, String>) -> Line {
    match accounted {
        Err(why) => unknown("account", why),
        Ok(true) => line(
            "account",
            true,
            "the rows of its ten minutes are exactly those that count as sent: acknowledged, or accepted by you (before_slot, \
             walrelay prune --accept)"
                .to_owned(),
        ),
        Ok(false) => line(
            "account",
            false,
            "the rows of its ten minutes are not those that were accounted as sent: walrelay stuck"
                .to_owned(),
        ),
    }
}

fn line(place: &str, found: bool, text: String) -> Line {
    Line {
        place: place.to_owned(),
        found: Some(found),
        text,
    }
}

fn unknown(place: &str, why: &str) -> Line {
    Line {
        place: place.to_owned(),
        found: None,
        text: why.to_owned(),
    }
}

/// Formats a time in milliseconds since 1970.
fn rfc3339(ms: i64) -> String {
    let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).ok();
    let text = time.and_then(|time| time.format(&Rfc3339).ok());
    text.unwrap_or_else(|| format!("{ms} ms after 1970"))
}

#[cfg(test)]
mod tests {
    use walrelay_lsn::Lsn;

    use super::super::store::Delivered;
    use super::*;
    use crate::commands::inspect::behind_slot::Sighting;

    const AT: EventPosition = EventPosition {
        epoch: 0,
        lsn: 0x200,
        row: 1,
    };

    fn log(is_seen: bool) -> Log {
        let sighting = Sighting {
            id: Some(b"17".to_vec()),
            topic: "orders".to_owned(),
            routing_key: None,
            position: AT,
        };
        Log {
            confirmed: Lsn::new(0x100),
            end: Lsn::new(0x300),
            read_to: Lsn::new(0x300),
            is_whole: true,
            seen: is_seen.then_some(sighting).into_iter().collect(),
        }
    }

    fn topic(offset: Option<i64>) -> Topics {
        let topic = Topic {
            name: "orders".to_owned(),
            exists: true,
            record: offset.map(|offset| Delivered {
                partition: 3,
                offset,
                entry_id: None,
                written_ms: Some(1_767_323_046_500),
            }),
            is_whole: true,
            is_trimmed: false,
            records_read: 9,
        };
        vec![("orders".to_owned(), Ok(topic))]
    }

    fn dead_letter(outcome: Option<&'static str>) -> Vec<DeadLetter> {
        vec![DeadLetter {
            name: AT.to_string(),
            class: "rejected".to_owned(),
            cause: Some("answer 410".to_owned()),
            outcome,
        }]
    }

    /// Returns evidence in which the row is there, and nothing else shows the event.
    fn evidence() -> Evidence {
        let row = Row {
            id: "e".to_owned(),
            bucket: None,
            at_ms: Some(1_767_323_046_000),
            is_marked: Some(false),
            is_to_be_marked: false,
        };
        Evidence {
            sink: "Kafka",
            tables: vec![Table {
                name: "public.outbox".to_owned(),
                look: Ok(Some(vec![row])),
            }],
            unroutable: None,
            log: Ok(log(false)),
            relay: Ok(Relay {
                state: "streaming".to_owned(),
                received: Some(0x300),
                ..Relay::default()
            }),
            accounted: Some(Ok(false)),
            dead_letters: Ok(Some(Vec::new())),
            topics: Ok(topic(None)),
        }
    }

    fn with_row(change: impl FnOnce(&mut Row)) -> Evidence {
        let mut evidence = evidence();
        if let Ok(Some(rows)) = &mut evidence.tables[0].look {
            change(&mut rows[0]);
        }
        evidence
    }

    #[test]
    fn only_evidence_makes_an_answer() {
        let behind = || Evidence {
            log: Ok(log(true)),
            ..evidence()
        };
        let unread = Relay {
            received: Some(0x1ff),
            ..Relay::default()
        };
        for (expected, evidence) in [
            // The slot is beyond the event, and the relay has read beyond it: that says nothing.
            (Answer::NoEvidence, evidence()),
            (Answer::WaitsForSink, behind()),
            (
                Answer::BehindSlot,
                Evidence {
                    relay: Ok(unread),
                    ..behind()
                },
            ),
            (
                Answer::BehindSlot,
                Evidence {
                    relay: Err("it does not answer".to_owned()),
                    ..behind()
                },
            ),
            (
                Answer::Delivered,
                Evidence {
                    topics: Ok(topic(Some(17))),
                    ..behind()
                },
            ),
            (
                Answer::DeadLetter,
                Evidence {
                    dead_letters: Ok(Some(dead_letter(None))),
                    ..behind()
                },
            ),
            (
                Answer::Redriven,
                Evidence {
                    dead_letters: Ok(Some(dead_letter(Some("redriven")))),
                    ..evidence()
                },
            ),
            (
                Answer::Dropped,
                Evidence {
                    dead_letters: Ok(Some(dead_letter(Some("dropped")))),
                    ..evidence()
                },
            ),
            (Answer::Marked, with_row(|row| row.is_marked = Some(true))),
            (Answer::Marked, with_row(|row| row.is_to_be_marked = true)),
            (
                Answer::Accounted,
                Evidence {
                    accounted: Some(Ok(true)),
                    ..evidence()
                },
            ),
            (
                Answer::NoEvidence,
                Evidence {
                    log: Err("no slot".to_owned()),
                    dead_letters: Err("no broker".to_owned()),
                    topics: Err("no broker".to_owned()),
                    ..evidence()
                },
            ),
        ] {
            let shown = format!("{evidence:?}");
            assert_eq!(evidence.answer(), expected, "{shown}");
            let report = Report::new("17".to_owned(), evidence);
            assert_eq!(report.has_evidence(), expected != Answer::NoEvidence);
            assert_eq!(report.json()["answer"], json!(expected.name()));
            let first = format!("17: {}\n", expected.name());
            assert!(report.to_string().starts_with(&first), "{report}");
        }
    }

    #[test]
    fn each_place_says_what_it_shows() {
        let report = Report::new(
            "17".to_owned(),
            Evidence {
                log: Ok(log(true)),
                relay: Ok(Relay {
                    state: "streaming".to_owned(),
                    received: Some(0x300),
                    first_in_flight: Some(AT.to_string()),
                    refused: Some(("answer 503".to_owned(), Some(4.2))),
                    unavailable: vec!["orders[3]".to_owned()],
                    ..Relay::default()
                }),
                dead_letters: Ok(Some(dead_letter(None))),
                topics: Ok(topic(Some(17))),
                ..evidence()
            },
        );
        let text = report.to_string();
        for words in [
            "public.outbox  the row is there, of 2026-01-02T03:04:06Z, not marked\n",
            "committed at 0/200 1, 256 B behind the slot's position 0/100: not confirmed\n",
            "which holds up the confirmed position; the destination refuses the event: answer 503, the next attempt is in 4 s; \
             accept no records: orders[3]\n",
            "0/200 1 (rejected, open): answer 410\n",
            "orders[3]@17, written at 2026-01-02T03:04:06.5Z\n",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let json = report.json();
        assert_eq!(json["record"]["offset"], json!(17));
        assert_eq!(json["behind_slot"]["behind_bytes"], json!(256));
        let unknown = Report::new(
            "17".to_owned(),
            Evidence {
                topics: Err("the receiver keeps no records".to_owned()),
                ..evidence()
            },
        );
        let text = unknown.to_string();
        assert!(
            text.contains("not known: the receiver keeps no records\n"),
            "{text}"
        );
        assert!(
            text.contains("no evidence that the event was sent"),
            "{text}"
        );
    }
}
