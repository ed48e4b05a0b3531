use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use walrelay_checkpoint::{AckRing, Seq};
use walrelay_sink::{Deliveries, DeliveryError, Disposition, Refusal, lock};

/// The delivery reports, shared by the sink's threads and the pipeline's task. A report sets the
/// record's bit in the ring, keeps the most severe failure, and wakes the task if it is parked.
#[derive(Debug)]
pub(crate) struct Reports {
    ring: Arc<AckRing>,
    failure: Mutex<Option<Failure>>,
    /// Records that are refused for good, which nothing is decided about yet.
    refusals: Mutex<VecDeque<(u64, Refusal)>>,
    /// There may be some.
    is_refused: AtomicBool,
    wake: Notify,
}

/// The most severe failure by [`severity`]. Of equally severe failures it is the one with the lowest
/// sequence number, which is nearest to the cause.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// The sequence number of the record.
    pub(crate) seq: u64,
    /// The highest sequence number with an equally severe failure that is the record's own fault: if
    /// a server refuses a request, each record of the request gets the same report.
    pub(crate) last: u64,
    pub(crate) error: DeliveryError,
}

impl Reports {
    pub(crate) fn new(ring: Arc<AckRing>) -> Arc<Self> {
        Arc::new(Self {
            ring,
            failure: Mutex::new(None),
            refusals: Mutex::default(),
            is_refused: AtomicBool::new(false),
            wake: Notify::new(),
        })
    }

    pub(crate) fn ring(&self) -> &Arc<AckRing> {
        &self.ring
    }

    /// Returns the most severe failure so far. Locks only if the ring contains a failed record.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.ring.nacked()?;
        lock(&self.failure).clone()
    }

    /// Takes the records that are refused for good since the last call, in the order of the reports.
    pub(crate) fn take_refusals(&self) -> VecDeque<(u64, Refusal)> {
        if !self.is_refused.swap(false, Ordering::AcqRel) {
            return VecDeque::new();
        }
        std::mem::take(&mut lock(&self.refusals))
    }

    /// Waits for a wake-up. Cancel-safe: `Notify` keeps one permit.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    fn wake_if(&self, parked: bool) {
        if parked {
            self.wake.notify_one();
        }
    }
}

impl Deliveries for Reports {
    fn delivered(&self, seq: u64) {
        self.wake_if(self.ring.ack(Seq::new(seq)));
    }

    fn failed(&self, seq: u64, error: DeliveryError) {
        {
            let mut failure = lock(&self.failure);
            let rank = |seq: u64, error: &DeliveryError| (severity(error), Reverse(seq));
            match failure.as_mut() {
                Some(first) if severity(&first.error) == severity(&error) && is_own(&error) => {
                    first.last = first.last.max(seq);
                    if seq < first.seq {
                        (first.seq, first.error) = (seq, error);
                    }
                }
                Some(first) if rank(seq, &error) <= rank(first.seq, &first.error) => {}
                _ => {
                    let last = seq;
                    *failure = Some(Failure { seq, last, error });
                }
            }
        }
        // Set the ring's bit last, so that a task that sees it finds the failure.
        self.wake_if(self.ring.nack(Seq::new(seq)));
    }

    fn refused(&self, seq: u64, refusal: Refusal) {
        lock(&self.refusals).push_back((seq, refusal));
        // Set last, so that a task that sees it finds the refusal.
        self.is_refused.store(true, Ordering::Release);
        self.wake_if(self.ring.wake());
    }

    fn capacity(&self) {
        self.wake_if(self.ring.wake());
    }
}

/// Returns the order of failures: first by disposition, then whether the failure is the record's
/// own fault. A record's own failure is the cause; other records fail because they were given up
/// with it.
pub(crate) fn severity(error: &DeliveryError) -> (Disposition, bool) {
    (error.disposition, is_own(error))
}

fn is_own(error: &DeliveryError) -> bool {
    error.poison.is_some()
}

#[cfg(test)]
mod tests {
    use walrelay_sink::Poison;

    use super::*;

    #[test]
    fn the_graver_of_two_failures_decides_and_of_equal_ones_the_records_own() {
        let error = |(disposition, poison)| DeliveryError {
            topic: Arc::from("orders"),
            reason: "no".to_owned(),
            disposition,
            poison,
        };
        let ascending = [
            Disposition::Retryable,
            Disposition::Configuration,
            Disposition::Fatal,
        ]
        .map(|disposition| [(disposition, None), (disposition, Some(Poison::Rejected))]);
        for pair in ascending.as_flattened().windows(2) {
            for (first, second) in [(pair[0], pair[1]), (pair[1], pair[0])] {
                let reports = Reports::new(Arc::new(AckRing::new(64)));
                reports.failed(0, error(first));
                reports.failed(1, error(second));
                assert_eq!(reports.failure().expect("both").error, error(pair[1]));
            }
        }
    }
}
