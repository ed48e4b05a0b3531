//! A Kafka broker inside this process, for demonstrations and tests without Kafka.
//!
//! librdkafka's mock cluster: it speaks the protocol over a TCP port of the loopback interface, keeps
//! everything in memory, drops what is older than 5 MiB or 100,000 records of a partition, and
//! forgets all of it when it is dropped. Never a place for events that matter.

use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use rdkafka::error::KafkaError as ClientError;
use rdkafka::mocking::MockCluster;

use crate::KafkaError;

const THREAD: &str = "embedded-broker";

/// A running broker; dropping it takes it down.
pub struct EmbeddedBroker {
    bootstrap_servers: String,
    /// Dropped to tell the thread to end.
    stop: Option<Sender<()>>,
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
        let (stop, stopped) = mpsc::channel();
        // The cluster's handle must stay on one thread.
        let thread = thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || serve(&topics, &started, &stopped))
            .map_err(|source| KafkaError::Thread {
                name: THREAD,
                source,
            })?;
        let bootstrap_servers = start
            .recv()
            .unwrap_or(Err(ClientError::Canceled))
            .map_err(KafkaError::Embedded)?;
        Ok(Self {
            bootstrap_servers,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// What clients connect to.
    pub fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }
}

fn serve(
    topics: &[(String, i32)],
    started: &Sender<Result<String, ClientError>>,
    stopped: &Receiver<()>,
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
                // Ends when the other side is dropped; nothing is ever sent.
                let _ = stopped.recv();
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
        self.stop = None;
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
