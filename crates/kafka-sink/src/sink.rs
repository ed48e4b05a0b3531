use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, Producer, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, Poison, Record, SendError, Sink, SinkFactory,
};

use crate::admin::{TopicCreator, TopicStatus};
use crate::context::{Context, weight_of_record};
use crate::ffi::{self, NotQueued};
use crate::gate::{Gate, Line};
use crate::lines::{Lines, Standing};
use crate::outcome::delivery_error;
use crate::poll::PollThread;
use crate::window::Window;
use crate::{KafkaConfig, KafkaError, topic_name};

/// How long closing waits for librdkafka to report what was purged. It needs milliseconds; the
/// bound is there so that a defect of it shows as a log line and not as a relay that never ends.
const PURGE_GRACE: Duration = Duration::from_secs(10);

/// How long closing waits in one go, before it looks what else there is to do.
const CLOSING: Duration = Duration::from_millis(100);
/// For how long [`KafkaSink::hurry`] may hold the sender up.
const HURRY: Duration = Duration::from_millis(5);

const BROKEN: &str = "this producer takes nothing after a record that was not delivered: a new one \
                      must be made and everything unconfirmed sent again";

/// Makes [`KafkaSink`]s of one configuration.
#[derive(Debug)]
pub struct KafkaSinkFactory {
    config: KafkaConfig,
}

impl KafkaSinkFactory {
    /// A factory; talks to nobody yet.
    pub fn new(config: KafkaConfig) -> Self {
        Self { config }
    }
}

impl SinkFactory for KafkaSinkFactory {
    type Sink = KafkaSink;
    type Error = KafkaError;

    /// Starts the client's threads. Reads certificates, resolves and connects in the background.
    fn create(&mut self, deliveries: Arc<dyn Deliveries>) -> Result<KafkaSink, KafkaError> {
        KafkaSink::new(&self.config, deliveries)
    }

    fn disposition(error: &KafkaError) -> Disposition {
        error.disposition()
    }
}

/// A Kafka producer. Made by [`KafkaSinkFactory`].
///
/// After the first record that was not delivered, whatever the reason, everything queued is reported
/// as failed and every further record refused, both [`Disposition::Retryable`]: a fresh sink is
/// needed. The record that failed has its own disposition, so among the reports the worst counts.
///
/// Dropping it without [`close`](Sink::close) **blocks** for a moment: what is queued or in flight is
/// purged and reported as failed.
pub struct KafkaSink {
    // Declared in the order in which they must go: the thread that creates topics, the topics, the
    // poll thread, the client.
    creator: Option<TopicCreator>,
    topics: Topics,
    poll: PollThread,
    producer: Arc<BaseProducer<Context>>,
    message_max_bytes: String,
    requests: Requests,
    /// Accepted, and held back by gates.
    lines: Lines,
    closed: bool,
}

/// How many requests may be on their way to a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requests {
    /// One.
    One,
    /// Several, where each topic's [`Gate`] lets them. The client is configured for it:
    /// [`KafkaConfig::of_several_requests`].
    Several {
        /// [`Gate::new`]'s.
        sticks: Option<Duration>,
    },
}

/// The topics seen so far. Their handles live as long as the producer.
#[derive(Default)]
struct Topics {
    handles: Vec<(Box<str>, ffi::Topic<Context>)>,
    index: HashMap<Box<str>, usize>,
    /// Where the last record went: outboxes come in runs.
    last: usize,
}

