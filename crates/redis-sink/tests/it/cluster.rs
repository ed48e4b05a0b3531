//! The conformance suite, failovers and moved slots, against a Redis Cluster.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::process;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{NO_STREAM, options, refusals, section, stored, trusting, without_stream};
use walrelay_redis_sink::{Ids, RedisKind, RedisSection};
use walrelay_sink::{
    AnySinkFactory, Deliveries, Disposition, EventPosition, Header, HeldRecord, Obstacle, Record,
    RecordKind, Retrying, SendError, Sink, SinkError, SinkFactory, SinkOptions, SinkStats,
    StreamStart, dlq_headers,
};
use walrelay_sink_kind::SinkKind as _;
use walrelay_sink_kind::dead_letters::DlqAddress;
use walrelay_testkit::conformance::{Bounds, Destination, Refusal, Stored};
use walrelay_testkit::{
    Authority, OpenSink, PATIENCE, Redis, RedisCluster, conformance, eventually,
};

/// The streams that a topic of the conformance suite is spread over.
const STREAMS: u64 = 8;

/// A cluster that one test has to itself.
struct Cluster {
    cluster: RedisCluster,
    ids: Ids,
}

impl Cluster {
    fn start(ids: Ids, with_replicas: bool) -> Self {
        if !Redis::is_wanted() {
            // None of the tests of this program can be run.
            process::exit(0);
        }
        Self {
            cluster: RedisCluster::start(with_replicas),
            ids,
        }
    }

    /// Only one node is configured.
    fn section(&self) -> RedisSection {
        RedisSection {
            cluster: true,
            ..section(self.cluster.node(0).port(), self.ids)
        }
    }

    /// An event must be on the replica, which may become the master.
    fn waiting(&self) -> RedisSection {
        RedisSection {
            wait_replicas: 1,
            ..self.section()
        }
    }

    fn each(&self, action: impl Fn(&Redis)) {
        for number in 0..3 {
            action(self.cluster.node(number));
        }
    }
}

impl Destination for Cluster {
    fn factory(&self, bounds: Bounds) -> AnySinkFactory {
        let kind = RedisKind::new(&self.section(), &bounds.options());
        Box::new(Spread(kind.unwrap().factory(None).0))
    }

    fn patient(&self, retry_for: Duration) -> Option<(AnySinkFactory, Refusal)> {
        for number in 0..STREAMS {
            let name = format!("{NO_STREAM}-{number}");
            let mut client = self.cluster.client_of(&name);
            client.done(&format!("SET {name} value"));
        }
        let options = SinkOptions {
            retry_for,
            ..options()
        };
        let kind = RedisKind::new(&self.section(), &options);
        let factory = Box::new(Spread(kind.unwrap().factory(None).0));
        Some((factory, without_stream()))
    }

    fn stored(&self, topic: &str) -> Vec<Stored> {
        let streams = (0..STREAMS).map(|number| format!("{topic}-{number}"));
        let stored = |stream: String| stored(&mut self.cluster.client_of(&stream), &stream);
        streams.flat_map(stored).collect()
    }

    fn pause(&self) {
        self.each(Redis::pause);
    }

    fn resume(&self) {
        self.each(Redis::resume);
        self.cluster.settled();
    }

    fn kill(&self) {
        self.each(Redis::kill);
    }

    fn start(&self) {
        self.each(Redis::start_again);
        self.cluster.settled();
    }

    fn refusals(&self) -> Vec<Refusal> {
        refusals()
    }

    fn drops_repeats(&self) -> bool {
        self.ids == Ids::Position
    }
}

/// Makes sinks that write the events of a topic to several streams, by their keys.
struct Spread(AnySinkFactory);

impl SinkFactory for Spread {
    type Sink = Box<dyn Sink>;
    type Error = SinkError;

    fn create(
        &mut self,
        start: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(SpreadSink(self.0.create(start, deliveries)?)))
    }

    fn disposition(_: &SinkError) -> Disposition {
        Disposition::Retryable
    }
}

struct SpreadSink(Box<dyn Sink>);

