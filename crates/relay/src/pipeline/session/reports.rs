use std::cmp::Reverse;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use walrelay_checkpoint::{AckRing, Seq};
use walrelay_sink::{Deliveries, DeliveryError, Disposition};

/// What the sink's threads and the pipeline's task share: delivered records become bits of the
/// ring, the first failure is kept, the task is woken.
#[derive(Debug)]
pub(crate) struct Reports {
    ring: Arc<AckRing>,
    failure: Mutex<Option<Failure>>,
    wake: Notify,
}

/// The gravest failure; of equally grave ones that with the lowest sequence number, the one nearest
/// to the cause.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// The record.
    pub(crate) seq: u64,
    /// The last record of which something equally grave was reported as its own fault: a broker that
    /// refuses a request says it of each record in it.
    pub(crate) last: u64,
    pub(crate) error: DeliveryError,
}

impl Reports {
    pub(crate) fn new(ring: Arc<AckRing>) -> Arc<Self> {
        Arc::new(Self {
            ring,
            failure: Mutex::new(None),
            wake: Notify::new(),
        })
    }

    pub(crate) fn ring(&self) -> &Arc<AckRing> {
        &self.ring
    }

    /// The gravest failure so far. Looks at the lock only if the ring says that there is one.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.ring.nacked()?;
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone()
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
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            let grave = |seq: u64, error: &DeliveryError| (gravity(error), Reverse(seq));
            match failure.as_mut() {
                Some(known) if gravity(&known.error) == gravity(&error) && is_own(&error) => {
                    known.last = known.last.max(seq);
                    if seq < known.seq {
                        (known.seq, known.error) = (seq, error);
                    }
                }
                Some(known) if grave(seq, &error) <= grave(known.seq, &known.error) => {}
                _ => {
                    let last = seq;
                    *failure = Some(Failure { seq, last, error });
                }
            }
        }
        // The ring last: the task that sees the nack there finds the error here.
        self.wake_if(self.ring.nack(Seq::new(seq)));
    }

    fn capacity(&self) {
        self.wake_if(self.ring.wake());
    }
}

/// Of two failures that a retry may mend, the one that is the record's own fault is the cause: the
/// others were given up with it.
pub(crate) fn gravity(error: &DeliveryError) -> (u8, bool) {
    (rank(error.disposition), is_own(error))
}

fn is_own(error: &DeliveryError) -> bool {
    error.poison.is_some()
}

/// How grave a failure is: what cannot pass outweighs what may.
fn rank(disposition: Disposition) -> u8 {
    match disposition {
        Disposition::Retryable => 0,
        Disposition::Configuration => 1,
        Disposition::Fatal => 2,
    }
}
