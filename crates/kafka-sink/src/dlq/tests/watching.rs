use std::sync::Arc;

use walrelay_sink::{EventPosition, Parking};

use super::*;
use crate::KafkaError;
use crate::consumer::Consumer;
use crate::dlq::{DlqWatcher, OpenDeadLetters};

/// An event after all dead letters of these tests.
const LATER: EventPosition = EventPosition::in_first_epoch(u64::MAX, 0);

fn watch(cluster: &Cluster) -> (DlqWatcher, Arc<Parking>) {
    watch_with(&config(cluster))
}

fn watch_with(config: &KafkaConfig) -> (DlqWatcher, Arc<Parking>) {
    let parking = Arc::new(Parking::new());
    let watcher = DlqWatcher::start(config, TOPIC, "s", Arc::clone(&parking));
    (watcher.expect("it starts"), parking)
}

#[test]
fn dead_letters_of_earlier_runs_are_known_before_it_is_ready() {
    let cluster = cluster(&[(TOPIC, 3)]);
    let writer = Writer::new(&cluster);
    for number in 0..50 {
        writer.dead_letter(&draft(&format!("0/1 {number}"), &format!("k{number}")));
    }
    for number in 0..20 {
        writer.resolution(Some(&format!("k{number}")), &format!("s 0/1 {number}"));
    }
    let (_watcher, parking) = watch(&cluster);
    eventually("ready", || parking.is_ready());
    assert_eq!(parking.open(), 30);
    for number in 0..50 {
        let parked = parking.is_parked(LATER, "orders", format!("k{number}").as_bytes());
        assert_eq!(parked, number >= 20, "k{number}");
    }
}

#[test]
fn keys_are_parked_and_freed_while_it_watches() {
    let cluster = cluster(&[(TOPIC, 1)]);
    let writer = Writer::new(&cluster);
    let (_watcher, parking) = watch(&cluster);
    eventually("ready", || parking.is_ready());
    let other_slot = Draft {
        slot: "other",
        ..draft("0/1 0", "k")
    };
    writer.dead_letter(&other_slot);
    writer.dead_letter(&Draft {
        key: None,
        ..draft("0/1 1", "k")
    });
    writer.write(Some("k"), Some("v"), &[("id", "of somebody else")]);
    writer.dead_letter(&draft("0/1 2", "l").to(None));
    eventually("parked", || parking.is_parked(LATER, "any", b"l"));
    // The only partition is read in order, so the records before this one were skipped.
    assert!(!parking.is_parked(LATER, "orders", b"k"));
    assert_eq!(parking.open(), 1);
    // A repeat, as of a relay that was killed; and another slot's dead letter at the same position.
    writer.dead_letter(&draft("0/1 2", "l").to(None));
    writer.resolution(Some("l"), "other 0/1 2");
    writer.dead_letter(&draft("0/2 0", "m"));
    eventually("parked", || parking.is_parked(LATER, "orders", b"m"));
    assert!(parking.is_parked(LATER, "any", b"l"));
    writer.resolution(Some("l"), "s 0/1 2");
    eventually("free", || !parking.is_parked(LATER, "any", b"l"));
    assert!(parking.is_parked(LATER, "orders", b"m"));
}

/// Two clusters have a slot of one name, and events at one position.
#[test]
fn a_key_is_free_after_the_resolution_of_its_own_cluster() {
    let cluster = cluster(&[(TOPIC, 1)]);
    let writer = Writer::new(&cluster);
    for (system, key) in [("2", "l"), ("1", "k")] {
        writer.dead_letter(&Draft {
            more: &[(dlq_headers::SYSTEM, system)],
            ..draft("0/1 0", key)
        });
    }
    let resolve = |system, key| {
        let headers = [
            (dlq_headers::RESOLVES, "s 0/1 0"),
            (dlq_headers::RESOLUTION, dlq_headers::REDRIVEN),
            (dlq_headers::SYSTEM, system),
        ];
        writer.write(Some(key), None, &headers);
    };
    let (_watcher, parking) = watch(&cluster);
    eventually("ready", || parking.is_ready());
    assert_eq!(parking.open(), 2);
    resolve("2", "l");
    eventually("free", || !parking.is_parked(LATER, "orders", b"l"));
    assert!(parking.is_parked(LATER, "orders", b"k"));
    resolve("1", "k");
    eventually("free", || !parking.is_parked(LATER, "orders", b"k"));
}

