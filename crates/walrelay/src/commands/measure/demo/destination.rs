//! Where the events of the demonstration go: the server of each kind of sink, the section of the
//! configuration that names it, and the reader of what arrives.

use std::time::Duration;

#[cfg(any(feature = "http", feature = "rabbitmq"))]
use walrelay_failure::Exit;
use walrelay_failure::Failure;
use walrelay_kafka_sink::Tail;
use walrelay_kafka_sink::embedded::EmbeddedBroker;
use walrelay_sink_kind::topics::ReadRecord;
#[cfg(feature = "rabbitmq")]
use walrelay_throwaway::{RabbitMqBinaries, RabbitMqOptions, RabbitMqServer, ThrowawayError};

use super::event::{EventReader, ReadEvent};
#[cfg(feature = "http")]
use super::receiver::{HttpReceiver, KEY_HEADER};
use super::{AGGREGATES, PARTITIONS, print};
use crate::cli::DemoSink;

/// The time that a broker may take to answer the viewer.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// The topic exchange, and the quorum queue.
#[cfg(feature = "rabbitmq")]
const EVENTS: &str = "demo.events";

/// Opens the reader, in the thread that reads.
pub(super) type OpenReader =
    Box<dyn FnOnce() -> Result<Box<dyn EventReader>, Failure> + Send + 'static>;

/// The server that the relay sends to; dropping it ends it.
pub(super) enum Destination {
    Kafka(EmbeddedBroker),
    #[cfg(feature = "http")]
    Http(HttpReceiver),
    #[cfg(feature = "rabbitmq")]
    RabbitMq(RabbitMqServer),
}

impl Destination {
    /// Starts the server of this kind of sink, and says so. `postgres`: the version of the other one.
    pub(super) fn start(sink: DemoSink, postgres: &str) -> Result<Self, Failure> {
        let starting = |what: &str| {
            print(&format!(
                "Starting a throwaway Postgres {postgres} and {what} …"
            ))
        };
        match sink {
            DemoSink::Kafka => {
                starting("a broker");
                let topics = topics();
                let topics = topics.iter().map(|topic| (topic.as_str(), PARTITIONS));
                let broker = EmbeddedBroker::start(&topics.collect::<Vec<_>>());
                let broker = broker.map_err(Failure::from)?;
                Ok(Self::Kafka(broker))
            }
            #[cfg(feature = "http")]
            DemoSink::Http => {
                starting("an HTTP receiver");
                let receiver = HttpReceiver::start().map_err(|error| {
                    let what = "the HTTP receiver cannot be started";
                    Failure::new("demo-http", Exit::Unavailable, what)
                        .caused_by(error)
                        .remedy(
                            "let this user listen on a port of 127.0.0.1, or try another --sink",
                        )
                })?;
                Ok(Self::Http(receiver))
            }
            #[cfg(feature = "rabbitmq")]
            DemoSink::Rabbitmq => {
                let binaries = RabbitMqBinaries::find().map_err(no_rabbitmq)?;
                starting(&format!("RabbitMQ {}", binaries.version()));
                let options = RabbitMqOptions::default();
                let server = RabbitMqServer::start(&binaries, options).map_err(no_rabbitmq)?;
                Ok(Self::RabbitMq(server))
            }
        }
    }

