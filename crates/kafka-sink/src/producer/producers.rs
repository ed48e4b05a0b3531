//! The producers of one sink: one that sends at once, one that fills its requests.
//!
//! librdkafka makes a request of what one partition has when its turn comes, and a broker pays for
//! each request by itself: without a `linger.ms` some ten seconds of CPU for a million records, with
//! one of 50 ms one to two. But a linger is fixed when a producer is made, and while records come one
//! by one it would only make them late. So there is a producer for either case, and
//! [`Sink::set_mode`](walrelay_sink::Sink::set_mode) says to which of them records are offered from then on
//! (docs/adr/0013-producer-modes.md).
//!
//! # Order
//! Both producers may have records in flight. A partition's are in one of them: its
//! [`PartitionGate`](crate::producer::partition_gate::PartitionGate) holds back what is offered to the other until
//! they were reported (docs/adr/0021-order-per-partition.md). So a change of producer waits for no partition, and a
//! partition that is down holds back its own records only.

use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, Producer as _, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::BatchingMode;

use crate::config::KafkaConfig;
use crate::error::KafkaError;
use crate::ffi;
use crate::producer::context::Context;
use crate::producer::partition_gate::{self, PartitionGate, Requests};
use crate::producer::poll::PollThread;
use crate::producer::shared::Shared;
use crate::producer::topic::TopicContext;

/// How long the second producer is kept when it is not wanted: its threads and connections cost a
/// little, making it anew costs a little too.
const KEPT: Duration = Duration::from_secs(10);
/// How long closing waits for librdkafka to report what was purged. It needs milliseconds; the
/// bound is there so that a defect of it shows as a log line and not as a relay that never ends.
const PURGE_GRACE: Duration = Duration::from_secs(10);
/// How long closing waits in one go, before it looks what else there is to do.
pub(crate) const CLOSING: Duration = Duration::from_millis(100);

/// A librdkafka client with its poll thread and its handles of topics.
pub(crate) struct Producer {
    // Declared in the order in which they must go: handles, poll thread, client.
    /// By the topic's number.
    topics: Vec<Option<ffi::Topic<Context>>>,
    poll: PollThread,
    pub(crate) client: Arc<BaseProducer<Context>>,
    pub(crate) number: partition_gate::Producer,
}

impl Producer {
    fn start(
        config: &KafkaConfig,
        client: &ClientConfig,
        shared: &Arc<Shared>,
        number: partition_gate::Producer,
    ) -> Result<Self, KafkaError> {
        let context = Context::new(Arc::clone(shared), config.clone());
        let client: BaseProducer<Context> = config
            .of_producer(client.clone())
            .create_with_context(context)
            .map_err(|error| KafkaError::of_creation(config, &error))?;
        let client = Arc::new(client);
        let weak: Weak<BaseProducer<Context>> = Arc::downgrade(&client);
        shared.attach(weak);
        Ok(Self {
            topics: Vec::new(),
            poll: PollThread::start(Arc::clone(&client))?,
            client,
            number,
        })
    }

    /// The handle of a topic, by its number in the sink.
    pub(crate) fn topic(
        &mut self,
        at: usize,
        name: &str,
        gate: Option<&Arc<PartitionGate>>,
    ) -> Result<&ffi::Topic<Context>, RDKafkaErrorCode> {
        if self.topics.len() <= at {
            self.topics.resize_with(at + 1, || None);
        }
        match &mut self.topics[at] {
            Some(topic) => Ok(topic),
            empty => {
                let shared = &self.client.context().shared;
                let context = gate.map(|gate| {
                    let (gate, shared) = (Arc::clone(gate), Arc::clone(shared));
                    Arc::new(TopicContext::new(gate, self.number, shared))
                });
                Ok(empty.insert(ffi::Topic::new(&self.client, name, context)?))
            }
        }
    }

    /// Whether each record was reported.
    fn is_empty(&self) -> bool {
        self.client.in_flight_count() == 0
    }

    /// Ends it; what is still in flight is purged and reported as failed. **Blocks.**
    fn close(mut self) {
        if !self.is_empty() {
            self.purge();
        }
        self.poll.stop();
    }

    fn give_up(&self) {
        self.client
            .purge(PurgeConfig::default().queue().inflight().non_blocking());
    }

    /// Gives up what is queued or in flight until the last of it has been reported.
    fn purge(&self) {
        let start = Instant::now();
        // More than once: a record that is in flight from one of librdkafka's queues to another
        // can slip past a purge.
        loop {
            self.give_up();
            if ffi::flush(&self.client, CLOSING) {
                return;
            }
            if start.elapsed() > PURGE_GRACE {
                tracing::error!(
                    records = self.client.in_flight_count(),
                    "librdkafka did not report what it gave up"
                );
                return;
            }
        }
    }
}

/// The producers of a sink, and which of them records are offered to.
pub(crate) struct Producers {
    /// The first sends at once. The last of several fills its requests. One between them was replaced and still
    /// has records in flight.
    pub(crate) all: Vec<Producer>,
    /// Dropping a producer blocks for a moment: not on the sender's thread.
    pub(crate) closing: Vec<JoinHandle<()>>,
    /// For how long the second producer fills its requests. `None`: there is no second.
    linger: Option<Duration>,
    config: KafkaConfig,
    shared: Arc<Shared>,
    /// How many were made.
    made: u32,
    wanted_mode: BatchingMode,
    /// The mode of the producer that records are offered to.
    pub(crate) mode: BatchingMode,
    unused_since: Option<Instant>,
    pub(crate) kept: Duration,
}