/// As when a relay takes the slot over from one that has just parked keys.
#[test]
fn a_required_reading_knows_what_was_written_before() {
    let cluster = cluster(&[(TOPIC, 3)]);
    let writer = Writer::new(&cluster);
    let (_watcher, parking) = watch(&cluster);
    eventually("ready", || parking.is_ready());
    for number in 0..20 {
        let key = format!("k{number}");
        writer.dead_letter(&draft(&format!("0/1 {number}"), &key));
        parking.require_reading();
        eventually("ready", || parking.is_ready());
        let parked = parking.is_parked(LATER, "orders", key.as_bytes());
        assert!(parked, "{key}");
    }
    assert_eq!(parking.open(), 20);
}

/// The first dead letter makes the topic.
#[test]
fn a_required_reading_finds_a_new_topic() {
    let cluster = cluster(&[]);
    let (_watcher, parking) = watch(&cluster);
    eventually("ready", || parking.is_ready());
    cluster.create_topic(TOPIC, 1, 1).expect("created");
    Writer::new(&cluster).dead_letter(&draft("0/1 0", "k"));
    parking.require_reading();
    eventually("ready", || parking.is_ready());
    assert!(parking.is_parked(LATER, "orders", b"k"));
}

fn open_dead_letters(config: KafkaConfig) -> OpenDeadLetters {
    OpenDeadLetters::new(config, TOPIC.to_owned(), "s".to_owned(), LONG)
}

/// Returns the ids of the events of open dead letters, sorted.
fn ids(open: &OpenDeadLetters) -> Vec<Vec<u8>> {
    let ids = open.events().map(|event| event.id.clone());
    let mut ids: Vec<_> = ids.flatten().collect();
    ids.sort();
    ids
}

/// The events whose rows must be kept.
#[test]
fn open_dead_letters_are_those_that_nobody_resolved() {
    let cluster = cluster(&[]);
    let mut open = open_dead_letters(config(&cluster));
    open.read(Some((1, 0))).expect("an answer");
    assert_eq!(open.events().count(), 0);
    cluster.create_topic(TOPIC, 2, 1).expect("created");
    let writer = Writer::new(&cluster);
    for (id, name) in [("0/1 0", "a"), ("0/1 1", "b"), ("0/2 0", "c")] {
        named_dead_letter(&writer, id, name);
    }
    writer.dead_letter(&Draft {
        slot: "other",
        ..draft("0/3 0", "k")
    });
    writer.resolution(Some("k"), "s 0/1 1");
    // Written again by a relay that was killed.
    writer.dead_letter(&draft("0/1 1", "k"));
    open.read(Some((1, 0))).expect("an answer");
    assert_eq!(open.events().count(), 0, "nobody wrote a dead letter");
    open.read(Some((1, 1))).expect("an answer");
    assert_eq!(ids(&open), [b"a", b"c"]);
    assert!(
        open.events()
            .all(|event| event.xid == Some(7) && event.table.as_deref() == Some("public.outbox"))
    );
    writer.resolution(Some("k"), "s 0/2 0");
    open.read(Some((1, 1))).expect("an answer");
    assert_eq!(ids(&open), [b"a"]);
}

/// Writes a dead letter with the id of its event.
fn named_dead_letter(writer: &Writer, id: &str, name: &str) {
    let more: &[_] = &[(dlq_headers::EVENT_ID, name)];
    let draft = draft(id, "k");
    writer.dead_letter(&Draft { more, ..draft });
}

/// Two clusters, of which a client sees one at a time: the mock cluster can neither delete a topic
/// nor add partitions.
struct Exchange {
    before: Cluster,
    after: Cluster,
    config: KafkaConfig,
}

impl Exchange {
    /// Creates the topic with these numbers of partitions; 0: without the topic.
    fn new(before: i32, after: i32) -> Self {
        let of = |partitions| match partitions {
            0 => cluster(&[]),
            partitions => cluster(&[(TOPIC, partitions)]),
        };
        let (before, after) = (of(before), of(after));
        let servers = [before.bootstrap_servers(), after.bootstrap_servers()].join(",");
        let config = config_of(&before, &[("bootstrap.servers", &servers)]);
        Self {
            before,
            after,
            config,
        }
    }

    fn show_before(&self) {
        self.after.broker_down(1).expect("down");
    }