impl Sink for SpreadSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        let mut hasher = DefaultHasher::new();
        record.key.hash(&mut hasher);
        let stream = format!("{}-{}", record.topic, hasher.finish() % STREAMS);
        let spread = Record {
            topic: if record.topic.is_empty() { "" } else { &stream },
            ..*record
        };
        self.0.try_send(&spread, seq)
    }

    fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<(u64, HeldRecord)> {
        let withdrawn = self.0.withdraw(seq, behind).into_iter();
        let gathered = |record: &Record<'_>| {
            let topic = record.topic.rsplit_once('-').map_or("", |(topic, _)| topic);
            HeldRecord::new(&Record { topic, ..*record })
        };
        withdrawn
            .map(|(seq, held)| (seq, held.with(gathered)))
            .collect()
    }

    fn waiting_for(&mut self) -> Option<Obstacle> {
        self.0.waiting_for()
    }

    fn retrying(&self) -> Option<Retrying> {
        self.0.retrying()
    }

    fn close(self: Box<Self>, grace: Duration) {
        self.0.close(grace);
    }
}

conformance!(Cluster::start(Ids::Position, false));

mod server_ids {
    use super::*;

    conformance!(Cluster::start(Ids::Server, false) =>
        acknowledged_means_durable
        order_per_key
    );
}

/// A sink with its reports, which writes to four streams by turns.
struct Relay {
    sink: OpenSink,
    stats: Arc<SinkStats>,
    streams: Vec<String>,
}

impl Relay {
    fn with(section: &RedisSection, streams: &[&str]) -> Self {
        let kind = RedisKind::new(section, &options()).unwrap();
        let (mut factory, stats) = kind.factory(None);
        Self {
            sink: OpenSink::new(&mut factory, None),
            stats: stats.unwrap(),
            streams: streams.iter().map(|it| (*it).to_owned()).collect(),
        }
    }

    /// Sends events: the row and the id of each are its number.
    fn send(&mut self, count: u64) {
        for _ in 0..count {
            let stream = self.sink.sent % self.streams.len() as u64;
            let position = EventPosition::in_first_epoch(1, self.sink.sent);
            let stream = &self.streams[stream as usize];
            self.sink.send_event(stream, "key", position);
        }
    }

    /// Asserts that each stream has its events, in order, once, with their positions as ids.
    fn has_all(&self, cluster: &RedisCluster) {
        let count = self.streams.len();
        for (number, stream) in self.streams.iter().enumerate() {
            let entries = cluster.client_of(stream).entries(stream);
            let ids = entries.iter().map(|entry| entry.id.clone());
            let expected = (number as u64..self.sink.sent).step_by(count);
            assert!(ids.eq(expected.map(|it| format!("1-{it}"))), "{stream}");
        }
    }
}

/// The slots of the first three belong to the first three nodes, and that of the fourth to the first.
const SPREAD: [&str; 4] = ["b", "c", "a", "f"];

#[test]
fn nothing_is_lost_or_repeated_when_masters_are_killed_and_their_replicas_are_promoted() {
    let it = Cluster::start(Ids::Position, true);
    let cluster = &it.cluster;
    let mut relay = Relay::with(&it.waiting(), &SPREAD);
    // The second round kills the only node of the configuration.
    for killed in [1, 0] {
        relay.send(1_000);
        // Amid the transactions.
        let before = usize::try_from(relay.sink.sent).unwrap() - 500;
        relay
            .sink
            .reports
            .wait(|state| state.outcomes.len() >= before);
        relay.send(3_000);
        let stream = SPREAD.into_iter().find(|it| cluster.owner(it) == killed);
        let stream = stream.expect("a stream of the node");
        cluster.node(killed).kill();
        cluster.failed_over(stream, killed);
        // The new master has no replica.
        relay.sink.waits_for("0 of 1 replicas");
        let shown = relay.stats.endpoints();
        let gone = format!("127.0.0.1:{}", cluster.node(killed).port());
        assert!(shown.iter().all(|it| it.name != gone), "{shown:?}");
        cluster.node(killed).start_again();
        relay.sink.delivered();
        cluster.settled();
        relay.has_all(cluster);
    }
}

