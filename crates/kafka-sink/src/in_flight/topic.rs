use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Instant;

use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::Record;

use super::partition_gate::{HoldQueue, Knows, Offer, PartitionGate, ProducerId};
use super::shared::Shared;

/// A topic with a gate, for the callbacks of one producer: the opaque of the topic's handle.
pub(crate) struct TopicContext {
    gate: Arc<PartitionGate>,
    producer: ProducerId,
    shared: Arc<Shared>,
    /// The number of partitions at the last call of this producer's partitioner; or one of the two
    /// constants below.
    count: AtomicI32,
}

/// The partitioner was not called, and no record was acknowledged.
const UNKNOWN: i32 = -1;
/// A record was acknowledged, and the partitioner was not called.
const ACKNOWLEDGED: i32 = 0;

/// The reason why a record was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotQueued {
    /// The topic's [`PartitionGate`] holds it back and counts it in this queue.
    Held(HoldQueue),
    /// librdkafka refused it.
    Refused(RDKafkaErrorCode),
}

/// The state of the record that this thread is producing.
#[derive(Clone, Copy)]
enum Producing {
    /// The thread is producing no record.
    None,
    /// The record has entered the gate, and the partitioner was not called yet.
    Entered(Offer),
    Placed(i32),
    Held(HoldQueue),
}

thread_local! {
    static PRODUCING: Cell<Producing> = const { Cell::new(Producing::None) };
}

impl TopicContext {
    /// Creates the context for a producer that does not know the topic yet.
    pub(crate) fn new(gate: Arc<PartitionGate>, producer: ProducerId, shared: Arc<Shared>) -> Self {
        Self {
            gate,
            producer,
            shared,
            count: AtomicI32::new(UNKNOWN),
        }
    }

    /// Returns true if records without a key are hashed, too.
    pub(crate) fn hashes_all(&self) -> bool {
        self.gate.hashes_all()
    }

    /// Calls `queue` with the record if the gate admits it, with the partition if the gate has
    /// chosen one. `hash`: the partition of the record's key, by the number of partitions. `from`:
    /// as in [`Offer`].
    ///
    /// `queue` calls librdkafka, which calls [`partition`](Self::partition) on this thread if it
    /// knows the topic.
    pub(crate) fn produce(
        &self,
        record: &Record<'_>,
        seq: u64,
        from: Option<HoldQueue>,
        hash: impl FnOnce(i32) -> i32,
        queue: impl FnOnce(&Record<'_>) -> Result<(), RDKafkaErrorCode>,
    ) -> Result<(), NotQueued> {
        let offer = Offer {
            seq,
            producer: self.producer,
            from,
            now: Instant::now(),
        };
        let gate = &self.gate;
        let entered = match record.partition {
            Some(partition) => gate.enter_at(partition, offer).map(|()| Some(partition)),
            None => gate.enter(offer, self.knows(), record.key.is_some(), hash),
        };
        let partition = entered.map_err(NotQueued::Held)?;
        PRODUCING.set(partition.map_or(Producing::Entered(offer), Producing::Placed));
        let result = queue(&Record {
            partition,
            ..*record
        });
        let producing = PRODUCING.replace(Producing::None);
        result.map_err(|code| {
            let placed = match producing {
                Producing::Held(queue) => return NotQueued::Held(queue),
                Producing::Placed(partition) => Some(partition),
                Producing::Entered(_) | Producing::None => None,
            };
            gate.withdraw(self.producer, placed);
            NotQueued::Refused(code)
        })
    }

    /// Returns the partition of a record for which hashing chooses `choice` of `count`. Called
    /// within [`produce`](Self::produce) if librdkafka knows the topic's partitions; for an unplaced
    /// record, called later by a thread of librdkafka. A result that is no partition makes
    /// librdkafka refuse the record.
    pub(crate) fn partition(&self, seq: u64, choice: i32, keyed: bool, count: i32) -> i32 {
        self.count.store(count, Relaxed);
        let Producing::Entered(offer) = PRODUCING.get() else {
            if self.gate.placed_late(seq, choice, count) {
                self.shared.request_retry(self.gate.topic());
                self.shared.wake_sender();
            }
            return choice;
        };
        match self.gate.place(offer, choice, keyed, count) {
            Ok(partition) => {
                PRODUCING.set(Producing::Placed(partition));
                partition
            }
            Err(queue) => {
                PRODUCING.set(Producing::Held(queue));
                i32::MAX
            }
        }
    }

    /// Enters an acknowledged record of the topic: see [`PartitionGate::delivered`]. True: the
    /// caller must wake the sender.
    #[must_use]
    pub(crate) fn delivered(&self, seq: u64, partition: i32, fresh: bool, now: Instant) -> bool {
        // Fails if the number of partitions is known already.
        let _ = self
            .count
            .compare_exchange(UNKNOWN, ACKNOWLEDGED, Relaxed, Relaxed);
        let retry = self
            .gate
            .delivered(seq, partition, self.producer, fresh, now);
        if retry {
            self.shared.request_retry(self.gate.topic());
        }
        retry
    }

    fn knows(&self) -> Knows {
        match self.count.load(Relaxed) {
            UNKNOWN => Knows::Nothing,
            ACKNOWLEDGED => Knows::Topic,
            count => Knows::Partitions(count),
        }
    }
}
