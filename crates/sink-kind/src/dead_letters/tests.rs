//! Tests over a log in memory: what a sink other than Kafka gets for its [`DlqLog`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use walrelay_failure::{Exit, Failure};
use walrelay_sink::{
    DeliveryError, Disposition, EventPosition, Header, Parking, Poison, PublishedLsn, Record,
    dlq_headers, dlq_shape, lock,
};

use super::*;
use crate::topics::{Position, ReadRecord};

/// The topic of dead letters.
const TOPIC: &str = "letters";

/// The records of all topics. A topic that is named `closed` accepts nothing.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<ReadRecord>>>);

impl Memory {
    fn write(&self, record: &Record<'_>) {
        let mut records = lock(&self.0);
        let headers = record.headers.iter();
        let headers = headers.map(|h| (h.name.to_owned(), h.value.map(<[u8]>::to_vec)));
        let record = ReadRecord {
            topic: record.topic.to_owned(),
            offset: records.len().try_into().expect("few"),
            timestamp_ms: record.timestamp_ms,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: headers.collect(),
            ..ReadRecord::default()
        };
        records.push(record);
    }

    /// Writes a dead letter of slot `s`, whose value is its position.
    fn dead_letter(&self, id: &str, key: &str, topic: &str) {
        self.dead_letter_of(None, id, key, topic);
    }

    /// Writes a dead letter that names its cluster.
    fn dead_letter_of(&self, system: Option<&str>, id: &str, key: &str, topic: &str) {
        let (lsn, row) = id.split_once(' ').expect("LSN and row");
        let header = |name, value: &'static str| Header {
            name,
            value: Some(value.as_bytes()),
        };
        let of = |name, value| Header {
            name,
            value: Some(str::as_bytes(value)),
        };
        let mut headers = vec![
            header(dlq_headers::CLASS, "rejected"),
            header(dlq_headers::SLOT, "s"),
            of(dlq_headers::LSN, lsn),
            of(dlq_headers::ROW, row),
            of(dlq_headers::TOPIC, topic),
        ];
        headers.extend(system.map(|system| of(dlq_headers::SYSTEM, system)));
        self.write(&Record {
            topic: TOPIC,
            key: Some(key.as_bytes()),
            value: Some(id.as_bytes()),
            headers: &headers,
            ..Record::default()
        });
    }

    fn log(&self) -> MemoryLog {
        MemoryLog {
            records: self.clone(),
            next: 0,
        }
    }

    /// Returns the values of a topic, in order.
    fn values(&self, topic: &str) -> Vec<String> {
        let records = lock(&self.0);
        let of_topic = records.iter().filter(|record| record.topic == topic);
        let values = of_topic.filter_map(|record| record.value.clone());
        values
            .map(|value| String::from_utf8(value).expect("text"))
            .collect()
    }
}

struct MemoryLog {
    records: Memory,
    next: usize,
}

impl DlqLog for MemoryLog {
    fn start_at(&mut self, timestamp_ms: i64) -> Result<(), Failure> {
        let records = lock(&self.records.0);
        let later = records
            .iter()
            .position(|r| r.timestamp_ms >= Some(timestamp_ms));
        self.next = later.unwrap_or(records.len());
        Ok(())
    }

    fn read(&mut self, each: &mut dyn FnMut(DlqEntry)) -> Result<(), Failure> {
        let records = lock(&self.records.0)[self.next..].to_vec();
        self.next += records.len();
        for record in records.into_iter().filter(|record| record.topic == TOPIC) {
            each(DlqEntry::from_record(record));
        }
        Ok(())
    }

    fn fetch(&mut self, positions: &[Position]) -> Result<HashMap<Position, DlqRecord>, Failure> {
        let records = lock(&self.records.0);
        let wanted = records.iter().filter(|r| positions.contains(&r.position()));
        let read = wanted.filter_map(|record| match DlqEntry::from_record(record.clone()) {
            DlqEntry::DlqRecord(dead_letter) => Some((record.position(), *dead_letter)),
            _ => None,
        });
        Ok(read.collect())
    }

    fn send(&mut self, record: &Record<'_>, _: Duration) -> Answer {
        if record.topic == "closed" {
            return Ok(Err(DeliveryError {
                topic: record.topic.into(),
                reason: "nothing is taken".to_owned(),
                disposition: Disposition::Configuration,
                poison: Some(Poison::Rejected),
            }));
        }
        self.records.write(record);
        Ok(Ok(()))
    }
}

