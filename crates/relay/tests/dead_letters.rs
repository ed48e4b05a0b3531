//! Dead letters of each class through the state machine: one that is refused decides nothing about its
//! event.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::sync::Arc;

use walrelay_checkpoint::AckRing;
use walrelay_event_router::{Options, Router};
use walrelay_lsn::CommitEnd;
use walrelay_relay::{Core, PoisonAction, PoisonDecisions, PoisonPolicy, SentEvent, Step};
use walrelay_sink::{EventPosition, Parking, Poison};

use support::{COMMIT, START, begin, frame, table, table_name};

const DEAD_LETTERS: &str = "walrelay.dead-letters";

/// The event under test.
const EVENT: EventPosition = EventPosition {
    lsn: COMMIT,
    row: 0,
};

/// Why the event becomes a dead letter.
#[derive(Debug, Clone, Copy)]
enum Class {
    /// Its topic refused it.
    Refused,
    /// It has no topic.
    Unroutable,
    /// An earlier event of its key is a dead letter.
    Parked,
    /// The topic that it is bound for was given up.
    TopicGivenUp,
}

/// A core that makes a dead letter of [`EVENT`], and the frame of that event. What the topic of
/// dead letters refuses later comes under `action`.
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
    let table = table();
    let ring = Arc::new(AckRing::new(64));
    let start = CommitEnd::from_slot(START);
    let router = Router::new(Options::default());
    let mut core =
        Core::new(router, Arc::from([table_name()]), ring, start).with_decisions(decisions);
    core.connected(start);
    for body in [begin(), table.relation()] {
        assert!(matches!(core.frame(&frame(&body)), Ok(Step::Consumed)));
    }
    let topic = match class {
        Class::Unroutable => None,
        _ => Some("order"),
    };
    let insert = table.insert(&[Some("r1"), topic, Some("k"), Some("{}")]);
    (core, insert)
}

/// Offers the event, and gives what its record stands for.
fn offered(core: &mut Core, insert: &[u8], case: &str) -> SentEvent {
    match core.frame(&frame(insert)) {
        Ok(Step::Send(outgoing)) => {
            assert_eq!(outgoing.record().topic, DEAD_LETTERS, "{case}");
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
                let seq = match core.frame(&frame(&insert)) {
                    Ok(Step::Send(outgoing)) => outgoing.seq(),
                    other => panic!("{case}: the event vanished: {other:?}"),
                };
                core.sent(seq).expect("the number just given");
                // So that a refusal by the broker is known as one of a dead letter, too.
                assert_eq!(core.event_of(seq), Some(expected), "{case}");
            }
        }
    }
}
