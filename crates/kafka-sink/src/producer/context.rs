//! Handles librdkafka's events, on the poll thread.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rdkafka::ClientContext;
use rdkafka::client::OAuthToken;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::message::{BorrowedMessage, DeliveryResult, Headers, Message, Timestamp};
use rdkafka::producer::{
    BaseProducer, NoCustomPartitioner, Producer, ProducerContext, PurgeConfig,
};
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::{DeliveryError, Disposition, EndpointStats, Record, TopicStats};
use walrelay_sink_client::host_and_port;

use crate::client_log::{self, KindThrottle};
use crate::config::KafkaConfig;
use crate::error::{REACH, is_refusal, remedy};
use crate::ffi::{self, TopicOwner};
use crate::in_flight::partition_gate::OPEN;
use crate::in_flight::shared::{Client, Shared};
use crate::in_flight::topic::TopicContext;
use crate::outcome::delivery_error;
use crate::producer::advertised::Advertised;
use crate::producer::broker_clock::BrokerClock;
use crate::producer::broker_states::{self, Answers};
use crate::producer::reachability::Reachability;
use crate::producer::statistics::{self, BrokerFigures};
use crate::sync::lock;

/// librdkafka's memory per queued record in bytes, roughly (by its author, librdkafka#2114;
/// measured: 185).
const RECORD_OVERHEAD: u64 = 200;
/// Bytes for a list of headers (measured by the growth of a process with such records queued).
const HEADERS_OVERHEAD: u64 = 96;
/// Bytes for each header, which librdkafka allocates individually (measured: 57 to 66).
const HEADER_OVERHEAD: u64 = 60;

/// The time for which a throttle time is remembered after its end: the next response follows, and the next
/// statistics show its throttle time.
const THROTTLE_GRACE: Duration = Duration::from_secs(2);

/// The time for which the remedy of an error counts: librdkafka reports equal failures every 30 s.
const REMEDY_COUNTS_FOR: Duration = Duration::from_secs(60);

