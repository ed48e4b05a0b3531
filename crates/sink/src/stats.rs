use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::silent_servers::{ANSWER_LIMIT, Unanswered};
use crate::sync::lock;
use crate::{
    BatchingMode, CertificateFault, ConnectFailure, Disposition, EventSizes, Loss, Losses,
    Obstacle, ServerClocks, StreamEnds,
};

/// The number of topics with figures of their own. Further topics are counted under
/// [`OTHER_TOPICS`].
pub const MAX_TOPICS: usize = 100;
/// The number of endpoints of a sink with figures of their own, if the sink finds them by itself.
pub(crate) const MAX_ENDPOINTS: usize = 100;
/// The name of all topics beyond [`MAX_TOPICS`]. A topic's name cannot contain `*`.
pub const OTHER_TOPICS: &str = "*";
/// The time for which a fault of a certificate counts. Clients that meet it again and again note it at
/// least every 30 s.
const FAULT_COUNTS_FOR: Duration = Duration::from_secs(90);

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
    /// True if no endpoint could be reached for two seconds, and none has answered since.
    /// [`is_down`](Self::is_down) knows endpoints that are silent, too.
    pub all_down: AtomicBool,
    pub(crate) unanswered: Unanswered,
    certificate_fault: Mutex<Option<(CertificateFault, Instant)>>,
    pub(crate) connect_failure: Mutex<Option<ConnectFailure>>,
    topics: Mutex<BTreeMap<Box<str>, Arc<TopicStats>>>,
    failed: Mutex<BTreeMap<String, u64>>,
    clients: Clients<EndpointStats>,
    unavailable: Clients<String>,
    cluster_id: Mutex<Option<Box<str>>>,
    losses: Mutex<Losses>,
    epoch: AtomicU8,
    /// The ends of the streams, if the destination has streams that are compared.
    pub ends: StreamEnds,
    /// The sizes of the accepted events.
    pub sizes: EventSizes,
    /// The clocks of the servers that report theirs.
    pub clocks: ServerClocks,
}

/// A list of each client, for as long as the client keeps it.
#[derive(Debug)]
struct Clients<T>(Mutex<Vec<Weak<Mutex<Vec<T>>>>>);

impl<T> Default for Clients<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Clients<T> {
    fn add(&self) -> Arc<Mutex<Vec<T>>> {
        let list = Arc::default();
        let mut clients = lock(&self.0);
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(&list));
        list
    }

    /// Returns the entries of all clients.
    fn entries(&self) -> Vec<T> {
        let lists: Vec<_> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        lists.iter().flat_map(|list| lock(list).clone()).collect()
    }
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

