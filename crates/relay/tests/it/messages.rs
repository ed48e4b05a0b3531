//! Messages of `pg_logical_emit_message` through the state machine: those of the configured prefix
//! are events like rows, and those that cannot be events are reported.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::sync::Arc;

use walrelay_checkpoint::{AckRing, Seq};
use walrelay_event_router::{Messages, Options, Router};
use walrelay_lsn::Lsn;
use walrelay_pgoutput::{PgTimestamp, encode};
use walrelay_relay::{
    Class, Core, CoreError, PoisonAction, PoisonDecisions, PoisonPolicy, RecordSpace, Step,
};
use walrelay_sink::{Disposition, EventPosition, Parking, Poison, RecordKind};
use walrelay_walsender::Frame;

use crate::support::{COMMIT, SLOT, begin, connected, consume, frame, table};

const END: u64 = 2_008;

/// A record as text: topic, key, value, headers.
type Seen = (String, Option<String>, Option<String>, Vec<String>);

struct Relay {
    core: Core,
    ring: Arc<AckRing>,
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

impl Relay {
    fn new(options: Options, policy: PoisonPolicy) -> Self {
        let (core, ring) = connected(Router::new(options), PoisonDecisions::new(policy));
        Self {
            core: core.with_messages(Some(Messages::new("outbox", []))),
            ring,
            next: 0,
        }
    }

