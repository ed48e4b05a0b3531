use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::{
    BatchingMode, Deliveries, DeliveryError, Disposition, Obstacle, Poison, Record, SendError,
    Sink, SinkFactory, SinkStats,
};

use crate::admin::creator::{TopicCreator, TopicStatus};
use crate::admin::topic_name_problem;
use crate::config::KafkaConfig;
use crate::error::KafkaError;
use crate::producer::context::weight_of_record;
use crate::producer::hold_queues::{HeldRecord, HoldQueues};
use crate::producer::obstacle::Inquiry;
use crate::producer::outcome::delivery_error;
use crate::producer::partition_gate::{HoldQueue, Keyless, PartitionGate, Requests};
use crate::producer::producers::{CLOSING, Producers};
use crate::producer::shared::Shared;
use crate::producer::topic::NotQueued;
use crate::producer::window::Window;

const BROKEN: &str = "this producer takes nothing after a record that was not delivered: a new one \
                      must be made and everything unconfirmed sent again";

/// Makes [`KafkaSink`]s of one configuration.
#[derive(Debug)]
pub struct KafkaSinkFactory {
    config: KafkaConfig,
    two_modes: bool,
    stats: Arc<SinkStats>,
}

impl KafkaSinkFactory {
    /// Of sinks with two producers, one for latency and one for throughput; with one where the configuration fixes a
    /// linger. Talks to nobody yet.
    pub fn new(config: KafkaConfig) -> Self {
        Self {
            config,
            two_modes: true,
            stats: Arc::default(),
        }
    }

    /// With one producer, whatever the configuration says.
    #[must_use]
    pub fn of_one_producer(self) -> Self {
        Self {
            two_modes: false,
            ..self
        }
    }

    /// With figures that somebody reads: librdkafka is asked for its statistics, too.
    #[must_use]
    pub fn with_stats(self, stats: Arc<SinkStats>) -> Self {
        Self {
            config: self.config.with_statistics(),
            stats,
            ..self
        }
    }
}

impl SinkFactory for KafkaSinkFactory {
    type Sink = KafkaSink;
    type Error = KafkaError;

    /// Starts the client's threads. Reads certificates, resolves and connects in the background.
    fn create(&mut self, deliveries: Arc<dyn Deliveries>) -> Result<KafkaSink, KafkaError> {
        let stats = Arc::clone(&self.stats);
        match self.config.bulk_linger().filter(|_| self.two_modes) {
            linger @ Some(_) => KafkaSink::gated(&self.config, linger, deliveries, stats),
            // One that is alone fills requests while others are in flight, and goes without gates.
            None => KafkaSink::new(&self.config, deliveries, stats),
        }
    }

    fn disposition(error: &KafkaError) -> Disposition {
        error.disposition()
    }
}

/// A Kafka producer, or two of them: see [`KafkaSinkFactory`].
///
/// After the first record that was not delivered, whatever the reason, everything queued is reported
/// as failed and every further record refused, both [`Disposition::Retryable`]: a fresh sink is
/// needed. The record that failed has its own disposition, so among the reports the worst counts.
///
/// Dropping it without [`close`](Sink::close) **blocks** for a moment: what is queued or in flight is
/// purged and reported as failed.
pub struct KafkaSink {
    creator: Option<TopicCreator>,
    topics: Topics,
    pub(crate) producers: Producers,
    pub(crate) shared: Arc<Shared>,
    message_max_bytes: String,
    /// The same as a number.
    message_max_size: usize,
    /// What topics' gates are made with, if topics have gates.
    gates: Option<Keyless>,
    /// Accepted, and held back by gates.
    hold_queues: HoldQueues,
    inquiry: Inquiry,
    closed: bool,
}

/// The topics seen so far, numbered.
#[derive(Default)]
struct Topics {
    all: Vec<(Box<str>, Option<Arc<PartitionGate>>)>,
    index: HashMap<Box<str>, usize>,
    /// Where the last record went: outboxes come in runs.
    last: usize,
}

impl KafkaSink {
    /// Of one producer with one request in flight to a broker, and without gates.
    pub(crate) fn new(
        config: &KafkaConfig,
        deliveries: Arc<dyn Deliveries>,
        stats: Arc<SinkStats>,
    ) -> Result<Self, KafkaError> {
        Self::with_client(config, &config.client_config(), deliveries, stats)
    }

