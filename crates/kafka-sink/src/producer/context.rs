//! What the poll thread does with librdkafka's events.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use rdkafka::ClientContext;
use rdkafka::client::OAuthToken;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::message::{BorrowedMessage, DeliveryResult, Headers, Message, Timestamp};
use rdkafka::producer::{
    BaseProducer, NoCustomPartitioner, Producer, ProducerContext, PurgeConfig,
};
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::{BrokerStats, DeliveryError, Disposition, Record, TopicStats};

use crate::client_log::{self, LogThrottle};
use crate::config::KafkaConfig;
use crate::error::{is_refusal, remedy};
use crate::ffi::{self, TopicOwner};
use crate::producer::outcome::delivery_error;
use crate::producer::partition_gate::OPEN;
use crate::producer::shared::{Purge, Shared};
use crate::producer::statistics;
use crate::producer::topic::TopicContext;
use crate::sync::lock;

/// librdkafka's own memory for a queued record, roughly (its author's figure, librdkafka#2114; 185 were
/// measured).
const RECORD_OVERHEAD: u64 = 200;
/// For a list of headers (measured: how much a queue of such records grows a process by).
const HEADERS_OVERHEAD: u64 = 96;
/// And for each header, which it allocates singly (measured: 57 to 66).
const HEADER_OVERHEAD: u64 = 60;

/// What a producer and its poll thread share, and rdkafka calls into.
pub(crate) struct Context {
    pub(crate) shared: Arc<Shared>,
    /// All brokers were down since the last delivery.
    trouble: AtomicBool,
    /// A record was reported since the poll thread last looked, which is the thread that reports.
    reported: AtomicBool,
    config: KafkaConfig,
    /// A broker refused who we are since the poll thread last looked.
    refused: AtomicBool,
    /// The last attempt to get a token failed.
    tokenless: AtomicBool,
    /// librdkafka calls into them until it is destroyed, which is before this goes.
    topics: Mutex<Vec<Arc<TopicContext>>>,
    brokers: Arc<Mutex<Vec<BrokerStats>>>,
    /// The topic of the last report: reports come in runs.
    last_topic: Mutex<Option<(Box<str>, Arc<TopicStats>)>>,
}

impl TopicOwner for Context {
    fn keep(&self, topic: Arc<TopicContext>) {
        let mut topics = lock(&self.topics);
        topics.push(topic);
    }
}

impl Purge for BaseProducer<Context> {
    fn purge_queue(&self) {
        self.purge(PurgeConfig::default().queue().non_blocking());
    }
}

impl Context {
    pub(crate) fn new(shared: Arc<Shared>, config: KafkaConfig) -> Self {
        Self {
            brokers: shared.stats.client(),
            last_topic: Mutex::default(),
            shared,
            trouble: AtomicBool::new(false),
            reported: AtomicBool::new(false),
            config,
            refused: AtomicBool::new(false),
            tokenless: AtomicBool::new(false),
            topics: Mutex::default(),
        }
    }

    /// Shared by all producers of a configuration: they talk to the same brokers.
    fn throttle(&self) -> &LogThrottle {
        self.config.throttle()
    }

    /// A token that a broker refused is not used to its end: somebody may have mended what makes
    /// them. Called by the poll thread, which then has nothing else to do.
    pub(crate) fn renew_refused_token(&self, producer: &BaseProducer<Self>) {
        if !self.refused.swap(false, SeqCst) || !self.config.uses_tokens() {
            return;
        }
        if let Err(reason) = self.config.authorise(producer.client()) {
            self.tokenless.store(true, SeqCst);
            client_log::no_token(self.throttle(), &reason);
        }
    }

    /// Whether a record was reported since the last call.
    pub(crate) fn take_reported(&self) -> bool {
        self.reported.swap(false, Relaxed)
    }

    /// The brokers that librdkafka began with.
    pub(crate) fn bootstrap_servers(&self) -> &str {
        self.config.bootstrap_servers()
    }

    /// Tells librdkafka again of the brokers that it began with.
    pub(crate) fn rebootstrap(&self, producer: &BaseProducer<Self>) {
        let known = ffi::add_brokers(producer, self.config.bootstrap_servers());
        tracing::debug!(
            known,
            "nothing is acknowledged: bootstrap.servers are named again"
        );
    }

