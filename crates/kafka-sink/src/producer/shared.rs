//! What the producers of one sink share: the window, the relay that hears the reports, and the first failure.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use walrelay_sink::{Deliveries, DeliveryError, SinkStats};

use crate::producer::window::Window;
use crate::sync::lock;

/// A producer whose queue can be given up.
pub(crate) trait Purge: Send + Sync {
    /// Gives up what is queued and not in flight. Does not block.
    fn purge_queue(&self);
}

/// Shared by a sink, its producers' poll threads, and librdkafka's callbacks.
pub(crate) struct Shared {
    deliveries: Arc<dyn Deliveries>,
    pub(crate) window: Window,
    pub(crate) stats: Arc<SinkStats>,
    /// librdkafka said that its queue was full although ours was not: a poll thread wakes the
    /// sender at its next turn.
    pub(crate) queue_full: AtomicBool,
    /// Something that was accepted was not delivered: nothing more may be sent.
    broken: AtomicBool,
    /// The sink's producers, to purge them. Weak, or they would never be dropped.
    producers: Mutex<Vec<Weak<dyn Purge>>>,
    /// Topics whose gates have requested a retry of their hold queues, and whether there are any.
    retries: Mutex<Vec<usize>>,
    retry_requested: AtomicBool,
    /// A record was acknowledged whose timestamp opens no gate.
    stale: AtomicBool,
    /// What is in flight is given up on purpose.
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
            producers: Mutex::default(),
            retries: Mutex::default(),
            retry_requested: AtomicBool::new(false),
            stale: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        }
    }

    /// Adds a producer to those that the first failure purges.
    pub(crate) fn attach(&self, producer: Weak<dyn Purge>) {
        let mut producers = self.producers();
        producers.retain(|producer| producer.strong_count() > 0);
        producers.push(producer);
    }

    fn producers(&self) -> MutexGuard<'_, Vec<Weak<dyn Purge>>> {
        lock(&self.producers)
    }

    /// Makes the sender try the queues of a topic again, once it is woken.
    pub(crate) fn request_retry(&self, topic: usize) {
        let mut retries = lock(&self.retries);
        retries.push(topic);
        self.retry_requested.store(true, SeqCst);
    }

    /// The topics that requested a retry since the last call. None twice: a gate requests no second one until the sender
    /// has started the first.
    pub(crate) fn take_retries(&self) -> Vec<usize> {
        if !self.retry_requested.load(SeqCst) {
            return Vec::new();
        }
        let mut retries = lock(&self.retries);
        self.retry_requested.store(false, SeqCst);
        std::mem::take(&mut *retries)
    }

    /// Notes a record whose timestamp opens no gate.
    pub(crate) fn set_stale(&self) {
        self.stale.store(true, SeqCst);
    }

    /// Whether records come with timestamps that open no gate.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(SeqCst)
    }

    /// From now on librdkafka's complaints are of the end of the sink, and nobody has to mend them: a purge of
    /// requests in flight is a fatal error of a producer that promises no gaps.
    pub(crate) fn close(&self) {
        self.closing.store(true, SeqCst);
    }

    /// Whether [`close`](Self::close) was called.
    pub(crate) fn closing(&self) -> bool {
        self.closing.load(SeqCst)
    }

    /// Whether [`break_off`](Self::break_off) was called.
    pub(crate) fn broken(&self) -> bool {
        self.broken.load(SeqCst)
    }

    /// From now on nothing is accepted, and what is queued in any producer is given up at once: whatever
    /// was sent after a record that failed would overtake it.
    pub(crate) fn break_off(&self) {
        if self.latch() {
            self.wake_sender();
        }
    }

    /// The same, but for waking the sender. True: that is to be done.
    fn latch(&self) -> bool {
        if self.broken.swap(true, SeqCst) {
            return false;
        }
        // One that is being dropped purges by itself.
        let producers: Vec<_> = self.producers().iter().filter_map(Weak::upgrade).collect();
        for producer in producers {
            producer.purge_queue();
        }
        true
    }

    /// Brings the figures of what is in flight up to date.
    pub(crate) fn note_in_flight(&self) {
        let (records, bytes) = (self.window.in_flight(), self.window.bytes());
        self.stats.in_flight_records.store(records, Relaxed);
        self.stats.in_flight_bytes.store(bytes, Relaxed);
    }

    /// Lets the sender look again.
    pub(crate) fn wake_sender(&self) {
        self.deliveries.capacity();
    }

    /// A record that was accepted was delivered.
    pub(crate) fn delivered(&self, seq: u64) {
        self.deliveries.delivered(seq);
    }

    /// A record that was accepted was not delivered.
    pub(crate) fn failed(&self, seq: u64, error: DeliveryError) {
        // Before the relay is told, so that nothing is sent in the meantime; and it is woken after,
        // so that it learns of the cause first.
        let first = self.latch();
        self.deliveries.failed(seq, error);
        if first {
            self.wake_sender();
        }
    }
}
