use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::{
    BatchingMode, Deliveries, DeliveryError, HeldRecord, Obstacle, Poison, Record, Retrying,
    SendError, Sink, SinkStats, Window,
};
use walrelay_sink_client::Patience;

use crate::admin::creator::TopicCreator;
use crate::admin::topic_name_problem;
use crate::config::KafkaConfig;
use crate::error::KafkaError;
use crate::in_flight::hold_queues::{HoldQueues, Queued};
use crate::in_flight::partition_gate::{HoldQueue, Keyless, PartitionGate, Requests};
use crate::in_flight::shared::Shared;
use crate::in_flight::topic::NotQueued;
use crate::outcome::delivery_error;
use crate::producer::context::weight_of_record;
use crate::producer::obstacle::Inquiry;
use crate::producer::producers::{CLOSING_SLICE, Producers};
use crate::producer::topic_checks::TopicChecks;

mod factory;
mod held_topics;
mod refusals;

pub use factory::KafkaSinkFactory;
use held_topics::{HeldTopic, HeldTopics};
pub(crate) use refusals::check_limits;
use refusals::{check_record, refusal, refused, size_in_request};

const BROKEN: &str = "this producer accepts nothing after an undelivered record: a new one must be \
                      created, and everything unconfirmed sent again";

/// A Kafka producer, or two of them: see [`KafkaSinkFactory`].
///
/// After the first record that a producer took and does not deliver, for whatever reason, all queued records are
/// reported as failed and every further record is refused, both as [`Retryable`](walrelay_sink::Disposition::Retryable): a
/// new sink is needed. The record that failed has its own disposition, so the worst of the reports
/// counts.
///
/// Dropping it without [`close`](Sink::close) **blocks** for a moment: queued and in-flight records
/// are purged and reported as failed.
pub struct KafkaSink {
    creator: Option<TopicCreator>,
    topics: Topics,
    /// Topics that are not known to be writable, with their records.
    held: HeldTopics,
    /// The most keys of a topic that may wait, for views.
    max_retrying_keys: u32,
    checks: TopicChecks,
    patience: Patience,
    pub(crate) producers: Producers,
    pub(crate) shared: Arc<Shared>,
    message_max_bytes: String,
    /// `message_max_bytes` as a number.
    message_max_size: usize,
    /// The setting of the topics' gates; `None`: topics have no gates.
    gates: Option<Keyless>,
    /// Accepted records that gates hold back.
    hold_queues: HoldQueues,
    inquiry: Inquiry,
    /// The last record found no room.
    is_full: bool,
    closed: bool,
}

/// The topics seen so far, by number.
#[derive(Default)]
struct Topics {
    all: Vec<Topic>,
    index: HashMap<Box<str>, usize>,
    /// The topic of the last record: consecutive records often have the same topic.
    last: usize,
}

/// A topic of a sink.
struct Topic {
    name: Box<str>,
    /// `None`: records need no gate.
    gate: Option<Arc<PartitionGate>>,
    /// False: its records are [held back](KafkaSink::hold).
    is_writable: bool,
}

impl KafkaSink {
    /// Creates a sink with gates: a producer that may have several requests in flight to a broker,
    /// and with a `linger` a second one for throughput.
    fn gated(
        config: &KafkaConfig,
        linger: Option<Duration>,
        deliveries: Arc<dyn Deliveries>,
        stats: Arc<SinkStats>,
    ) -> Result<Self, KafkaError> {
        let (client, gates) = KafkaConfig::for_gates(config.client_config(), Requests::Several);
        Self::new(config, &client, Some(gates), linger, deliveries, stats)
    }

    /// Creates a sink whose first producer has the configuration `client`. Without `gates` it is
    /// the only producer, and has one request in flight to a broker.
    fn new(
        config: &KafkaConfig,
        client: &ClientConfig,
        gates: Option<Keyless>,
        linger: Option<Duration>,
        deliveries: Arc<dyn Deliveries>,
        stats: Arc<SinkStats>,
    ) -> Result<Self, KafkaError> {
        let options = config.options();
        let window = Window::new(options.max_in_flight_records, options.max_in_flight_bytes)
            .with_aside(options.max_retrying_bytes);
        let shared = Arc::new(Shared::new(Arc::clone(&deliveries), window, stats));
        let requests = match gates {
            Some(_) => Requests::Several,
            None => Requests::One,
        };
        let producers = Producers::new(config, client, requests, linger, Arc::clone(&shared))?;
        let patience = config.patience().clone();
        let creator = match &options.topics {
            Some(topics) => Some(TopicCreator::start(config, topics, deliveries)?),
            None => None,
        };
        Ok(Self {
            creator,
            topics: Topics::default(),
            held: HeldTopics::new(),
            max_retrying_keys: options.max_retrying_keys,
            checks: TopicChecks::start(Arc::clone(&producers.all[0].client), patience.clone())?,
            patience,
            producers,
            shared,
            message_max_bytes: config.message_max_bytes().to_owned(),
            // librdkafka has accepted the value. If it is no number here, only librdkafka checks
            // sizes.
            message_max_size: config.message_max_bytes().parse().unwrap_or(usize::MAX),
            gates,
            hold_queues: HoldQueues::default(),
            inquiry: Inquiry::default(),
            is_full: false,
            closed: false,
        })
    }