/// A broker that cannot be used: what is wrong, what to do.
pub(crate) type Unreachable = (String, Option<&'static str>);

/// librdkafka's port of a server without one.
const PORT: u16 = 9092;

/// Returns the port of a server, as in `bootstrap.servers` (`b`, `SSL://b:9093`, `[::1]:9092`) or in
/// statistics, with an id (`b:9092/1`).
fn port(server: &str) -> u16 {
    let server = server.trim();
    let (_, server) = server.split_once("://").unwrap_or(("", server));
    let (server, _) = server.split_once('/').unwrap_or((server, ""));
    host_and_port(server, PORT).map_or(PORT, |(_, port)| port)
}

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
        if ffi::connects(producer, timeout) {
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
        let known = brokers.iter().map(|broker| &*broker.name);
        let servers = self.bootstrap_servers().split(',').chain(known);
        let ports: Vec<u16> = servers.map(port).collect();
        drop(brokers);
        ffi::reset_connections(&ports);
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
        let known = ffi::add_brokers(producer, self.config.bootstrap_servers());
        tracing::debug!(
            known,
            "nothing is acknowledged: bootstrap.servers are named again"
        );
    }

    /// Counts a report by topic and outcome. `failure`: the class of a failure.
    fn count(&self, message: &BorrowedMessage<'_>, failure: Option<String>) {
        let name = message.topic();
        let mut last = lock(&self.last_topic);
        let topic = match &mut *last {
            Some((last, topic)) if **last == *name => topic,
            other => {
                &mut other
                    .insert((Box::from(name), self.shared.stats.topic(name)))
                    .1
            }
        };
        let Some(class) = failure else {
            topic.delivered.fetch_add(1, Relaxed);
            let bytes = payload_of_message(message) as u64;
            topic.delivered_bytes.fetch_add(bytes, Relaxed);
            return;
        };
        topic.failed.fetch_add(1, Relaxed);
        self.shared.stats.failed(class);
    }

    /// Returns the error of a record whose batch was refused for its size although the record
    /// itself may be small enough: later producers make smaller batches. `None`: another refusal,
    /// or the record was alone in its batch, or `batch.size` is low already; then the relay sends
    /// the records one by one.
    fn batch_refusal(
        &self,
        message: &BorrowedMessage<'_>,
        code: RDKafkaErrorCode,
    ) -> Option<DeliveryError> {
        use RDKafkaErrorCode::{MessageBatchTooLarge, MessageSizeTooLarge};
        // The last record of a batch is the only one in flight, too, but others failed before it. That the
        // sink is broken says less: librdkafka may tell that its series has a gap before it reports the
        // record.
        let only = || !self.shared.has_failed() && self.shared.window.in_flight() == 1;
        if !matches!(code, MessageSizeTooLarge | MessageBatchTooLarge)
            || payload_of_message(message) >= self.batch_size
            || only()
        {
            return None;
        }
        let refused = self.batch_size;
        let lower = self.config.lower_batch_size(refused)?;
        Some(DeliveryError {
            topic: Arc::from(message.topic()),
            reason: format!(
                "{code}; the records are sent again with batch.size = {lower} instead of {refused}: set \
                 batch.size below max.message.bytes and segment.bytes of the topic, or raise those"
            ),
            disposition: Disposition::Retryable,
            poison: None,
        })
    }

    fn delivered(&self, seq: u64) {
        self.shared.delivered(seq);
        if self.all_down.load(SeqCst) && self.all_down.swap(false, SeqCst) {
            self.shared.stats.all_down.store(false, Relaxed);
            self.shared.stats.set_certificate_fault(None);
            tracing::info!("Kafka accepts records again");
            self.throttle().forget();
        }
    }
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    /// Makes a token, on the poll thread, as all events are handled.
    fn generate_oauth_token(
        &self,
        _: Option<&str>,
    ) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        let token = self.config.oauth_token(self.throttle());
        if self.tokenless.swap(token.is_err(), SeqCst) && token.is_ok() {
            tracing::info!("there is an OAUTHBEARER token again");
        }
        token
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        let message = self.config.scrub(message);
        if self.shared.closing() || client_log::is_also_an_error(level, facility) {
            tracing::debug!(target: "librdkafka", facility, "{message}");
            return;
        }
        client_log::line(self.throttle(), level, facility, &message);
    }

    /// Reads the statistics; implemented also for sinks without metrics, because rdkafka's default
    /// parses and prints each document.
    fn stats_raw(&self, document: &[u8]) {
        match statistics::figures(document) {
            Ok(figures) => {
                let now = Instant::now();
                if let Some((broker, time)) = figures.throttled {
                    *lock(&self.throttled) = Some(Throttled {
                        broker,
                        time,
                        until: now + time + THROTTLE_GRACE,
                    });
                }
                *lock(&self.leaderless) = figures.leaderless;
                self.note_brokers(figures.brokers, now);
                // Once a second, for connections that carry no record yet.
                self.reset_connections();
            }
            Err(error) => tracing::debug!(%error, "librdkafka's statistics cannot be read"),
        }
    }

    fn error(&self, error: ClientError, reason: &str) {
        if self.shared.closing() {
            return;
        }
        let code = error.rdkafka_error_code();
        // Only if all brokers are down: with one broker down records still flow, and the message
        // "again" would be logged often.
        if code == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.reachability
                .lost(self.config.scrub(reason), Instant::now());
            return;
        }
        // `oauth_token` has logged it; librdkafka repeats it.
        if reason.contains("Failed to acquire SASL OAUTHBEARER token") {
            return;
        }
        if matches!(
            code,
            Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::Resolve)
        ) {
            let reason = self.config.scrub(reason);
            let bootstrap = self.config.bootstrap_servers();
            self.advertised.failed(&reason, bootstrap, Instant::now());
        }
        // librdkafka could not start the thread of a broker, and does not try again: this producer
        // would never send to that broker.
        if code == Some(RDKafkaErrorCode::CriticalSystemResource) {
            self.shared.break_off();
        }
        if is_refusal(code) {
            self.refused.store(true, SeqCst);
        }
        let remedy = remedy(code, reason, self.config.uses_tokens());
        if let Some(remedy) = remedy {
            *lock(&self.remedy) = Some((remedy, Instant::now()));
        }
        // rdkafka calls this twice for each error event; the throttle suppresses the second call.
        let kind = code.map_or_else(|| "error".to_owned(), |code| format!("{code:?}"));
        if let Some(suppressed) = self.throttle().pass(&kind) {
            let reason = self.config.scrub(reason);
            tracing::warn!(
                kind,
                suppressed = suppressed.shown(),
                remedy,
                "Kafka: {reason}"
            );
            if code == Some(RDKafkaErrorCode::SSL) {
                crate::tls::note_diagnosis(&self.config, &reason, &self.shared.stats);
            }
        }
    }
}