    fn show_after(&self) {
        self.before.broker_down(1).expect("down");
        self.after.broker_up(1).expect("up");
    }
}

/// Partitions that were added since the first read.
#[test]
fn open_dead_letters_of_added_partitions_are_known() {
    let exchange = Exchange::new(1, 2);
    for cluster in [&exchange.before, &exchange.after] {
        named_dead_letter(&Writer::new(cluster).with_partition(0), "0/1 0", "a");
    }
    let added = Writer::new(&exchange.after).with_partition(1);
    named_dead_letter(&added, "0/1 1", "b");
    exchange.show_before();
    let mut open = open_dead_letters(exchange.config.clone());
    open.read(None).expect("an answer");
    assert_eq!(ids(&open), [b"a"]);
    exchange.show_after();
    open.read(None).expect("an answer");
    assert_eq!(ids(&open), [b"a", b"b"]);
}

/// A topic that was deleted, and may have been made anew with fewer records.
#[test]
fn open_dead_letters_of_a_topic_made_anew_are_known() {
    for partitions in [0, 1] {
        let exchange = Exchange::new(1, partitions);
        let writer = Writer::new(&exchange.before);
        for (id, name) in [("0/1 0", "a"), ("0/1 1", "b"), ("0/2 0", "c")] {
            named_dead_letter(&writer, id, name);
        }
        if partitions > 0 {
            named_dead_letter(&Writer::new(&exchange.after), "0/3 0", "d");
        }
        exchange.show_before();
        let mut open = open_dead_letters(exchange.config.clone());
        open.read(Some((1, 1))).expect("an answer");
        assert_eq!(ids(&open), [b"a", b"b", b"c"]);
        exchange.show_after();
        let error = open.read(Some((1, 1))).expect_err("it was deleted");
        assert!(matches!(error, KafkaError::Topic { .. }), "{error:?}");
        // Nobody takes what is not in the topic for its dead letters.
        assert_eq!(open.events().count(), 0);
        open.read(Some((1, 1))).expect("an answer");
        let expected: &[_] = if partitions > 0 { &[b"d"] } else { &[] };
        assert_eq!(ids(&open), expected);
    }
}

#[test]
fn without_a_topic_it_is_ready_and_follows_one_that_appears() {
    let cluster = cluster(&[]);
    let (_watcher, parking) = watch(&cluster);
    eventually("ready", || parking.is_ready());
    cluster.create_topic(TOPIC, 2, 1).expect("created");
    let writer = Writer::new(&cluster);
    writer.dead_letter(&draft("0/1 0", "k"));
    eventually("parked", || parking.is_parked(LATER, "orders", b"k"));
}

#[test]
fn it_is_not_ready_before_a_broker_has_answered() {
    let cluster = cluster(&[(TOPIC, 2)]);
    Writer::new(&cluster).dead_letter(&draft("0/1 0", "k"));
    let proxy = Proxy::start(&cluster);
    cluster.broker_down(1).expect("down");
    let through = config_of(&cluster, &[("bootstrap.servers", &proxy.servers())]);
    let (_watcher, parking) = watch_with(&through);
    // A topic counts as missing after three responses. The control is a client that fails more
    // often meanwhile.
    let control = Consumer::new(&through, &[]).expect("a client");
    for _ in 0..5 {
        let failed = control.partitions(TOPIC, Duration::from_secs(1));
        failed.expect_err("no broker answers");
    }
    assert!(!parking.is_ready());
    cluster.broker_up(1).expect("up");
    eventually("ready", || parking.is_ready());
    assert!(parking.is_parked(LATER, "orders", b"k"));
    // The broker is lost again while the watcher follows the topic. The client has noticed it when
    // it tries to connect again.
    drop(control);
    let before = proxy.connections();
    cluster.broker_down(1).expect("down");
    eventually("a connection", || proxy.connections() > before);
    cluster.broker_up(1).expect("up");
    Writer::new(&cluster).resolution(Some("k"), "s 0/1 0");
    eventually("free", || !parking.is_parked(LATER, "orders", b"k"));
}

#[test]
fn dropping_it_does_not_wait_for_a_broker() {
    let cluster = cluster(&[(TOPIC, 2)]);
    let (watcher, parking) = watch(&cluster);
    eventually("ready", || parking.is_ready());
    // The broker never comes back.
    cluster.broker_down(1).expect("down");
    ends("the watcher is dropped", move || drop(watcher));
}
