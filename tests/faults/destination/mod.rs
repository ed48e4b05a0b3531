//! The server that the relays of a scenario write to, of the kind that `FAULTS_SINK` names.

mod http;
mod nats;
mod rabbitmq;
mod redis;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::{
    ChaosProxy, Delivered, History, Kafka, KafkaBuilder, Nats, RabbitMq, Redis,
};

/// The interval of the reads for the records that are still to come.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes of the largest event of a relay with [`size_limit`](Destination::size_limit).
#[allow(dead_code, reason = "for tests/e2e")]
pub(crate) const LARGE: usize = 64 << 10;

/// Makes the broker stamp records with the time when it appended them. The check of early
/// confirmation needs that.
pub(crate) fn stamping(builder: KafkaBuilder) -> KafkaBuilder {
    builder.setting("log.message.timestamp.type", "LogAppendTime")
}

/// A server with all that it has received. A call that changes it returns when the change has taken
/// effect.
pub(crate) trait Destination: Send + Sync {
    /// Lines of the configuration besides the address of the server.
    fn settings(&self) -> &'static str;

    /// The line of the configuration that has this address, a host with its port.
    fn address_setting(&self, address: &str) -> String;

    /// Lines of the configuration with which a relay soon gives up a silent server.
    fn short_timeouts(&self) -> &'static str;

    /// Lines of the configuration with which events of more than [`LARGE`] bytes are oversize.
    #[allow(dead_code, reason = "for tests/e2e")]
    fn size_limit(&self) -> &'static str;

    /// The server's own address.
    fn address(&self) -> String;

    /// A proxy before the server.
    fn proxy(&self) -> &ChaosProxy;

    /// Creates what records of these topics go to, if the server needs that.
    fn create(&self, topics: &[String]) {
        let _ = topics;
    }

    /// Lets the server take no record while `full`: its queues are full, or it answers 503.
    fn fill(&self, full: bool);

    /// Ends the server in order.
    fn stop(&self);

    /// Ends the server by SIGKILL.
    fn kill(&self);

    /// Starts the server again with the same data.
    fn start_again(&self);

    /// Makes the server answer nothing until [`resume`](Self::resume), as SIGSTOP does.
    fn pause(&self);

    /// Ends a [`pause`](Self::pause).
    fn resume(&self);

    /// The number of records in topics with this prefix; `None` if the server does not answer.
    fn count(&self, prefix: &str) -> Option<i64>;

    /// The present records in topics with this prefix, in the order of their arrival in each topic.
    fn read(&self, prefix: &str) -> Vec<Delivered>;

    /// The records in topics with this prefix, read until `distinct` ids were seen or no more arrive
    /// for `limit`, and then to the present end.
    fn records(&self, prefix: &str, distinct: usize, limit: Duration) -> Vec<Delivered> {
        let (mut moved_at, mut before) = (Instant::now(), 0);
        loop {
            let records = self.read(prefix);
            if records.len() > before {
                (moved_at, before) = (Instant::now(), records.len());
            }
            let ids: BTreeSet<_> = records.iter().filter_map(|it| it.id.as_deref()).collect();
            if ids.len() >= distinct || moved_at.elapsed() >= limit {
                return records;
            }
            thread::sleep(READ_INTERVAL);
        }
    }

    /// Whether records have the time when the server took them.
    fn stamps(&self) -> bool;

    /// Whether the server stores no event a second time.
    fn refuses_repeats(&self) -> bool {
        false
    }

    /// The server's log.
    fn log(&self) -> String;
}

