//! A Kafka broker inside this process, for demonstrations and tests without Kafka.
//!
//! librdkafka's mock cluster: it speaks the protocol over a TCP port of the loopback interface, keeps
//! everything in memory, drops what is older than 5 MiB or 100,000 records of a partition, and
//! forgets all of it when it is dropped. Never a place for events that matter.

use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use rdkafka::error::KafkaError as ClientError;
use rdkafka::mocking::MockCluster;

use crate::KafkaError;
use crate::worker::spawn;

/// The id of the cluster's only broker.
const BROKER: i32 = 1;

/// A running broker; dropping it takes it down.
pub struct EmbeddedBroker {
    bootstrap_servers: String,
    /// Whether the broker is up; dropped to tell the thread to end.
    up: Option<Sender<bool>>,
    thread: Option<JoinHandle<()>>,
}

impl EmbeddedBroker {
    /// Starts one broker with these topics and their numbers of partitions. Topics that are not
    /// listed are created with four partitions when they are first asked for.
    ///
    /// **Blocks** for the milliseconds that it takes.
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

    /// What clients connect to.
    pub fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }

    /// Takes the broker down, which closes its connections and refuses new ones, or up again. Its records stay.
    pub fn set_up(&self, up: bool) {
        if let Some(sender) = &self.up {
            // The thread lives as long as this.
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
    match cluster {
        Ok(cluster) => {
            if started.send(Ok(cluster.bootstrap_servers())).is_ok() {
                // Ends when the other side is dropped.
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
        }
        Err(error) => {
            // Nobody is left to tell when this fails.
            let _ = started.send(Err(error));
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
