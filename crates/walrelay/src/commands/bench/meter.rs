//! Counts what a sink says is durable.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::sinks::Count;

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

impl Count for Meter {
    fn made(&self) {
        if self.made.swap(true, Ordering::Relaxed) {
            self.again.store(true, Ordering::Relaxed);
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
    async fn what_does_not_move_is_not_waited_for() {
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