    /// Returns the embedded broker of Kafka.
    #[cfg_attr(
        not(any(feature = "http", feature = "rabbitmq")),
        expect(
            clippy::unnecessary_wraps,
            reason = "for destinations that are features"
        )
    )]
    pub(super) fn broker(&self) -> Option<&EmbeddedBroker> {
        match self {
            Self::Kafka(broker) => Some(broker),
            #[cfg(any(feature = "http", feature = "rabbitmq"))]
            _ => None,
        }
    }

    /// Returns the sections of the relay's configuration.
    pub(super) fn sections(&self) -> String {
        match self {
            Self::Kafka(broker) => format!(
                "[sink.kafka]\n\"bootstrap.servers\" = \"{}\"\n\
                 [poison]\nunroutable = \"dead-letter\"\ntopic = \"walrelay.dlq\"\n",
                broker.bootstrap_servers()
            ),
            #[cfg(feature = "http")]
            Self::Http(receiver) => format!(
                "[sink]\nkind = \"http\"\n[sink.http]\nurl = \"http://{}/{{topic}}\"\n\
                 key_header = \"{KEY_HEADER}\"\n",
                receiver.address()
            ),
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(server) => format!(
                "[sink]\nkind = \"rabbitmq\"\n[sink.rabbitmq]\nhosts = [\"127.0.0.1:{}\"]\n\
                 username = \"guest\"\npassword = \"guest\"\n\
                 exchange = \"{EVENTS}\"\nrouting_key = \"outbox.event.{{aggregatetype}}\"\n\
                 declare = true\nqueue = \"{EVENTS}\"\n",
                server.port()
            ),
        }
    }

    /// Returns what opens a reader of the events.
    pub(super) fn reader(&self) -> OpenReader {
        match self {
            Self::Kafka(broker) => {
                let broker = broker.bootstrap_servers().to_owned();
                Box::new(move || {
                    let topics = topics();
                    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
                    let tail = Tail::open(&broker, &names, OPEN_TIMEOUT);
                    let tail = tail.map_err(Failure::from)?;
                    Ok(Box::new(tail) as Box<dyn EventReader>)
                })
            }
            #[cfg(feature = "http")]
            Self::Http(receiver) => {
                let events = receiver.events();
                Box::new(move || {
                    let events = events.ok_or_else(|| {
                        Failure::new("demo-http", Exit::Internal, "the events have a reader")
                            .remedy("this is a bug of the HTTP demonstration: please report it")
                    })?;
                    Ok(Box::new(events) as Box<dyn EventReader>)
                })
            }
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(server) => {
                let port = server.port();
                Box::new(move || {
                    use walrelay_rabbitmq_sink::{QueueAddress, QueueReader};
                    let reader = QueueReader::open(QueueAddress {
                        host: "127.0.0.1",
                        port,
                        username: "guest",
                        password: "guest",
                        exchange: EVENTS,
                        queue: EVENTS,
                    });
                    Ok(Box::new(reader.map_err(rabbitmq_failed)?) as Box<dyn EventReader>)
                })
            }
        }
    }

    /// Returns the words of the summary for the time until the acknowledgement.
    pub(super) fn commit_to_ack(&self) -> &'static str {
        match self {
            Self::Kafka(_) => "commit → broker's ack",
            #[cfg(feature = "http")]
            Self::Http(_) => "commit → answer",
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(_) => "commit → confirm",
        }
    }

    /// Returns the section that a user writes, indented.
    pub(super) fn example(&self) -> &'static str {
        match self {
            Self::Kafka(_) => {
                "    [sink.kafka]\n    \"bootstrap.servers\" = \"broker.example:9092\""
            }
            #[cfg(feature = "http")]
            Self::Http(_) => {
                "    [sink]\n    kind = \"http\"\n\n    [sink.http]\n    \
                 url = \"https://hooks.example/{topic}\"\n    \
                 secrets_file = \"/run/secrets/webhook\""
            }
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(_) => {
                "    [sink]\n    kind = \"rabbitmq\"\n\n    [sink.rabbitmq]\n    \
                 hosts = [\"rabbitmq.example\"]\n    tls = true\n    username = \"walrelay\"\n    \
                 password_file = \"/run/secrets/rabbitmq\"\n    exchange = \"orders.events\"\n    \
                 routing_key = \"{type}\""
            }
        }
    }

    /// Returns the page that says more.
    pub(super) fn page(&self) -> &'static str {
        match self {
            Self::Kafka(_) => "README.md has the five minutes in full.",
            #[cfg(feature = "http")]
            Self::Http(_) => "docs/sinks/http.md says what the receiver may rely on.",
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(_) => "docs/sinks/rabbitmq.md says what a consumer may rely on.",
        }
    }
}

fn topics() -> Vec<String> {
    let topics = AGGREGATES.iter();
    topics
        .map(|aggregate| format!("outbox.event.{aggregate}"))
        .collect()
}

impl EventReader for Tail {
    fn next(&mut self, limit: Duration) -> Result<Option<ReadEvent>, Failure> {
        let record = Self::next(self, limit);
        let record = record.map_err(Failure::from)?;
        Ok(record.map(|record| ReadEvent {
            id: header(&record, "id"),
            topic: record.topic,
            key: record.key.unwrap_or_default(),
            value: record.value.unwrap_or_default(),
        }))
    }
}

fn header(record: &ReadRecord, name: &str) -> String {
    let value = record.headers.iter().find(|(header, _)| header == name);
    let bytes = value
        .and_then(|(_, value)| value.as_deref())
        .unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(feature = "http")]
impl EventReader for std::sync::mpsc::Receiver<ReadEvent> {
    fn next(&mut self, limit: Duration) -> Result<Option<ReadEvent>, Failure> {
        // The receiver has ended, or nothing came in time.
        Ok(self.recv_timeout(limit).ok())
    }
}

#[cfg(feature = "rabbitmq")]
impl EventReader for walrelay_rabbitmq_sink::QueueReader {
    fn next(&mut self, limit: Duration) -> Result<Option<ReadEvent>, Failure> {
        let message = Self::next(self, limit).map_err(rabbitmq_failed)?;
        Ok(message.map(|message| ReadEvent {
            topic: message.routing_key,
            id: message.message_id.unwrap_or_default(),
            key: message.key.unwrap_or_default(),
            value: message.body,
        }))
    }
}

#[cfg(feature = "rabbitmq")]
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn rabbitmq_failed(error: walrelay_rabbitmq_sink::RabbitmqError) -> Failure {
    use walrelay_failure::ToFailure as _;
    error.to_failure()
}

#[cfg(feature = "rabbitmq")]
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn no_rabbitmq(error: ThrowawayError) -> Failure {
    let what = "a throwaway RabbitMQ cannot be started";
    Failure::new("demo-rabbitmq", Exit::Unavailable, what)
        .caused_by(error.to_string())
        .remedy(
            "make demo SINK=rabbitmq fetches Debian's package where apt-get is; elsewhere try \
             --sink http, or --sink kafka",
        )
}