    /// Counts a report by topic and outcome. `failure`: the class of one.
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

    fn delivered(&self, seq: u64) {
        self.shared.delivered(seq);
        if self.trouble.load(SeqCst) && self.trouble.swap(false, SeqCst) {
            self.shared.stats.all_down.store(false, Relaxed);
            tracing::info!("Kafka takes records again");
            self.throttle().forget();
        }
    }
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    /// Served by the poll thread, as all events are.
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

    /// Also where nobody reads the figures: rdkafka would parse each document and print it.
    fn stats_raw(&self, document: &[u8]) {
        match statistics::brokers(document) {
            Ok(brokers) => {
                if brokers.iter().any(|broker| broker.state == "UP") {
                    self.shared.stats.all_down.store(false, Relaxed);
                }
                *lock(&self.brokers) = brokers;
            }
            Err(error) => tracing::debug!(%error, "librdkafka's statistics cannot be read"),
        }
    }

    fn error(&self, error: ClientError, reason: &str) {
        if self.shared.closing() {
            return;
        }
        let code = error.rdkafka_error_code();
        // Of one broker among several is not trouble: records flow, and "again" would be said often.
        if code == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.trouble.store(true, SeqCst);
            self.shared.stats.all_down.store(true, Relaxed);
        }
        // Said by who asked for the token, and more often than once.
        if reason.contains("Failed to acquire SASL OAUTHBEARER token") {
            return;
        }
        if is_refusal(code) {
            self.refused.store(true, SeqCst);
        }
        // rdkafka calls twice for each error event, which the filter hides.
        let kind = code.map_or_else(|| "error".to_owned(), |code| format!("{code:?}"));
        if let Some(held_back) = self.throttle().pass(&kind) {
            let reason = self.config.scrub(reason);
            let remedy = remedy(code, &reason, &self.config);
            tracing::warn!(
                kind,
                held_back = held_back.shown(),
                "Kafka: {reason}{remedy}"
            );
            if code == Some(RDKafkaErrorCode::SSL) {
                crate::tls::explain(&self.config);
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
                // What failed opens nothing: nothing may follow it.
                if let Some(topic) = ffi::topic_of(message) {
                    let fresh = is_fresh(message);
                    if !fresh {
                        self.shared.set_stale();
                    }
                    retry = topic.delivered(seq, message.partition(), fresh, Instant::now());
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
                self.shared
                    .failed(seq, delivery_error(message.topic(), code));
                self.count(message, Some(format!("{code:?}")));
                message
            }
        };
        if self.shared.window.give_back(weight_of_message(message)) || retry {
            self.shared.wake_sender();
        }
    }
}

/// Whether a broker answered for this very record: then it told the record's offset.
///
/// When a request fails in a way that can pass and a later one of the same partition succeeds,
/// librdkafka takes the first for delivered without a word from the broker
/// (`rd_kafka_dr_implicit_ack`): had it not been appended, the second would have been refused for
/// its sequence number. That was so once. Since KIP-360 a broker that has no state of the producer
/// for the partition takes any first sequence number, and the first request's records are nowhere.
/// Such messages have no offset (`RD_KAFKA_OFFSET_INVALID`).
fn is_acknowledged(message: &BorrowedMessage<'_>) -> bool {
    message.offset() >= 0
}

/// Whether the record's timestamp is of the last half hour:
/// [`PartitionGate::delivered`](crate::producer::partition_gate::PartitionGate::delivered). That of a topic with
/// `message.timestamp.type=LogAppendTime` is the broker's own, of this moment.
fn is_fresh(message: &BorrowedMessage<'_>) -> bool {
    let written = match message.timestamp() {
        Timestamp::LogAppendTime(_) => return true,
        Timestamp::CreateTime(written) => written,
        Timestamp::NotAvailable => return false,
    };
    // A clock before 1970 calls everything fresh, which it is to itself.
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i128::from(written) + OPEN.as_millis() as i128 > now.as_millis() as i128
}

/// What a record takes of the window.
pub(crate) fn weight_of_record(record: &Record<'_>) -> u64 {
    record.payload_bytes() as u64 + overhead(record.headers.len())
}

/// The same, reckoned from the message that comes back: nothing needs to be remembered per record.
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
