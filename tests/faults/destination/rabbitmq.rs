//! RabbitMQ with a queue for each topic.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use walrelay_testkit::{AmqpMessage, ChaosProxy, Delivered, QueueOptions, RabbitMq, lock};

use super::Destination;

/// The number of messages from which on a queue is full: more than are in flight to it.
const FULL: u32 = 2_000;

pub(super) struct Server {
    rabbitmq: RabbitMq,
    proxy: ChaosProxy,
    /// `classic` or `quorum`.
    queues: &'static str,
    /// What was read from the queue of each topic. A queue gives its messages away.
    read: Mutex<BTreeMap<String, Vec<Delivered>>>,
}

impl Server {
    pub(super) fn start(queues: &'static str) -> Self {
        let rabbitmq = RabbitMq::start();
        Self {
            proxy: ChaosProxy::start(("127.0.0.1", rabbitmq.port())),
            rabbitmq,
            queues,
            read: Mutex::default(),
        }
    }

    /// Takes what is in the queues of topics with this prefix. Returns what was read of all topics.
    fn take(&self, prefix: &str) -> MutexGuard<'_, BTreeMap<String, Vec<Delivered>>> {
        let mut read = lock(&self.read);
        let mut client = self.rabbitmq.client();
        for (topic, records) in read.iter_mut() {
            if topic.starts_with(prefix) {
                for message in client.take(topic) {
                    records.push(delivered(topic, records.len(), message));
                }
            }
        }
        read
    }
}

fn delivered(topic: &str, number: usize, message: AmqpMessage) -> Delivered {
    Delivered {
        id: message.message_id,
        topic: topic.to_owned(),
        offset: number as i64,
        key: message.headers.get("walrelay.key").cloned().flatten(),
        payload: Some(message.body),
        ..Delivered::default()
    }
}

impl Destination for Server {
    /// One channel to classic queues, several to quorum queues.
    fn settings(&self) -> &'static str {
        if self.queues == "classic" {
            "sink.kind = \"rabbitmq\"\nsink.rabbitmq.username = \"guest\"\n\
             sink.rabbitmq.password = \"guest\""
        } else {
            "sink.kind = \"rabbitmq\"\nsink.rabbitmq.username = \"guest\"\n\
             sink.rabbitmq.password = \"guest\"\nsink.rabbitmq.channels = 3"
        }
    }

    fn address_setting(&self, address: &str) -> String {
        format!("sink.rabbitmq.hosts = [\"{address}\"]")
    }

    fn short_timeouts(&self) -> &'static str {
        "sink.rabbitmq.confirm_timeout = \"2s\"\nsink.rabbitmq.heartbeat = \"1s\""
    }

    fn size_limit(&self) -> &'static str {
        "sink.rabbitmq.max_message_size = \"64KiB\""
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.rabbitmq.port())
    }

    fn proxy(&self) -> &ChaosProxy {
        &self.proxy
    }

    fn create(&self, topics: &[String]) {
        let mut client = self.rabbitmq.client();
        for topic in topics {
            client.declare_exchange(topic, "fanout");
            let options = QueueOptions {
                queue_type: self.queues,
                ..QueueOptions::default()
            };
            client.declare_queue(topic, options);
            client.bind(topic, topic, "");
            self.rabbitmq.outlives_kill(topic, self.queues);
            lock(&self.read).entry(topic.clone()).or_default();
        }
    }

    fn fill(&self, full: bool) {
        // Without a limit that was reached, a full quorum queue goes on refusing.
        let length = if full { FULL } else { u32::MAX };
        let policy = format!("{{\"max-length\":{length},\"overflow\":\"reject-publish\"}}");
        // A classic queue that is longer than its new limit drops messages.
        self.proxy.stall();
        drop(self.take(""));
        self.rabbitmq
            .control(&["set_policy", "full", ".*", &policy, "--apply-to", "queues"]);
        self.proxy.resume();
    }

    fn stop(&self) {
        self.rabbitmq.kill();
    }

    fn kill(&self) {
        self.rabbitmq.kill();
    }

    fn start_again(&self) {
        self.rabbitmq.start_again();
    }

    fn pause(&self) {
        self.rabbitmq.pause();
    }

    fn resume(&self) {
        self.rabbitmq.resume();
    }

    fn count(&self, prefix: &str) -> Option<i64> {
        let read = self.take(prefix);
        let of_prefix = read.iter().filter(|(topic, _)| topic.starts_with(prefix));
        Some(of_prefix.map(|(_, records)| records.len() as i64).sum())
    }

    fn read(&self, prefix: &str) -> Vec<Delivered> {
        let read = self.take(prefix);
        let of_prefix = read.iter().filter(|(topic, _)| topic.starts_with(prefix));
        of_prefix
            .flat_map(|(_, records)| records)
            .cloned()
            .collect()
    }

    fn stamps(&self) -> bool {
        false
    }

    fn log(&self) -> String {
        self.rabbitmq.log()
    }
}