    /// Returns the number of records accepted and not yet reported.
    pub fn in_flight(&self) -> u64 {
        self.shared.window.in_flight()
    }

    /// Returns the number of a topic, which is added if it is new; an error if no topic can have this
    /// name.
    fn topic(&mut self, name: &str) -> Result<usize, SendError> {
        let topics = &mut self.topics;
        if let Some(last) = topics.all.get(topics.last)
            && *last.name == *name
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
        let at = topics.all.len();
        let gate = self
            .gates
            .map(|keyless| Arc::new(PartitionGate::new(at, keyless)));
        topics.all.push(Topic {
            name: Box::from(name),
            gate,
            is_writable: false,
        });
        topics.index.insert(Box::from(name), at);
        topics.last = at;
        Ok(at)
    }

    /// Offers a record to the current producer, through the topic's gate.
    fn offer(
        producers: &mut Producers,
        topic: &Topic,
        at: usize,
        record: &Record<'_>,
        queued: (u64, i64, Option<HoldQueue>),
    ) -> Result<(), NotQueued> {
        let (seq, timestamp_ms, from) = queued;
        let producer = producers.current();
        let topic = producer.topic(at, &topic.name, topic.gate.as_ref());
        // `usize` has at least 64 bits: asserted in `ffi`.
        topic
            .map_err(NotQueued::Refused)?
            .produce(record, timestamp_ms, seq as usize, from)
    }

