//! What was sent, by topic, and how much of it was acknowledged.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use walrelay_sink::{
    BatchingMode, Deliveries, DeliveryError, Disposition, Obstacle, Record, SendError, Sink,
    SinkFactory,
};

/// The figures of a replay. Records that were sent again to a new sink count again.
#[derive(Debug, Default)]
pub(super) struct Tally {
    acknowledged: AtomicU64,
    last: Mutex<Option<Instant>>,
    topics: Mutex<Topics>,
}

#[derive(Debug, Default)]
struct Topics {
    sent: Vec<(String, u64)>,
    /// The place of the last record's topic: most records have the same.
    last: usize,
}

impl Tally {
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// When the last acknowledgement arrived.
    pub(super) fn last_acknowledged(&self) -> Option<Instant> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records by topic, by name.
    pub(super) fn topics(&self) -> Vec<(String, u64)> {
        let mut topics = self.by_topic().sent.clone();
        topics.sort();
        topics
    }

    fn by_topic(&self) -> MutexGuard<'_, Topics> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sent(&self, topic: &str) {
        let mut topics = self.by_topic();
        let last = topics.last;
        if topics.sent.get(last).is_none_or(|(name, _)| name != topic) {
            let found = topics.sent.iter().position(|(name, _)| name == topic);
            topics.last = found.unwrap_or_else(|| {
                topics.sent.push((topic.to_owned(), 0));
                topics.sent.len() - 1
            });
        }
        let place = topics.last;
        if let Some((_, count)) = topics.sent.get_mut(place) {
            *count += 1;
        }
    }

    fn delivered(&self) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// A factory whose sinks' records and reports are counted.
#[derive(Debug)]
pub(super) struct Tallied<F> {
    factory: F,
    tally: Arc<Tally>,
}

impl<F> Tallied<F> {
    pub(super) fn new(factory: F, tally: Arc<Tally>) -> Self {
        Self { factory, tally }
    }
}

impl<F: SinkFactory> SinkFactory for Tallied<F> {
    type Sink = TalliedSink<F::Sink>;
    type Error = F::Error;

    fn create(&mut self, inner: Arc<dyn Deliveries>) -> Result<Self::Sink, F::Error> {
        let tally = Arc::clone(&self.tally);
        let reports = Arc::new(Reports {
            inner,
            tally: Arc::clone(&tally),
        });
        let sink = self.factory.create(reports)?;
        Ok(TalliedSink { sink, tally })
    }

    fn disposition(error: &F::Error) -> Disposition {
        F::disposition(error)
    }
}

#[derive(Debug)]
pub(super) struct TalliedSink<S> {
    sink: S,
    tally: Arc<Tally>,
}

impl<S: Sink> Sink for TalliedSink<S> {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        self.sink.try_send(record, seq)?;
        self.tally.sent(record.topic);
        Ok(())
    }

    fn poll(&mut self) {
        self.sink.poll();
    }

    fn set_mode(&mut self, mode: BatchingMode) {
        self.sink.set_mode(mode);
    }

    fn waiting_for(&mut self) -> Option<Obstacle> {
        self.sink.waiting_for()
    }

    fn close(self, grace: Duration) {
        self.sink.close(grace);
    }
}

struct Reports {
    inner: Arc<dyn Deliveries>,
    tally: Arc<Tally>,
}

impl Deliveries for Reports {
    fn delivered(&self, seq: u64) {
        self.tally.delivered();
        self.inner.delivered(seq);
    }

    fn failed(&self, seq: u64, error: DeliveryError) {
        self.inner.failed(seq, error);
    }

    fn capacity(&self) {
        self.inner.capacity();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_by_topic() {
        let tally = Tally::default();
        for topic in ["b", "a", "b", "b"] {
            tally.sent(topic);
        }
        assert_eq!(tally.topics(), [("a".to_owned(), 1), ("b".to_owned(), 3)]);
        assert_eq!(tally.last_acknowledged(), None);
        tally.delivered();
        assert!(tally.acknowledged() == 1 && tally.last_acknowledged().is_some());
    }
}
