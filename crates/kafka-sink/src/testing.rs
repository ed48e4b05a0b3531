//! Clusters, configurations and a receiver of reports for the tests of several modules.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use walrelay_sink::{Deliveries, DeliveryError, Sink};

use crate::{KafkaConfig, KafkaOptions};

/// The longest wait for what must happen.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) type Cluster = MockCluster<'static, DefaultProducerContext>;

/// A mock cluster of one broker, with these topics and numbers of partitions.
pub(crate) fn cluster(topics: &[(&str, i32)]) -> Cluster {
    let cluster = MockCluster::new(1).expect("a mock cluster");
    for (topic, partitions) in topics {
        cluster.create_topic(topic, *partitions, 1).expect(topic);
    }
    cluster
}

/// A configuration for these `bootstrap.servers`, with more properties.
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

/// The default configuration for a cluster, with more properties.
pub(crate) fn config_of(cluster: &Cluster, more: &[(&str, &str)]) -> KafkaConfig {
    config_at(&cluster.bootstrap_servers(), KafkaOptions::default(), more)
}

/// Records every report, and the numbers that were reported twice.
#[derive(Default)]
pub(crate) struct Reports {
    pub(crate) state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) outcomes: HashMap<u64, Result<(), DeliveryError>>,
    repeated: Vec<u64>,
    pub(crate) capacity: u64,
}

impl Reports {
    fn report(&self, seq: u64, outcome: Result<(), DeliveryError>) {
        let mut state = self.state.lock().unwrap();
        if state.outcomes.insert(seq, outcome).is_some() {
            state.repeated.push(seq);
        }
        self.changed.notify_all();
    }

    pub(crate) fn wait(&self, until: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        let (state, timeout) = self
            .changed
            .wait_timeout_while(state, LONG, |state| !until(state))
            .unwrap();
        assert!(
            !timeout.timed_out(),
            "{} reports, {} wake-ups",
            state.outcomes.len(),
            state.capacity
        );
    }

    /// Waits, and polls the sink after each wake-up, as the relay does.
    pub(crate) fn wait_with(&self, sink: &mut impl Sink, until: impl Fn(&State) -> bool) {
        loop {
            let before = self.capacity_calls();
            sink.poll();
            self.wait(|state| until(state) || state.capacity > before);
            if until(&self.state.lock().unwrap()) {
                return;
            }
        }
    }

    pub(crate) fn wait_for(&self, count: u64) {
        self.wait(|state| state.outcomes.len() as u64 == count);
    }

    pub(crate) fn wait_polling(&self, sink: &mut impl Sink, count: u64) {
        self.wait_with(sink, |state| state.outcomes.len() as u64 == count);
    }

    pub(crate) fn capacity_calls(&self) -> u64 {
        self.state.lock().unwrap().capacity
    }

    /// Asserts that exactly the numbers below `accepted` were reported, each once.
    pub(crate) fn assert_complete(&self, accepted: u64) {
        let state = self.state.lock().unwrap();
        assert_eq!(state.repeated, Vec::<u64>::new(), "reported twice");
        let missing: Vec<u64> = (0..accepted)
            .filter(|seq| !state.outcomes.contains_key(seq))
            .collect();
        assert_eq!(missing, Vec::<u64>::new(), "never reported");
        assert_eq!(state.outcomes.len() as u64, accepted);
    }

    pub(crate) fn failures(&self) -> Vec<DeliveryError> {
        let state = self.state.lock().unwrap();
        state
            .outcomes
            .values()
            .filter_map(|outcome| outcome.clone().err())
            .collect()
    }
}

impl Deliveries for Reports {
    fn delivered(&self, seq: u64) {
        self.report(seq, Ok(()));
    }

    fn failed(&self, seq: u64, error: DeliveryError) {
        self.report(seq, Err(error));
    }

    fn capacity(&self) {
        self.state.lock().unwrap().capacity += 1;
        self.changed.notify_all();
    }
}
