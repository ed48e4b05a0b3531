use std::{
    iter,
    panic::resume_unwind,
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

use rdkafka::{
    admin::{NewTopic, TopicReplication},
    consumer::{BaseConsumer, Consumer as _},
    metadata::{Metadata, MetadataPartition},
};
use walrelay_throwaway::{Signal, ThrowawayError};

use super::{
    KafkaBuilder, LOOK, create_topics, delete_topics,
    node::{Jvm, Node, addresses, consumer},
};
use crate::{eventually, eventually_some};

/// Timeout of a request to the cluster, and of the wait for a state of the cluster.
const LIMIT: Duration = Duration::from_secs(120);
/// `node.id` of the controller; those of the brokers are 1, 2 and 3.
const CONTROLLER: i32 = 100;

/// Returns the `process.roles` of the node with this id.
fn role(id: i32) -> &'static str {
    if id == CONTROLLER {
        "controller"
    } else {
        "broker"
    }
}

impl KafkaBuilder {
    /// Starts three brokers of the test's own; returns when they are ready.
    #[track_caller]
    pub fn start_cluster(self) -> KafkaCluster {
        match KafkaCluster::start(&self) {
            Ok(cluster) => {
                cluster.wait_up(&KafkaCluster::BROKERS);
                cluster
            }
            Err(error) => panic!("the Kafka cluster does not start: {error}"),
        }
    }
}

/// Three real brokers, and a controller beside them that stays up: `replication.factor` 3,
/// `min.insync.replicas` 2, no unclean elections.
///
/// The controller is a process of its own, as in production, so that the cluster can still elect
/// leaders when two brokers are gone. Brokers are named by their ids: 1, 2, 3. Dropping the cluster
/// kills it and removes its data.
#[derive(Debug)]
pub struct KafkaCluster {
    brokers: [Node; 3],
    controller: Node,
}

impl KafkaCluster {
    /// Ids of the brokers.
    pub const BROKERS: [i32; 3] = [1, 2, 3];

    fn start(builder: &KafkaBuilder) -> Result<Self, ThrowawayError> {
        let full_speed = false;
        let jvm = |heap| Jvm { heap, full_speed };
        let broker = |id| Node::new(format!("broker {id}"), true, jvm(256));
        let cluster = Self {
            brokers: [broker(1)?, broker(2)?, broker(3)?],
            controller: Node::new("the controller", false, jvm(192))?,
        };
        for id in Self::BROKERS.into_iter().chain([CONTROLLER]) {
            let properties = cluster.properties(builder, id);
            cluster.node(id).format((role(id), id), &properties, &[])?;
        }
        cluster.controller.start()?;
        // Half of a start is the start of the JVM, so start all at once.
        let brokers: Vec<&Node> = cluster.brokers.iter().collect();
        in_parallel(&brokers, |node| node.start())?;
        Ok(cluster)
    }

    fn properties(&self, builder: &KafkaBuilder, id: i32) -> String {
        let node = self.node(id);
        let role = role(id);
        let listener = if id == CONTROLLER {
            "CONTROLLER"
        } else {
            "PLAINTEXT"
        };
        // A dead broker is detected after 5 s; Kafka's default is 9 s. The cleaner's buffer is 128
        // MiB by default, more than the heap leaves.
        let more = format!(
            "controller.quorum.voters={CONTROLLER}@127.0.0.1:{}\n\
             listeners={listener}://127.0.0.1:{}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             default.replication.factor=3\n\
             min.insync.replicas=2\n\
             unclean.leader.election.enable=false\n\
             offsets.topic.num.partitions=1\n\
             broker.session.timeout.ms=5000\n\
             broker.heartbeat.interval.ms=500\n\
             log.cleaner.dedupe.buffer.size=4194304\n",
            self.controller.port, node.port
        );
        builder.properties(node, (role, id), 3, &more)
    }

    /// Returns the addresses of all three brokers, for `bootstrap.servers`.
    pub fn bootstrap_servers(&self) -> String {
        addresses(&self.ports(&Self::BROKERS))
    }

    /// Sends SIGKILL to a broker.
    #[track_caller]
    pub fn kill(&self, broker: i32) {
        self.node(broker).end_by(Signal::Kill);
    }

    /// Stops a broker in order (SIGTERM) and waits for its end. The broker first hands over the
    /// partitions that it leads.
    #[track_caller]
    pub fn stop(&self, broker: i32) {
        self.node(broker).end_by(Signal::Term);
    }

    /// Starts a broker again on the same port with the same data, and waits until it is up. Its
    /// replicas are in sync later: [`wait_in_sync`](Self::wait_in_sync).
    #[track_caller]
    pub fn start_again(&self, broker: i32) {
        self.node(broker).start_again();
    }

    /// Sends SIGSTOP: connections stay open, the broker answers nothing.
    #[track_caller]
    pub fn pause(&self, broker: i32) {
        self.node(broker).signal(Signal::Stop);
    }