fn redrive() -> ReplayOptions {
    ReplayOptions {
        action: Action::Redrive {
            topic: None,
            follow: false,
        },
        limit: None,
        patience: Duration::from_secs(1),
    }
}

#[test]
fn a_log_of_another_sink_is_replayed_in_order_and_once() {
    let memory = Memory::default();
    for row in 0..3 {
        memory.dead_letter(&format!("0/1 {row}"), "a", "orders");
    }
    memory.dead_letter("0/2 0", "b", "closed");
    memory.dead_letter("0/2 1", "b", "closed");
    let all = |_: &DlqRecord| true;
    let replay = || {
        let mut replayer = DlqReplayer::new(TOPIC, memory.log());
        replayer.read(&all).expect("readable");
        let mut failed = Vec::new();
        let summary = replayer.carry_out(&redrive(), &all, &mut |step| {
            if let Step::Failed(name, _, why) = step {
                failed.push(format!("{name}: {why}"));
            }
        });
        (summary.expect("it ends well"), failed)
    };
    let (summary, failed) = replay();
    assert_eq!((summary.done, summary.failed, summary.held_back), (3, 1, 1));
    assert!(failed[0].starts_with("s 0/2 0: "), "{failed:?}");
    assert_eq!(memory.values("orders"), ["0/1 0", "0/1 1", "0/1 2"]);
    let (summary, _) = replay();
    assert_eq!(
        (summary.done, summary.failed),
        (0, 1),
        "nothing is repeated"
    );
}

/// Dead letters with a value of their own shape: each that has its event's value is sent as the event, and one that has
/// not, or was changed, stays open, with its key behind it.
#[test]
fn shaped_dead_letters_are_redriven_as_their_events_or_not_at_all() {
    let memory = Memory::default();
    let values = ["{\"a\": 1.0}", "no JSON", "changed", "{\"b\":  2}"];
    for (row, value) in values.iter().enumerate() {
        let template = "{\"original_event\": {value}, \"attempts\": {attempts}}";
        let shape = dlq_shape::DlqShape::parse(template).expect("a template");
        let shaped = shape.render(&dlq_shape::ShapeFields {
            value: Some(value.as_bytes()),
            ..dlq_shape::ShapeFields::default()
        });
        memory.dead_letter(&format!("0/1 {row}"), "key", "orders");
        let mut records = lock(&memory.0);
        let record = records.last_mut().expect("the dead letter");
        let value_at = Some(shaped.value_at.into_bytes());
        let header = (dlq_headers::VALUE_AT.to_owned(), value_at);
        record.headers.push(header);
        let mut bytes = shaped.value;
        if *value == "changed" {
            bytes.push(b' ');
        }
        record.value = Some(bytes);
    }
    let all = |_: &DlqRecord| true;
    let mut replayer = DlqReplayer::new(TOPIC, memory.log());
    replayer.read(&all).expect("readable");
    let mut failed = Vec::new();
    let summary = replayer.carry_out(&redrive(), &all, &mut |step| {
        if let Step::Failed(name, _, why) = step {
            failed.push(format!("{name}: {why}"));
        }
    });
    let summary = summary.expect("it ends well");
    assert_eq!((summary.done, summary.failed, summary.held_back), (2, 1, 1));
    assert_eq!(memory.values("orders"), values[..2]);
    let why = "s 0/1 2: the event's value cannot be read out of the dead letter: its value is not as the relay has \
               written it";
    assert_eq!(failed, [why]);
}

#[test]
fn the_events_of_open_dead_letters_are_those_that_nobody_resolved() {
    let memory = Memory::default();
    memory.dead_letter("0/1 0", "a", "orders");
    memory.dead_letter("0/2 0", "b", "closed");
    let mut replayer = DlqReplayer::new(TOPIC, memory.log());
    let all = |_: &DlqRecord| true;
    replayer.read(&all).expect("readable");
    let done = replayer.carry_out(&redrive(), &all, &mut |_| {});
    assert_eq!(done.expect("it ends well").done, 1);
    let mut events = OpenEvents::new("s".to_owned());
    let mut of_other = OpenEvents::new("t".to_owned());
    let mut log = memory.log();
    log.read(&mut |entry| events.add(entry)).expect("readable");
    let mut log = memory.log();
    log.read(&mut |entry| of_other.add(entry))
        .expect("readable");
    assert_eq!((events.iter().count(), of_other.iter().count()), (1, 0));
}

