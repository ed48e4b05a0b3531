//! The producers of one sink: one for latency, and one for throughput, whose longer linger makes
//! requests cheaper for the broker (docs/adr/0013-producer-modes.md). A linger is fixed when a
//! producer is created, so [`Sink::set_mode`](walrelay_sink::Sink::set_mode) selects the producer
//! that records are offered to.
//!
//! # Order
//! Both producers may have records in flight, but those of one partition are in one producer: the
//! [`PartitionGate`](crate::in_flight::partition_gate::PartitionGate) holds back records offered to
//! the other one until they are reported (docs/adr/0021-order-per-partition.md). So a change of
//! producer waits for no partition, and a partition that is down holds back its own records only.

use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, Producer as _, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::{BatchingMode, in_current_span};

use crate::config::KafkaConfig;
use crate::error::KafkaError;
use crate::ffi;
use crate::in_flight::partition_gate::{PartitionGate, ProducerId, Requests};
use crate::in_flight::shared::Shared;
use crate::in_flight::topic::TopicContext;
use crate::producer::context::Context;
use crate::producer::poll::PollThread;

/// The time for which the second producer is kept while it is not used. Its threads and connections cost a
/// little, and so does creating it again.
const KEEP_UNUSED: Duration = Duration::from_secs(10);
/// The time for which closing waits for the reports of purged records. librdkafka needs milliseconds; with
/// this limit a defect of librdkafka causes a log line and not a relay that never ends.
const PURGE_GRACE: Duration = Duration::from_secs(10);
/// The longest wait of closing before it checks for other work.
pub(crate) const CLOSING_SLICE: Duration = Duration::from_millis(100);

/// A librdkafka client with its poll thread and its topic handles.
pub(crate) struct Producer {
    // Declared in the order in which they must be dropped: handles, poll thread, client.
    /// The topics by their numbers in the sink.
    topics: Vec<Option<ffi::Topic<Context>>>,
    poll: PollThread,
    pub(crate) client: Arc<BaseProducer<Context>>,
    pub(crate) id: ProducerId,
}

impl Producer {
    fn start(
        config: &KafkaConfig,
        client: &ClientConfig,
        shared: &Arc<Shared>,
        id: ProducerId,
    ) -> Result<Self, KafkaError> {
        let context = Context::new(Arc::clone(shared), config.clone());
        let client: BaseProducer<Context> = config
            .for_producer(client.clone())
            .create_with_context(context)
            .map_err(|error| config.creation_error(&error))?;
        let client = Arc::new(client);
        let weak: Weak<BaseProducer<Context>> = Arc::downgrade(&client);
        shared.attach(weak);
        Ok(Self {
            topics: Vec::new(),
            poll: PollThread::start(Arc::clone(&client))?,
            client,
            id,
        })
    }

    /// Returns the handle of a topic, by its number in the sink.
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
                    Arc::new(TopicContext::new(gate, self.id, shared))
                });
                Ok(empty.insert(ffi::Topic::new(&self.client, name, context)?))
            }
        }
    }

    /// Returns true if every record was reported.
    fn is_empty(&self) -> bool {
        self.client.in_flight_count() == 0
    }

    /// Closes the producer. Records in flight are purged and reported as failed. **Blocks.**
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

    /// Purges queued and in-flight records until all are reported, for [`PURGE_GRACE`] at most.
    fn purge(&self) {
        let start = Instant::now();
        // Purge repeatedly: a purge can miss a record that moves between two queues of librdkafka.
        loop {
            self.give_up();
            if ffi::flush(&self.client, CLOSING_SLICE) {
                return;
            }
            if start.elapsed() > PURGE_GRACE {
                tracing::error!(
                    records = self.client.in_flight_count(),
                    "librdkafka did not report the records that it gave up"
                );
                return;
            }
        }
    }
}

/// The producers of a sink, and the mode that selects one.
pub(crate) struct Producers {
    /// The first is for latency. The last, if there are several, is for throughput. Those between
    /// were replaced and still have records in flight.
    pub(crate) all: Vec<Producer>,
    /// Threads that close producers, because closing one blocks for a moment.
    pub(crate) closing: Vec<JoinHandle<()>>,
    /// The linger of the second producer. `None`: there is only one producer.
    linger: Option<Duration>,
    config: KafkaConfig,
    shared: Arc<Shared>,
    /// The number of producers created.
    created: u32,
    wanted_mode: BatchingMode,
    /// The mode of the producer that records are offered to.
    pub(crate) mode: BatchingMode,
    unused_since: Option<Instant>,
    pub(crate) keep_unused: Duration,
}

