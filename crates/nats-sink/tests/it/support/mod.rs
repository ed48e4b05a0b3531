//! A real server for the tests of the sink.

#![allow(clippy::expect_used, reason = "a test may panic")]

use std::process;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_nats_sink::{NatsKind, NatsSection};
use walrelay_sink::{
    AnySinkFactory, Deliveries, Disposition, Poison, Sink, SinkError, SinkFactory, SinkOptions,
    StreamStart,
};
use walrelay_sink_client::TlsFiles;
use walrelay_sink_kind::SinkKind as _;
pub(crate) use walrelay_testkit::conformance::options;
use walrelay_testkit::conformance::{Bounds, Destination, Refusal, Stored};
use walrelay_testkit::{InTurn, Nats, NatsClient, NatsMessage, NatsServer, PATIENCE, eventually};

/// The most bytes of a message that the tests publish.
pub(crate) const MAX_MESSAGE: u64 = 600 << 10;
/// What the streams of the tests take.
pub(crate) const MAX_STORED: usize = 500 << 10;

/// A short duplicate window.
pub(crate) const WINDOW_NANOS: u64 = 100_000_000;

/// The section of a server on this machine without logins.
pub(crate) fn section(port: u16) -> NatsSection {
    NatsSection {
        hosts: vec![format!("127.0.0.1:{port}")],
        username: None,
        password: None,
        token: None,
        credentials_file: None,
        tls: false,
        files: TlsFiles::default(),
        max_message_size: MAX_MESSAGE,
        exclusive_stream: None,
        ack_timeout: Duration::from_secs(20),
        connect_timeout: Duration::from_secs(60),
    }
}

pub(crate) fn factory(section: &NatsSection, options: &SinkOptions) -> AnySinkFactory {
    let kind = NatsKind::new(section, options).expect("no file is needed");
    kind.factory(None).0
}

/// The stream of a relay that has this slot, on this timeline.
pub(crate) fn start(slot: &str, timeline: u32) -> StreamStart {
    StreamStart {
        system_id: "7".to_owned(),
        timeline,
        slot: Some(slot.to_owned()),
        confirmed: CommitEnd::from_slot(Lsn::ZERO),
        snapshot: false,
    }
}

/// A factory whose sinks are those of a relay that has a slot.
pub(crate) struct WithStart {
    pub(crate) factory: AnySinkFactory,
    pub(crate) start: Arc<StreamStart>,
}

impl SinkFactory for WithStart {
    type Sink = Box<dyn Sink>;
    type Error = SinkError;

    fn create(
        &mut self,
        _: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<Box<dyn Sink>, SinkError> {
        self.factory.create(Some(&self.start), deliveries)
    }

    fn disposition(error: &SinkError) -> Disposition {
        <AnySinkFactory as SinkFactory>::disposition(error)
    }
}

/// A server that one test has to itself.
pub(crate) struct Server {
    pub(crate) nats: InTurn<NatsServer>,
}

impl Server {
    pub(crate) fn start() -> Self {
        if !Nats::is_wanted() {
            // None of the tests of this program can be run.
            process::exit(0);
        }
        Self {
            nats: Nats::in_turn(),
        }
    }

    pub(crate) fn create(&self, name: &str) {
        let more = json!({"max_msg_size": MAX_STORED});
        self.nats.client().create_stream(name, &[name], &more);
    }

    /// Reads the messages of a subject.
    pub(crate) fn stored_in(&self, stream: &str, subject: &str) -> Vec<Stored> {
        stored(self.nats.client().messages(stream, subject))
    }
}

/// Returns what messages have of their events.
pub(crate) fn stored(messages: Vec<NatsMessage>) -> Vec<Stored> {
    let stored = |message: NatsMessage| {
        let header = |name: &str| message.headers.get(name).cloned();
        Stored {
            key: header("walrelay.key").map(String::into_bytes),
            id: header("Nats-Msg-Id").unwrap_or_default(),
            value: header("walrelay.null").is_none().then_some(message.payload),
        }
    };
    messages.into_iter().map(stored).collect()
}

impl Destination for Server {
    fn factory(&self, bounds: Bounds) -> AnySinkFactory {
        factory(&section(self.nats.port()), &bounds.options())
    }

    fn patient(&self, retry_for: Duration) -> Option<(AnySinkFactory, Refusal)> {
        Some(patient(&section(self.nats.port()), retry_for))
    }

    fn create_topic(&self, topic: &str) {
        self.create(topic);
    }

    fn stored(&self, topic: &str) -> Vec<Stored> {
        self.stored_in(topic, topic)
    }

    fn pause(&self) {
        self.nats.pause();
    }

    fn resume(&self) {
        self.nats.resume();
    }

    fn kill(&self) {
        self.nats.kill();
    }

    fn start(&self) {
        self.nats.start_again();
    }

    fn refusals(&self) -> Vec<Refusal> {
        refusals()
    }

    fn drops_repeats(&self) -> bool {
        true
    }
}

/// Makes sinks that wait for a stream, and the way to make a record without one.
pub(crate) fn patient(section: &NatsSection, retry_for: Duration) -> (AnySinkFactory, Refusal) {
    let options = SinkOptions {
        retry_for,
        ..options()
    };
    (factory(section, &options), refusals().remove(0))
}

/// Ways to make a record that the streams of the tests refuse for good.
pub(crate) fn refusals() -> Vec<Refusal> {
    vec![
        // No stream has the subject.
        Refusal {
            poison: Poison::Unroutable,
            in_place: true,
            spoil: |event| "there.is.none".clone_into(&mut event.topic),
        },
        // A wildcard, which the server would store.
        Refusal {
            poison: Poison::Unroutable,
            in_place: true,
            spoil: |event| event.topic.push_str(".*"),
        },
        // More than the configuration allows, and more than the stream takes.
        Refusal {
            poison: Poison::Oversize,
            in_place: true,
            spoil: |event| event.value.resize(MAX_MESSAGE as usize + 1, b'x'),
        },
        Refusal {
            poison: Poison::Oversize,
            in_place: true,
            spoil: |event| event.value.resize(MAX_STORED, b'x'),
        },
    ]
}

/// Waits until a duplicate window has passed since now.
pub(crate) fn window_passes(client: &mut NatsClient) {
    const PROBE: &str = "probe";
    let _ = client.api(&format!("STREAM.DELETE.{PROBE}"), &json!({}));
    client.create_stream(PROBE, &[PROBE], &json!({"duplicate_window": WINDOW_NANOS}));
    eventually(PATIENCE, || {
        client.publish(PROBE, "Nats-Msg-Id: id\r\n", b"0");
        client.messages(PROBE, ">").len() > 1
    });
}