/// Two clusters have a slot of one name, and events at one position.
#[test]
fn a_dead_letter_is_resolved_for_its_own_cluster_alone() {
    let memory = Memory::default();
    for (system, key) in [(Some("1"), "a"), (Some("2"), "b"), (None, "c")] {
        memory.dead_letter_of(system, "0/1 0", key, "orders");
    }
    let all = |_: &DlqRecord| true;
    let drop = ReplayOptions {
        action: Action::Drop,
        ..redrive()
    };
    for (resolved, system) in [(1, Some("2")), (2, None), (3, Some("1"))] {
        let mut replayer = DlqReplayer::new(TOPIC, memory.log());
        let of_system = |dead_letter: &DlqRecord| dead_letter.system.as_deref() == system;
        replayer.read(&of_system).expect("readable");
        let done = replayer.carry_out(&drop, &of_system, &mut |_| {});
        assert_eq!(done.expect("it ends well").done, 1);
        let mut replayer = DlqReplayer::new(TOPIC, memory.log());
        replayer.read(&all).expect("readable");
        assert_eq!(replayer.open(), 3 - resolved);
        let mut events = OpenEvents::new("s".to_owned());
        let mut log = memory.log();
        log.read(&mut |entry| events.add(entry)).expect("readable");
        let outcomes = events.all().outcomes;
        assert_eq!(outcomes.len(), resolved);
        let origin = (EventPosition::in_first_epoch(1, 0), system.map(Arc::from));
        assert_eq!(outcomes.get(&origin), Some(&Outcome::Dropped));
    }
}

/// An event after all dead letters of the tests of the follower.
const LATER: EventPosition = EventPosition::in_first_epoch(9, 0);

/// Waits until a thread has read what a test wrote.
fn until(done: &dyn Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !done() {
        assert!(
            Instant::now() < deadline,
            "the follower does not read what was written"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_follower_frees_a_key_after_the_resolution_of_its_own_cluster() {
    let memory = Memory::default();
    for system in ["1", "2"] {
        memory.dead_letter_of(Some(system), "0/1 0", "k", "orders");
    }
    let drop_of = |system: &'static str| {
        let of_system = move |it: &DlqRecord| it.system.as_deref() == Some(system);
        let mut replayer = DlqReplayer::new(TOPIC, memory.log());
        replayer.read(&of_system).expect("readable");
        let drop = ReplayOptions {
            action: Action::Drop,
            ..redrive()
        };
        let done = replayer.carry_out(&drop, &of_system, &mut |_| {});
        assert_eq!(done.expect("it ends well").done, 1);
    };
    let parking = Arc::new(Parking::new());
    let log = memory.clone();
    let follower = DlqFollower::start("s", Arc::clone(&parking), move || Ok(Some(log.log())));
    let follower = follower.expect("it starts");
    until(&|| parking.is_ready());
    assert_eq!(parking.open(), 2);
    drop_of("2");
    until(&|| parking.resolved() == 1);
    assert!(parking.is_parked(LATER, "orders", b"k"));
    drop_of("1");
    until(&|| !parking.is_parked(LATER, "orders", b"k"));
    drop(follower);
}

#[test]
fn a_follower_parks_and_frees_keys_and_waits_for_a_server() {
    let memory = Memory::default();
    memory.dead_letter("0/1 0", "a", "orders");
    let parking = Arc::new(Parking::new());
    let mut refused = false;
    let log = memory.clone();
    let follower = DlqFollower::start("s", Arc::clone(&parking), move || {
        if !std::mem::replace(&mut refused, true) {
            let failure = Failure::new("away", Exit::Unavailable, "no answer");
            return Err(failure);
        }
        Ok(Some(log.log()))
    });
    let follower = follower.expect("it starts");
    until(&|| parking.is_ready());
    assert!(parking.is_parked(LATER, "orders", b"a"));
    memory.dead_letter("0/1 1", "b", "orders");
    parking.require_reading();
    until(&|| parking.is_ready());
    assert!(parking.is_parked(LATER, "orders", b"b"));
    let mut replayer = DlqReplayer::new(TOPIC, memory.log());
    let of_a = |dead_letter: &DlqRecord| dead_letter.key.as_deref() == Some(b"a");
    replayer.read(&of_a).expect("readable");
    replayer
        .carry_out(&redrive(), &of_a, &mut |_| {})
        .expect("it ends well");
    until(&|| !parking.is_parked(LATER, "orders", b"a"));
    assert!(parking.is_parked(LATER, "orders", b"b"));
    assert_eq!(parking.resolved(), 1);
    parking.confirm(PublishedLsn::new(0, 2));
    until(&|| parking.resolved() == 0);
    drop(follower);
    assert_eq!(Arc::strong_count(&parking), 1, "the thread has ended");
}
