//! Dead letters of each class through the state machine: the refusal of a dead letter decides
//! nothing about its event.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::sync::Arc;

use walrelay_checkpoint::Seq;
use walrelay_event_router::{Additional, Options, Router};
use walrelay_lsn::{Lsn, TypeOid};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::{
    Core, PoisonAction, PoisonDecisions, PoisonPolicy, RecordSpace, SentEvent, Settled, SinkLimits,
    Step,
};
use walrelay_sink::{
    DeliveryError, EventPosition, HeldRecord, Parking, Poison, Record, dlq_headers,
};

use crate::support::{COMMIT, begin, connected, consume, frame, table};

const DEAD_LETTERS: &str = "walrelay.dead-letters";

/// The largest value that the sink accepts, in bytes.
const LIMIT: usize = 1_000;

/// The event under test.
const EVENT: EventPosition = EventPosition::in_first_epoch(COMMIT, 0);

/// The reason why the event becomes a dead letter.
#[derive(Debug, Clone, Copy)]
enum Class {
    /// The event's topic refused its record.
    Refused,
    /// The event has no topic.
    Unroutable,
    /// An earlier event of the key is a dead letter.
    Parked,
    /// The event's topic was given up.
    TopicGivenUp,
}

const CLASSES: [Class; 4] = [
    Class::Refused,
    Class::Unroutable,
    Class::Parked,
    Class::TopicGivenUp,
];
const ACTIONS: [PoisonAction; 3] = [
    PoisonAction::Halt,
    PoisonAction::DeadLetter,
    PoisonAction::Skip,
];

/// Creates a core that makes a dead letter of [`EVENT`], and the frame of that event. `action` is
/// the policy's action for oversize events, and for rejected ones unless the class needs a dead
/// letter.
fn core(class: Class, action: PoisonAction) -> (Core, Vec<u8>) {
    let parking = Parking::new();
    parking.set_ready();
    if let Class::Parked = class {
        let earlier = EventPosition::in_first_epoch(1_000, 0);
        parking.park(earlier, None, Some("outbox.event.order"), b"k");
    }
    let own = match class {
        Class::Refused | Class::TopicGivenUp => PoisonAction::DeadLetter,
        Class::Unroutable | Class::Parked => action,
    };
    let mut decisions = PoisonDecisions::new(PoisonPolicy {
        unroutable: PoisonAction::DeadLetter,
        oversize: action,
        rejected: own,
        topic: Arc::from(DEAD_LETTERS),
        parking: Some(Arc::new(parking)),
        limits: Some(SinkLimits::new(|record| {
            let too_large = record.payload_bytes() > LIMIT;
            too_large.then(|| {
                DeliveryError::poison(record.topic, Poison::Oversize, "too large".to_owned())
            })
        })),
        ..PoisonPolicy::default()
    });
    let other = EventPosition::in_first_epoch(1_500, 0);
    match class {
        Class::Refused => assert!(decisions.reject(EVENT, Poison::Rejected, "no")),
        Class::TopicGivenUp => {
            let topic = "outbox.event.order";
            assert!(decisions.give_up_topic(other, topic, Poison::Rejected, "no"));
        }
        Class::Unroutable | Class::Parked => {}
    }
    let (mut core, _) = connected(Router::new(Options::default()), decisions);
    consume(&mut core, &begin());
    consume(&mut core, &table().relation());
    (core, insert(class, "{}"))
}

/// Returns the frame of [`EVENT`] with this payload.
fn insert(class: Class, payload: &str) -> Vec<u8> {
    let topic = match class {
        Class::Unroutable => None,
        _ => Some("order"),
    };
    table().insert(&[Some("r1"), topic, Some("k"), Some(payload)])
}

/// Offers the event. Returns the event that the record stands for.
fn offered(core: &mut Core, insert: &[u8], case: &str) -> SentEvent {
    match core.frame(&frame(insert), &mut RecordSpace::default()) {
        Ok(Step::Send(outgoing)) => {
            let record = outgoing.record();
            assert_eq!(record.topic, DEAD_LETTERS, "{case}");
            assert_eq!(
                (record.event_id, record.position),
                (Some(&b"r1"[..]), EVENT),
                "{case}"
            );
            outgoing.event()
        }
        other => panic!("{case}: the event was not offered: {other:?}"),
    }
}

