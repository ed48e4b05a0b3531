//! A server for the tests of the sink, with faults.

#![allow(clippy::expect_used, reason = "a test may panic")]

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use walrelay_http_sink::{HttpConfig, HttpVersion, UrlTemplate};
use walrelay_sink::Poison;
use walrelay_sink::SinkOptions;
use walrelay_testkit::HttpReceiver;
use walrelay_testkit::conformance::{Bounds, Destination, Refusal, Stored};
pub(crate) use walrelay_testkit::{Reaction, Received};

/// A value that the server answers with 422.
pub(crate) const BAD: &[u8] = b"\0bad";

pub(crate) const ROOMY: Bounds = Bounds {
    records: 10_000,
    bytes: 64 << 20,
};

pub(crate) struct Server {
    receiver: HttpReceiver,
    version: HttpVersion,
}

impl Server {
    /// Stores each request and answers 200; 422 for [`BAD`] ones.
    pub(crate) fn start(version: HttpVersion) -> Self {
        Self::reacting(version, None, |_, received| {
            if received.body.starts_with(BAD) {
                Reaction::Answer(422, Vec::new())
            } else {
                Reaction::Store(200)
            }
        })
    }

    /// Reacts to each request, by its number.
    pub(crate) fn reacting(
        version: HttpVersion,
        tls: Option<Arc<rustls::ServerConfig>>,
        react: impl Fn(usize, &Received) -> Reaction + Send + Sync + 'static,
    ) -> Self {
        let two = matches!(version, HttpVersion::Two);
        Self {
            receiver: HttpReceiver::start(two, tls, react),
            version,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hooks/{{topic}}", self.address())
    }

    pub(crate) fn config(&self, bounds: Bounds) -> HttpConfig {
        config(&self.url(), self.version, bounds)
    }
}

impl Deref for Server {
    type Target = HttpReceiver;

    fn deref(&self) -> &HttpReceiver {
        &self.receiver
    }
}

/// Settings with short pauses.
pub(crate) fn config(url: &str, version: HttpVersion, bounds: Bounds) -> HttpConfig {
    let options = SinkOptions {
        max_in_flight_records: u64::from(bounds.records),
        max_in_flight_bytes: bounds.bytes,
        max_retrying_bytes: 64 << 20,
        max_retrying_keys: 100,
        backoff_initial: Duration::from_millis(5),
        backoff_max: Duration::from_millis(100),
        retry_for: Duration::ZERO,
        dead_letters: "dead".to_owned(),
    };
    let mut config = HttpConfig::new(UrlTemplate::parse(url).expect("a URL"), options);
    config.version = version;
    config.timeout = Duration::from_secs(2);
    config.key_header = Some(hyper::header::HeaderName::from_static("x-key"));
    config
}

impl Destination for Server {
    fn factory(&self, bounds: Bounds) -> walrelay_sink::AnySinkFactory {
        let mut config = self.config(bounds);
        // Longer than a busy machine needs, or requests would be sent again.
        config.timeout = Duration::from_secs(20);
        walrelay_sink::any_factory(walrelay_http_sink::HttpSinkFactory::new(
            config,
            Arc::default(),
        ))
    }

    fn patient(&self, retry_for: Duration) -> Option<(walrelay_sink::AnySinkFactory, Refusal)> {
        let mut config = self.config(ROOMY);
        config.timeout = Duration::from_secs(20);
        config.options.retry_for = retry_for;
        let factory = walrelay_http_sink::HttpSinkFactory::new(config, Arc::default());
        Some((
            walrelay_sink::any_factory(factory),
            self.refusals().remove(0),
        ))
    }

    fn stored(&self, topic: &str) -> Vec<Stored> {
        let path = format!("/hooks/{topic}");
        let stored = self.receiver.stored().into_iter();
        let stored = stored.filter(|received| received.path == path);
        let stored = stored.map(|received| Stored {
            key: received.header("x-key").map(|key| key.as_bytes().to_vec()),
            id: received.header("webhook-id").expect("an id").to_owned(),
            value: Some(received.body),
        });
        stored.collect()
    }

    fn pause(&self) {
        self.receiver.pause();
    }

    fn resume(&self) {
        self.receiver.resume();
    }

    fn kill(&self) {
        self.receiver.kill();
    }

    fn start(&self) {
        self.receiver.start_again();
    }

    fn refusals(&self) -> Vec<Refusal> {
        vec![Refusal {
            poison: Poison::Rejected,
            in_place: true,
            spoil: |event| event.value.splice(0..0, BAD.iter().copied()).for_each(drop),
        }]
    }
}