    fn shut_down(&mut self, grace: Duration) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        // First, so that `capacity` is not called after the end.
        self.creator = None;
        self.inquiry.join();
        let until = Instant::now() + grace;
        // Retry the queues as long as records that others wait for are reported, and wait for the first
        // answer about a topic.
        while Instant::now() < until && !self.shared.broken() {
            if self.held.values().any(HeldTopic::is_unanswered) {
                self.checks.wait(CLOSING_SLICE);
            } else if self.hold_queues.is_empty() {
                break;
            } else {
                self.producers
                    .flush(until.min(Instant::now() + CLOSING_SLICE), CLOSING_SLICE);
            }
            self.resume();
        }
        self.checks.stop();
        self.fail_held_records();
        self.producers.flush(until, CLOSING_SLICE);
        self.producers.close();
    }

    /// Retries the queues of topics that have requested it, and the held topics that have an answer.
    fn resume(&mut self) {
        self.advance_held();
        for at in self.shared.take_retries() {
            if let Some(gate) = self
                .topics
                .all
                .get(at)
                .and_then(|topic| topic.gate.as_ref())
            {
                gate.retry_started();
            }
            for queue in self.hold_queues.topic_queues(at) {
                self.advance(at, queue);
            }
        }
    }

    /// Sends the records of a queue from its head, until one is held back.
    fn advance(&mut self, at: usize, queue: HoldQueue) {
        while !self.shared.broken()
            && let Some(topic) = self.topics.all.get(at)
            && let Some(first) = self.hold_queues.first(at, queue)
        {
            let queued = (first.seq, first.timestamp_ms, Some(queue));
            let producers = &mut self.producers;
            let produced = first.with(queue, |record| {
                let produced = Self::offer(producers, topic, at, record, queued);
                produced.map_err(|not_queued| match not_queued {
                    NotQueued::Held(queue) => Ok(queue),
                    NotQueued::Refused(code) => Err(code),
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
                Err(Err(code)) => {
                    if self.hold_topic(at, code) {
                        self.hold_first(at, first);
                        return;
                    }
                    let max = &self.message_max_bytes;
                    let error = first.with(queue, |record| refusal(record, code, max));
                    // The record was accepted before, so it is reported as failed.
                    fail(&self.shared, &first, error);
                }
            }
        }
    }

    /// Reports all held records as failed.
    fn fail_held_records(&mut self) {
        for (at, queued) in self.hold_queues.take_all() {
            let name = self.topics.all.get(at).map_or("", |topic| &topic.name);
            fail(&self.shared, &queued, self.given_up(name));
        }
        self.fail_held_topics();
    }

    /// Returns the error of a held record of a sink that has ended.
    fn given_up(&self, topic: &str) -> DeliveryError {
        let mut error = delivery_error(topic, RDKafkaErrorCode::PurgeQueue);
        if let Some(producer) = self.producers.all.first() {
            producer.client.context().explain(&mut error);
        }
        error
    }

    /// Offers a checked record of a topic to its producer, or holds it until the topic or the queue has room.
    fn accept(
        &mut self,
        record: &Record<'_>,
        at: usize,
        timestamp_ms: i64,
        seq: u64,
    ) -> Result<(), SendError> {
        let weight = weight_of_record(record);
        let has_room = self.shared.window.try_take(weight)
            || (self.set_held_aside() && self.shared.window.try_take(weight));
        self.is_full = !has_room;
        if self.is_full {
            return Err(SendError::Full);
        }
        let held = |record: &Record<'_>| Queued {
            seq,
            weight,
            timestamp_ms,
            is_aside: false,
            record: HeldRecord::new(record),
        };
        let topic = &self.topics.all[at];
        if !topic.is_writable {
            self.hold(at, held(record));
            return Ok(());
        }
        let queued = (seq, timestamp_ms, None);
        let code = match Self::offer(&mut self.producers, topic, at, record, queued) {
            Ok(()) => return Ok(()),
            Err(NotQueued::Held(queue)) => {
                self.hold_queues.push(at, queue, held(record));
                return Ok(());
            }
            Err(NotQueued::Refused(code)) => code,
        };
        if self.hold_topic(at, code) {
            self.hold_first(at, held(record));
            return Ok(());
        }
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
}

impl Sink for KafkaSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        if self.shared.broken() {
            return Err(refused(record.topic, BROKEN, None));
        }
        self.resume();
        let at = self.topic(record.topic)?;
        let timestamp_ms = check_record(record)?;
        // librdkafka would refuse the record, too, but perhaps after a gate held it back: a record
        // that was accepted and then fails breaks the sink.
        let size = size_in_request(record);
        if size > self.message_max_size {
            return Err(SendError::Refused(refusal(
                record,
                RDKafkaErrorCode::MessageSizeTooLarge,
                &self.message_max_bytes,
            )));
        }
        self.accept(record, at, timestamp_ms, seq)?;
        let sizes = &self.shared.stats.sizes;
        sizes.accepted(record);
        sizes.compare(record, size as u64, self.message_max_size as u64);
        Ok(())
    }

    fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<(u64, HeldRecord)> {
        self.take_back(seq, behind)
    }

    fn retrying(&self) -> Option<Retrying> {
        self.held_keys()
    }

    /// Sends held records that the gates admit now, and closes a producer that is not used any
    /// more. If the sink is broken, reports all held records as failed: the relay waits for those
    /// reports before it restarts.
    fn poll(&mut self) {
        if self.shared.broken() {
            self.fail_held_records();
        } else {
            self.advance_creations();
            self.resume();
            // A topic may have been refused since its record found no room.
            if self.is_full && self.set_held_aside() {
                self.shared.wake_sender();
            }
        }
        if self.shared.acknowledged() && !self.shared.broken() {
            let topics = self.topics.all.iter().map(|topic| &*topic.name);
            self.inquiry.learn_ids(&self.producers.all, topics);
        }
        self.producers.close_unused();
        self.shared.window.update_stats(&self.shared.stats);
    }

    /// Returns true also with one producer: the mode then decides about reads alone, which a backlog
    /// coalesces.
    fn has_modes(&self) -> bool {
        true
    }

    /// Selects the producer that records are offered to from now on. A record whose partition has
    /// records in flight in the other producer is held back until those are reported; no other
    /// partition waits.
    fn set_mode(&mut self, mode: BatchingMode) {
        self.producers.set_mode(mode);
    }

    fn waiting_for(&mut self) -> Option<Obstacle> {
        if let Some(obstacle) = self.creator.as_ref().and_then(TopicCreator::waiting_for) {
            return Some(obstacle);
        }
        if let Some(obstacle) = self.held_obstacle() {
            return Some(obstacle);
        }
        if self.in_flight() == 0 || self.shared.broken() {
            return None;
        }
        self.inquiry.answer(&self.producers.all)
    }

    fn close(mut self: Box<Self>, grace: Duration) {
        self.shut_down(grace);
    }
}

/// Reports a held record as failed.
fn fail(shared: &Shared, queued: &Queued, error: DeliveryError) {
    shared.failed(queued.seq, error);
    give_back(shared, queued);
}

/// Gives back the room of a held record.
fn give_back(shared: &Shared, queued: &Queued) {
    let sender_waits = if queued.is_aside {
        shared.window.give_back_aside(queued.weight)
    } else {
        shared.window.give_back(queued.weight)
    };
    if sender_waits {
        shared.wake_sender();
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