    /// The same with this configuration of the client: tests show what its fixed values are good for.
    pub(crate) fn with_client(
        config: &KafkaConfig,
        client: &ClientConfig,
        deliveries: Arc<dyn Deliveries>,
        stats: Arc<SinkStats>,
    ) -> Result<Self, KafkaError> {
        Self::assemble(config, deliveries, stats, None, |shared| {
            Producers::new(config, client, Requests::One, None, shared)
        })
    }

    /// Of a producer that may have several requests in flight to a broker, and a second one with this linger if
    /// there is to be one.
    pub(crate) fn gated(
        config: &KafkaConfig,
        linger: Option<Duration>,
        deliveries: Arc<dyn Deliveries>,
        stats: Arc<SinkStats>,
    ) -> Result<Self, KafkaError> {
        let (client, keyless) = KafkaConfig::of_gates(config.client_config(), Requests::Several);
        Self::assemble(config, deliveries, stats, Some(keyless), |shared| {
            Producers::new(config, &client, Requests::Several, linger, shared)
        })
    }

    fn assemble(
        config: &KafkaConfig,
        deliveries: Arc<dyn Deliveries>,
        stats: Arc<SinkStats>,
        gates: Option<Keyless>,
        producers: impl FnOnce(Arc<Shared>) -> Result<Producers, KafkaError>,
    ) -> Result<Self, KafkaError> {
        let options = config.options();
        let window = Window::new(options.max_in_flight_records, options.max_in_flight_bytes);
        let shared = Arc::new(Shared::new(Arc::clone(&deliveries), window, stats));
        let producers = producers(Arc::clone(&shared))?;
        let creator = options
            .topics
            .is_some()
            .then(|| TopicCreator::start(config, deliveries))
            .transpose()?;
        Ok(Self {
            creator,
            topics: Topics::default(),
            producers,
            shared,
            message_max_bytes: config.message_max_bytes().to_owned(),
            // The configuration was checked: what is no number is left to librdkafka.
            message_max_size: config.message_max_bytes().parse().unwrap_or(usize::MAX),
            gates,
            hold_queues: HoldQueues::default(),
            inquiry: Inquiry::default(),
            closed: false,
        })
    }

    /// Records that were accepted and not yet reported.
    pub fn in_flight(&self) -> u64 {
        self.shared.window.in_flight()
    }

    /// The number of a topic.
    fn topic(&mut self, name: &str) -> Result<usize, SendError> {
        let topics = &mut self.topics;
        if let Some((last, _)) = topics.all.get(topics.last)
            && **last == *name
        {
            return Ok(topics.last);
        }
        if let Some(at) = topics.index.get(name) {
            topics.last = *at;
            return Ok(*at);
        }
        if let Some(reason) = topic_name_problem(name) {
            return Err(refused(name, reason, Some(Poison::Unroutable)));
        }
        match self.creator.as_ref().map(|creator| creator.status(name)) {
            None | Some(TopicStatus::There) => {}
            Some(TopicStatus::Pending) => return Err(SendError::Full),
            Some(TopicStatus::Denied(error)) => return Err(SendError::Refused(error)),
        }
        let at = topics.all.len();
        let gate = self
            .gates
            .map(|keyless| Arc::new(PartitionGate::new(at, keyless)));
        topics.all.push((Box::from(name), gate));
        topics.index.insert(Box::from(name), at);
        topics.last = at;
        Ok(at)
    }

    /// Offers a record to the producer of the moment, under its gate.
    fn offer(
        producers: &mut Producers,
        (name, gate): &(Box<str>, Option<Arc<PartitionGate>>),
        at: usize,
        record: &Record<'_>,
        queued: (u64, i64, Option<HoldQueue>),
    ) -> Result<(), NotQueued> {
        let (seq, timestamp_ms, from) = queued;
        let topic = producers.current().topic(at, name, gate.as_ref());
        // The build is refused where usize is narrower.
        topic
            .map_err(NotQueued::Refused)?
            .produce(record, timestamp_ms, seq as usize, from)
    }

