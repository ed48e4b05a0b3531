//! Dead letters of each class through the state machine: the refusal of a dead letter decides
//! nothing about its event.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::sync::Arc;

use walrelay_event_router::{Additional, Options, Router};
use walrelay_lsn::TypeOid;
use walrelay_relay::{
    Core, PoisonAction, PoisonDecisions, PoisonPolicy, RecordSpace, SentEvent, Step,
};
use walrelay_sink::{EventPosition, Parking, Poison, dlq_headers};

use support::{COMMIT, begin, connected, consume, frame, table};

const DEAD_LETTERS: &str = "walrelay.dead-letters";

/// The event under test.
const EVENT: EventPosition = EventPosition {
    lsn: COMMIT,
    row: 0,
};

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

/// Creates a core that makes a dead letter of [`EVENT`], and the frame of that event. `action` is
/// the policy's action for oversize events, and for rejected ones unless the class needs a dead
/// letter.
fn core(class: Class, action: PoisonAction) -> (Core, Vec<u8>) {
    let parking = Parking::new();
    parking.set_ready();
    if let Class::Parked = class {
        let earlier = EventPosition { lsn: 1_000, row: 0 };
        parking.park(earlier, Some("outbox.event.order"), b"k");
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
        ..PoisonPolicy::default()
    });
    let other = EventPosition { lsn: 1_500, row: 0 };
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
    let topic = match class {
        Class::Unroutable => None,
        _ => Some("order"),
    };
    let insert = table().insert(&[Some("r1"), topic, Some("k"), Some("{}")]);
    (core, insert)
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
fn of_every_class_are_known_as_such_and_offered_again_after_a_refusal() {
    let expected = SentEvent {
        id: EVENT,
        dead_letter: true,
    };
    for class in [
        Class::Refused,
        Class::Unroutable,
        Class::Parked,
        Class::TopicGivenUp,
    ] {
        for action in [
            PoisonAction::Halt,
            PoisonAction::DeadLetter,
            PoisonAction::Skip,
        ] {
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

/// A dead letter is bound for the partition of its event, with the timestamp of its event.
#[test]
fn say_for_which_partition_and_time_their_event_is_bound() {
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