impl Producers {
    /// With the first one started. `client`: its configuration, which has to suit the number of `requests`.
    pub(crate) fn new(
        config: &KafkaConfig,
        client: &ClientConfig,
        requests: Requests,
        linger: Option<Duration>,
        shared: Arc<Shared>,
    ) -> Result<Self, KafkaError> {
        let number = partition_gate::Producer { id: 1, requests };
        let first = Producer::start(config, client, &shared, number)?;
        Ok(Self {
            all: vec![first],
            closing: Vec::new(),
            linger,
            config: config.clone(),
            shared,
            made: 1,
            wanted_mode: BatchingMode::Latency,
            mode: BatchingMode::Latency,
            unused_since: None,
            kept: KEPT,
        })
    }

    pub(crate) fn set_mode(&mut self, mode: BatchingMode) {
        if self.linger.is_some() {
            self.wanted_mode = mode;
        }
    }

    /// The producer that a record is offered to now.
    pub(crate) fn current(&mut self) -> &mut Producer {
        let at = match self.wanted_mode {
            BatchingMode::Latency => 0,
            BatchingMode::Throughput => self.second(),
        };
        self.note(if at == 0 {
            BatchingMode::Latency
        } else {
            BatchingMode::Throughput
        });
        &mut self.all[at]
    }

    fn note(&mut self, mode: BatchingMode) {
        if self.mode != mode {
            self.mode = mode;
            self.shared.stats.set_mode(mode);
            tracing::debug!(?mode, "changed producer mode");
        }
    }

    /// Where the producer for throughput is, which is made if there is none. 0: there is none for now.
    fn second(&mut self) -> usize {
        let last = self.all.len() - 1;
        let requests = if self.shared.is_stale() {
            Requests::One
        } else {
            Requests::Several
        };
        // Timestamps never get fresh again.
        if last > 0 && (requests == Requests::Several || self.all[last].number.requests == requests)
        {
            return last;
        }
        let Some(linger) = self.linger else {
            return last;
        };
        // One that replaces another is made at once: what waits for it is late by a linger each.
        self.closing.retain(|thread| !thread.is_finished());
        if last == 0 && !self.closing.is_empty() {
            return last;
        }
        let client = self.config.client_config_lingering(linger);
        let (client, _) = KafkaConfig::of_gates(client, requests);
        let number = partition_gate::Producer {
            id: self.made + 1,
            requests,
        };
        match Producer::start(&self.config, &client, &self.shared, number) {
            Ok(second) => {
                if requests == Requests::One {
                    tracing::debug!("one request at a time: timestamps are too old for more");
                }
                self.made += 1;
                self.all.push(second);
                self.all.len() - 1
            }
            // The same configuration made the first one: this is want of memory or threads, and
            // nothing is lost but speed.
            Err(error) => {
                tracing::warn!(%error, "the producer for throughput could not be made");
                self.linger = None;
                self.wanted_mode = BatchingMode::Latency;
                0
            }
        }
    }

    /// Gives up producers that have nothing in flight: those that were replaced, and the second one if it was not
    /// wanted for a while.
    pub(crate) fn tidy(&mut self) {
        if self.wanted_mode == BatchingMode::Latency {
            // Also if no record is offered any more.
            self.note(BatchingMode::Latency);
        }
        if self.all.len() == 1 {
            return;
        }
        let unwanted = match self.wanted_mode {
            BatchingMode::Throughput => {
                self.unused_since = None;
                false
            }
            BatchingMode::Latency => {
                let since = *self.unused_since.get_or_insert_with(Instant::now);
                since.elapsed() >= self.kept
            }
        };
        for at in (1..self.all.len()).rev() {
            let replaced = at < self.all.len() - 1;
            if (replaced || unwanted) && self.all[at].is_empty() {
                self.release(at);
            }
        }
    }

    fn release(&mut self, at: usize) {
        let producer = self.all.remove(at);
        let thread = thread::Builder::new().name("kafka-close".to_owned());
        match thread.spawn(move || producer.close()) {
            Ok(thread) => self.closing.push(thread),
            // Then the producer went with the closure, here.
            Err(error) => tracing::warn!(%error, "no thread to close a producer with"),
        }
    }

    /// **Blocks** until everything was reported, or the time is over; true for the former. Nothing lingers
    /// meanwhile. `slice`: the longest that it waits for one of them before the next has its turn.
    pub(crate) fn flush(&self, until: Instant, slice: Duration) -> bool {
        loop {
            let mut all_reported = true;
            for producer in &self.all {
                let left = until.saturating_duration_since(Instant::now());
                all_reported &= ffi::flush(&producer.client, left.min(slice));
            }
            if all_reported || Instant::now() >= until {
                return all_reported;
            }
        }
    }

    /// Ends all of them. What was not reported is purged and reported as failed. **Blocks.**
    pub(crate) fn close(&mut self) {
        self.shared.close();
        // In all of them before one is waited for: nothing that is given up may be delivered meanwhile.
        for producer in self.all.iter().filter(|producer| !producer.is_empty()) {
            producer.give_up();
        }
        for producer in self.all.drain(..) {
            producer.close();
        }
        for thread in self.closing.drain(..) {
            if thread.join().is_err() {
                tracing::error!("closing a producer panicked");
            }
        }
    }
}
