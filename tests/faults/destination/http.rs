//! A receiver of HTTP requests in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use walrelay_testkit::{ChaosProxy, Delivered, HttpReceiver, Reaction, Received};

use super::{Destination, LARGE};

pub(super) struct Server {
    receiver: HttpReceiver,
    proxy: ChaosProxy,
    two: bool,
    /// It answers 503.
    full: Arc<AtomicBool>,
    /// It refuses events of more than [`LARGE`] bytes.
    limited: Arc<AtomicBool>,
}

impl Server {
    pub(super) fn start(two: bool) -> Self {
        let (full, limited) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let receiver = HttpReceiver::start(two, None, {
            let (full, limited) = (Arc::clone(&full), Arc::clone(&limited));
            move |_, received| {
                if full.load(Ordering::SeqCst) {
                    Reaction::Answer(503, Vec::new())
                } else if limited.load(Ordering::SeqCst) && received.body.len() > LARGE {
                    Reaction::Answer(413, Vec::new())
                } else {
                    Reaction::Store(200)
                }
            }
        });
        Self {
            proxy: ChaosProxy::start(receiver.address()),
            receiver,
            two,
            full,
            limited,
        }
    }
}

/// Returns the topic, if it has the prefix.
fn topic<'a>(received: &'a Received, prefix: &str) -> Option<&'a str> {
    let topic = received.path.strip_prefix('/')?;
    topic.starts_with(prefix).then_some(topic)
}

impl Destination for Server {
    fn settings(&self) -> &'static str {
        if self.two {
            "sink.kind = \"http\"\nsink.http.key_header = \"x-key\"\nsink.http.http_version = \"2\""
        } else {
            "sink.kind = \"http\"\nsink.http.key_header = \"x-key\"\nsink.http.http_version = \"1.1\""
        }
    }

    fn address_setting(&self, address: &str) -> String {
        let url = format!("http://{address}/{{topic}}");
        format!("sink.http.url = \"{url}\"\nsink.http.dead_letter_url = \"{url}\"")
    }

    fn short_timeouts(&self) -> &'static str {
        "sink.http.timeout = \"2s\""
    }

    fn size_limit(&self) -> &'static str {
        // The server's limit, which the relay does not know.
        self.limited.store(true, Ordering::SeqCst);
        "poison.retry_for = \"1s\""
    }

    fn address(&self) -> String {
        self.receiver.address().to_string()
    }

    fn proxy(&self) -> &ChaosProxy {
        &self.proxy
    }

    fn fill(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }

    fn stop(&self) {
        self.receiver.kill();
    }

    fn kill(&self) {
        self.receiver.kill();
    }

    fn start_again(&self) {
        self.receiver.start_again();
    }

    fn pause(&self) {
        self.receiver.pause();
    }

    fn resume(&self) {
        self.receiver.resume();
    }

    fn count(&self, prefix: &str) -> Option<i64> {
        let of_prefix = |received: &Received| topic(received, prefix).is_some();
        Some(self.receiver.count(of_prefix) as i64)
    }

    fn read(&self, prefix: &str) -> Vec<Delivered> {
        let stored = self.receiver.stored();
        let of_prefix = stored.iter().enumerate().filter_map(|(number, received)| {
            let key = received.header("x-key");
            Some(Delivered {
                id: received.header("webhook-id").map(str::to_owned),
                topic: topic(received, prefix)?.to_owned(),
                offset: number as i64,
                key: key.map(|key| key.as_bytes().to_vec()),
                payload: Some(received.body.clone()),
                appended: Some(received.at),
                ..Delivered::default()
            })
        });
        of_prefix.collect()
    }

    fn stamps(&self) -> bool {
        true
    }

    fn log(&self) -> String {
        String::new()
    }
}