impl Producers {
    /// Starts the first producer. Its configuration `client` must allow the number of `requests`.
    pub(crate) fn new(
        config: &KafkaConfig,
        client: &ClientConfig,
        requests: Requests,
        linger: Option<Duration>,
        shared: Arc<Shared>,
    ) -> Result<Self, KafkaError> {
        let id = ProducerId {
            number: 1,
            requests,
        };
        let first = Producer::start(config, client, &shared, id)?;
        Ok(Self {
            all: vec![first],
            closing: Vec::new(),
            linger,
            config: config.clone(),
            shared,
            created: 1,
            wanted_mode: BatchingMode::Latency,
            mode: BatchingMode::Latency,
            unused_since: None,
            keep_unused: KEEP_UNUSED,
        })
    }

    pub(crate) fn set_mode(&mut self, mode: BatchingMode) {
        if self.linger.is_some() {
            self.wanted_mode = mode;
        }
    }

    /// Returns the producer that the next record is offered to.
    pub(crate) fn current(&mut self) -> &mut Producer {
        let at = match self.wanted_mode {
            BatchingMode::Latency => 0,
            BatchingMode::Throughput => self.second(),
        };
        self.set_current_mode(if at == 0 {
            BatchingMode::Latency
        } else {
            BatchingMode::Throughput
        });
        &mut self.all[at]
    }

    fn set_current_mode(&mut self, mode: BatchingMode) {
        if self.mode != mode {
            self.mode = mode;
            self.shared.stats.set_mode(mode);
            tracing::debug!(?mode, "changed producer mode");
        }
    }

    /// Returns the index of the producer for throughput, which is created if needed. 0: there is
    /// none for now.
    fn second(&mut self) -> usize {
        let last = self.all.len() - 1;
        let requests = if self.shared.is_stale() {
            Requests::One
        } else {
            Requests::Several
        };
        // A producer with one request is not replaced by one with several: `is_stale` stays true.
        if last > 0 && (requests == Requests::Several || self.all[last].id.requests == requests) {
            return last;
        }
        let Some(linger) = self.linger else {
            return last;
        };
        // A replacement is created at once: without it, each request would wait for a linger. A
        // first one waits until the previous one is closed.
        self.closing.retain(|thread| !thread.is_finished());
        if last == 0 && !self.closing.is_empty() {
            return last;
        }
        let mut client = self.config.client_config();
        client.set("linger.ms", linger.as_millis().to_string());
        let (client, _) = KafkaConfig::for_gates(client, requests);
        let id = ProducerId {
            number: self.created + 1,
            requests,
        };
        match Producer::start(&self.config, &client, &self.shared, id) {
            Ok(second) => {
                if requests == Requests::One {
                    tracing::debug!("one request at a time: timestamps are too old for more");
                }
                self.created += 1;
                self.all.push(second);
                self.all.len() - 1
            }
            // The first producer has the same configuration, so memory or threads are short. Only
            // throughput is lost.
            Err(error) => {
                tracing::warn!(%error, "the producer for throughput could not be made");
                self.linger = None;
                self.wanted_mode = BatchingMode::Latency;
                0
            }
        }
    }

    /// Closes producers without records in flight: those that were replaced, and the second one if
    /// it was not used for a while.
    pub(crate) fn close_unused(&mut self) {
        if self.wanted_mode == BatchingMode::Latency {
            // `current` does it, too, but only when a record is offered.
            self.set_current_mode(BatchingMode::Latency);
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
                since.elapsed() >= self.keep_unused
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
        match thread.spawn(in_current_span(move || producer.close())) {
            Ok(thread) => self.closing.push(thread),
            // The producer was dropped with the closure, on this thread.
            Err(error) => tracing::warn!(%error, "no thread to close a producer with"),
        }
    }

    /// Waits (**blocks**) until every record is reported (returns true) or until `until` (returns
    /// false). Meanwhile producers do not linger. Waits for one producer at most `slice` before the
    /// next.
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

    /// Closes all producers. Unreported records are purged and reported as failed. **Blocks.**
    pub(crate) fn close(&mut self) {
        self.shared.close();
        // Purge all producers before waiting for one, so that the others deliver nothing meanwhile. Before
        // that: a purge closes a connection on which a request is half written.
        let busy = || self.all.iter().filter(|producer| !producer.is_empty());
        for producer in busy() {
            producer.client.context().reset_connections();
        }
        for producer in busy() {
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
