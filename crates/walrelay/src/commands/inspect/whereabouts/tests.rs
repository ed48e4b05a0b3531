use serde_json::json;
use walrelay_lsn::Lsn;
use walrelay_sink::EventPosition;

use super::evidence::{Answer, Evidence, Relay, Row, Table};
use super::report::Report;
use super::store::{DeadLetter, Delivered, Topic, Topics};
use crate::commands::inspect::behind_slot::{Log, Sighting};

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