impl KafkaSink {
    pub(crate) fn new(
        config: &KafkaConfig,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<Self, KafkaError> {
        Self::with_client(config, &config.client_config(), Requests::One, deliveries)
    }

    /// One that may have several requests on their way to a broker. `client` as for
    /// [`with_client`](Self::with_client), but for what gates need.
    pub(crate) fn gated(
        config: &KafkaConfig,
        client: ClientConfig,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<Self, KafkaError> {
        let (client, sticks) = KafkaConfig::of_several_requests(client);
        Self::with_client(config, &client, Requests::Several { sticks }, deliveries)
    }

    /// `client` is what `config` makes of itself, with another linger perhaps. Apart also because
    /// tests show what its fixed values are good for.
    pub(crate) fn with_client(
        config: &KafkaConfig,
        client: &ClientConfig,
        requests: Requests,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<Self, KafkaError> {
        let options = config.options();
        let window = Window::new(options.max_in_flight_records, options.max_in_flight_bytes);
        let context = Context::new(Arc::clone(&deliveries), window, config.clone());
        let producer: BaseProducer<Context> =
            client
                .create_with_context(context)
                .map_err(|error| KafkaError::Create {
                    reason: config.creation_reason(&error),
                })?;
        let producer = Arc::new(producer);
        Context::attach(&producer);
        let poll = PollThread::start(Arc::clone(&producer))?;
        let creator = options
            .topics
            .is_some()
            .then(|| TopicCreator::start(config, deliveries))
            .transpose()?;
        Ok(Self {
            creator,
            topics: Topics::default(),
            poll,
            producer,
            message_max_bytes: config.message_max_bytes().to_owned(),
            requests,
            lines: Lines::default(),
            closed: false,
        })
    }

    /// Records that were accepted and not yet reported.
    pub fn in_flight(&self) -> u64 {
        self.producer.context().window.in_flight()
    }

    /// Whether nothing is in flight; if something is, [`Deliveries::capacity`] is called when that is
    /// over.
    pub(crate) fn settled_or_wakes(&self) -> bool {
        self.producer.context().window.empty_or_wakes()
    }

    /// Sends what waits for more to fill its request with. **Blocks** for a moment.
    pub(crate) fn hurry(&self) {
        ffi::flush(&self.producer, HURRY);
    }

    /// Whether it has gates, and records come whose timestamps do not open them: each partition's are on
    /// their way one by one.
    pub(crate) fn is_stale(&self) -> bool {
        self.requests != Requests::One && self.producer.context().is_stale()
    }

    /// Whether a record was not delivered: nothing is accepted any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.producer.context().broken()
    }

    fn topic(&mut self, name: &str) -> Result<usize, SendError> {
        let topics = &mut self.topics;
        if let Some((last, _)) = topics.handles.get(topics.last)
            && **last == *name
        {
            return Ok(topics.last);
        }
        if let Some(at) = topics.index.get(name) {
            topics.last = *at;
            return Ok(*at);
        }
        if let Some(reason) = topic_name::problem(name) {
            return Err(refused(name, reason, Some(Poison::Unroutable)));
        }
        match self.creator.as_ref().map(|creator| creator.status(name)) {
            None | Some(TopicStatus::There) => {}
            Some(TopicStatus::Pending) => return Err(SendError::Full),
            Some(TopicStatus::Denied(error)) => return Err(SendError::Refused(error)),
        }
        let gate = match self.requests {
            Requests::One => None,
            Requests::Several { sticks } => Some(Arc::new(Gate::new(topics.handles.len(), sticks))),
        };
        let handle = ffi::Topic::new(&self.producer, name, gate)
            .map_err(|code| SendError::Refused(delivery_error(name, code)))?;
        let at = topics.handles.len();
        topics.handles.push((Box::from(name), handle));
        topics.index.insert(Box::from(name), at);
        topics.last = at;
        Ok(at)
    }

    fn shut_down(&mut self, grace: Duration) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        // First, so that no capacity() comes after the end.
        self.creator = None;
        let until = Instant::now() + grace;
        let left = || until.saturating_duration_since(Instant::now());
        // Each time those have been reported that others stand behind.
        while !self.lines.is_empty() && !left().is_zero() && !self.is_broken() {
            ffi::flush(&self.producer, left().min(CLOSING));
            self.resume();
        }
        self.give_up_lines();
        let all_reported = !left().is_zero() && ffi::flush(&self.producer, left());
        if !all_reported {
            self.purge();
        }
        self.poll.stop();
        // The handles' and the thread's references are gone after this, so that dropping the last
        // one, which destroys the client, happens here and not on some other thread.
        self.topics = Topics::default();
    }

    /// Tries those again that stand in lines whose gates have called.
    fn resume(&mut self) {
        for at in self.producer.context().calls() {
            if let Some((_, topic)) = self.topics.handles.get(at) {
                topic.heard();
            }
            for line in self.lines.of_topic(at) {
                self.advance(at, line);
            }
        }
    }

    /// Hands the first of a line over, and the next, until one is held back.
    fn advance(&mut self, at: usize, line: Line) {
        while !self.is_broken()
            && let Some((name, topic)) = self.topics.handles.get(at)
            && let Some(first) = self.lines.first(at, line)
        {
            let produced = first.with(name, line, |record| {
                let seq = first.seq as usize;
                let produced = topic.produce(record, first.timestamp_ms, seq, Some(line));
                produced.map_err(|not_queued| match not_queued {
                    NotQueued::Held(line) => Ok(line),
                    NotQueued::Refused(code) => Err(refusal(record, code, &self.message_max_bytes)),
                })
            });
            if matches!(produced, Err(Ok(still)) if still == line) {
                return;
            }
            let Some(first) = self.lines.pop(at, line) else {
                return;
            };
            match produced {
                Ok(()) => {}
                Err(Ok(other)) => self.lines.push(at, other, first),
                // It was accepted: now it can only fail.
                Err(Err(error)) => fail(self.producer.context(), &first, error),
            }
        }
    }

    /// Reports those that stand in lines as failed.
    fn give_up_lines(&mut self) {
        let context = self.producer.context();
        for (at, standing) in self.lines.take_all() {
            let name = self.topics.handles.get(at).map_or("", |(name, _)| name);
            fail(
                context,
                &standing,
                delivery_error(name, RDKafkaErrorCode::PurgeQueue),
            );
        }
    }

    /// Gives up what is queued or in flight until the last of it has been reported.
    fn purge(&self) {
        let start = Instant::now();
        // More than once: a record that is on its way from one of librdkafka's queues to another
        // can slip past a purge.
        loop {
            self.producer
                .purge(PurgeConfig::default().queue().inflight().non_blocking());
            if ffi::flush(&self.producer, CLOSING) {
                return;
            }
            if start.elapsed() > PURGE_GRACE {
                tracing::error!(
                    records = self.in_flight(),
                    "librdkafka did not report what it gave up"
                );
                return;
            }
        }
    }
}

impl Sink for KafkaSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        if self.producer.context().broken() {
            return Err(refused(record.topic, BROKEN, None));
        }
        self.resume();
        let at = self.topic(record.topic)?;
        let timestamp_ms = check_record(record)?;
        let context = self.producer.context();
        let weight = weight_of_record(record);
        if !context.window.try_take(weight) {
            return Err(SendError::Full);
        }
        let (_, topic) = &self.topics.handles[at];
        // The build is refused where usize is narrower.
        let code = match topic.produce(record, timestamp_ms, seq as usize, None) {
            Ok(()) => return Ok(()),
            Err(NotQueued::Held(line)) => {
                let standing = Standing::new(record, timestamp_ms, seq, weight);
                self.lines.push(at, line, standing);
                return Ok(());
            }
            Err(NotQueued::Refused(code)) => code,
        };
        context.window.cancel(weight);
        if code == RDKafkaErrorCode::QueueFull {
            context.queue_full.store(true, SeqCst);
            return Err(SendError::Full);
        }
        Err(SendError::Refused(refusal(
            record,
            code,
            &self.message_max_bytes,
        )))
    }

    /// Those that gates have held back, and hold back no longer. A producer that has failed sends nobody who
    /// stands in a line: that is said now, for the relay waits for what it gave before it starts anew.
    fn nudge(&mut self) {
        if self.is_broken() {
            self.give_up_lines();
        } else {
            self.resume();
        }
    }

    fn close(mut self, grace: Duration) {
        self.shut_down(grace);
    }
}