impl ProducerContext<NoCustomPartitioner> for Context {
    /// The sequence number.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, seq: usize) {
        let seq = seq as u64;
        let mut retry = false;
        self.reported.store(true, Relaxed);
        let message = match result {
            Ok(message) if is_acknowledged(message) => {
                self.delivered(seq);
                self.count(message, None);
                // Only an acknowledged record may open a partition: none may follow a failed one.
                let now = Instant::now();
                self.clock
                    .acknowledged(message, now, &self.shared.stats.clocks);
                if let Some(topic) = ffi::topic_of(message) {
                    let fresh = is_fresh(message);
                    if !fresh {
                        self.shared.set_stale();
                    }
                    retry = topic.delivered(seq, message.partition(), fresh, now);
                }
                message
            }
            Ok(message) => {
                if !self.shared.broken() {
                    tracing::error!(
                        topic = message.topic(),
                        "librdkafka only infers that a record was delivered; the producer must be \
                         rebuilt"
                    );
                }
                let error = DeliveryError {
                    topic: Arc::from(message.topic()),
                    reason: "acknowledged only by inference: sent again".to_owned(),
                    disposition: Disposition::Retryable,
                    poison: None,
                };
                self.shared.failed(seq, error);
                self.count(message, Some("Inferred".to_owned()));
                message
            }
            Err((error, message)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                let error = self.batch_refusal(message, code);
                let mut error = error.unwrap_or_else(|| delivery_error(message.topic(), code));
                if matches!(
                    code,
                    RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight
                ) {
                    self.explain(&mut error);
                }
                self.shared.failed(seq, error);
                self.count(message, Some(format!("{code:?}")));
                message
            }
        };
        if self.shared.window.give_back(weight_of_message(message)) || retry {
            self.shared.wake_sender();
        }
    }
}

/// Returns true if a broker acknowledged this very record: then the report contains the record's
/// offset.
///
/// When a request fails with a retriable error and a later request to the same partition succeeds,
/// librdkafka reports the first as delivered without a response (`rd_kafka_dr_implicit_ack`). It
/// assumes that the broker would otherwise have refused the second for its sequence number. That
/// does not hold since KIP-360: a broker without state of the producer for the partition accepts
/// any first sequence number, and the records of the first request are lost. Records reported in
/// this way have no offset (`RD_KAFKA_OFFSET_INVALID`).
fn is_acknowledged(message: &BorrowedMessage<'_>) -> bool {
    message.offset() >= 0
}

/// Returns true if the record's timestamp is less than half an hour old: see
/// [`PartitionGate::delivered`](crate::in_flight::partition_gate::PartitionGate::delivered). In a
/// topic with `message.timestamp.type=LogAppendTime` it is the broker's current time.
fn is_fresh(message: &BorrowedMessage<'_>) -> bool {
    let written = match message.timestamp() {
        Timestamp::LogAppendTime(_) => return true,
        Timestamp::CreateTime(written) => written,
        Timestamp::NotAvailable => return false,
    };
    // With a clock before 1970 every record is fresh.
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i128::from(written) + OPEN.as_millis() as i128 > now.as_millis() as i128
}

/// Bytes of the window that a record takes.
pub(crate) fn weight_of_record(record: &Record<'_>) -> u64 {
    record.payload_bytes() as u64 + overhead(record.headers.len())
}

/// Returns [`weight_of_record`], computed from the reported message, so that it need not be stored
/// per record.
fn weight_of_message(message: &BorrowedMessage<'_>) -> u64 {
    let headers = message.headers().map_or(0, Headers::count);
    payload_of_message(message) as u64 + overhead(headers)
}

/// Bytes of key, value and headers.
fn payload_of_message(message: &BorrowedMessage<'_>) -> usize {
    let header_bytes: usize = message.headers().map_or(0, |headers| {
        headers
            .iter()
            .map(|h| h.key.len() + h.value.map_or(0, <[u8]>::len))
            .sum()
    });
    message.key_len() + message.payload_len() + header_bytes
}

fn overhead(headers: usize) -> u64 {
    if headers == 0 {
        return RECORD_OVERHEAD;
    }
    RECORD_OVERHEAD + HEADERS_OVERHEAD + HEADER_OVERHEAD * headers as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_a_server_is_found_in_each_of_its_forms() {
        for (server, expected) in [
            ("b", PORT),
            (" b:1", 1),
            ("b:1/7", 1),
            ("SSL://b:1", 1),
            ("SSL://b", PORT),
            ("[::1]:1", 1),
            ("[::1]", PORT),
            ("GroupCoordinator", PORT),
        ] {
            assert_eq!(port(server), expected, "{server}");
        }
    }
}