impl Destination for Kafka {
    fn settings(&self) -> &'static str {
        ""
    }

    fn address_setting(&self, address: &str) -> String {
        format!("sink.kafka.\"bootstrap.servers\" = \"{address}\"")
    }

    fn short_timeouts(&self) -> &'static str {
        "sink.kafka.\"socket.timeout.ms\" = 2000\nsink.kafka.\"request.timeout.ms\" = 1500"
    }

    fn size_limit(&self) -> &'static str {
        "sink.kafka.\"message.max.bytes\" = 65536"
    }

    fn address(&self) -> String {
        self.bootstrap_servers()
    }

    fn proxy(&self) -> &ChaosProxy {
        self.proxy()
    }

    fn fill(&self, _: bool) {
        unreachable!("a broker is never full");
    }

    fn stop(&self) {
        self.stop();
    }

    fn kill(&self) {
        self.kill();
    }

    fn start_again(&self) {
        self.start_again();
    }

    fn pause(&self) {
        self.pause();
    }

    fn resume(&self) {
        self.resume();
    }

    fn count(&self, prefix: &str) -> Option<i64> {
        History::count(&self.bootstrap_servers(), prefix)
    }

    fn read(&self, prefix: &str) -> Vec<Delivered> {
        History::records(&self.bootstrap_servers(), prefix, 0, Duration::ZERO)
    }

    fn records(&self, prefix: &str, distinct: usize, limit: Duration) -> Vec<Delivered> {
        History::records(&self.bootstrap_servers(), prefix, distinct, limit)
    }

    fn stamps(&self) -> bool {
        true
    }

    fn log(&self) -> String {
        self.log()
    }
}

/// The kinds of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Kafka,
    /// RabbitMQ with classic or quorum queues.
    RabbitMq(&'static str),
    Redis,
    /// NATS, with `exclusive_stream` or without.
    Nats {
        exclusive: bool,
    },
    /// A receiver of HTTP/1.1, or of HTTP/2.
    Http {
        two: bool,
    },
}

/// The values of `FAULTS_SINK`.
const KINDS: &[(&str, Kind)] = &[
    ("kafka", Kind::Kafka),
    ("rabbitmq", Kind::RabbitMq("quorum")),
    ("rabbitmq-classic", Kind::RabbitMq("classic")),
    ("redis", Kind::Redis),
    ("nats", Kind::Nats { exclusive: false }),
    ("nats-exclusive", Kind::Nats { exclusive: true }),
    ("http", Kind::Http { two: false }),
    ("http2", Kind::Http { two: true }),
];

impl Kind {
    /// Reads a value of `FAULTS_SINK`; panics if there is no such kind.
    pub(crate) fn named(name: &str) -> Self {
        let found = KINDS.iter().find(|(known, _)| *known == name);
        let names: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
        found
            .unwrap_or_else(|| panic!("FAULTS_SINK: {name:?} is none of {}", names.join(", ")))
            .1
    }

    /// Returns true if tests with such a server are to run. Otherwise says that they do not.
    #[allow(
        dead_code,
        reason = "the suite of faults runs the kind that it is asked for"
    )]
    pub(crate) fn is_wanted(self) -> bool {
        match self {
            Self::Kafka | Self::Http { .. } => true,
            Self::RabbitMq(_) => RabbitMq::is_wanted(),
            Self::Redis => Redis::is_wanted(),
            Self::Nats { .. } => Nats::is_wanted(),
        }
    }

    /// Starts a server of the lane.
    pub(crate) fn start(self) -> Servers {
        let kafka =
            (self == Self::Kafka).then(|| Arc::new(stamping(Kafka::builder().proxied()).start()));
        let destination: Arc<dyn Destination> = match (self, &kafka) {
            (_, Some(kafka)) => Arc::clone(kafka) as _,
            (Self::RabbitMq(queues), _) => Arc::new(rabbitmq::Server::start(queues)),
            (Self::Redis, _) => Arc::new(redis::Server::start()),
            (Self::Nats { exclusive }, _) => Arc::new(nats::Server::start(exclusive)),
            (Self::Http { two }, _) => Arc::new(http::Server::start(two)),
            (Self::Kafka, None) => unreachable!("it was started"),
        };
        Servers { destination, kafka }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = KINDS.iter().find(|(_, kind)| kind == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

/// The server of a lane.
#[derive(Clone)]
pub(crate) struct Servers {
    pub(crate) destination: Arc<dyn Destination>,
    /// The same, if it is Kafka.
    pub(crate) kafka: Option<Arc<Kafka>>,
}