    /// Sends SIGCONT.
    #[track_caller]
    pub fn resume(&self, broker: i32) {
        self.node(broker).signal(Signal::Cont);
    }

    /// Returns the log of a broker, from WARN upwards.
    #[track_caller]
    pub fn log(&self, broker: i32) -> String {
        self.node(broker).log()
    }

    /// Creates a topic with three replicas of each partition and these settings.
    #[track_caller]
    pub fn create_topic(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(3));
        create_topics(&self.bootstrap_servers(), iter::once(topic), settings);
    }

    /// Creates a topic with these replicas of each partition; the first replica is the preferred
    /// leader.
    #[track_caller]
    pub fn create_topic_on(&self, name: &str, brokers: &[&[i32]], settings: &[(&str, &str)]) {
        let partitions = i32::try_from(brokers.len()).expect("not as many partitions");
        let topic = NewTopic::new(name, partitions, TopicReplication::Variable(brokers));
        create_topics(&self.bootstrap_servers(), iter::once(topic), settings);
    }

    /// Deletes topics.
    #[track_caller]
    pub fn delete_topics(&self, names: &[&str]) {
        delete_topics(&self.bootstrap_servers(), names);
    }

    /// Returns the leader of this partition, according to the brokers that answer; waits until
    /// there is one.
    #[track_caller]
    pub fn leader_of(&self, topic: &str, partition: i32) -> i32 {
        let client = self.client();
        eventually_some(LIMIT, || {
            let metadata = fetch_metadata(&client)?;
            let topic = metadata.topics().iter().find(|t| t.name() == topic)?;
            let found = topic.partitions().iter().find(|p| p.id() == partition)?;
            Some(found.leader()).filter(|leader| *leader > 0)
        })
    }

    /// Waits until another broker than `former` leads this partition; returns that broker.
    #[track_caller]
    pub fn wait_other_leader(&self, topic: &str, partition: i32, former: i32) -> i32 {
        eventually_some(LIMIT, || {
            Some(self.leader_of(topic, partition)).filter(|leader| *leader != former)
        })
    }

    /// Waits until every partition of every topic has a leader and all its replicas are in sync.
    #[track_caller]
    pub fn wait_in_sync(&self) {
        self.wait_partitions(|p| p.leader() > 0 && p.isr().len() == p.replicas().len());
    }

    /// Waits until no partition has more than `most` replicas in sync: the cluster has noticed that
    /// brokers are gone.
    #[track_caller]
    pub fn wait_in_sync_at_most(&self, most: usize) {
        self.wait_partitions(|p| p.isr().len() <= most);
    }

    #[track_caller]
    fn wait_partitions(&self, holds: impl Fn(&MetadataPartition) -> bool) {
        let client = self.client();
        eventually(LIMIT, || {
            fetch_metadata(&client).is_some_and(|metadata| {
                let mut topics = metadata.topics().iter();
                topics.all(|topic| topic.partitions().iter().all(&holds))
            })
        });
    }

    /// Waits until each of these brokers reports that all of them are up.
    #[track_caller]
    fn wait_up(&self, brokers: &[i32]) {
        for &broker in brokers {
            let client = consumer(&self.ports(&[broker]));
            eventually(LIMIT, || {
                fetch_metadata(&client).is_some_and(|metadata| {
                    let up = metadata.brokers();
                    brokers.iter().all(|id| up.iter().any(|b| b.id() == *id))
                })
            });
        }
    }

    /// Returns a client of the running brokers.
    fn client(&self) -> BaseConsumer {
        let running: Vec<i32> = Self::BROKERS
            .into_iter()
            .filter(|id| self.node(*id).pid().is_some())
            .collect();
        consumer(&self.ports(&running))
    }

    fn ports(&self, brokers: &[i32]) -> Vec<u16> {
        brokers
            .iter()
            .map(|id| self.node(*id).port.number())
            .collect()
    }

    #[track_caller]
    fn node(&self, id: i32) -> &Node {
        match id {
            1 => &self.brokers[0],
            2 => &self.brokers[1],
            3 => &self.brokers[2],
            CONTROLLER => &self.controller,
            _ => panic!("there is no broker {id}"),
        }
    }
}

fn fetch_metadata(client: &BaseConsumer) -> Option<Metadata> {
    client.fetch_metadata(None, LOOK).ok()
}

/// Runs `act` for all elements, each in a thread of its own.
fn in_parallel<T: Sync, E: Send>(
    all: &[T],
    act: impl Fn(&T) -> Result<(), E> + Sync,
) -> Result<(), E> {
    thread::scope(|scope| {
        let acts: Vec<_> = all.iter().map(|one| scope.spawn(|| act(one))).collect();
        let ended =
            |act: ScopedJoinHandle<'_, _>| act.join().unwrap_or_else(|panic| resume_unwind(panic));
        acts.into_iter().try_for_each(ended)
    })
}
