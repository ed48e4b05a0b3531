//! The state shared by the producers of one sink: the window, the receiver of reports, the first
//! failure.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, Weak};

use walrelay_sink::{Deliveries, DeliveryError, Refusal, SinkStats, Window};

use crate::sync::lock;

/// A producer as the others of its sink see it.
pub(crate) trait Client: Send + Sync {
    /// Gives up the records that are queued and not in flight. Does not block.
    fn purge_queue(&self);

    /// Returns the id of the cluster, if it is known. Does not block.
    fn cluster_id(&self) -> Option<String>;
}

/// Shared by a sink, its producers' poll threads, and librdkafka's callbacks.
pub(crate) struct Shared {
    deliveries: Arc<dyn Deliveries>,
    pub(crate) window: Window,
    pub(crate) stats: Arc<SinkStats>,
    /// librdkafka's queue was full although the window was not: a poll thread wakes the sender
    /// after its next poll.
    pub(crate) queue_full: AtomicBool,
    /// An accepted record was not delivered: no record may be sent any more.
    broken: AtomicBool,
    has_failed: AtomicBool,
    /// The sink's producers. Weak, because their contexts hold this struct.
    producers: Mutex<Vec<Weak<dyn Client>>>,
    /// Topics whose gates have requested a retry of their hold queues.
    retries: Mutex<Vec<usize>>,
    /// Whether `retries` has topics.
    retry_requested: AtomicBool,
    /// A record was acknowledged.
    acknowledged: AtomicBool,
    /// A record was acknowledged whose timestamp is too old to open a gate.
    stale: AtomicBool,
    /// The sink is being closed: records in flight are given up on purpose.
    closing: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        deliveries: Arc<dyn Deliveries>,
        window: Window,
        stats: Arc<SinkStats>,
    ) -> Self {
        Self {
            deliveries,
            window,
            stats,
            queue_full: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            producers: Mutex::default(),
            retries: Mutex::default(),
            retry_requested: AtomicBool::new(false),
            acknowledged: AtomicBool::new(false),
            stale: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        }
    }

    /// Adds a producer to be purged at the first failure.
    pub(crate) fn attach(&self, producer: Weak<dyn Client>) {
        let mut producers = lock(&self.producers);
        producers.retain(|producer| producer.strong_count() > 0);
        producers.push(producer);
    }

    /// Makes the sender retry the hold queues of a topic when it is woken.
    pub(crate) fn request_retry(&self, topic: usize) {
        let mut retries = lock(&self.retries);
        retries.push(topic);
        self.retry_requested.store(true, SeqCst);
    }

    /// Takes the topics that requested a retry since the last call, each once: a gate requests no
    /// second retry until the sender has started the first.
    pub(crate) fn take_retries(&self) -> Vec<usize> {
        if !self.retry_requested.load(SeqCst) {
            return Vec::new();
        }
        let mut retries = lock(&self.retries);
        self.retry_requested.store(false, SeqCst);
        std::mem::take(&mut *retries)
    }

    /// Notes that a record was acknowledged whose timestamp is too old to open a gate.
    pub(crate) fn set_stale(&self) {
        self.stale.store(true, SeqCst);
    }

    /// Returns true if [`set_stale`](Self::set_stale) was called.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(SeqCst)
    }

    /// Declares that the sink is being closed, so that librdkafka's errors are not logged any more:
    /// with `enable.gapless.guarantee` a purge of requests in flight is a fatal error.
    pub(crate) fn close(&self) {
        self.closing.store(true, SeqCst);
    }

    /// Returns true if [`close`](Self::close) was called.
    pub(crate) fn closing(&self) -> bool {
        self.closing.load(SeqCst)
    }

    /// Returns true if [`break_off`](Self::break_off) was called.
    pub(crate) fn broken(&self) -> bool {
        self.broken.load(SeqCst)
    }

    /// Returns true if a record was reported as failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(SeqCst)
    }

    /// Breaks the sink: no record is accepted any more, and the queues of all producers are given
    /// up at once. A record sent after a failed one would overtake it.
    pub(crate) fn break_off(&self) {
        if self.latch() {
            self.wake_sender();
        }
    }

    /// Does what [`break_off`](Self::break_off) does, without waking the sender. True for the first
    /// call: the caller must wake the sender.
    fn latch(&self) -> bool {
        if self.broken.swap(true, SeqCst) {
            return false;
        }
        // A producer that is being dropped purges itself.
        for producer in self.producers() {
            producer.purge_queue();
        }
        true
    }

    fn producers(&self) -> Vec<Arc<dyn Client>> {
        let producers = lock(&self.producers);
        producers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes the id of the cluster that the producers send to.
    pub(crate) fn note_cluster(&self) {
        let known = self.stats.cluster_id();
        let producers = self.producers();
        let mut ids = producers
            .iter()
            .filter_map(|producer| producer.cluster_id());
        // If the producers differ, another one than before, so that the change is noticed.
        if let Some(id) = ids.find(|id| known.as_ref() != Some(id)) {
            self.stats.set_cluster_id(&id);
        }
    }

    /// Makes the sender offer its record again and poll the sink.
    pub(crate) fn wake_sender(&self) {
        self.deliveries.capacity();
    }

    /// Returns true if a record was acknowledged, so that the brokers are known to answer.
    pub(crate) fn acknowledged(&self) -> bool {
        self.acknowledged.load(Relaxed)
    }

    /// Reports an accepted record as delivered.
    pub(crate) fn delivered(&self, seq: u64) {
        // Once, and before the first record is reported: nothing is confirmed before the cluster is
        // known.
        if !self.acknowledged() {
            self.note_cluster();
            self.acknowledged.store(true, Relaxed);
        }
        self.deliveries.delivered(seq);
    }

    /// Reports an accepted record as refused, which no producer was given. The sink goes on.
    pub(crate) fn refused(&self, seq: u64, refusal: Refusal) {
        let topic = self.stats.topic(&refusal.topic);
        topic.failed.fetch_add(1, Relaxed);
        self.stats.failed(refusal.poison.name().to_owned());
        self.deliveries.refused(seq, refusal);
    }

    /// Reports an accepted record as failed, and breaks the sink.
    pub(crate) fn failed(&self, seq: u64, error: DeliveryError) {
        // Break first, so that nothing is sent meanwhile; wake last, so that the relay knows the
        // cause when it wakes.
        let first = self.latch();
        self.has_failed.store(true, SeqCst);
        self.deliveries.failed(seq, error);
        if first {
            self.wake_sender();
        }
    }
}