#[test]
fn dead_letters_of_every_class_are_known_as_such_and_offered_again_after_a_refusal() {
    let expected = SentEvent {
        id: EVENT,
        dead_letter: true,
    };
    for class in CLASSES {
        for action in ACTIONS {
            for poison in Poison::ALL {
                let case = format!("{class:?} {action:?} {poison}");
                let (mut core, insert) = core(class, action);
                let event = offered(&mut core, &insert, &case);
                assert_eq!(event, expected, "{case}");
                assert!(!core.reject(event, poison, "the dead letter"), "{case}");
                let seq = match core.frame(&frame(&insert), &mut RecordSpace::default()) {
                    Ok(Step::Send(outgoing)) => outgoing.seq(),
                    other => panic!("{case}: the event vanished: {other:?}"),
                };
                core.sent(seq).expect("the number just given");
                // A refusal by the broker is recognized as that of a dead letter, too.
                assert_eq!(core.event_of(seq), Some(expected), "{case}");
            }
        }
    }
}

/// Two clusters have a slot of one name, and events at one position.
#[test]
fn a_diverted_event_parks_its_key_whatever_another_cluster_has_at_its_position() {
    const LATER: EventPosition = EventPosition::in_first_epoch(COMMIT + 1, 0);
    let others: [fn(&Parking); 2] = [
        |parking| parking.resolve(EVENT, Some("2")),
        |parking| parking.park(EVENT, Some("2"), None, b"other"),
    ];
    for other in others {
        let parking = Arc::new(Parking::new());
        parking.set_ready();
        other(&parking);
        let mut decisions = PoisonDecisions::new(PoisonPolicy {
            rejected: PoisonAction::DeadLetter,
            topic: Arc::from(DEAD_LETTERS),
            parking: Some(Arc::clone(&parking)),
            ..PoisonPolicy::default()
        });
        assert!(decisions.reject(EVENT, Poison::Rejected, "no"));
        let (mut core, _) = connected(Router::new(Options::default()), decisions);
        core.set_system("1");
        consume(&mut core, &begin());
        consume(&mut core, &table().relation());
        offered(&mut core, &insert(Class::Refused, "{}"), "of cluster 1");
        let is_parked = || parking.is_parked(LATER, "outbox.event.order", b"k");
        assert!(is_parked());
        parking.resolve(EVENT, Some("2"));
        assert!(is_parked());
        parking.resolve(EVENT, Some("1"));
        assert!(!is_parked());
    }
}

/// Its dead letter would be too large with the value, whatever the reason for it is.
#[test]
fn an_event_whose_dead_letter_is_too_large_for_the_sink_is_decided_about_as_such() {
    // The second is accepted by the sink, without the headers of a dead letter.
    for size in [LIMIT, LIMIT - 100] {
        decided_about_by_size(&format!("\"{}\"", "x".repeat(size)));
    }
}

fn decided_about_by_size(payload: &str) {
    for class in CLASSES {
        for action in ACTIONS {
            let case = format!("{class:?} {action:?}");
            let (mut core, _) = core(class, action);
            let insert = insert(class, payload);
            let mut space = RecordSpace::default();
            let step = core.frame(&frame(&insert), &mut space);
            let sent = match step.expect("a step") {
                Step::Send(outgoing) => {
                    let record = outgoing.record();
                    let mut headers = record.headers.iter();
                    let header = headers.find(|header| header.name == dlq_headers::CLASS);
                    let is_oversize = header.and_then(|it| it.value) == Some(b"oversize");
                    Some((is_oversize, record.value.is_some()))
                }
                Step::Consumed => None,
                other => panic!("{case}: {other:?}"),
            };
            let expected = match action {
                // The dead letter stops the relay if the sink refuses it.
                PoisonAction::Halt => Some((false, true)),
                PoisonAction::DeadLetter => Some((true, false)),
                PoisonAction::Skip => None,
            };
            assert_eq!(sent, expected, "{case}");
        }
    }
}

/// A dead letter is bound for the partition of its event, with the timestamp of its event.
#[test]
fn dead_letters_name_the_partition_and_time_of_their_event() {
    let table = table()
        .column("shard", TypeOid::new(23))
        .column("at", TypeOid::new(1184));
    let options = Options {
        event_timestamp: Some("at".to_owned()),
        additional: Additional::parse("shard:partition").expect("a placement"),
        ..Options::default()
    };
    let policy = PoisonPolicy {
        rejected: PoisonAction::DeadLetter,
        topic: Arc::from(DEAD_LETTERS),
        ..PoisonPolicy::default()
    };
    let mut decisions = PoisonDecisions::new(policy);
    assert!(decisions.reject(EVENT, Poison::Rejected, "no"));
    let (mut core, _) = connected(Router::new(options), decisions);
    consume(&mut core, &begin());
    consume(&mut core, &table.relation());
    let values = ["r1", "order", "k", "{}", "3", "2026-01-02 03:04:05.678+00"];
    let insert = table.insert(&values.map(Some));
    let mut space = RecordSpace::default();
    let outgoing = match core.frame(&frame(&insert), &mut space) {
        Ok(Step::Send(outgoing)) => outgoing,
        other => panic!("no dead letter: {other:?}"),
    };
    let record = outgoing.record();
    assert_eq!((record.partition, record.timestamp_ms), (None, None));
    let header = |name: &str| {
        let header = record.headers.iter().find(|header| header.name == name);
        header.and_then(|header| header.value)
    };
    assert_eq!(header(dlq_headers::PARTITION), Some(&b"3"[..]));
    assert_eq!(header(dlq_headers::TIMESTAMP), Some(&b"1767323045678"[..]));
}