#[test]
fn a_slot_that_is_moved_while_events_are_written_is_followed() {
    let it = Cluster::start(Ids::Position, false);
    let cluster = &it.cluster;
    let mut relay = Relay::with(&it.section(), &SPREAD);
    let moved = SPREAD[0];
    for to in [1, 2, 0] {
        relay.send(400);
        relay.sink.delivered();
        cluster.begin_move(moved, to);
        // It has not left yet.
        relay.send(400);
        relay.sink.delivered();
        cluster.move_key(moved, to);
        relay.send(400);
        // The node answers ASK.
        assert_eq!(relay.sink.waits_for("is moving"), Disposition::Retryable);
        cluster.end_move(moved, to);
        relay.sink.delivered();
        assert_eq!(cluster.owner(moved), to);
        // And a move that the relay sees at its end only.
        cluster.begin_move(moved, (to + 1) % 3);
        cluster.move_key(moved, (to + 1) % 3);
        cluster.end_move(moved, (to + 1) % 3);
        relay.send(400);
        relay.sink.delivered();
        relay.has_all(cluster);
        cluster.begin_move(moved, to);
        cluster.move_key(moved, to);
        cluster.end_move(moved, to);
    }
    // Of a slot that is being moved, a new stream is on neither node.
    let tagged = format!("{{{moved}}}new");
    let mut other = Relay::with(&it.section(), &[moved, &tagged]);
    other.sink.sent = relay.sink.sent;
    cluster.begin_move(moved, 1);
    other.send(2);
    other.sink.waits_for("is moving");
    cluster.move_key(moved, 1);
    cluster.end_move(moved, 1);
    other.sink.reports.wait(|state| state.outcomes.len() == 2);
    assert_eq!(other.sink.reports.failures(), []);
    assert_eq!(cluster.client_of(moved).length(&tagged), 1);
}

#[test]
fn events_go_by_tls_to_the_names_that_the_cluster_announces() {
    if !Redis::is_wanted() {
        return;
    }
    let authority = Authority::new("ca");
    let cluster = RedisCluster::start_with_tls(&authority, "localhost");
    let ca = tempfile::NamedTempFile::new().unwrap();
    fs::write(ca.path(), authority.pem()).unwrap();
    let section = RedisSection {
        hosts: vec![format!("localhost:{}", cluster.node(0).tls_port().unwrap())],
        tls: true,
        files: trusting(ca.path()),
        cluster: true,
        ..section(cluster.node(0).port(), Ids::Position)
    };
    let mut relay = Relay::with(&section, &SPREAD);
    relay.send(400);
    relay.sink.delivered();
    let moved = SPREAD[0];
    for to in [1, 2] {
        cluster.begin_move(moved, to);
        cluster.move_key(moved, to);
        cluster.end_move(moved, to);
        relay.send(400);
        relay.sink.delivered();
    }
    relay.has_all(&cluster);
    let shown = relay.stats.endpoints();
    assert_eq!(shown.len(), 3, "{shown:?}");
    for endpoint in &shown {
        assert!(endpoint.name.starts_with("localhost:"), "{shown:?}");
    }
}

#[test]
fn entries_that_are_found_count_when_the_replica_has_them() {
    let it = Cluster::start(Ids::Position, true);
    let cluster = &it.cluster;
    let mut relay = Relay::with(&it.waiting(), &SPREAD);
    relay.send(100);
    relay.sink.delivered();
    relay.sink.close(PATIENCE);
    let facts = |stream: &str| {
        let mut client = cluster.client_of(stream);
        client.run(&format!("XINFO STREAM {stream}"))
    };
    let before = SPREAD.map(facts);
    // The replica of the node of the stream "c".
    cluster.node(4).pause();
    let mut relay = Relay::with(&it.waiting(), &SPREAD);
    relay.send(100);
    relay.sink.waits_for("0 of 1 replicas");
    assert!(relay.sink.reports.is(|state| state.outcomes.is_empty()));
    cluster.node(4).resume();
    relay.sink.delivered();
    assert_eq!(SPREAD.map(facts), before);
    relay.send(100);
    relay.sink.delivered();
    relay.has_all(cluster);
    cluster.settled();
}

