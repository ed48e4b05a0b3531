//! Counts what a sink says is durable.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout;
use walrelay_sink::{Deliveries, DeliveryError, Disposition, SinkFactory};

/// How many records were acknowledged, and when the half and the whole of them were.
#[derive(Debug)]
pub(super) struct Meter {
    wanted: u64,
    delivered: AtomicU64,
    half: OnceLock<Instant>,
    whole: OnceLock<Instant>,
    done: Notify,
    made: AtomicBool,
    again: AtomicBool,
}

impl Meter {
    pub(super) fn new(wanted: u64) -> Self {
        Self {
            wanted,
            delivered: AtomicU64::new(0),
            half: OnceLock::new(),
            whole: OnceLock::new(),
            done: Notify::new(),
            made: AtomicBool::new(false),
            again: AtomicBool::new(false),
        }
    }

    fn delivered(&self) {
        let delivered = self.delivered.fetch_add(1, Ordering::Relaxed) + 1;
        if delivered == self.wanted.div_ceil(2) {
            let _ = self.half.set(Instant::now());
        }
        if delivered == self.wanted {
            let _ = self.whole.set(Instant::now());
            self.done.notify_one();
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// When the half was acknowledged, and when the whole; `None` before that.
    pub(super) fn times(&self) -> Option<(Instant, Instant)> {
        Some((*self.half.get()?, *self.whole.get()?))
    }

    /// Whether records were sent to more than one sink, and so some of them twice.
    pub(super) fn repeated(&self) -> bool {
        self.again.load(Ordering::Relaxed)
    }

    /// Waits until all are acknowledged, or none was for so long.
    pub(super) async fn finished(&self, stall: Duration) {
        let mut before = None;
        while self.whole.get().is_none() {
            if timeout(stall, self.done.notified()).await.is_err() {
                let now = self.count();
                if before == Some(now) {
                    return;
                }
                before = Some(now);
            }
        }
    }
}

/// A factory whose sinks' reports are counted on their way.
#[derive(Debug)]
pub(super) struct Metered<F> {
    factory: F,
    meter: Arc<Meter>,
}

impl<F> Metered<F> {
    pub(super) fn new(factory: F, meter: Arc<Meter>) -> Self {
        Self { factory, meter }
    }
}

impl<F: SinkFactory> SinkFactory for Metered<F> {
    type Sink = F::Sink;
    type Error = F::Error;

    fn create(&mut self, inner: Arc<dyn Deliveries>) -> Result<F::Sink, F::Error> {
        if self.meter.made.swap(true, Ordering::Relaxed) {
            self.meter.again.store(true, Ordering::Relaxed);
        }
        let meter = Arc::clone(&self.meter);
        self.factory.create(Arc::new(Counting { inner, meter }))
    }

    fn disposition(error: &F::Error) -> Disposition {
        F::disposition(error)
    }
}

struct Counting {
    inner: Arc<dyn Deliveries>,
    meter: Arc<Meter>,
}

impl Deliveries for Counting {
    fn delivered(&self, seq: u64) {
        self.inner.delivered(seq);
        self.meter.delivered();
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

    struct Deaf;

    impl Deliveries for Deaf {
        fn delivered(&self, _: u64) {}
        fn failed(&self, _: u64, _: DeliveryError) {}
        fn capacity(&self) {}
    }

    fn counting(meter: &Arc<Meter>) -> Counting {
        Counting {
            inner: Arc::new(Deaf),
            meter: Arc::clone(meter),
        }
    }

    #[tokio::test]
    async fn the_half_comes_before_the_whole() {
        let meter = Arc::new(Meter::new(3));
        let reports = counting(&meter);
        reports.delivered(0);
        assert_eq!(meter.times(), None);
        reports.delivered(1);
        assert!(meter.half.get().is_some() && meter.times().is_none());
        reports.delivered(2);
        meter.finished(Duration::from_secs(60)).await;
        let (half, whole) = meter.times().expect("all were counted");
        assert!(half <= whole && meter.count() == 3 && !meter.repeated());
    }

    #[tokio::test]
    async fn one_record_is_its_own_half() {
        let meter = Arc::new(Meter::new(1));
        counting(&meter).delivered(0);
        assert!(meter.times().is_some());
    }

    #[tokio::test]
    async fn what_does_not_move_is_not_waited_for() {
        let meter = Arc::new(Meter::new(2));
        counting(&meter).delivered(0);
        meter.finished(Duration::from_millis(1)).await;
        assert_eq!((meter.count(), meter.times()), (1, None));
    }

    #[test]
    fn a_second_sink_is_noticed() {
        let meter = Arc::new(Meter::new(2));
        let mut factory = Metered::new(super::super::null::NullSinkFactory, Arc::clone(&meter));
        let _first = factory.create(Arc::new(Deaf));
        assert!(!meter.repeated());
        let _second = factory.create(Arc::new(Deaf));
        assert!(meter.repeated());
    }
}
