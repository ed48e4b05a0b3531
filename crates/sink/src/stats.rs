use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use crate::BatchingMode;
use crate::sync::lock;

/// The number of topics with figures of their own. Further topics are counted under
/// [`OTHER_TOPICS`].
pub const MAX_TOPICS: usize = 100;
/// The name of all topics beyond [`MAX_TOPICS`]. A topic's name cannot contain `*`.
pub const OTHER_TOPICS: &str = "*";

/// Figures of a sink for metrics. All sinks of a factory share one object, so that counters never
/// decrease.
///
/// Several threads read and write the figures; figures read together need not add up.
#[derive(Debug, Default)]
pub struct SinkStats {
    /// The number of records accepted and not reported.
    pub in_flight_records: AtomicU64,
    /// Bytes of those records, including the client library's overhead for each.
    pub in_flight_bytes: AtomicU64,
    throughput: AtomicBool,
    /// True if no broker could be reached for two seconds, and none has answered since.
    pub all_down: AtomicBool,
    topics: Mutex<BTreeMap<Box<str>, Arc<TopicStats>>>,
    failed: Mutex<BTreeMap<String, u64>>,
    clients: Mutex<Vec<Weak<Mutex<Vec<BrokerStats>>>>>,
    cluster_id: Mutex<Option<Box<str>>>,
}

/// Figures of a topic.
#[derive(Debug, Default)]
pub struct TopicStats {
    /// The number of records delivered.
    pub delivered: AtomicU64,
    /// Bytes of key, value and headers of the delivered records.
    pub delivered_bytes: AtomicU64,
    /// The number of records accepted and not delivered, including those given up because another
    /// one failed.
    pub failed: AtomicU64,
}

/// A broker as one client sees it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BrokerStats {
    /// The broker's name as the client library writes it, `host:port/id`.
    pub name: String,
    /// The connection's state as the client library names it; `UP` if requests can be sent.
    pub state: String,
    /// Mean round-trip time of requests in seconds. `None`: no recent request.
    pub rtt_mean: Option<f64>,
    /// 99th percentile of the round-trip time of requests in seconds. `None`: no recent request.
    pub rtt_p99: Option<f64>,
    /// The number of records that wait for a request or for its response.
    pub queued: u64,
    /// Total number of requests sent again.
    pub retries: u64,
}

impl SinkStats {
    /// Returns the figures of a topic; those of [`OTHER_TOPICS`] if there are too many.
    pub fn topic(&self, name: &str) -> Arc<TopicStats> {
        let mut topics = lock(&self.topics);
        if let Some(topic) = topics.get(name) {
            return Arc::clone(topic);
        }
        let name = if topics.len() < MAX_TOPICS {
            name
        } else {
            OTHER_TOPICS
        };
        Arc::clone(topics.entry(Box::from(name)).or_default())
    }

    /// Returns all topics, by name.
    pub fn topics(&self) -> Vec<(String, Arc<TopicStats>)> {
        let topics = lock(&self.topics);
        let topics = topics.iter();
        topics
            .map(|(name, topic)| (name.to_string(), Arc::clone(topic)))
            .collect()
    }

    /// Counts a record that was accepted and not delivered. `class` must come from a small set,
    /// such as the client library's error codes.
    pub fn failed(&self, class: String) {
        *lock(&self.failed).entry(class).or_default() += 1;
    }

    /// Returns the numbers of records that were accepted and not delivered, by class.
    pub fn failures(&self) -> BTreeMap<String, u64> {
        lock(&self.failed).clone()
    }

    /// Sets the id of the cluster that records are sent to.
    pub fn set_cluster_id(&self, id: &str) {
        let mut known = lock(&self.cluster_id);
        if known.as_deref() != Some(id) {
            *known = Some(Box::from(id));
        }
    }

    /// Returns the id of the cluster that records are sent to. `None` if it has none, or before the
    /// first record is acknowledged.
    pub fn cluster_id(&self) -> Option<String> {
        lock(&self.cluster_id).as_deref().map(str::to_owned)
    }

    /// Sets the mode that records are sent in.
    pub fn set_mode(&self, mode: BatchingMode) {
        self.throughput
            .store(mode == BatchingMode::Throughput, Relaxed);
    }

    /// Returns the mode that records are sent in.
    pub fn mode(&self) -> BatchingMode {
        if self.throughput.load(Relaxed) {
            BatchingMode::Throughput
        } else {
            BatchingMode::Latency
        }
    }

    /// Registers a client; returns its list of brokers. The list is part of
    /// [`brokers`](Self::brokers) until the client drops it.
    pub fn client(&self) -> Arc<Mutex<Vec<BrokerStats>>> {
        let brokers = Arc::default();
        let mut clients = lock(&self.clients);
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(&brokers));
        brokers
    }

    /// Returns the brokers of all clients, by name. `queued` and `retries` are summed over the
    /// clients; of the round-trip times the largest is taken.
    pub fn brokers(&self) -> Vec<BrokerStats> {
        let clients: Vec<_> = lock(&self.clients)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let mut brokers: BTreeMap<String, BrokerStats> = BTreeMap::new();
        for client in clients {
            for broker in lock(&client).iter() {
                match brokers.get_mut(&broker.name) {
                    None => _ = brokers.insert(broker.name.clone(), broker.clone()),
                    Some(known) => known.merge(broker),
                }
            }
        }
        brokers.into_values().collect()
    }
}

impl BrokerStats {
    fn merge(&mut self, other: &Self) {
        if other.state == "UP" {
            self.state.clone_from(&other.state);
        }
        self.rtt_mean = larger(self.rtt_mean, other.rtt_mean);
        self.rtt_p99 = larger(self.rtt_p99, other.rtt_p99);
        self.queued += other.queued;
        self.retries += other.retries;
    }
}

fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.into_iter().chain(b).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_beyond_the_limit_are_counted_together() {
        let stats = SinkStats::default();
        for n in 0..MAX_TOPICS + 20 {
            stats
                .topic(&format!("topic-{n}"))
                .delivered
                .fetch_add(1, Relaxed);
        }
        let topics = stats.topics();
        assert_eq!(topics.len(), MAX_TOPICS + 1);
        let other = topics.iter().find(|(name, _)| name == OTHER_TOPICS);
        assert_eq!(
            other.map(|(_, topic)| topic.delivered.load(Relaxed)),
            Some(20)
        );
    }

    #[test]
    fn a_broker_of_two_clients_is_one_and_a_closed_client_is_forgotten() {
        let stats = SinkStats::default();
        let broker = |state: &str, p99| BrokerStats {
            name: "b:9092/1".to_owned(),
            state: state.to_owned(),
            rtt_p99: p99,
            queued: 2,
            ..BrokerStats::default()
        };
        let (first, second) = (stats.client(), stats.client());
        lock(&first).push(broker("UP", Some(0.5)));
        lock(&second).push(broker("DOWN", None));
        let brokers = stats.brokers();
        assert_eq!(brokers.len(), 1);
        assert_eq!(
            (&*brokers[0].state, brokers[0].rtt_p99, brokers[0].queued),
            ("UP", Some(0.5), 4)
        );
        drop(first);
        assert_eq!(stats.brokers()[0].state, "DOWN");
    }
}
