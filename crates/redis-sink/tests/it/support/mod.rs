//! A real server for the tests of the sink.

#![allow(clippy::expect_used, reason = "a test may panic")]

use std::path::Path;
use std::process;
use std::time::Duration;

use walrelay_redis_sink::{Ids, RedisKind, RedisSection};
use walrelay_sink::{AnySinkFactory, Poison, SinkOptions};
use walrelay_sink_client::TlsFiles;
use walrelay_sink_kind::SinkKind as _;
pub(crate) use walrelay_testkit::conformance::options;
use walrelay_testkit::conformance::{Bounds, Destination, Refusal, Stored};
use walrelay_testkit::{InTurn, Redis, RedisClient, RedisServer, StreamEntry};

/// The most bytes of an event that the tests write.
pub(crate) const MAX_MESSAGE: u64 = 1 << 20;

/// The files of TLS of a relay that trusts this authority.
pub(crate) fn trusting(ca: &Path) -> TlsFiles {
    TlsFiles {
        ca_file: Some(ca.to_owned()),
        ..TlsFiles::default()
    }
}

/// The section of the default user of a server on this machine.
pub(crate) fn section(port: u16, ids: Ids) -> RedisSection {
    RedisSection {
        hosts: vec![format!("127.0.0.1:{port}")],
        sentinels: Vec::new(),
        cluster: false,
        master: None,
        sentinel_username: None,
        sentinel_password: None,
        username: None,
        password: None,
        tls: false,
        files: TlsFiles::default(),
        ids,
        wait_replicas: 0,
        wait_fsync: false,
        wait_timeout: Duration::from_millis(200),
        max_message_size: MAX_MESSAGE,
        reply_timeout: Duration::from_secs(20),
        connect_timeout: Duration::from_secs(60),
    }
}

/// A server that one test has to itself.
pub(crate) struct Server {
    pub(crate) redis: InTurn<RedisServer>,
    ids: Ids,
}

impl Server {
    pub(crate) fn start(ids: Ids) -> Self {
        if !Redis::is_wanted() {
            // None of the tests of this program can be run.
            process::exit(0);
        }
        Self {
            redis: Redis::in_turn(),
            ids,
        }
    }

    pub(crate) fn factory_with(&self, options: &SinkOptions) -> AnySinkFactory {
        let kind = RedisKind::new(&section(self.redis.port(), self.ids), options);
        kind.expect("no file is needed").factory(None).0
    }
}

impl Destination for Server {
    fn factory(&self, bounds: Bounds) -> AnySinkFactory {
        self.factory_with(&bounds.options())
    }

    fn patient(&self, retry_for: Duration) -> Option<(AnySinkFactory, Refusal)> {
        self.redis.client().done(&format!("SET {NO_STREAM} value"));
        let factory = self.factory_with(&SinkOptions {
            retry_for,
            ..options()
        });
        Some((factory, without_stream()))
    }

    fn stored(&self, topic: &str) -> Vec<Stored> {
        stored(&mut self.redis.client(), topic)
    }

    fn pause(&self) {
        self.redis.pause();
    }

    fn resume(&self) {
        self.redis.resume();
    }

    fn kill(&self) {
        self.redis.kill();
    }

    fn start(&self) {
        self.redis.start_again();
    }

    fn refusals(&self) -> Vec<Refusal> {
        refusals()
    }

    fn drops_repeats(&self) -> bool {
        self.ids == Ids::Position
    }
}

/// Reads the events of a stream.
pub(crate) fn stored(client: &mut RedisClient, stream: &str) -> Vec<Stored> {
    let entries = client.entries(stream).into_iter();
    let stored = |entry: StreamEntry| Stored {
        key: entry.fields.get("key").cloned(),
        value: entry.fields.get("payload").cloned(),
        id: entry.text("id").unwrap_or_default().to_owned(),
    };
    entries.map(stored).collect()
}

/// A key that is no stream.
pub(crate) const NO_STREAM: &str = "is-no-stream";

/// The way to make an event that the server refuses, and may accept later.
pub(crate) fn without_stream() -> Refusal {
    Refusal {
        poison: Poison::Rejected,
        in_place: true,
        spoil: |event| NO_STREAM.clone_into(&mut event.topic),
    }
}

/// Returns the ways to make an event that the sink refuses.
pub(crate) fn refusals() -> Vec<Refusal> {
    vec![
        Refusal {
            poison: Poison::Oversize,
            in_place: true,
            spoil: |event| event.value.resize(MAX_MESSAGE as usize + 1, b'x'),
        },
        Refusal {
            poison: Poison::Unroutable,
            in_place: true,
            spoil: |event| event.topic.clear(),
        },
    ]
}