    /// Passes a message to the core. Takes the record that is offered, if any, and returns it.
    fn give(&mut self, body: &[u8]) -> Result<Option<(Seen, EventPosition)>, CoreError> {
        let (seq, seen, event) = match self.core.frame(&frame(body), &mut RecordSpace::default())? {
            Step::Consumed | Step::Reply | Step::Committed(_) => return Ok(None),
            Step::Blocked | Step::AwaitsSchema | Step::AwaitsPlace => panic!("blocked"),
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
        consume(&mut self.core, &begin());
    }

    fn commit(&mut self) {
        let time = PgTimestamp::new(0);
        let commit = encode::commit(Lsn::new(COMMIT), Lsn::new(END), time);
        consume(&mut self.core, &commit);
    }

    fn emit(
        &mut self,
        prefix: &str,
        content: &str,
    ) -> Result<Option<(Seen, EventPosition)>, CoreError> {
        self.give(&message(true, prefix, content))
    }

    /// Emits a message of the configured prefix, whose record is sent.
    fn send(&mut self, content: &str) -> (Seen, EventPosition) {
        let sent = self.emit("outbox", content).expect("sound");
        sent.expect("sent")
    }

    fn acknowledge(&mut self) {
        for seq in 0..self.next {
            self.ring.ack(Seq::new(seq));
        }
        self.core.advance();
    }
}

fn assert_header(seen: &[String], header: &str) {
    assert!(seen.iter().any(|shown| shown == header), "{seen:?}");
}

fn row(row: u64) -> EventPosition {
    EventPosition::in_first_epoch(COMMIT, row)
}

fn message(transactional: bool, prefix: &str, content: &str) -> Vec<u8> {
    encode::logical(transactional, Lsn::new(1_400), prefix, content.as_bytes())
}

/// Rows and messages of one transaction are numbered together and sent in order, and the commit is
/// confirmed when all are acknowledged.
#[test]
fn messages_are_events_as_rows_are() {
    let mut relay = Relay::new(Options::default(), PoisonPolicy::default());
    relay.begin();
    consume(&mut relay.core, &table().relation());
    let content = r#"{"id":"m1","aggregate":"Order","key":"k","payload":{"n": 1},
        "headers":{"trace":"t","none":null}}"#;
    let (seen, event) = relay.send(content);
    assert_eq!(event, row(0));
    assert_eq!(seen.0, "outbox.event.Order");
    assert_eq!(seen.1.as_deref(), Some("k"));
    assert_eq!(seen.2.as_deref(), Some(r#"{"n": 1}"#));
    assert_eq!(seen.3, ["id=m1", "trace=t", "none=(null)"]);

    let insert = table().insert(&[Some("r1"), Some("Order"), Some("k"), Some("{}")]);
    let (seen, event) = relay.give(&insert).expect("sound").expect("sent");
    assert_eq!(event, row(1));
    assert_eq!(seen.3, ["id=r1"]);

    // Messages of other prefixes are no events, and have no row number.
    assert!(relay.emit("other", content).expect("sound").is_none());
    let other = message(false, "other", "x");
    assert!(relay.give(&other).expect("sound").is_none());
    let topic = r#"{"id":"m2","topic":"orders.v1","payload":"x"}"#;
    let (seen, event) = relay.send(topic);
    assert_eq!(event, row(2));
    assert_eq!((&*seen.0, seen.1), ("orders.v1", None));
    relay.commit();
    assert_eq!(relay.core.acknowledged_position(), SLOT);
    relay.ring.ack(Seq::new(0));
    relay.ring.ack(Seq::new(1));
    relay.core.advance();
    assert_eq!(relay.core.acknowledged_position(), SLOT, "one is missing");
    relay.acknowledge();
    assert_eq!(relay.core.acknowledged_position().lsn(), Lsn::new(END));
    let counts = relay.core.counts();
    assert_eq!((counts.records, counts.logical_messages), (3, 2));
}

/// A transaction with only messages, then a keepalive: the keepalive's position is confirmed only
/// when no record is in flight.
#[test]
fn messages_hold_the_position_until_they_are_acknowledged() {
    let mut relay = Relay::new(Options::default(), PoisonPolicy::default());
    relay.begin();
    let content = r#"{"aggregate":"Order","key":"k"}"#;
    relay.send(content);
    relay.commit();
    let idle = Frame::Keepalive {
        wal_end: Lsn::new(9_000),
        sent_at: 0,
        reply_requested: false,
    };
    relay
        .core
        .frame(&idle, &mut RecordSpace::default())
        .expect("a keepalive");
    assert_eq!(relay.core.acknowledged_position(), SLOT);
    relay.acknowledge();
    relay
        .core
        .frame(&idle, &mut RecordSpace::default())
        .expect("a keepalive");
    assert_eq!(relay.core.acknowledged_position().lsn(), Lsn::new(9_000));
}

/// A transaction that was enqueued whole and is sent again after a reconnect is ignored, also if it
/// has only messages.
#[test]
fn messages_are_ignored_when_their_transaction_is_repeated() {
    let mut relay = Relay::new(Options::default(), PoisonPolicy::default());
    let content = r#"{"aggregate":"Order","key":"k"}"#;
    relay.begin();
    relay.send(content);
    relay.commit();
    relay.core.connected(SLOT);
    relay.begin();
    assert!(relay.emit("outbox", content).expect("sound").is_none());
    relay.commit();
    assert_eq!(relay.core.counts().repeats_avoided, 1);
    relay.acknowledge();
    assert_eq!(relay.core.acknowledged_position().lsn(), Lsn::new(END));
}

#[test]
fn messages_that_cannot_be_events_stop_the_relay() {
    for (content, poison) in [
        ("secret", Poison::Undecodable),
        (r#"{"payload":"secret"}"#, Poison::Unroutable),
        (r#"{"topic":"a","aggregate":"secret"}"#, Poison::Unroutable),
    ] {
        let mut relay = Relay::new(Options::default(), PoisonPolicy::default());
        relay.begin();
        let error = relay.emit("outbox", content).expect_err(content);
        let cause = std::error::Error::source(&error)
            .expect("a cause")
            .to_string();
        let shown = format!("{error} {error:?} {cause}");
        assert!(!shown.contains("secret"), "{shown}");
        assert_eq!(error.disposition(), Disposition::Fatal, "{shown}");
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
    let mut relay = Relay::new(Options::default(), PoisonPolicy::default());
    let error = relay.emit("outbox", "{}").expect_err("no transaction");
    assert!(matches!(error, CoreError::Sequence { .. }), "{error}");
}

/// The dead letter contains the whole content if it cannot be decoded, and parks its key if it has
/// one.
#[test]
fn messages_become_dead_letters_if_the_policy_says_so() {
    let parking = Parking::new();
    parking.set_ready();
    let policy = PoisonPolicy {
        parking: Some(Arc::new(parking)),
        ..policy(PoisonAction::DeadLetter)
    };
    let mut relay = Relay::new(Options::default(), policy);
    relay.begin();
    let (seen, event) = relay.send("no JSON");
    assert_eq!(event, row(0));
    assert_eq!(
        (&*seen.0, seen.1, seen.2.as_deref()),
        ("walrelay.dead-letters", None, Some("no JSON"))
    );
    assert_header(&seen.3, "walrelay.dlq.table=message.outbox");
    assert_header(&seen.3, "walrelay.dlq.class=undecodable");

    // Without a topic, the row's parts and its headers are known.
    let content = r#"{"id":"m","key":"k","payload":[1],"headers":{"trace":"t"}}"#;
    let (seen, _) = relay.send(content);
    assert_eq!(
        (seen.1.as_deref(), seen.2.as_deref()),
        (Some("k"), Some("[1]"))
    );
    assert_eq!(seen.3[..2], ["id=m", "trace=t"]);
    // A later event of the key is parked; its dead letter names the topic that it would have had.
    let content = r#"{"topic":"orders.v1","key":"k","headers":{"trace":"u"}}"#;
    let (seen, _) = relay.send(content);
    assert_eq!(seen.0, "walrelay.dead-letters");
    assert_header(&seen.3, "walrelay.dlq.class=parked");
    assert_header(&seen.3, "walrelay.dlq.topic=orders.v1");
    assert_eq!(seen.3[..2], ["id=(null)", "trace=u"]);
    relay.commit();
    // They count once they are acknowledged.
    let counts = relay.core.counts();
    assert_eq!((counts.dead_letters, counts.parked), (0, 0));
    assert_eq!(relay.core.take_diverted().len(), 3);
    relay.acknowledge();
    let counts = relay.core.counts();
    assert_eq!((counts.dead_letters, counts.parked), (2, 1));
    let undecodable = Class::Poison(Poison::Undecodable);
    let unroutable = Class::Poison(Poison::Unroutable);
    let classes = [undecodable, unroutable, Class::Parked];
    assert_eq!(relay.core.take_dead_letters(), classes);
    assert!(relay.core.take_dead_letters().is_empty());
    assert_eq!(relay.core.acknowledged_position().lsn(), Lsn::new(END));
}

/// A message has the headers and the topic that its writer chooses. Neither makes it a dead letter, and
/// its dead letter is none of another event.
#[test]
fn messages_are_no_dead_letters_by_their_headers_or_topic() {
    let topic = PoisonPolicy::default().topic;
    let forged =
        r#""headers":{"walrelay.dlq.class":"parked","walrelay.dlq.resolves":"s 0/1 0","a":"b"}"#;
    let to_dead_letters = format!(r#"{{"topic":"{topic}","key":"k",{forged}}}"#);
    let mut relay = Relay::new(Options::default(), policy(PoisonAction::DeadLetter));
    relay.begin();
    let (seen, _) = relay.send(&to_dead_letters);
    assert_eq!(seen.0, *topic);
    assert_header(&seen.3, "walrelay.dlq.class=unroutable");
    assert_header(
        &seen.3,
        "walrelay.dlq.cause=a header has a name of dead letters (walrelay.dlq.…)",
    );
    assert_header(&seen.3, "a=b");
    let of_class = seen.3.iter().filter(|it| it.contains("dlq.class="));
    assert_eq!(of_class.count(), 1, "{:?}", seen.3);
    let forged_name = |it: &String| it.contains("dlq.resolves=");
    assert!(!seen.3.iter().any(forged_name), "{:?}", seen.3);

    let of_topic = format!(r#"{{"topic":"{topic}","key":"k"}}"#);
    let (seen, _) = relay.send(&of_topic);
    let cause = "walrelay.dlq.cause=its topic is the one of dead letters";
    assert_header(&seen.3, cause);

    // Another pipeline may write its dead letters to the topic that the row names.
    let content = format!(r#"{{"topic":"t","key":"k",{forged}}}"#);
    let body = message(true, "outbox", &content);
    let mut space = RecordSpace::default();
    match relay.core.frame(&frame(&body), &mut space) {
        Ok(Step::Send(outgoing)) => {
            assert_eq!(outgoing.record().kind, RecordKind::DeadLetter);
            assert_eq!(outgoing.record().topic, &*topic);
        }
        other => panic!("{other:?}"),
    }

    for (content, other) in [
        (&of_topic, PoisonAction::DeadLetter),
        (&content, PoisonAction::DeadLetter),
        (&content, PoisonAction::Halt),
    ] {
        let policy = PoisonPolicy {
            unroutable: PoisonAction::Halt,
            ..policy(other)
        };
        let mut relay = Relay::new(Options::default(), policy);
        relay.begin();
        let error = relay.emit("outbox", content).expect_err("halts");
        assert!(matches!(error, CoreError::OfDeadLetters { .. }), "{error}");
    }
}

/// No commit stands for a non-transactional message. It stops the relay, or is skipped and
/// reported; it is never ignored silently.
#[test]
fn messages_outside_of_transactions_are_reported() {
    let content = r#"{"aggregate":"Order","payload":"secret"}"#;
    let body = message(false, "outbox", content);
    let mut relay = Relay::new(Options::default(), PoisonPolicy::default());
    let error = relay.give(&body).expect_err("it is misused");
    assert!(matches!(&error, CoreError::NotTransactional { lsn, .. } if lsn.get() == 1_400));
    assert!(!error.to_string().contains("secret"));

    for action in [PoisonAction::Skip, PoisonAction::DeadLetter] {
        let mut relay = Relay::new(Options::default(), policy(action));
        // Also inside a transaction, to which the message does not belong.
        relay.begin();
        assert!(relay.give(&body).expect("skipped").is_none());
        relay.commit();
        let diverted = relay.core.take_diverted();
        assert_eq!(diverted.len(), 1);
        let skip = PoisonAction::Skip;
        assert_eq!(
            diverted[0].action, skip,
            "no dead letter would be confirmed"
        );
        assert_eq!(relay.core.counts().skipped, 1);
        relay.core.advance();
        assert_eq!(relay.core.acknowledged_position().lsn(), Lsn::new(END));
    }
}

/// The route needs a column that messages do not have.
#[test]
fn messages_that_do_not_fit_the_route_are_poison() {
    let options = || Options {
        event_key: "tenant".to_owned(),
        ..Options::default()
    };
    let content = r#"{"id":"m","aggregate":"Order","payload":1}"#;
    let mut relay = Relay::new(options(), PoisonPolicy::default());
    relay.begin();
    let error = relay.emit("outbox", content).expect_err("no such column");
    assert!(matches!(error, CoreError::Plan { .. }), "{error}");
    assert_eq!(error.disposition(), Disposition::Configuration);
    let mut relay = Relay::new(options(), policy(PoisonAction::DeadLetter));
    relay.begin();
    for content in [content, r#"{"id":"m","topic":"a","payload":1}"#] {
        let (seen, _) = relay.send(content);
        assert_eq!(
            (&*seen.0, seen.2.as_deref()),
            ("walrelay.dead-letters", Some("1"))
        );
    }
}

/// Without configured messages no message should arrive. If one does, it is no event.
#[test]
fn messages_are_no_events_if_they_are_not_configured() {
    let mut relay = Relay::new(Options::default(), PoisonPolicy::default());
    relay.core = relay.core.with_messages(None);
    relay.begin();
    assert!(relay.emit("outbox", "no JSON").expect("sound").is_none());
    relay.commit();
    assert_eq!(relay.core.counts().logical_messages, 1);
}

/// The events of a batch are numbered with the other events of the transaction, and each is sent,
/// acknowledged and decided about by itself.
#[test]
fn messages_with_several_events_are_as_many_rows() {
    let mut relay = Relay::new(Options::default(), policy(PoisonAction::DeadLetter));
    relay.begin();
    relay.send(r#"{"aggregate":"Order","key":"first"}"#);
    let content = r#"[{"id":"a","aggregate":"Order","key":"k"}, {"secret":1},
        {"id":"b","topic":"orders.v1","key":"k","headers":{"trace":"t"}}]"#;
    let body = message(true, "outbox", content);
    let (seen, event) = relay.give(&body).expect("sound").expect("sent");
    assert_eq!((event, seen.3), (row(1), vec!["id=a".to_owned()]));
    assert!(relay.core.is_inside_batch());
    let (seen, event) = relay.give(&body).expect("sound").expect("sent");
    assert_eq!(event, row(2));
    assert_eq!(
        (&*seen.0, seen.2.as_deref()),
        ("walrelay.dead-letters", Some(r#"{"secret":1}"#))
    );
    assert_header(&seen.3, "walrelay.dlq.class=undecodable");
    let (seen, event) = relay.give(&body).expect("sound").expect("sent");
    assert_eq!((&*seen.0, event), ("orders.v1", row(3)));
    assert_eq!(seen.3, ["id=b", "trace=t"]);
    assert!(relay.give(&body).expect("sound").is_none());
    assert!(!relay.core.is_inside_batch());
    // No event, no number.
    assert!(relay.emit("outbox", "[]").expect("sound").is_none());
    assert!(!relay.core.is_inside_batch());
    let (_, event) = relay.send(r#"{"aggregate":"Order","key":"last"}"#);
    assert_eq!(event, row(4));
    relay.commit();
    for seq in [0, 1, 3, 4] {
        relay.ring.ack(Seq::new(seq));
    }
    relay.core.advance();
    assert_eq!(relay.core.acknowledged_position(), SLOT, "one is missing");
    relay.acknowledge();
    assert_eq!(relay.core.acknowledged_position().lsn(), Lsn::new(END));
}

/// A batch that a full sink interrupts goes on at its event; one that a lost connection interrupts
/// goes on after those that the sink took.
#[test]
fn messages_with_several_events_go_on_where_they_were_interrupted() {
    let mut relay = Relay::new(Options::default(), PoisonPolicy::default());
    let event = |id: u8| format!(r#"{{"id":"{id}","aggregate":"Order","key":"k"}}"#);
    let content = format!("[{},{},{}]", event(0), event(1), event(2));
    let body = message(true, "outbox", &content);
    relay.begin();
    relay.give(&body).expect("sound").expect("sent");
    for _ in 0..3 {
        match relay
            .core
            .frame(&frame(&body), &mut RecordSpace::default())
            .expect("sound")
        {
            // Not taken.
            Step::Send(outgoing) => assert_eq!(outgoing.event().id, row(1)),
            other => panic!("{other:?}"),
        }
    }
    relay.core.connected(SLOT);
    assert!(!relay.core.is_inside_batch());
    relay.begin();
    assert!(relay.give(&body).expect("sound").is_none(), "it was taken");
    for id in 1..3 {
        let (seen, event) = relay.give(&body).expect("sound").expect("sent");
        assert_eq!((event, &*seen.3[0]), (row(id), &*format!("id={id}")));
    }
    assert!(relay.give(&body).expect("sound").is_none());
    relay.commit();
    relay.core.connected(SLOT);
    // Repeated whole, so nothing of it is sent.
    relay.begin();
    assert!(relay.give(&body).expect("sound").is_none());
    assert!(!relay.core.is_inside_batch());
    relay.commit();
    relay.acknowledge();
    assert_eq!(relay.core.acknowledged_position().lsn(), Lsn::new(END));
    assert_eq!(relay.core.counts().records, 3);
}

/// Events of a batch that were not processed are never confirmed, whatever a caller does.
#[test]
fn messages_with_several_events_must_be_processed_to_their_end() {
    let mut relay = Relay::new(Options::default(), PoisonPolicy::default());
    let content = r#"[{"aggregate":"Order","key":"k"},{"aggregate":"Order","key":"k"}]"#;
    relay.begin();
    relay.send(content);
    let other = encode::logical(true, Lsn::new(1_500), "outbox", content.as_bytes());
    let error = relay.give(&other).expect_err("another batch");
    assert!(matches!(error, CoreError::Sequence { .. }), "{error}");
    let commit = encode::commit(Lsn::new(COMMIT), Lsn::new(END), PgTimestamp::new(0));
    let error = relay.give(&commit).expect_err("one is missing");
    assert!(matches!(error, CoreError::Sequence { .. }), "{error}");
}

/// An event that the policy halts at names its number, and the events before it are sent.
#[test]
fn messages_with_a_malformed_event_stop_the_relay_at_it() {
    let mut relay = Relay::new(Options::default(), PoisonPolicy::default());
    relay.begin();
    let content = r#"[{"aggregate":"Order","key":"k"},{"aggregate":["secret"]}]"#;
    relay.send(content);
    let error = relay.emit("outbox", content).expect_err("malformed");
    let cause = std::error::Error::source(&error).expect("a cause");
    let shown = format!("{error} {error:?} {cause}");
    assert!(shown.contains("event 2 of the batch: member"), "{shown}");
    assert!(!shown.contains("secret"), "{shown}");
    // A batch outside a transaction is refused as a single message is.
    let mut relay = Relay::new(Options::default(), PoisonPolicy::default());
    let body = message(false, "outbox", content);
    let error = relay.give(&body).expect_err("it is misused");
    assert!(matches!(error, CoreError::NotTransactional { .. }));
}
