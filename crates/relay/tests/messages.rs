//! Messages of `pg_logical_emit_message` through the state machine: events like rows, and what is
//! none of them is told.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::sync::Arc;

use walrelay_checkpoint::{AckRing, Seq};
use walrelay_event_router::{Messages, Options, Router};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::{Core, CoreError, PoisonAction, PoisonDecisions, PoisonPolicy, Step};
use walrelay_sink::{EventPosition, Parking, Poison};
use walrelay_walsender::Frame;

use support::{COMMIT, START, begin, frame, table, table_name};

const SLOT: CommitEnd = CommitEnd::from_slot(START);
const END: u64 = 2_008;

/// What a record was, in words: topic, key, value, headers.
type Seen = (String, Option<String>, Option<String>, Vec<String>);

struct Rig {
    core: Core,
    ring: Arc<AckRing>,
    table: encode::Table,
    next: u64,
}

fn policy(action: PoisonAction) -> PoisonPolicy {
    PoisonPolicy {
        unroutable: action,
        undecodable: action,
        ..PoisonPolicy::default()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

impl Rig {
    fn new(options: Options, policy: PoisonPolicy) -> Self {
        let ring = Arc::new(AckRing::new(64));
        let core = Core::new(
            Router::new(options),
            Arc::from([table_name()]),
            Arc::clone(&ring),
            SLOT,
        )
        .with_decisions(PoisonDecisions::new(policy));
        let mut rig = Self {
            core: core.with_messages(Some(Messages::new("outbox", []))),
            ring,
            table: table(),
            next: 0,
        };
        rig.core.connected(SLOT);
        rig
    }

    /// Takes a message to the core, and a record that comes of it to nowhere.
    fn give(&mut self, body: &[u8]) -> Result<Option<(Seen, EventPosition)>, CoreError> {
        let (seq, seen, event) = match self.core.frame(&frame(body))? {
            Step::Consumed | Step::Reply => return Ok(None),
            Step::Blocked | Step::AwaitsSchema => panic!("blocked"),
            Step::Send(outgoing) => {
                let record = outgoing.record();
                let headers = record.headers.iter().map(|header| {
                    let value = header.value.map_or("(null)".to_owned(), text);
                    format!("{}={value}", header.name)
                });
                let seen = (
                    record.topic.to_owned(),
                    record.key.map(text),
                    record.value.map(text),
                    headers.collect(),
                );
                (outgoing.seq(), seen, outgoing.event().id)
            }
        };
        self.core.sent(seq)?;
        self.next = seq.get() + 1;
        Ok(Some((seen, event)))
    }

    fn begin(&mut self) {
        assert!(self.give(&begin()).expect("a begin").is_none());
    }

    fn commit(&mut self) {
        let time = PgTimestamp::new(0);
        let commit = encode::commit(Lsn::new(COMMIT), Lsn::new(END), time);
        assert!(self.give(&commit).expect("a commit").is_none());
    }

    fn emit(
        &mut self,
        prefix: &str,
        content: &str,
    ) -> Result<Option<(Seen, EventPosition)>, CoreError> {
        self.give(&message(true, prefix, content))
    }

    fn acknowledge(&mut self) {
        for seq in 0..self.next {
            self.ring.ack(Seq::new(seq));
        }
        self.core.advance();
    }
}

fn row(row: u64) -> EventPosition {
    EventPosition { lsn: COMMIT, row }
}

fn message(transactional: bool, prefix: &str, content: &str) -> Vec<u8> {
    encode::logical(transactional, Lsn::new(1_400), prefix, content.as_bytes())
}

/// Rows and messages of one transaction are numbered together, go out in their order, and the commit
/// is confirmed when all are acknowledged.
#[test]
fn are_events_as_rows_are() {
    let mut rig = Rig::new(Options::default(), PoisonPolicy::default());
    rig.begin();
    let relation = rig.table.relation();
    rig.give(&relation).expect("a relation");
    let content = r#"{"id":"m1","aggregate":"Order","key":"k","payload":{"n": 1},
        "headers":{"trace":"t","none":null}}"#;
    let (seen, event) = rig.emit("outbox", content).expect("sound").expect("sent");
    assert_eq!(event, row(0));
    assert_eq!(seen.0, "outbox.event.Order");
    assert_eq!(seen.1.as_deref(), Some("k"));
    assert_eq!(seen.2.as_deref(), Some(r#"{"n": 1}"#));
    assert_eq!(seen.3, ["id=m1", "trace=t", "none=(null)"]);

    let insert = rig
        .table
        .insert(&[Some("r1"), Some("Order"), Some("k"), Some("{}")]);
    let (seen, event) = rig.give(&insert).expect("sound").expect("sent");
    assert_eq!(event, row(1));
    assert_eq!(seen.3, ["id=r1"]);

    // Others are no events, and take no number.
    assert!(rig.emit("other", content).expect("sound").is_none());
    assert!(
        rig.give(&message(false, "other", "x"))
            .expect("sound")
            .is_none()
    );
    let topic = r#"{"id":"m2","topic":"orders.v1","payload":"x"}"#;
    let (seen, event) = rig.emit("outbox", topic).expect("sound").expect("sent");
    assert_eq!(event, row(2));
    assert_eq!((&*seen.0, seen.1), ("orders.v1", None));
    rig.commit();
    assert_eq!(rig.core.confirmed().lsn(), START);
    rig.ring.ack(Seq::new(0));
    rig.ring.ack(Seq::new(1));
    rig.core.advance();
    assert_eq!(rig.core.confirmed().lsn(), START, "one is missing");
    rig.acknowledge();
    assert_eq!(rig.core.confirmed().lsn(), Lsn::new(END));
    let counts = rig.core.counts();
    assert_eq!((counts.records, counts.logical_messages), (3, 2));
}

/// A transaction of messages alone, and a keepalive behind it: idle positions are confirmed only when
/// nothing is in flight.
#[test]
fn hold_the_position_until_they_are_acknowledged() {
    let mut rig = Rig::new(Options::default(), PoisonPolicy::default());
    rig.begin();
    let content = r#"{"aggregate":"Order","key":"k"}"#;
    rig.emit("outbox", content).expect("sound").expect("sent");
    rig.commit();
    let idle = Frame::Keepalive {
        wal_end: Lsn::new(9_000),
        sent_at: 0,
        reply_requested: false,
    };
    rig.core.frame(&idle).expect("a keepalive");
    assert_eq!(rig.core.confirmed().lsn(), START);
    rig.acknowledge();
    rig.core.frame(&idle).expect("a keepalive");
    assert_eq!(rig.core.confirmed().lsn(), Lsn::new(9_000));
}

/// Sent again after a reconnect, a transaction that was enqueued whole is passed over, whatever
/// its messages say.
#[test]
fn are_passed_over_when_they_come_again() {
    let mut rig = Rig::new(Options::default(), PoisonPolicy::default());
    let content = r#"{"aggregate":"Order","key":"k"}"#;
    rig.begin();
    rig.emit("outbox", content).expect("sound").expect("sent");
    rig.commit();
    rig.core.connected(SLOT);
    rig.begin();
    assert!(rig.emit("outbox", content).expect("sound").is_none());
    rig.commit();
    assert_eq!(rig.core.counts().repeats_avoided, 1);
    rig.acknowledge();
    assert_eq!(rig.core.confirmed().lsn(), Lsn::new(END));
}

#[test]
fn stop_the_relay_where_they_are_no_events() {
    for (content, poison) in [
        ("secret", Poison::Undecodable),
        (r#"{"payload":"secret"}"#, Poison::Unroutable),
        (r#"{"topic":"a","aggregate":"secret"}"#, Poison::Unroutable),
    ] {
        let mut rig = Rig::new(Options::default(), PoisonPolicy::default());
        rig.begin();
        let error = rig.emit("outbox", content).expect_err(content);
        let cause = std::error::Error::source(&error)
            .expect("a cause")
            .to_string();
        let shown = format!("{error} {error:?} {cause}");
        assert!(!shown.contains("secret"), "{shown}");
        match error {
            CoreError::Message { commit, source, .. } => {
                assert_eq!((commit.get(), source.poison()), (COMMIT, poison));
            }
            CoreError::Route { commit, source, .. } => {
                assert_eq!((commit.get(), source.poison()), (COMMIT, Some(poison)));
            }
            other => panic!("{other}"),
        }
    }
    let mut rig = Rig::new(Options::default(), PoisonPolicy::default());
    let error = rig.emit("outbox", "{}").expect_err("no transaction");
    assert!(matches!(error, CoreError::Sequence { .. }), "{error}");
}

/// The letter holds the content, whole, and parks what it can be parked by.
#[test]
fn become_letters_where_the_policy_says_so() {
    let parking = Parking::new();
    parking.set_ready();
    let policy = PoisonPolicy {
        parking: Some(Arc::new(parking)),
        ..policy(PoisonAction::DeadLetter)
    };
    let mut rig = Rig::new(Options::default(), policy);
    rig.begin();
    let (seen, event) = rig.emit("outbox", "no JSON").expect("sound").expect("sent");
    assert_eq!(event, row(0));
    assert_eq!(
        (&*seen.0, seen.1, seen.2.as_deref()),
        ("walrelay.dead-letters", None, Some("no JSON"))
    );
    assert!(
        seen.3
            .contains(&"walrelay.dlq.table=message.outbox".to_owned()),
        "{:?}",
        seen.3
    );
    assert!(
        seen.3
            .contains(&"walrelay.dlq.class=undecodable".to_owned())
    );

    // No topic: the row's own parts are known, and its headers.
    let content = r#"{"id":"m","key":"k","payload":[1],"headers":{"trace":"t"}}"#;
    let (seen, _) = rig.emit("outbox", content).expect("sound").expect("sent");
    assert_eq!(
        (seen.1.as_deref(), seen.2.as_deref()),
        (Some("k"), Some("[1]"))
    );
    assert_eq!(seen.3[..2], ["id=m", "trace=t"]);
    // What follows of its key waits behind it, with the topic it would have had.
    let content = r#"{"topic":"orders.v1","key":"k","headers":{"trace":"u"}}"#;
    let (seen, _) = rig.emit("outbox", content).expect("sound").expect("sent");
    assert_eq!(seen.0, "walrelay.dead-letters");
    assert!(
        seen.3.contains(&"walrelay.dlq.class=parked".to_owned()),
        "{:?}",
        seen.3
    );
    assert!(seen.3.contains(&"walrelay.dlq.topic=orders.v1".to_owned()));
    assert_eq!(seen.3[..2], ["id=(null)", "trace=u"]);
    rig.commit();
    let counts = rig.core.counts();
    assert_eq!((counts.dead_letters, counts.parked), (2, 1));
    rig.acknowledge();
    assert_eq!(rig.core.confirmed().lsn(), Lsn::new(END));
}

/// No commit would stand for it. It stops the relay, or is named: never does it just vanish.
#[test]
fn outside_of_transactions_are_told() {
    let body = message(
        false,
        "outbox",
        r#"{"aggregate":"Order","payload":"secret"}"#,
    );
    let mut rig = Rig::new(Options::default(), PoisonPolicy::default());
    let error = rig.give(&body).expect_err("it is misused");
    assert!(matches!(&error, CoreError::NotTransactional { lsn, .. } if lsn.get() == 1_400));
    assert!(!error.to_string().contains("secret"));

    for action in [PoisonAction::Skip, PoisonAction::DeadLetter] {
        let mut rig = Rig::new(Options::default(), policy(action));
        // Also amid a transaction that it has nothing to do with.
        rig.begin();
        assert!(rig.give(&body).expect("skipped").is_none());
        rig.commit();
        let diverted = rig.core.take_diverted();
        assert_eq!(diverted.len(), 1);
        assert_eq!(
            diverted[0].action,
            PoisonAction::Skip,
            "no letter would be confirmed"
        );
        assert_eq!(rig.core.counts().skipped, 1);
        rig.core.advance();
        assert_eq!(rig.core.confirmed().lsn(), Lsn::new(END));
    }
}

/// The route wants a column that messages have not.
#[test]
fn that_the_route_does_not_fit_are_its_poison() {
    let options = || Options {
        event_key: "tenant".to_owned(),
        ..Options::default()
    };
    let content = r#"{"id":"m","aggregate":"Order","payload":1}"#;
    let mut rig = Rig::new(options(), PoisonPolicy::default());
    rig.begin();
    let error = rig.emit("outbox", content).expect_err("no such column");
    assert!(matches!(error, CoreError::Plan { .. }), "{error}");
    let mut rig = Rig::new(options(), policy(PoisonAction::DeadLetter));
    rig.begin();
    for content in [content, r#"{"id":"m","topic":"a","payload":1}"#] {
        let (seen, _) = rig.emit("outbox", content).expect("sound").expect("sent");
        assert_eq!(
            (&*seen.0, seen.2.as_deref()),
            ("walrelay.dead-letters", Some("1"))
        );
    }
}

/// Nothing is asked for, so nothing should come; if it does, it is somebody else's.
#[test]
fn are_none_where_they_are_not_configured() {
    let mut rig = Rig::new(Options::default(), PoisonPolicy::default());
    let core = Core::new(
        Router::new(Options::default()),
        Arc::from([]),
        Arc::clone(&rig.ring),
        SLOT,
    );
    rig.core = core;
    rig.begin();
    assert!(rig.emit("outbox", "no JSON").expect("sound").is_none());
    rig.commit();
    assert_eq!(rig.core.counts().logical_messages, 1);
}
