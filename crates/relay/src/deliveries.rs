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
    /// The gravest failure; of equally grave ones that with the lowest sequence number, the one
    /// nearest to the cause.
    failure: Mutex<Option<(u64, DeliveryError)>>,
    wake: Notify,
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
    pub(crate) fn failure(&self) -> Option<DeliveryError> {
        self.ring.nacked()?;
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.as_ref().map(|(_, error)| error.clone())
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
            let grave = |seq: u64, error: &DeliveryError| (rank(error.disposition), Reverse(seq));
            if failure
                .as_ref()
                .is_none_or(|(other, known)| grave(seq, &error) > grave(*other, known))
            {
                *failure = Some((seq, error));
            }
        }
        // The ring last: whoever sees the nack there finds the error here.
        self.wake_if(self.ring.nack(Seq::new(seq)));
    }

    fn capacity(&self) {
        self.wake_if(self.ring.nudge());
    }
}

/// How grave a failure is: what cannot pass outweighs what may.
pub(crate) fn rank(disposition: Disposition) -> u8 {
    match disposition {
        Disposition::Retryable => 0,
        Disposition::Configuration => 1,
        Disposition::Fatal => 2,
    }
}
