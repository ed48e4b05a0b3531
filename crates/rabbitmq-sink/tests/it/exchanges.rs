//! Exchanges that are missing, or that the user may not write to.

#![allow(clippy::expect_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Server, options, section};
use walrelay_rabbitmq_sink::{ConstantAddress, RabbitmqKind, RabbitmqSection};
use walrelay_sink::{Deliveries, EventPosition, Poison, Record, Sink, SinkOptions};
use walrelay_sink_kind::SinkKind as _;
use walrelay_testkit::{PATIENCE, Reports, eventually};

const HOUR: Duration = Duration::from_secs(3_600);

struct Sending {
    sink: Box<dyn Sink>,
    reports: Arc<Reports>,
    accepted: u64,
}

impl Sending {
    fn new(section: &RabbitmqSection, retry_for: Duration) -> Self {
        let options = SinkOptions {
            retry_for,
            ..options()
        };
        let kind = RabbitmqKind::new(section, options, ConstantAddress::default());
        let reports = Arc::<Reports>::default();
        let deliveries = Arc::clone(&reports) as Arc<dyn Deliveries>;
        let mut factory = kind.expect("no file is needed").factory(None).0;
        Self {
            sink: factory.create(None, deliveries).expect("a sink"),
            reports,
            accepted: 0,
        }
    }

    fn send(&mut self, exchange: &str) {
        let seq = self.accepted;
        let record = Record {
            topic: exchange,
            routing_key: Some(""),
            value: Some(b"v"),
            position: EventPosition::in_first_epoch(3, seq),
            ..Record::default()
        };
        self.sink.try_send(&record, seq).expect("there is room");
        self.accepted += 1;
    }

    fn refused(&self) -> Vec<u64> {
        self.reports.wait_for(self.accepted);
        self.reports.assert_complete(self.accepted);
        for error in self.reports.failures() {
            assert_eq!(error.poison, Some(Poison::Rejected), "{error}");
        }
        let outcomes = self.reports.state().outcomes.into_iter();
        let failed = outcomes.filter(|(_, outcome)| outcome.is_err());
        failed.map(|(seq, _)| seq).collect()
    }

    fn waits_for(&mut self, text: &str) {
        eventually(PATIENCE, || {
            let obstacle = self.sink.waiting_for();
            obstacle.is_some_and(|obstacle| obstacle.what.contains(text))
        });
    }
}

/// Returns how often each message is in the queue.
fn stored(server: &Server, queue: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for message in server.rabbitmq.client().take(queue) {
        let position = message.header("walrelay.position").expect("a position");
        *counts.entry(position.to_owned()).or_default() += 1;
    }
    counts
}

#[test]
fn a_missing_exchange_repeats_nothing_and_is_found_when_it_is_declared() {
    const COUNT: u64 = 3_000;
    let server = Server::start("quorum");
    server.declare("healthy", None);
    let mut sending = Sending::new(&section(server.rabbitmq.port()), HOUR);
    let missing = ["gone", "gone' in vhost '/', exchange 'healthy"];
    for seq in 0..COUNT {
        let at = usize::from(seq % 14 == 3);
        sending.send(if seq % 7 == 3 { missing[at] } else { "healthy" });
    }
    let healthy = (0..COUNT).filter(|seq| seq % 7 != 3).count();
    sending.reports.wait_for(healthy as u64);
    sending.waits_for("does not exist");
    for name in missing {
        server.declare(name, None);
    }
    assert!(sending.refused().is_empty());
    let counts = missing.map(|name| stored(&server, name));
    let all = counts.into_iter().chain([stored(&server, "healthy")]);
    let all: Vec<usize> = all.flat_map(BTreeMap::into_values).collect();
    assert_eq!(all, vec![1; COUNT as usize]);
}

/// The user may write to one exchange, and may configure none: to ask for an exchange needs no right.
#[test]
fn a_user_without_rights_is_held_back_where_it_may_not_write() {
    const COUNT: u64 = 1_000;
    let server = Server::start("quorum");
    let allow = |write: &str| {
        let rights = ["set_permissions", "weak", "", write, ""];
        server.rabbitmq.control(&rights);
    };
    for name in ["allowed", "denied"] {
        server.declare(name, None);
    }
    allow("^allowed$");
    let section = RabbitmqSection {
        username: Some("weak".to_owned()),
        password: Some("weak".into()),
        ..section(server.rabbitmq.port())
    };
    let is_denied = |seq: u64| seq % 10 == 5;
    let mut sending = Sending::new(&section, HOUR);
    for seq in 0..COUNT {
        sending.send(if is_denied(seq) { "denied" } else { "allowed" });
    }
    let allowed = COUNT - COUNT / 10;
    sending.reports.wait_for(allowed);
    sending.waits_for("may not write to the exchange \"denied\"");
    let first = stored(&server, "allowed");
    assert_eq!(first.len() as u64, allowed);
    let repeats = first.values().filter(|count| **count > 1).count();
    eprintln!("{repeats} of {allowed} were in flight on the channel that was closed");
    assert!(first.values().all(|count| *count <= 2));
    // Now it is known, and nothing is repeated.
    for seq in COUNT..2 * COUNT {
        sending.send(if is_denied(seq) { "denied" } else { "allowed" });
    }
    sending.reports.wait_for(2 * allowed);
    let second: Vec<usize> = stored(&server, "allowed").into_values().collect();
    assert_eq!(second, vec![1; allowed as usize]);
    allow("^(allowed|denied)$");
    assert!(sending.refused().is_empty());
    let denied: Vec<usize> = stored(&server, "denied").into_values().collect();
    assert_eq!(denied, vec![1; 2 * (COUNT / 10) as usize]);
    // It is given up after its patience, as the other one is not.
    allow("^allowed$");
    let mut sending = Sending::new(&section, Duration::from_millis(500));
    for name in [
        "allowed", "denied", "missing", "allowed", "denied", "missing",
    ] {
        sending.send(name);
    }
    assert_eq!(sending.refused(), [1, 2, 4, 5]);
    allow("");
}
