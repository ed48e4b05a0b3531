//! NATS JetStream with one stream for each prefix of topics, whose messages have the ids of their events.

use std::collections::BTreeSet;
use std::sync::Mutex;

use serde_json::json;
use walrelay_testkit::{ChaosProxy, Delivered, Nats, NatsMessage, lock};

use super::Destination;

/// The stream of all topics.
const STREAM: &str = "events";
/// The subjects of the stream that nothing is sent to.
const NONE: &str = "nothing";

pub(super) struct Server {
    nats: Nats,
    proxy: ChaosProxy,
    /// Relays write with `exclusive_stream`, and the stream forgets ids almost at once.
    exclusive: bool,
    /// The subjects of the stream.
    subjects: Mutex<BTreeSet<String>>,
}

impl Server {
    pub(super) fn start(exclusive: bool) -> Self {
        let nats = Nats::start();
        let server = Self {
            proxy: ChaosProxy::start(("127.0.0.1", nats.port())),
            nats,
            exclusive,
            subjects: Mutex::new(BTreeSet::from([NONE.to_owned()])),
        };
        let config = server.config(json!({}));
        server.nats.client().create_stream(STREAM, &[NONE], &config);
        server
    }

    /// The configuration of the stream with these members.
    fn config(&self, mut members: serde_json::Value) -> serde_json::Value {
        if self.exclusive {
            // Shorter than each fault.
            members["duplicate_window"] = json!(100_000_000);
        }
        members
    }

    fn update(&self, members: serde_json::Value) {
        let subjects = lock(&self.subjects);
        let subjects: Vec<&str> = subjects.iter().map(String::as_str).collect();
        let config = self.config(members);
        self.nats.client().update_stream(STREAM, &subjects, &config);
    }

    fn messages(&self, prefix: &str) -> Vec<NatsMessage> {
        let messages = self.nats.client().messages(STREAM, ">").into_iter();
        messages
            .filter(|message| message.subject.starts_with(prefix))
            .collect()
    }
}

impl Destination for Server {
    fn settings(&self) -> &'static str {
        if self.exclusive {
            return "sink.kind = \"nats\"\nsink.nats.exclusive_stream = \"events\"";
        }
        "sink.kind = \"nats\""
    }

    fn address_setting(&self, address: &str) -> String {
        format!("sink.nats.hosts = [\"{address}\"]")
    }

    fn short_timeouts(&self) -> &'static str {
        "sink.nats.ack_timeout = \"2s\"\nsink.nats.connect_timeout = \"2s\""
    }

    fn size_limit(&self) -> &'static str {
        "sink.nats.max_message_size = \"64KiB\""
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.nats.port())
    }

    fn proxy(&self) -> &ChaosProxy {
        &self.proxy
    }

    fn create(&self, topics: &[String]) {
        lock(&self.subjects).extend(topics.iter().cloned());
        self.update(json!({}));
    }

    fn fill(&self, full: bool) {
        // Nothing that is there is discarded.
        self.update(if full {
            json!({"discard": "new", "max_msgs": 1})
        } else {
            json!({})
        });
    }

    fn stop(&self) {
        self.nats.kill();
    }

    fn kill(&self) {
        self.nats.kill();
    }

    fn start_again(&self) {
        self.nats.start_again();
    }

    fn pause(&self) {
        self.nats.pause();
    }

    fn resume(&self) {
        self.nats.resume();
    }

    fn count(&self, prefix: &str) -> Option<i64> {
        std::net::TcpStream::connect(("127.0.0.1", self.nats.port())).ok()?;
        let counts = self.nats.client().counts(STREAM).into_iter();
        let counts = counts.filter(|(subject, _)| subject.starts_with(prefix));
        Some(counts.map(|(_, count)| count as i64).sum())
    }

    fn read(&self, prefix: &str) -> Vec<Delivered> {
        let messages = self.messages(prefix).into_iter();
        let delivered = |message: NatsMessage| {
            let header = |name: &str| message.headers.get(name).cloned();
            Delivered {
                id: header("Nats-Msg-Id"),
                offset: message.seq as i64,
                key: header("walrelay.key").map(String::into_bytes),
                payload: header("walrelay.null").is_none().then_some(message.payload),
                topic: message.subject,
                ..Delivered::default()
            }
        };
        messages.map(delivered).collect()
    }

    fn stamps(&self) -> bool {
        false
    }

    fn refuses_repeats(&self) -> bool {
        true
    }

    fn log(&self) -> String {
        self.nats.log()
    }
}