/// Reports a record as failed that never came to librdkafka.
fn fail(context: &Context, standing: &Standing, error: DeliveryError) {
    context.failed(standing.seq, error);
    if context.window.give_back(standing.weight) {
        context.wake_sender();
    }
}

/// Why librdkafka does not take a record.
fn refusal(record: &Record<'_>, code: RDKafkaErrorCode, message_max_bytes: &str) -> DeliveryError {
    match code {
        RDKafkaErrorCode::MessageSizeTooLarge => error_about(
            record.topic,
            format!(
                "the record has {} bytes and message.max.bytes is {message_max_bytes}; raise it, and \
                 max.message.bytes of the topic with it",
                record.payload_bytes(),
            ),
            Some(Poison::Oversize),
        ),
        RDKafkaErrorCode::UnknownPartition => DeliveryError {
            topic: Arc::from(record.topic),
            reason: format!(
                "the topic has no partition {}",
                record.partition.unwrap_or_default()
            ),
            // Partitions can be added.
            disposition: Disposition::Retryable,
            poison: Some(Poison::Rejected),
        },
        code => delivery_error(record.topic, code),
    }
}

/// What librdkafka would not refuse itself, or would take for something else. Returns the timestamp
/// in its terms.
fn check_record(record: &Record<'_>) -> Result<i64, SendError> {
    let problem = |reason: String| Err(refused(record.topic, reason, Some(Poison::Rejected)));
    // A NUL would end the name for the code that reads it back from the report.
    if record.headers.iter().any(|h| h.name.contains('\0')) {
        return problem("the name of a header contains a NUL".to_owned());
    }
    // To librdkafka -1 is "choose one".
    if let Some(partition) = record.partition.filter(|p| *p < 0) {
        return problem(format!("there is no partition {partition}"));
    }
    match record.timestamp_ms {
        None => Ok(0),
        Some(ms) if ms < 0 => problem("the timestamp is before 1970".to_owned()),
        // To librdkafka 0 is "now"; a millisecond beside the truth is nearer to it.
        Some(ms) => Ok(ms.max(1)),
    }
}

/// Refused without asking the broker: for good if it is the record's fault, else until there is a
/// fresh producer.
fn refused(topic: &str, reason: impl Into<String>, poison: Option<Poison>) -> SendError {
    SendError::Refused(error_about(topic, reason, poison))
}

fn error_about(topic: &str, reason: impl Into<String>, poison: Option<Poison>) -> DeliveryError {
    DeliveryError {
        topic: Arc::from(topic),
        reason: reason.into(),
        disposition: match poison {
            Some(_) => Disposition::Fatal,
            None => Disposition::Retryable,
        },
        poison,
    }
}

impl Drop for KafkaSink {
    fn drop(&mut self) {
        self.shut_down(Duration::ZERO);
    }
}

impl fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSink")
            .field("in_flight", &self.in_flight())
            .field("topics", &self.topics.handles.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
