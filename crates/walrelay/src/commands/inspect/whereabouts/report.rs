//! The report about an event: a line for each place, as text and as JSON.

use std::fmt;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use walrelay_observe::printable;

use super::evidence::{Answer, Evidence, Row, Table};
use super::store::Topic;
use crate::commands::inspect::behind_slot::Log;
use crate::commands::terminal::units::bytes;

/// Columns of the name of a place.
const NAME_WIDTH: usize = 14;

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
            let texts: Vec<String> = rows.iter().map(row_text).collect();
            line(&place, true, texts.join("; "))
        }
    }
}

fn row_text(row: &Row) -> String {
    let at = row.at_ms.map_or_else(
        || "without a time".to_owned(),
        |at| format!("of {}", rfc3339(at)),
    );
    let mark = match (row.is_marked, row.is_to_be_marked) {
        (Some(true), _) => ", marked as sent",
        (_, true) => ", acknowledged, and to be marked later",
        (Some(false), false) => ", not marked",
        (None, false) => "",
    };
    format!("the row is there, {at}{mark}")
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