/// A record that the sink gives back becomes the dead letter that reading its row again makes.
#[test]
fn dead_letters_are_the_same_whether_the_row_is_read_again_or_the_record_was_given_back() {
    let options = || Options {
        additional: Additional::parse("shard:partition,note:header").expect("placements"),
        ..Options::default()
    };
    let table = table()
        .column("shard", TypeOid::new(23))
        .column("note", TypeOid::new(25));
    let insert = table.insert(&["r1", "order", "k", "{}", "3", "n"].map(Some));
    let policy = |action| {
        PoisonDecisions::new(PoisonPolicy {
            rejected: action,
            topic: Arc::from(DEAD_LETTERS),
            ..PoisonPolicy::default()
        })
    };
    let begun = |decisions| {
        let (mut core, ring) = connected(Router::new(options()), decisions);
        consume(&mut core, &begin());
        consume(&mut core, &table.relation());
        (core, ring)
    };
    let mut rejected = policy(PoisonAction::DeadLetter);
    assert!(rejected.reject(EVENT, Poison::Rejected, "no"));
    let (mut core, _) = begun(rejected);
    let read_again = match core.frame(&frame(&insert), &mut RecordSpace::default()) {
        Ok(Step::Send(outgoing)) => HeldRecord::new(&outgoing.record()),
        other => panic!("no dead letter: {other:?}"),
    };
    let sent = |core: &mut Core| {
        let (seq, record) = match core.frame(&frame(&insert), &mut RecordSpace::default()) {
            Ok(Step::Send(outgoing)) => (outgoing.seq(), HeldRecord::new(&outgoing.record())),
            other => panic!("no record: {other:?}"),
        };
        core.sent(seq).expect("the number just given");
        consume(
            core,
            &encode::commit(Lsn::new(COMMIT), Lsn::new(COMMIT + 48), PgTimestamp::new(0)),
        );
        (seq, record)
    };
    let (mut core, ring) = begun(policy(PoisonAction::DeadLetter));
    let (seq, record) = sent(&mut core);
    let unchanged =
        record.with(|record| matches!(core.settle(seq, record), Ok(Settled::Unchanged)));
    assert!(unchanged, "nothing is decided about it");
    let event = core.event_of(seq).expect("it is in flight");
    assert!(core.reject(event, Poison::Rejected, "no"));
    record.with(|record| {
        let Ok(Settled::DeadLetter(dead_letter)) = core.settle(seq, record) else {
            panic!("no dead letter");
        };
        let text = |record: &Record<'_>| {
            let headers = record.headers.iter();
            let headers: Vec<_> = headers
                .map(|header| (header.name.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect();
            (
                format!("{record:?}"),
                record.key.map(<[u8]>::to_vec),
                headers,
            )
        };
        assert_eq!(text(&dead_letter.record()), read_again.with(text));
    });
    core.settled(seq);
    let dead_letter = SentEvent {
        id: EVENT,
        dead_letter: true,
    };
    assert_eq!(core.event_of(seq), Some(dead_letter));
    assert!(!core.reject(dead_letter, Poison::Rejected, "no"));
    core.advance();
    assert_eq!(core.acknowledged_position(), crate::support::SLOT);
    ring.ack(seq);
    core.advance();
    assert_eq!(core.acknowledged_position().lsn(), Lsn::new(COMMIT + 48));
    assert_eq!((core.counts().dead_letters, core.counts().skipped), (1, 0));
    // Skipped, it is acknowledged.
    let (mut core, ring) = begun(policy(PoisonAction::Skip));
    let (seq, record) = sent(&mut core);
    assert!(core.reject(event, Poison::Rejected, "no"));
    let skipped = record.with(|record| matches!(core.settle(seq, record), Ok(Settled::Skipped)));
    assert!(skipped);
    core.advance();
    assert_eq!(core.acknowledged_position(), crate::support::SLOT);
    let acknowledged = |core: &Core| core.acknowledged_events().events().count();
    assert_eq!(acknowledged(&core), 0);
    ring.ack(seq);
    assert_eq!(acknowledged(&core), 1, "it is not skipped again");
    core.advance();
    assert_eq!(core.acknowledged_position().lsn(), Lsn::new(COMMIT + 48));
    assert_eq!((core.counts().dead_letters, core.counts().skipped), (0, 1));
    // An earlier one is not in flight any more.
    assert!(record.with(|record| core.settle(Seq::new(9), record).is_err()));
}