/// A server that records are sent to, as one client sees it: a broker, a node, or the host of a URL.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EndpointStats {
    /// The endpoint's name, without credentials, as the client library writes it: `host:port/id` of
    /// a Kafka broker.
    pub name: String,
    /// The connection's state as the client library names it; [`UP`](Self::UP) if requests can be
    /// sent.
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
    /// Notes why the certificate of a server was refused; `None`: a server accepts requests.
    pub fn set_certificate_fault(&self, fault: Option<CertificateFault>) {
        *lock(&self.certificate_fault) = fault.map(|fault| (fault, Instant::now()));
    }

    /// Returns why the certificate of a server was refused lately, if one was.
    pub fn certificate_fault(&self) -> Option<CertificateFault> {
        let refusal = lock(&self.certificate_fault);
        let (fault, at) = refusal.as_ref()?;
        (at.elapsed() < FAULT_COUNTS_FOR).then(|| fault.clone())
    }

    /// Returns why the last attempt to connect failed; `None` if it did not, or if the sink does not
    /// say.
    pub fn connect_failure(&self) -> Option<ConnectFailure> {
        lock(&self.connect_failure).clone()
    }

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

    /// Notes and logs that a destination has lost events that it had acknowledged.
    pub fn note_loss(&self, loss: Loss) {
        loss.log(self.epoch());
        lock(&self.losses).add(loss);
    }

    /// Sets the epoch of the server that the relay reads.
    pub fn set_epoch(&self, epoch: u8) {
        self.epoch.store(epoch, Relaxed);
    }

    /// Returns the epoch of the server that the relay reads.
    pub fn epoch(&self) -> u8 {
        self.epoch.load(Relaxed)
    }

    /// Adds the losses that former processes have seen, and that are not accepted.
    pub fn add_former_losses(&self, former: Vec<Loss>) {
        let mut losses = lock(&self.losses);
        for loss in former {
            losses.add_former(loss);
        }
    }

    /// Returns the losses that are not accepted.
    pub fn losses(&self) -> Losses {
        lock(&self.losses).clone()
    }

    /// Sets the id of the cluster that records are sent to: a change of it means that the servers are
    /// others.
    pub fn set_cluster_id(&self, id: &str) {
        let mut cluster_id = lock(&self.cluster_id);
        if cluster_id.as_deref() != Some(id) {
            *cluster_id = Some(Box::from(id));
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

    /// Registers a client; returns its list of endpoints. The list is part of
    /// [`endpoints`](Self::endpoints) until the client drops it.
    pub fn client(&self) -> Arc<Mutex<Vec<EndpointStats>>> {
        self.clients.add()
    }

    /// Returns the endpoints of all clients, by name. `queued` and `retries` are summed over the
    /// clients; of the round-trip times the largest is taken. One that answers nothing of what is in
    /// flight has the state [`NO_ANSWER`](EndpointStats::NO_ANSWER).
    pub fn endpoints(&self) -> Vec<EndpointStats> {
        let mut endpoints: BTreeMap<String, EndpointStats> = BTreeMap::new();
        for endpoint in self.clients.entries() {
            match endpoints.get_mut(&endpoint.name) {
                None => _ = endpoints.insert(endpoint.name.clone(), endpoint),
                Some(total) => total.merge(&endpoint),
            }
        }
        for name in self.unanswered.overdue(Instant::now()) {
            let is_full = endpoints.len() >= MAX_ENDPOINTS;
            let endpoint = match endpoints.entry(name.into()) {
                Entry::Occupied(shown) => shown.into_mut(),
                Entry::Vacant(_) if is_full => continue,
                Entry::Vacant(new) => {
                    let name = new.key().clone();
                    new.insert(EndpointStats {
                        name,
                        state: EndpointStats::UP.to_owned(),
                        ..EndpointStats::default()
                    })
                }
            };
            if endpoint.state == EndpointStats::UP {
                EndpointStats::NO_ANSWER.clone_into(&mut endpoint.state);
            }
        }
        endpoints.into_values().collect()
    }

    /// Returns true if no endpoint could be reached at the last attempts, or none answers what is in
    /// flight.
    pub fn is_down(&self) -> bool {
        let silent = || !self.unanswered.overdue(Instant::now()).is_empty();
        let is_up = |endpoint: &EndpointStats| endpoint.state == EndpointStats::UP;
        self.all_down.load(Relaxed) || (silent() && !self.endpoints().iter().any(is_up))
    }

    /// Returns what records wait for if servers answer nothing of what is in flight.
    pub fn silence(&self) -> Option<Obstacle> {
        let silent = self.unanswered.overdue(Instant::now());
        let seconds = ANSWER_LIMIT.as_secs();
        (!silent.is_empty()).then(|| Obstacle {
            what: format!(
                "{}: nothing was answered for {seconds} s",
                silent.join(", ")
            ),
            disposition: Disposition::Retryable,
            remedy: Some("see that the server runs, and keeps up with what it is sent"),
        })
    }

    /// Makes [`is_down`](Self::is_down) stay true until an endpoint answers, if it is.
    pub(crate) fn keep_down(&self) {
        if self.is_down() {
            self.all_down.store(true, Relaxed);
        }
    }

    /// Registers a client; returns its list of destinations that accept no record at the moment. The
    /// list is part of [`unavailable`](Self::unavailable) until the client drops it.
    pub fn client_unavailable(&self) -> Arc<Mutex<Vec<String>>> {
        self.unavailable.add()
    }

    /// Returns the destinations in use that accept no record at the moment, each once: partitions of
    /// Kafka without a leader.
    pub fn unavailable(&self) -> BTreeSet<String> {
        self.unavailable.entries().into_iter().collect()
    }
}

impl EndpointStats {
    /// The [`state`](Self::state) of an endpoint to which no connection was needed yet.
    pub const INIT: &str = "INIT";
    /// The [`state`](Self::state) of an endpoint that requests can be sent to.
    pub const UP: &str = "UP";
    /// The [`state`](Self::state) of an endpoint that cannot be reached, or is not known any more.
    pub const DOWN: &str = "DOWN";
    /// The [`state`](Self::state) of an endpoint that has a connection, and has answered no request
    /// of it for seconds.
    pub const NO_ANSWER: &str = "NO_ANSWER";

    /// Adds the view of another client. One whose requests are not answered decides: the others may
    /// have sent none.
    fn merge(&mut self, other: &Self) {
        let decides = other.state == Self::UP && self.state != Self::NO_ANSWER;
        if decides || other.state == Self::NO_ANSWER {
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
    fn an_endpoint_of_two_clients_is_one_and_a_closed_client_is_forgotten() {
        let stats = SinkStats::default();
        let endpoint = |state: &str, p99| EndpointStats {
            name: "b:9092/1".to_owned(),
            state: state.to_owned(),
            rtt_p99: p99,
            queued: 2,
            ..EndpointStats::default()
        };
        let (first, second) = (stats.client(), stats.client());
        lock(&first).push(endpoint("UP", Some(0.5)));
        lock(&second).push(endpoint("DOWN", None));
        let endpoints = stats.endpoints();
        assert_eq!(endpoints.len(), 1);
        assert_eq!(
            (
                &*endpoints[0].state,
                endpoints[0].rtt_p99,
                endpoints[0].queued
            ),
            ("UP", Some(0.5), 4)
        );
        lock(&second)[0].state = EndpointStats::NO_ANSWER.to_owned();
        assert_eq!(stats.endpoints()[0].state, EndpointStats::NO_ANSWER);
        drop(first);
        assert_eq!(stats.endpoints()[0].state, EndpointStats::NO_ANSWER);
        drop(second);
        assert_eq!(stats.endpoints(), []);
    }
}
