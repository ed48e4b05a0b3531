//! The reaction of the sink to a server that answers something else than 200, or nothing.

#![allow(clippy::expect_used, reason = "a test may panic")]

mod addresses;
mod answers;
mod refusals;
mod retries;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use crate::support::{Reaction, Received, Server, config};
use walrelay_http_sink::{HttpConfig, HttpSink, HttpSinkFactory, HttpVersion, UrlTemplate};
use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, EventPosition, Poison, Record, RecordKind, SendError,
    Sink as _, SinkFactory as _, SinkStats, any_factory,
};
use walrelay_testkit::conformance::Bounds;
use walrelay_testkit::{Authority, HttpReceiver, PATIENCE, Reports, eventually, silence_is_shown};

const ROOMY: Bounds = Bounds {
    records: 1_000,
    bytes: 1 << 20,
};

const VERSIONS: [HttpVersion; 2] = [HttpVersion::One, HttpVersion::Two];

/// A sink with its reports.
struct Sending {
    sink: HttpSink,
    reports: Arc<Reports>,
    stats: Arc<SinkStats>,
}

impl Sending {
    fn new(config: HttpConfig) -> Self {
        let (reports, stats) = (Arc::<Reports>::default(), Arc::<SinkStats>::default());
        let mut factory = HttpSinkFactory::new(config, Arc::clone(&stats));
        let created = factory.create(None, Arc::clone(&reports) as Arc<dyn Deliveries>);
        let sink = created.expect("a sink");
        Self {
            sink,
            reports,
            stats,
        }
    }

    fn send(&mut self, key: &str, value: &str, seq: u64) {
        let record = Record {
            topic: "t",
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            position: EventPosition::in_first_epoch(16, seq),
            ..Record::default()
        };
        self.sink.try_send(&record, seq).expect("accepted");
    }

    /// Sends a record of a key of its own to this URL.
    fn send_to(&mut self, url: &str, seq: u64) {
        let record = Record {
            topic: "t",
            routing_key: Some(url),
            key: Some(&seq.to_be_bytes()),
            position: EventPosition::in_first_epoch(16, seq),
            ..Record::default()
        };
        self.sink.try_send(&record, seq).expect("accepted");
    }

    fn report(&self, seq: u64) -> Result<(), DeliveryError> {
        let outcome = self.reports.outcome(seq);
        assert!(
            self.reports.is(|state| state.repeated.is_empty()),
            "{seq} again"
        );
        outcome
    }
}

fn ids(received: &[Received]) -> Vec<String> {
    let id = |received: &Received| {
        received.headers["webhook-id"]
            .to_str()
            .expect("ASCII")
            .to_owned()
    };
    received.iter().map(id).collect()
}
