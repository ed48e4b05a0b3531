//! Clusters and configurations for the tests of several modules.

use std::thread;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, DefaultProducerContext, Producer as _};
use walrelay_sink_kind::topics::ReadRecord;

use crate::consumer::Tail;
use crate::{KafkaConfig, KafkaOptions};

pub(crate) mod proxy;

/// The longest wait for what must happen, also on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// A time that no test waits for.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
/// The longest wait for the end of a client whose broker does not answer: less than the minute after
/// which librdkafka gives a request up, so that a wait for that fails.
const END: Duration = Duration::from_secs(50);

pub(crate) type Cluster = MockCluster<'static, DefaultProducerContext>;

/// Returns a mock cluster of one broker, with these topics and numbers of partitions.
pub(crate) fn cluster(topics: &[(&str, i32)]) -> Cluster {
    let cluster = MockCluster::new(1).expect("a mock cluster");
    for (topic, partitions) in topics {
        cluster.create_topic(topic, *partitions, 1).expect(topic);
    }
    cluster
}

/// Returns a configuration for these `bootstrap.servers`, with more properties.
pub(crate) fn config_at(
    servers: &str,
    options: KafkaOptions,
    more: &[(&str, &str)],
) -> KafkaConfig {
    let properties = [("bootstrap.servers", servers)]
        .iter()
        .chain(more)
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    KafkaConfig::new(properties, options).expect("valid")
}

/// Returns the default configuration for a cluster, with more properties.
pub(crate) fn config_of(cluster: &Cluster, more: &[(&str, &str)]) -> KafkaConfig {
    config_at(&cluster.bootstrap_servers(), KafkaOptions::default(), more)
}

/// Returns the random choices of a test, by the seed of the run; 7 unless `WALRELAY_TEST_SEED` sets
/// one.
pub(crate) fn random() -> fastrand::Rng {
    let seed = std::env::var("WALRELAY_TEST_SEED").unwrap_or_default();
    let seed = seed.parse().unwrap_or(7);
    eprintln!("WALRELAY_TEST_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Waits until the condition holds.
#[track_caller]
pub(crate) fn eventually(what: &str, condition: impl FnMut() -> bool) {
    within(LONG, what, condition);
}

#[track_caller]
fn within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "{what}");
        // Poll: threads of librdkafka and of the crate change the state and notify no one.
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `act` on another thread and waits for its end. An `act` that waits for more than [`END`]
/// fails the test.
#[track_caller]
pub(crate) fn ends(what: &str, act: impl FnOnce() + Send + 'static) {
    let acting = thread::spawn(act);
    within(END, what, || acting.is_finished());
    acting.join().expect("it does not panic");
}

/// Returns the next record of a topic's end, which must come.
#[track_caller]
pub(crate) fn next(tail: &mut Tail) -> ReadRecord {
    let mut found = None;
    eventually("a record", || {
        found = tail.next(Duration::from_secs(1)).expect("readable");
        found.is_some()
    });
    found.expect("it was found")
}

/// Reads `count` records from these topics.
#[track_caller]
pub(crate) fn read(cluster: &Cluster, topics: &[&str], count: usize) -> Vec<ReadRecord> {
    let mut tail = Tail::open(&cluster.bootstrap_servers(), topics, LONG).expect("a tail");
    (0..count).map(|_| next(&mut tail)).collect()
}

/// Returns the number of records in a topic.
pub(crate) fn count_of(cluster: &Cluster, topic: &str) -> usize {
    let client: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .create()
        .expect("a client");
    let client = client.client();
    let metadata = client.fetch_metadata(Some(topic), LONG).expect("metadata");
    let partitions = metadata.topics()[0].partitions().iter();
    partitions
        .map(|partition| {
            let ends = client.fetch_watermarks(topic, partition.id(), LONG);
            let (low, high) = ends.expect("watermarks");
            assert_eq!(low, 0, "the mock broker has dropped records");
            high as usize
        })
        .sum()
}