    fn shut_down(&mut self, grace: Duration) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        // First, so that no capacity() comes after the end.
        self.creator = None;
        self.inquiry.end();
        let until = Instant::now() + grace;
        // Each time those have been reported that others are queued behind.
        while !self.hold_queues.is_empty() && Instant::now() < until && !self.shared.broken() {
            self.producers
                .flush(until.min(Instant::now() + CLOSING), CLOSING);
            self.resume();
        }
        self.fail_held_records();
        self.producers.flush(until, CLOSING);
        self.producers.close();
    }

    /// Retries the queues of topics that have requested it.
    fn resume(&mut self) {
        for at in self.shared.take_retries() {
            if let Some((_, Some(gate))) = self.topics.all.get(at) {
                gate.retry_started();
            }
            for queue in self.hold_queues.of_topic(at) {
                self.advance(at, queue);
            }
        }
    }

    /// Hands the first of a queue over, and the next, until one is held back.
    fn advance(&mut self, at: usize, queue: HoldQueue) {
        while !self.shared.broken()
            && let Some(topic) = self.topics.all.get(at)
            && let Some(first) = self.hold_queues.first(at, queue)
        {
            let queued = (first.seq, first.timestamp_ms, Some(queue));
            let producers = &mut self.producers;
            let produced = first.with(&topic.0, queue, |record| {
                let produced = Self::offer(producers, topic, at, record, queued);
                produced.map_err(|not_queued| match not_queued {
                    NotQueued::Held(queue) => Ok(queue),
                    NotQueued::Refused(code) => Err(refusal(record, code, &self.message_max_bytes)),
                })
            });
            if matches!(produced, Err(Ok(still)) if still == queue) {
                return;
            }
            let Some(first) = self.hold_queues.pop(at, queue) else {
                return;
            };
            match produced {
                Ok(()) => {}
                Err(Ok(other)) => self.hold_queues.push(at, other, first),
                // It was accepted: now it can only fail.
                Err(Err(error)) => fail(&self.shared, &first, error),
            }
        }
    }

    /// Reports all held records as failed.
    fn fail_held_records(&mut self) {
        for (at, queued) in self.hold_queues.take_all() {
            let name = self.topics.all.get(at).map_or("", |(name, _)| name);
            fail(
                &self.shared,
                &queued,
                delivery_error(name, RDKafkaErrorCode::PurgeQueue),
            );
        }
    }
}

impl Sink for KafkaSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        if self.shared.broken() {
            return Err(refused(record.topic, BROKEN, None));
        }
        self.resume();
        let at = self.topic(record.topic)?;
        let timestamp_ms = check_record(record)?;
        // librdkafka would refuse it, but not before the gate lets it go: what is accepted and refused
        // then breaks the producer.
        if record.payload_bytes() > self.message_max_size {
            return Err(SendError::Refused(refusal(
                record,
                RDKafkaErrorCode::MessageSizeTooLarge,
                &self.message_max_bytes,
            )));
        }
        let weight = weight_of_record(record);
        if !self.shared.window.try_take(weight) {
            return Err(SendError::Full);
        }
        let queued = (seq, timestamp_ms, None);
        let topic = &self.topics.all[at];
        let code = match Self::offer(&mut self.producers, topic, at, record, queued) {
            Ok(()) => return Ok(()),
            Err(NotQueued::Held(queue)) => {
                let queued = HeldRecord::new(record, timestamp_ms, seq, weight);
                self.hold_queues.push(at, queue, queued);
                return Ok(());
            }
            Err(NotQueued::Refused(code)) => code,
        };
        self.shared.window.cancel(weight);
        if code == RDKafkaErrorCode::QueueFull {
            self.shared.queue_full.store(true, SeqCst);
            return Err(SendError::Full);
        }
        Err(SendError::Refused(refusal(
            record,
            code,
            &self.message_max_bytes,
        )))
    }

    /// Hands over what gates have held back and hold back no longer, and gives up a producer that is not wanted. If
    /// the sink is broken, all that is held back is reported as failed: the relay waits for those reports before it
    /// starts anew.
    fn poll(&mut self) {
        if self.shared.broken() {
            self.fail_held_records();
        } else {
            self.resume();
        }
        self.producers.tidy();
        self.shared.note_in_flight();
    }

    /// From the next record on each is offered to the producer of this mode. If the partition has records in flight
    /// in the other producer the record is held back until those were reported; no other partition waits.
    fn set_mode(&mut self, mode: BatchingMode) {
        self.producers.set_mode(mode);
    }

    fn waiting_for(&mut self) -> Option<Obstacle> {
        if let Some(obstacle) = self.creator.as_ref().and_then(TopicCreator::waiting_for) {
            return Some(obstacle);
        }
        if self.in_flight() == 0 || self.shared.broken() {
            return None;
        }
        self.inquiry.answer(&self.producers.all)
    }

    fn close(mut self, grace: Duration) {
        self.shut_down(grace);
    }
}

/// Reports a record as failed that never came to librdkafka.
fn fail(shared: &Shared, queued: &HeldRecord, error: DeliveryError) {
    shared.failed(queued.seq, error);
    if shared.window.give_back(queued.weight) {
        shared.wake_sender();
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
            .field("topics", &self.topics.all.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
