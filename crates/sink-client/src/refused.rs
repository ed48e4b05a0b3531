use walrelay_sink::{DeliveryError, Disposition, KeyQueues, Poison, QueuedRecord};

use crate::{Queue, Shared};

/// Records of a connection that are refused for good. They are reported when no other record is in
/// flight, so that none of the others is sent again because of them.
#[derive(Debug, Default)]
pub struct Refused(Vec<(QueuedRecord, Poison, DeliveryError)>);

impl Refused {
    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a record out of the queues. It is reported by [`report`](Self::report).
    pub fn take<S>(
        &mut self,
        shared: &Shared<KeyQueues, S>,
        seq: u64,
        poison: Poison,
        disposition: Disposition,
        reason: String,
    ) {
        let done = shared.state().records.done(seq);
        if let Some(queued) = done {
            let topic = queued.record.with(|record| record.topic.into());
            let error = DeliveryError {
                topic,
                reason,
                disposition,
                poison: Some(poison),
            };
            self.0.push((queued, poison, error));
        }
    }

    /// Reports all.
    pub fn report<Q: Queue, S>(&mut self, shared: &Shared<Q, S>) {
        for (queued, poison, error) in self.0.drain(..) {
            shared.report(&queued, Err((poison.name(), error)));
        }
    }
}
