//! A Kafka broker inside this process, for demonstrations and tests without Kafka.
//!
//! librdkafka's mock cluster: it listens on a TCP port of the loopback interface and keeps records
//! in memory only, of each partition the last 5 MiB or 100,000 records. Never use it for events
//! that matter.

use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use rdkafka::error::KafkaError as ClientError;
use rdkafka::mocking::MockCluster;

use crate::KafkaError;
use crate::worker::spawn;

/// The id of the cluster's only broker.
const BROKER: i32 = 1;

/// A running broker; it ends when this is dropped.
pub struct EmbeddedBroker {
    bootstrap_servers: String,
    /// Tells the thread to take the broker up or down; dropped to end the thread.
    up: Option<Sender<bool>>,
    thread: Option<JoinHandle<()>>,
}

impl EmbeddedBroker {
    /// Starts a broker with these topics and numbers of partitions. Other topics are created with
    /// four partitions when a client first requests them.
    ///
    /// **Blocks** for some milliseconds.
    pub fn start(topics: &[(&str, i32)]) -> Result<Self, KafkaError> {
        let topics: Vec<(String, i32)> =
            topics.iter().map(|(t, p)| ((*t).to_owned(), *p)).collect();
        let (started, start) = mpsc::channel();
        let (up, changes) = mpsc::channel();
        // The cluster's handle must stay on one thread.
        let thread = spawn("embedded-broker", move || {
            serve(&topics, &started, &changes);
        })?;
        let bootstrap_servers = start
            .recv()
            .unwrap_or(Err(ClientError::Canceled))
            .map_err(KafkaError::Embedded)?;
        Ok(Self {
            bootstrap_servers,
            up: Some(up),
            thread: Some(thread),
        })
    }

    /// Returns the `bootstrap.servers` for clients.
    pub fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }

    /// Takes the broker down, which closes its connections and refuses new ones, or up again. It
    /// keeps its records.
    pub fn set_up(&self, up: bool) {
        if let Some(sender) = &self.up {
            // Cannot fail: the thread lives as long as this.
            let _ = sender.send(up);
        }
    }
}

fn serve(
    topics: &[(String, i32)],
    started: &Sender<Result<String, ClientError>>,
    changes: &Receiver<bool>,
) {
    let cluster = MockCluster::new(1).and_then(|cluster| {
        for (topic, partitions) in topics {
            cluster.create_topic(topic, *partitions, 1)?;
        }
        Ok(cluster)
    });
    let servers = cluster.as_ref().map(MockCluster::bootstrap_servers);
    // Fails only if `start` has ended.
    let _ = started.send(servers.map_err(Clone::clone));
    let Ok(cluster) = cluster else { return };
    // Ends when the `EmbeddedBroker` is dropped.
    for up in changes {
        let changed = if up {
            cluster.broker_up(BROKER)
        } else {
            cluster.broker_down(BROKER)
        };
        if let Err(error) = changed {
            tracing::error!(up, %error, "the embedded broker does not change its state");
        }
    }
}

impl Drop for EmbeddedBroker {
    fn drop(&mut self) {
        self.up = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the embedded broker panicked");
        }
    }
}

impl fmt::Debug for EmbeddedBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedBroker")
            .field("bootstrap_servers", &self.bootstrap_servers)
            .finish_non_exhaustive()
    }
}