#[test]
fn a_slot_that_no_node_serves_is_waited_for() {
    let it = Cluster::start(Ids::Position, false);
    let cluster = &it.cluster;
    let mut relay = Relay::with(&it.section(), &SPREAD);
    relay.send(8);
    relay.sink.delivered();
    let slot = cluster.slot("c");
    for number in 0..3 {
        cluster
            .client(number)
            .done(&format!("CLUSTER DELSLOTS {slot}"));
    }
    relay.send(8);
    eventually(PATIENCE, || relay.sink.waiting_for().is_some());
    let given = format!("CLUSTER ADDSLOTS {slot}");
    cluster.client(1).done(&given);
    relay.sink.delivered();
    cluster.settled();
    relay.has_all(cluster);
}

#[test]
fn what_is_no_cluster_what_is_one_and_missing_rights_are_shown() {
    let it = Cluster::start(Ids::Position, true);
    let cluster = &it.cluster;
    let refused = |section: &RedisSection, words: &str| {
        let mut relay = Relay::with(section, &SPREAD);
        relay.send(1);
        let disposition = relay.sink.waits_for(words);
        assert_eq!(disposition, Disposition::Configuration, "{words}");
        relay.sink.close(Duration::ZERO);
    };
    let alone = Redis::start();
    let no_cluster = RedisSection {
        hosts: vec![format!("127.0.0.1:{}", alone.port())],
        ..it.section()
    };
    refused(&no_cluster, "no node of a cluster");
    let not_said = RedisSection {
        cluster: false,
        ..it.section()
    };
    let mut relay = Relay::with(&not_said, &["a", "b"]);
    relay.send(2);
    relay.sink.reports.wait_for(2);
    let failures = relay.sink.reports.failures();
    let said = |it: &&walrelay_sink::DeliveryError| it.reason.contains("set `cluster`");
    let said = failures.iter().find(said).expect("it is said");
    assert_eq!(said.disposition, Disposition::Configuration);

    let rights = "~* +ping +multi +exec +xadd +xrange +xinfo|stream +wait +xsetid";
    for number in 0..6 {
        let mut client = cluster.client(number);
        client.done(&format!("ACL SETUSER weak on >secret-word {rights}"));
        client.done(&format!(
            "ACL SETUSER relay on >secret-word {rights} +cluster|slots"
        ));
    }
    let user = |name: &str| RedisSection {
        username: Some(name.to_owned()),
        password: Some("secret-word".into()),
        ..it.waiting()
    };
    refused(&user("weak"), "may not use CLUSTER SLOTS");
    for _ in 0..2 {
        let mut relay = Relay::with(&user("relay"), &SPREAD);
        relay.send(100);
        relay.sink.delivered();
        relay.has_all(cluster);
    }
}

#[test]
fn dead_letters_are_read_where_their_slot_is() {
    let it = Cluster::start(Ids::Position, false);
    let cluster = &it.cluster;
    let kind = RedisKind::new(&it.section(), &options()).unwrap();
    let mut sink = OpenSink::new(&mut kind.factory(None).0, None);
    // Its slot is not that of the node that is configured.
    let address = DlqAddress {
        topic: "c",
        slot: "s",
    };
    let store = kind.dead_letters().unwrap();
    let mut read = store.read_open(address, true, Box::new(|| None));
    assert_eq!(read().unwrap().open, [], "there is no stream");
    for number in 1..=4_u64 {
        let lsn = format!("0/{number:X}");
        let headers = [
            (dlq_headers::CLASS, "unroutable"),
            (dlq_headers::SLOT, "s"),
            (dlq_headers::LSN, &lsn),
            (dlq_headers::ROW, "0"),
            (dlq_headers::EVENT_ID, "id"),
        ];
        let headers = headers.map(|(name, value)| Header {
            name,
            value: Some(value.as_bytes()),
        });
        let record = Record {
            kind: RecordKind::DeadLetter,
            topic: "c",
            headers: &headers,
            position: EventPosition::in_first_epoch(number, 0),
            ..Record::default()
        };
        sink.send(&record);
        sink.delivered();
        assert_eq!(read().unwrap().open.len(), number as usize);
        // The reader follows the slot.
        let to = (cluster.owner("c") + 1) % 3;
        cluster.begin_move("c", to);
        cluster.move_key("c", to);
        cluster.end_move("c", to);
        assert_eq!(read().unwrap().open.len(), number as usize);
    }
    assert_eq!(kind.dead_letter_obstacle("c"), None);
}
