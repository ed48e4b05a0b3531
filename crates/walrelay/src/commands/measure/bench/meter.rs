//! Counts the records that a sink acknowledges.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::sinks::Count;

/// Counts acknowledged records, and takes the time when half of the expected ones and when all are
/// acknowledged.
#[derive(Debug, Default)]
pub(super) struct Meter {
    expected: u64,
    delivered: AtomicU64,
    half: OnceLock<Instant>,
    whole: OnceLock<Instant>,
    /// Notified when `whole` is set.
    done: Notify,
    /// Number of sinks that were made.
    sinks: AtomicU64,
}

impl Meter {
    pub(super) fn new(expected: u64) -> Self {
        Self {
            expected,
            ..Self::default()
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Returns when half of the records and when all were acknowledged; `None` before that.
    pub(super) fn times(&self) -> Option<(Instant, Instant)> {
        Some((*self.half.get()?, *self.whole.get()?))
    }

    /// Returns true if records were sent to more than one sink, so that some may be repeated.
    pub(super) fn repeated(&self) -> bool {
        self.sinks.load(Ordering::Relaxed) > 1
    }

    /// Waits until all records are acknowledged, or none has been for between one and two times
    /// `stall`.
    pub(super) async fn finished(&self, stall: Duration) {
        let mut last = None;
        while self.whole.get().is_none() {
            if timeout(stall, self.done.notified()).await.is_err() {
                let now = self.count();
                if last == Some(now) {
                    return;
                }
                last = Some(now);
            }
        }
    }
}

impl Count for Meter {
    fn made(&self) {
        self.sinks.fetch_add(1, Ordering::Relaxed);
    }

    fn delivered(&self) {
        let delivered = self.delivered.fetch_add(1, Ordering::Relaxed) + 1;
        if delivered == self.expected.div_ceil(2) {
            let _ = self.half.set(Instant::now());
        }
        if delivered == self.expected {
            let _ = self.whole.set(Instant::now());
            self.done.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_half_comes_before_the_whole() {
        let meter = Meter::new(3);
        meter.delivered();
        assert_eq!(meter.times(), None);
        meter.delivered();
        assert!(meter.half.get().is_some() && meter.times().is_none());
        meter.delivered();
        meter.finished(Duration::from_secs(60)).await;
        let (half, whole) = meter.times().expect("all were counted");
        assert!(half <= whole && meter.count() == 3 && !meter.repeated());
    }

    #[tokio::test]
    async fn one_record_is_its_own_half() {
        let meter = Meter::new(1);
        meter.delivered();
        assert!(meter.times().is_some());
    }

    #[tokio::test]
    async fn a_stall_ends_the_wait() {
        let meter = Meter::new(2);
        meter.delivered();
        meter.finished(Duration::from_millis(1)).await;
        assert_eq!((meter.count(), meter.times()), (1, None));
    }

    #[test]
    fn a_second_sink_is_noticed() {
        let meter = Meter::new(2);
        meter.made();
        assert!(!meter.repeated());
        meter.made();
        assert!(meter.repeated());
    }
}
