//! The conformance suite, and leaders that are killed, against a cluster of three servers whose streams
//! have three replicas.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

use std::process;
use std::time::{Duration, Instant};

use crate::support::{MAX_STORED, factory, options, patient, refusals, section, stored};
use serde_json::json;
use walrelay_nats_sink::{NatsKind, NatsSection};
use walrelay_sink::{AnySinkFactory, EventPosition, Header, Record, RecordKind, dlq_headers};
use walrelay_sink_kind::SinkKind as _;
use walrelay_sink_kind::dead_letters::DlqAddress;
use walrelay_testkit::conformance::{Bounds, Destination, Refusal, Stored};
use walrelay_testkit::{Nats, NatsCluster, OpenSink, PATIENCE, conformance, eventually};

/// A cluster that one test has to itself.
struct Cluster(NatsCluster);

impl Cluster {
    fn start() -> Self {
        if !Nats::is_wanted() {
            // None of the tests of this program can be run.
            process::exit(0);
        }
        Self(NatsCluster::start())
    }

    fn section(&self) -> NatsSection {
        let hosts = (0..3).map(|number| format!("127.0.0.1:{}", self.0.server(number).port()));
        NatsSection {
            hosts: hosts.collect(),
            ack_timeout: Duration::from_secs(1),
            ..section(0)
        }
    }

    fn each(&self, action: impl Fn(&Nats)) {
        for number in 0..3 {
            action(self.0.server(number));
        }
    }
}

impl Destination for Cluster {
    fn factory(&self, bounds: Bounds) -> AnySinkFactory {
        factory(&self.section(), &bounds.options())
    }

    fn patient(&self, retry_for: Duration) -> Option<(AnySinkFactory, Refusal)> {
        Some(patient(&self.section(), retry_for))
    }

    fn create_topic(&self, topic: &str) {
        let more = json!({"max_msg_size": MAX_STORED});
        self.0.create_stream(topic, &more);
    }

    fn stored(&self, topic: &str) -> Vec<Stored> {
        stored(self.0.messages(topic))
    }

    fn pause(&self) {
        self.each(Nats::pause);
    }

    fn resume(&self) {
        self.each(Nats::resume);
        self.0.settled();
    }

    fn kill(&self) {
        self.each(Nats::kill);
    }

    fn start(&self) {
        self.each(Nats::start_again);
        self.0.settled();
    }

    fn refusals(&self) -> Vec<Refusal> {
        refusals()
    }

    fn drops_repeats(&self) -> bool {
        true
    }
}

conformance!(Cluster::start());

/// Events are sent all the time, while the leader of their stream is killed, and the server that the
/// relay is connected to.
#[test]
fn nothing_is_lost_repeated_or_disordered_when_leaders_are_killed_under_load() {
    const STREAM: &str = "events";
    const KEYS: u64 = 50;
    let cluster = Cluster::start();
    cluster.0.create_stream(STREAM, &json!({}));
    let mut sink = OpenSink::new(&mut factory(&cluster.section(), &options()), None);
    let mut send = |count: u64| {
        for _ in 0..count {
            let number = sink.sent;
            let position = EventPosition::in_first_epoch(1, number);
            sink.send_event(STREAM, &(number % KEYS).to_string(), position);
        }
        let sent = usize::try_from(sink.sent).unwrap();
        // Amid those that were just sent.
        sink.reports
            .wait(|state| state.outcomes.len() + 1_500 >= sent);
    };
    for round in 0..2 {
        send(3_000);
        let killed = if round == 0 {
            cluster.0.leader(STREAM)
        } else {
            0
        };
        let begin = Instant::now();
        cluster.0.server(killed).kill();
        send(3_000);
        println!(
            "round {round}: delivered again {:?} after SIGKILL",
            begin.elapsed()
        );
        cluster.0.server(killed).start_again();
        cluster.0.settled();
    }
    sink.delivered();
    let messages = cluster.0.messages(STREAM);
    let number = |id: &str| id.parse::<u64>().unwrap();
    let numbers: Vec<u64> = messages
        .iter()
        .map(|it| number(&it.headers["Nats-Msg-Id"]))
        .collect();
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..sink.sent), "each one once");
    for key in 0..KEYS {
        let of_key = numbers.iter().filter(|number| **number % KEYS == key);
        assert!(of_key.is_sorted(), "in order: {key}");
    }
}

/// A new leader has all dead letters that were acknowledged, and no reading has fewer.
#[test]
fn open_dead_letters_are_known_when_their_leader_is_killed() {
    const STREAM: &str = "letters";
    const COUNT: u64 = 40;
    let cluster = Cluster::start();
    cluster.0.create_stream(STREAM, &json!({}));
    let kind = NatsKind::new(&cluster.section(), &options()).unwrap();
    let address = DlqAddress {
        topic: STREAM,
        slot: "s",
    };
    let mut read = kind
        .dead_letters()
        .unwrap()
        .read_open(address, true, Box::new(|| None));
    let mut sink = OpenSink::new(&mut kind.factory(None).0, None);
    for number in 1..=COUNT {
        let lsn = format!("0/{number:X}");
        let headers = [
            (dlq_headers::CLASS, "rejected"),
            (dlq_headers::SLOT, "s"),
            (dlq_headers::LSN, &lsn),
            (dlq_headers::ROW, "0"),
        ];
        let headers = headers.map(|(name, value)| Header {
            name,
            value: Some(value.as_bytes()),
        });
        sink.send(&Record {
            kind: RecordKind::DeadLetter,
            topic: STREAM,
            headers: &headers,
            position: EventPosition::in_first_epoch(number, 0),
            ..Record::default()
        });
    }
    sink.delivered();
    for _ in 0..2 {
        let killed = cluster.0.leader(STREAM);
        cluster.0.server(killed).kill();
        eventually(PATIENCE, || match read() {
            Ok(open) => {
                assert_eq!(open.open.len() as u64, COUNT);
                true
            }
            // There is no leader yet.
            Err(_) => false,
        });
        cluster.0.server(killed).start_again();
        cluster.0.settled();
    }
}
