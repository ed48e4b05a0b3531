//! The state of a producer that its events change, on the poll thread. `callbacks` handles the events,
//! `report` reads delivery reports.

mod callbacks;
mod report;

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, Producer, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::{DeliveryError, EndpointStats, TopicStats};

use crate::client_log::{self, KindThrottle};
use crate::config::KafkaConfig;
use crate::error::REACH;
use crate::ffi::{self, TopicOwner};
use crate::in_flight::shared::{Client, Shared};
use crate::in_flight::topic::TopicContext;
use crate::producer::advertised::Advertised;
use crate::producer::broker_clock::BrokerClock;
use crate::producer::broker_states::{self, Answers};
use crate::producer::connections;
use crate::producer::reachability::Reachability;
use crate::producer::statistics::BrokerFigures;
use crate::sync::lock;

pub(crate) use report::weight_of_record;

/// The time for which the remedy of an error counts: librdkafka reports equal failures every 30 s.
const REMEDY_COUNTS_FOR: Duration = Duration::from_secs(60);

/// A broker that cannot be used: what is wrong, what to do.
pub(crate) type Unreachable = (String, Option<&'static str>);

/// A broker that throttles this client: it does not read the connection for that time.
#[derive(Debug)]
struct Throttled {
    broker: String,
    time: Duration,
    until: Instant,
}

/// The context of a producer: shared with its poll thread, and called by rdkafka.
pub(crate) struct Context {
    pub(crate) shared: Arc<Shared>,
    reachability: Reachability,
    advertised: Advertised,
    /// All brokers were down since the last delivery.
    all_down: AtomicBool,
    /// A record was reported since the last `take_reported`.
    reported: AtomicBool,
    config: KafkaConfig,
    /// The largest batch of several records.
    batch_size: usize,
    /// A broker refused the credentials since the last `renew_refused_token`.
    refused: AtomicBool,
    /// The last attempt to get a token failed.
    tokenless: AtomicBool,
    /// Kept alive for librdkafka, which calls them until it is destroyed, before this context is
    /// dropped.
    topics: Mutex<Vec<Arc<TopicContext>>>,
    brokers: Arc<Mutex<Vec<EndpointStats>>>,
    leaderless: Arc<Mutex<Vec<String>>>,
    answers: Mutex<Answers>,
    /// The time since which records are in flight and no broker is up.
    unreached: Mutex<Option<Instant>>,
    /// The last throttle time of a response.
    throttled: Mutex<Option<Throttled>>,
    /// The remedy of the last error that has one of its own, and the time of that error.
    remedy: Mutex<Option<(&'static str, Instant)>>,
    /// The topic of the last report: consecutive reports often have the same topic.
    last_topic: Mutex<Option<(Box<str>, Arc<TopicStats>)>>,
    clock: BrokerClock,
}

impl TopicOwner for Context {
    fn keep(&self, topic: Arc<TopicContext>) {
        lock(&self.topics).push(topic);
    }
}

impl Client for BaseProducer<Context> {
    fn purge_queue(&self) {
        self.purge(PurgeConfig::default().queue().non_blocking());
    }

    fn cluster_id(&self) -> Option<String> {
        ffi::cluster_id(self)
    }
}

impl Context {
    pub(crate) fn new(shared: Arc<Shared>, config: KafkaConfig) -> Self {
        let brokers = shared.stats.client();
        *lock(&brokers) = config.known_brokers().complete(Vec::new());
        Self {
            brokers,
            leaderless: shared.stats.client_unavailable(),
            answers: Mutex::default(),
            unreached: Mutex::default(),
            throttled: Mutex::default(),
            remedy: Mutex::default(),
            last_topic: Mutex::default(),
            clock: BrokerClock::default(),
            shared,
            reachability: Reachability::default(),
            advertised: Advertised::default(),
            all_down: AtomicBool::new(false),
            reported: AtomicBool::new(false),
            batch_size: config.batch_size(),
            config,
            refused: AtomicBool::new(false),
            tokenless: AtomicBool::new(false),
            topics: Mutex::default(),
        }
    }

    /// Returns the throttle, which is shared by all producers of a configuration, because they use
    /// the same brokers.
    fn throttle(&self) -> &KindThrottle {
        self.config.throttle()
    }

    /// Replaces a token that a broker refused before it expires: the source may have been fixed.
    /// Called by the poll thread. Blocks it for as long as the token source may take.
    pub(crate) fn renew_refused_token(&self, producer: &BaseProducer<Self>) {
        if !self.refused.swap(false, SeqCst) || !self.config.uses_tokens() {
            return;
        }
        if let Err(reason) = self.config.authorise(producer.client()) {
            self.tokenless.store(true, SeqCst);
            client_log::no_token(self.throttle(), &reason);
        }
    }

    /// Requests a connection if the last one has ended, and notes whether there is one now. Called
    /// by the poll thread. Blocks it for `timeout` at most.
    pub(crate) fn reconnect(&self, producer: &BaseProducer<Self>, timeout: Duration) {
        if !self.reachability.is_lost() {
            return;
        }
        if connects(producer, timeout) {
            self.reachability.found();
            self.shared.stats.set_certificate_fault(None);
            self.shared.stats.all_down.store(false, Relaxed);
        } else if let Some(reason) = self.reachability.take_reason(Instant::now()) {
            self.lose_brokers(&format!("no broker can be reached: {reason}"));
        }
    }

    /// Notes and logs that all brokers are down.
    fn lose_brokers(&self, what: &str) {
        self.all_down.store(true, SeqCst);
        self.shared.stats.all_down.store(true, Relaxed);
        let kind = format!("{:?}", RDKafkaErrorCode::AllBrokersDown);
        if let Some(suppressed) = self.throttle().pass(&kind) {
            let fault = self.shared.stats.certificate_fault();
            let remedy = fault.as_ref().map(|fault| fault.remedy);
            let remedy = remedy.or_else(|| self.remedy(Instant::now())).or(REACH);
            tracing::warn!(
                kind,
                suppressed = suppressed.shown(),
                remedy,
                "Kafka: {what}"
            );
        }
    }

    /// Notes the states of the brokers, and whether all of them are down: none is up, and one of them
    /// answers nothing, or records have been in flight for [`broker_states::LIMIT`]. A broker that
    /// was never needed may be up.
    fn note_brokers(&self, mut brokers: Vec<BrokerFigures>, now: Instant) {
        let throttled = lock(&self.throttled);
        let is_throttled = |name: &str| {
            let throttled = throttled.as_ref();
            throttled.is_some_and(|throttled| throttled.broker == name && now < throttled.until)
        };
        lock(&self.answers).judge(&mut brokers, is_throttled, now);
        drop(throttled);
        let connected = brokers
            .iter()
            .any(|broker| broker.endpoint.state == EndpointStats::UP);
        let brokers = brokers
            .into_iter()
            .map(|broker| (broker.node, broker.endpoint));
        *lock(&self.brokers) = self.config.known_brokers().complete(brokers.collect());
        // With the views of the other producer: its requests may be the ones that wait.
        let all = self.shared.stats.endpoints();
        let is = |state| all.iter().any(|endpoint| endpoint.state == state);
        let unanswered = is(EndpointStats::NO_ANSWER) && !is(EndpointStats::INIT);
        let mut unreached = lock(&self.unreached);
        if is(EndpointStats::UP) || connected && !unanswered {
            *unreached = None;
            self.shared.stats.all_down.store(false, Relaxed);
            return;
        }
        let in_flight = self.shared.window.in_flight() > 0;
        *unreached = in_flight.then(|| unreached.unwrap_or(now));
        let limit = broker_states::LIMIT;
        let overdue = unreached.is_some_and(|since| now >= since + limit);
        if (unanswered || overdue) && !self.all_down.load(SeqCst) {
            let seconds = limit.as_secs();
            self.lose_brokers(&format!("no broker has answered for {seconds} s"));
        }
    }

    /// Returns true if a record was reported since the last call.
    pub(crate) fn take_reported(&self) -> bool {
        self.reported.swap(false, Relaxed)
    }

    pub(crate) fn bootstrap_servers(&self) -> &str {
        self.config.bootstrap_servers()
    }

    /// Makes the operating system throw away what the brokers have not received when their connections
    /// are closed. Otherwise it delivers that, maybe much later.
    pub(crate) fn reset_connections(&self) {
        let brokers = lock(&self.brokers);
        let advertised = brokers.iter().map(|broker| &*broker.name);
        let servers = self.bootstrap_servers().split(',').chain(advertised);
        let ports: Vec<u16> = servers.map(connections::port).collect();
        drop(brokers);
        connections::end_by_reset(&ports);
    }

    /// Returns the broker that cannot be used, with a remedy: its certificate is refused, or it cannot
    /// be reached at its advertised address.
    pub(crate) fn unreachable(&self, now: Instant) -> Option<Unreachable> {
        let fault = self.shared.stats.certificate_fault();
        let fault = fault.map(|fault| (fault.what, Some(fault.remedy)));
        fault.or_else(|| Some((self.advertised.unreachable(now)?, REACH)))
    }

    /// Returns which broker throttles this client, and what to do. Known only with librdkafka's
    /// statistics.
    pub(crate) fn throttled(&self, now: Instant) -> Option<String> {
        let throttled = lock(&self.throttled);
        let Throttled { broker, time, .. } = throttled.as_ref().filter(|t| now < t.until)?;
        Some(format!(
            "broker {broker} throttles this client for {time:?}: a quota of its user or client.id is \
             exceeded; raise producer_byte_rate or request_percentage"
        ))
    }

    /// Returns what to do about the last error of a connection, if it has a remedy of its own and
    /// is recent.
    pub(crate) fn remedy(&self, now: Instant) -> Option<&'static str> {
        let (remedy, at) = (*lock(&self.remedy))?;
        (now < at + REMEDY_COUNTS_FOR).then_some(remedy)
    }

    /// Adds to the error of a record that was given up what is at fault: the record is not.
    pub(crate) fn explain(&self, error: &mut DeliveryError) {
        let fault = self.shared.stats.certificate_fault();
        let fault = fault.map(|fault| format!("{fault}: {}", fault.remedy));
        let remedy = || self.remedy(Instant::now()).map(str::to_owned);
        if let Some(cause) = fault.or_else(remedy) {
            error.reason = format!("{}; {cause}", error.reason);
        }
    }

    /// Gives librdkafka `bootstrap.servers` again.
    pub(crate) fn rebootstrap(&self, producer: &BaseProducer<Self>) {
        let brokers = ffi::add_brokers(producer, self.config.bootstrap_servers());
        tracing::debug!(
            known = brokers,
            "nothing is acknowledged: bootstrap.servers are named again"
        );
    }
}

/// Returns whether a connection to some broker is established. Otherwise makes librdkafka connect
/// to one. **Blocks** for `timeout` at most.
fn connects(producer: &BaseProducer<Context>, timeout: Duration) -> bool {
    // `rd_kafka_metadata` fails so if no broker is connected, and with a timeout if the broker has
    // not responded yet.
    let unconnected = RDKafkaErrorCode::BrokerTransportFailure;
    ffi::topic_states(producer, timeout).err() != Some(unconnected)
}
