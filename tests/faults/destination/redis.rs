//! Redis with a stream for each topic, whose entries have the positions of their events as ids.

use std::net::TcpStream;

use walrelay_testkit::{ChaosProxy, Delivered, Redis};

use super::Destination;

pub(super) struct Server {
    redis: Redis,
    proxy: ChaosProxy,
}

impl Server {
    pub(super) fn start() -> Self {
        let redis = Redis::start();
        Self {
            proxy: ChaosProxy::start(("127.0.0.1", redis.port())),
            redis,
        }
    }

    fn set(&self, setting: &str) {
        self.redis.client().done(&format!("CONFIG SET {setting}"));
    }
}

impl Destination for Server {
    fn settings(&self) -> &'static str {
        "sink.kind = \"redis\""
    }

    fn address_setting(&self, address: &str) -> String {
        format!("sink.redis.hosts = [\"{address}\"]")
    }

    fn short_timeouts(&self) -> &'static str {
        "sink.redis.reply_timeout = \"2s\"\nsink.redis.connect_timeout = \"2s\""
    }

    fn size_limit(&self) -> &'static str {
        "sink.redis.max_message_size = \"64KiB\""
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.redis.port())
    }

    fn proxy(&self) -> &ChaosProxy {
        &self.proxy
    }

    fn fill(&self, full: bool) {
        // Less than the server has from its start on.
        self.set(if full {
            "maxmemory 100kb"
        } else {
            "maxmemory 0"
        });
    }

    fn stop(&self) {
        self.redis.kill();
    }

    fn kill(&self) {
        self.redis.kill();
    }

    fn start_again(&self) {
        self.redis.start_again();
    }

    fn pause(&self) {
        self.redis.pause();
    }

    fn resume(&self) {
        self.redis.resume();
    }

    fn count(&self, prefix: &str) -> Option<i64> {
        TcpStream::connect(("127.0.0.1", self.redis.port())).ok()?;
        let mut client = self.redis.client();
        let streams = client.keys(prefix);
        Some(streams.iter().map(|stream| client.length(stream)).sum())
    }

    fn read(&self, prefix: &str) -> Vec<Delivered> {
        let mut client = self.redis.client();
        let mut records = Vec::new();
        for stream in client.keys(prefix) {
            for (number, mut entry) in client.entries(&stream).into_iter().enumerate() {
                records.push(Delivered {
                    id: entry.text("id").map(str::to_owned),
                    topic: stream.clone(),
                    offset: number as i64,
                    key: entry.fields.remove("key"),
                    payload: entry.fields.remove("payload"),
                    ..Delivered::default()
                });
            }
        }
        records
    }

    fn stamps(&self) -> bool {
        false
    }

    fn refuses_repeats(&self) -> bool {
        true
    }

    fn log(&self) -> String {
        self.redis.log()
    }
}
