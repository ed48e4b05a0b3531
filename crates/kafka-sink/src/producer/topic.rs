use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Instant;

use rdkafka::types::RDKafkaErrorCode;
use walrelay_sink::Record;

use super::partition_gate::{HoldQueue, Knows, Offer, PartitionGate, Producer};
use super::shared::Shared;

/// A topic with a gate, as the callbacks of one producer need it: the opaque of the topic's handle.
pub(crate) struct TopicContext {
    gate: Arc<PartitionGate>,
    producer: Producer,
    shared: Arc<Shared>,
    /// How many partitions there were when this producer's partitioner was asked last; or one of the two below.
    count: AtomicI32,
}

/// No partitioner was asked, and no record was acknowledged.
const UNKNOWN: i32 = -1;
/// A record was acknowledged, and no partitioner was asked.
const ACKNOWLEDGED: i32 = 0;

/// Why a record was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotQueued {
    /// By the topic's [`PartitionGate`], which counts it in this queue now.
    Held(HoldQueue),
    /// By librdkafka.
    Refused(RDKafkaErrorCode),
}

/// What has become of the record that this thread is producing.
#[derive(Clone, Copy)]
enum Turn {
    /// It is producing none.
    None,
    /// It has entered, and the partitioner was not asked yet.
    Entered(Offer),
    Placed(i32),
    Held(HoldQueue),
}

thread_local! {
    static TURN: Cell<Turn> = const { Cell::new(Turn::None) };
}

impl TopicContext {
    /// Of a producer that does not know the topic yet.
    pub(crate) fn new(gate: Arc<PartitionGate>, producer: Producer, shared: Arc<Shared>) -> Self {
        Self {
            gate,
            producer,
            shared,
            count: AtomicI32::new(UNKNOWN),
        }
    }

    /// Whether records without a key are hashed, too.
    pub(crate) fn hashes_all(&self) -> bool {
        self.gate.hashes_all()
    }

    /// Has the record queued by `queue` if the gate lets it in, at the partition that the gate has chosen, if it has.
    /// `hash`: the partition of so many that the record's key belongs to. `from`: as in [`Offer`].
    ///
    /// `queue` calls librdkafka, which calls [`partition`](Self::partition) on this thread if it knows the topic.
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
        TURN.set(partition.map_or(Turn::Entered(offer), Turn::Placed));
        let result = queue(&Record {
            partition,
            ..*record
        });
        let turn = TURN.replace(Turn::None);
        result.map_err(|code| {
            let placed = match turn {
                Turn::Held(queue) => return NotQueued::Held(queue),
                Turn::Placed(partition) => Some(partition),
                Turn::Entered(_) | Turn::None => None,
            };
            gate.withdraw(self.producer, placed);
            NotQueued::Refused(code)
        })
    }

    /// The partitioner's answer: the partition of a record for which hashing chooses `choice` of `count`. Asked within
    /// [`produce`](Self::produce) if the topic's partitions are known; for a record that was unplaced until then, by a
    /// thread of librdkafka's. An answer that is no partition makes librdkafka refuse the record.
    pub(crate) fn partition(&self, seq: u64, choice: i32, keyed: bool, count: i32) -> i32 {
        self.count.store(count, Relaxed);
        let Turn::Entered(offer) = TURN.get() else {
            if self.gate.placed_late(seq, choice, count) {
                self.shared.request_retry(self.gate.topic());
                self.shared.wake_sender();
            }
            return choice;
        };
        match self.gate.place(offer, choice, keyed, count) {
            Ok(partition) => {
                TURN.set(Turn::Placed(partition));
                partition
            }
            Err(queue) => {
                TURN.set(Turn::Held(queue));
                i32::MAX
            }
        }
    }

    /// A broker has acknowledged a record of the topic: see [`PartitionGate::delivered`]. True: the sender is to be
    /// woken.
    #[must_use]
    pub(crate) fn delivered(&self, seq: u64, partition: i32, fresh: bool, now: Instant) -> bool {
        // Fails where more is known already.
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
