//! A real server for the tests of the sink.

#![allow(clippy::expect_used, reason = "a test may panic")]

use std::collections::HashMap;
use std::process;
use std::sync::Mutex;
use std::time::Duration;

use walrelay_rabbitmq_sink::{Auth, ConstantAddress, RabbitmqKind, RabbitmqSection};
use walrelay_sink::{AnySinkFactory, Poison, SinkOptions};
use walrelay_sink_client::TlsFiles;
use walrelay_sink_kind::SinkKind as _;
pub(crate) use walrelay_testkit::conformance::options;
use walrelay_testkit::conformance::{Bounds, Destination, Refusal, Stored};
use walrelay_testkit::{
    AmqpMessage, AmqpServer, InTurn, PATIENCE, QueueOptions, RabbitMq, eventually, lock,
};

/// The largest value that the tests publish.
pub(crate) const MAX_MESSAGE: u64 = 1 << 20;
/// An exchange without a queue.
pub(crate) const UNBOUND: &str = "unbound";

/// The section of the user `guest` of a server on this machine.
pub(crate) fn section(port: u16) -> RabbitmqSection {
    RabbitmqSection {
        hosts: vec![format!("127.0.0.1:{port}")],
        vhost: "/".to_owned(),
        username: Some("guest".to_owned()),
        password: Some("guest".into()),
        auth: Auth::Plain,
        tls: false,
        files: TlsFiles::default(),
        channels: 1,
        max_message_size: MAX_MESSAGE,
        streams: true,
        confirm_timeout: Duration::from_secs(20),
        connect_timeout: Duration::from_secs(60),
        heartbeat: Duration::from_secs(60),
        management_url: None,
        declare: false,
        queue: None,
        dead_letter_exchange: String::new(),
        dead_letter_routing_key: None,
    }
}

/// A server, with what was read from its queues.
pub(crate) struct Server {
    pub(crate) rabbitmq: InTurn<AmqpServer>,
    queue_type: &'static str,
    read: Mutex<HashMap<String, Vec<AmqpMessage>>>,
}

impl Server {
    pub(crate) fn start(queue_type: &'static str) -> Self {
        if !RabbitMq::is_wanted() {
            // None of the tests of this program can be run.
            process::exit(0);
        }
        let server = RabbitMq::in_turn();
        server.client().declare_exchange(UNBOUND, "fanout");
        Self {
            rabbitmq: server,
            queue_type,
            read: Mutex::default(),
        }
    }

    fn factory_with(&self, options: SinkOptions) -> AnySinkFactory {
        let section = RabbitmqSection {
            channels: if self.queue_type == "classic" { 1 } else { 3 },
            ..section(self.rabbitmq.port())
        };
        let kind = RabbitmqKind::new(&section, options, ConstantAddress::default());
        kind.expect("no file is needed").factory(None).0
    }

    /// Declares an exchange with a queue of the same name.
    pub(crate) fn declare(&self, name: &str, max_length: Option<u32>) {
        let mut client = self.rabbitmq.client();
        client.declare_exchange(name, "fanout");
        let options = QueueOptions {
            queue_type: self.queue_type,
            max_length,
            ..QueueOptions::default()
        };
        client.declare_queue(name, options);
        client.bind(name, name, "");
        self.rabbitmq.outlives_kill(name, self.queue_type);
    }
}

impl Destination for Server {
    fn factory(&self, bounds: Bounds) -> AnySinkFactory {
        self.factory_with(SinkOptions {
            // After a start of the server a stream is not there for a moment.
            retry_for: match self.queue_type {
                "stream" => PATIENCE,
                _ => Duration::ZERO,
            },
            ..bounds.options()
        })
    }

    fn patient(&self, retry_for: Duration) -> Option<(AnySinkFactory, Refusal)> {
        let factory = self.factory_with(SinkOptions {
            retry_for,
            ..options()
        });
        Some((factory, self.refusals().remove(0)))
    }

    fn create_topic(&self, topic: &str) {
        self.declare(topic, None);
    }

    fn stored(&self, topic: &str) -> Vec<Stored> {
        if self.queue_type == "stream" {
            eventually(PATIENCE, || self.rabbitmq.client().is_available(topic));
        }
        let mut client = self.rabbitmq.client();
        let mut read = lock(&self.read);
        let read = read.entry(topic.to_owned()).or_default();
        if self.queue_type == "stream" {
            *read = client.read_stream(topic);
        } else {
            read.extend(client.take(topic));
        }
        let stored = |message: &AmqpMessage| {
            assert_eq!(message.delivery_mode, Some(2), "persistent");
            let key = message.headers.get("walrelay.key").cloned().flatten();
            Stored {
                key,
                value: Some(message.body.clone()),
                id: message.message_id.clone().unwrap_or_default(),
            }
        };
        read.iter().map(stored).collect()
    }

    fn pause(&self) {
        self.rabbitmq.pause();
    }

    fn resume(&self) {
        self.rabbitmq.resume();
    }

    fn kill(&self) {
        self.rabbitmq.kill();
    }

    fn start(&self) {
        self.rabbitmq.start_again();
    }

    fn refusals(&self) -> Vec<Refusal> {
        vec![
            Refusal {
                poison: Poison::Unroutable,
                in_place: true,
                spoil: |event| UNBOUND.clone_into(&mut event.topic),
            },
            Refusal {
                poison: Poison::Rejected,
                in_place: true,
                spoil: |event| "there.is.none".clone_into(&mut event.topic),
            },
            Refusal {
                poison: Poison::Oversize,
                in_place: true,
                spoil: |event| event.value = vec![b'x'; MAX_MESSAGE as usize + 1],
            },
            Refusal {
                poison: Poison::Unroutable,
                in_place: true,
                spoil: |event| event.topic = "x".repeat(256),
            },
        ]
    }
}
