//! The conformance suite with `exclusive_stream`, against a real server: one stream for all topics.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{MAX_STORED, Server, WithStart, factory, section, start};
use serde_json::json;
use walrelay_nats_sink::NatsSection;
use walrelay_sink::{AnySinkFactory, any_factory};
use walrelay_testkit::conformance;
use walrelay_testkit::conformance::{Bounds, Destination, Refusal, Stored};

const STREAM: &str = "exclusive";
/// The subjects of the stream that nothing is sent to.
const NONE: &str = "nothing";

/// A server with a stream whose subjects are the topics.
struct Exclusive {
    server: Server,
    subjects: RefCell<Vec<String>>,
}

impl Exclusive {
    fn start() -> Self {
        let server = Server::start();
        let mut client = server.nats.client();
        // That of another test of the suite.
        let _ = client.api(&format!("STREAM.DELETE.{STREAM}"), &json!({}));
        let more = json!({"max_msg_size": MAX_STORED});
        client.create_stream(STREAM, &[NONE], &more);
        Self {
            server,
            subjects: RefCell::new(vec![NONE.to_owned()]),
        }
    }
}

impl Destination for Exclusive {
    fn factory(&self, bounds: Bounds) -> AnySinkFactory {
        let section = NatsSection {
            exclusive_stream: Some(STREAM.to_owned()),
            ..section(self.server.nats.port())
        };
        // As the sink of a relay that has a slot.
        any_factory(WithStart {
            factory: factory(&section, &bounds.options()),
            start: Arc::new(start("walrelay", 1)),
        })
    }

    /// Each message names its predecessor: none may pass one that waits.
    fn patient(&self, _: Duration) -> Option<(AnySinkFactory, Refusal)> {
        None
    }

    fn create_topic(&self, topic: &str) {
        let mut subjects = self.subjects.borrow_mut();
        subjects.push(topic.to_owned());
        let names: Vec<&str> = subjects.iter().map(String::as_str).collect();
        let more = json!({"max_msg_size": MAX_STORED});
        let mut client = self.server.nats.client();
        client.update_stream(STREAM, &names, &more);
    }

    fn stored(&self, topic: &str) -> Vec<Stored> {
        self.server.stored_in(STREAM, topic)
    }

    fn pause(&self) {
        self.server.pause();
    }

    fn resume(&self) {
        self.server.resume();
    }

    fn kill(&self) {
        self.server.kill();
    }

    fn start(&self) {
        self.server.start();
    }

    fn refusals(&self) -> Vec<Refusal> {
        self.server.refusals()
    }

    fn drops_repeats(&self) -> bool {
        true
    }
}

conformance!(Exclusive::start());
