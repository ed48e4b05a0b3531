//! Decides which records of a topic may be in flight together, and in which producer. The table of
//! cases is in docs/contributing/architecture.md, "Producer modes of Kafka"; the reasons are in
//! docs/adr/0021-order-per-partition.md.
//!
//! The sink has two producers, and each may have several requests in flight. Order per partition
//! rests on two rules, which one lock per topic enforces:
//!
//! 1. **One owner.** All records of a partition that are in flight are in one producer, the
//!    partition's owner. The owner changes only while no record of the partition is in flight.
//! 2. **The first record is alone.** A producer with several requests in flight sends a second
//!    record to a partition only if the partition is *open* for it: a broker acknowledged a record
//!    of this producer there within [`OPEN`]. Then the broker has state of the producer and orders
//!    its requests by sequence number. A broker without that state accepts any number as the first
//!    (KIP-360), and a request that must be repeated would be written after those behind it
//!    (docs/adr/0007-one-request-in-flight.md).
//!
//! # Hold queues
//! A record that a rule holds back is queued in a [`HoldQueue`]: that of its partition, or that of
//! the topic while its partition is not known. The gate counts the queued records,
//! [`HoldQueues`](super::hold_queues::HoldQueues) stores them. **No record passes a queue**: a
//! record for a partition whose queue is not empty is queued behind it.
//!
//! # Unplaced records
//! While librdkafka does not know the topic's partitions, it keeps a record and chooses the
//! partition later, on a thread of its own. Such a record is *unplaced*. A topic has one unplaced
//! record at a time. When it is given to librdkafka, no record of the topic is in flight in another
//! producer, and no partition has a queue. No record is admitted until it is
//! [placed](PartitionGate::placed_late) or acknowledged.
//!
//! The gate itself chooses the partition if a partition has a queue, or if records are in flight
//! and this producer may not know the topic or another producer has records in it. It uses the
//! number of partitions that the producer's partitioner saw last, or else the number that any
//! partitioner saw last. A record without a key then goes to the partition after that of the
//! previous one.
//!
//! # No lost wake-up
//! Records are queued under the same lock under which reports are entered. So the record that a
//! queued one waits for is in flight, and its report requests a retry of the topic's queues. No
//! second retry is requested until the sender has [started](PartitionGate::retry_started) the
//! first. A failure admits nothing: the sink is broken, and all held records are reported as
//! failed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::sync::lock;

/// The time for which an acknowledgement proves that the broker has state of the producer. A broker drops the
/// state of a producer that was silent for `producer.id.expiration.ms`, a day by default. It counts
/// from the records' timestamps, which may be [`OPEN`] old themselves (see
/// [`PartitionGate::delivered`]). A shorter time would hold back records of partitions that were
/// silent for that long.
pub(crate) const OPEN: Duration = Duration::from_secs(30 * 60);

/// The gate of one topic, for all producers of a sink.
#[derive(Debug)]
pub(crate) struct PartitionGate {
    /// The topic's number in the sink.
    topic: usize,
    keyless: Keyless,
    state: Mutex<GateState>,
}

/// Partitioning of records without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keyless {
    /// They are hashed like all others, so all belong to one partition.
    Hashed,
    /// They are sent to one partition for this time, then to another.
    Sticky(Duration),
}

/// The queue of a record that is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HoldQueue {
    /// The topic's queue: the partition of the record, or of one before it, is not known.
    Topic,
    /// The queue of the record's partition.
    Partition(i32),
}

/// The number of requests that a producer may have in flight to a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requests {
    /// One: no request is behind another one that must be repeated.
    One,
    /// Several: the second rule is needed.
    Several,
}

/// A producer, as gates know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProducerId {
    /// Unique in the sink, from 1. A new producer has a new one, because no broker has state of it.
    pub(crate) number: u32,
    pub(crate) requests: Requests,
}

/// The knowledge that a producer's librdkafka has of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Knows {
    /// Perhaps nothing: a record may be unplaced.
    Nothing,
    /// The producer has sent a record to the topic.
    Topic,
    /// The number of partitions at the last call of the producer's partitioner.
    Partitions(i32),
}

/// A record that is offered to a producer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) seq: u64,
    pub(crate) producer: ProducerId,
    /// The queue that the record is the first of, if it was held back before.
    pub(crate) from: Option<HoldQueue>,
    pub(crate) now: Instant,
}

#[derive(Debug, Default)]
struct GateState {
    in_flight: InFlight,
    /// The sequence number of the unplaced record, and the number of its producer.
    unplaced: Option<(u64, u32)>,
    /// The number of partitions at the last call of any partitioner. 0: none was called yet.
    count: i32,
    /// Records queued in [`HoldQueue::Topic`].
    queued: u64,
    /// Records in any queue.
    all_queued: u64,
    /// The partitions that were used. A map, because a row may name any number.
    partitions: BTreeMap<i32, Partition>,
    /// The current partition of records without a key, and since when.
    keyless: Option<(i32, Instant)>,
    /// A retry of the queues was requested, and the sender has not started it.
    retry_pending: bool,
}

/// Numbers of records of a topic in flight, by the producer's number.
#[derive(Debug, Default)]
struct InFlight(Vec<(u32, u64)>);

impl InFlight {
    fn add(&mut self, producer: u32) {
        match self.0.iter_mut().find(|(number, _)| *number == producer) {
            Some((_, records)) => *records += 1,
            None => self.0.push((producer, 1)),
        }
    }

    fn remove(&mut self, producer: u32) {
        if let Some(at) = self.0.iter().position(|(number, _)| *number == producer) {
            self.0[at].1 -= 1;
            if self.0[at].1 == 0 {
                self.0.swap_remove(at);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if no record is in another producer.
    fn only_in(&self, producer: u32) -> bool {
        self.0.iter().all(|(number, _)| *number == producer)
    }
}

#[derive(Debug, Default)]
struct Partition {
    /// Records in flight, all in the owner.
    in_flight: u64,
    /// Records in the partition's queue.
    queued: u64,
    owner: Owner,
    /// The previous owner. The partition may still be open for it.
    former: Owner,
}

/// A producer at a partition.
#[derive(Debug, Default)]
struct Owner {
    /// The producer's number; 0: none.
    producer: u32,
    /// When the last record was acknowledged, if that opens the partition.
    acknowledged: Option<Instant>,
}

impl Partition {
    /// Returns true if the producer may send a record to the partition now. If no record is in
    /// flight, the producer becomes the owner.
    fn takes(&mut self, producer: ProducerId, now: Instant) -> bool {
        if self.in_flight == 0 {
            self.own(producer.number);
            return true;
        }
        let open = || {
            let acknowledged = self.owner.acknowledged;
            acknowledged.is_some_and(|at| now.saturating_duration_since(at) < OPEN)
        };
        self.owner.producer == producer.number && (producer.requests == Requests::One || open())
    }

    fn own(&mut self, producer: u32) {
        if self.owner.producer == producer {
            return;
        }
        std::mem::swap(&mut self.owner, &mut self.former);
        if self.owner.producer != producer {
            self.owner = Owner {
                producer,
                acknowledged: None,
            };
        }
    }
}

impl GateState {
    /// Counts a record as in flight if its producer may send it to the partition now, and else as
    /// queued.
    fn admit(&mut self, partition: i32, offer: Offer) -> Result<(), HoldQueue> {
        let there = self.partitions.entry(partition).or_default();
        let own = HoldQueue::Partition(partition);
        let first = there.queued == 0 || offer.from == Some(own);
        if first && there.takes(offer.producer, offer.now) {
            there.in_flight += 1;
            self.in_flight.add(offer.producer.number);
            self.leave(offer.from);
            return Ok(());
        }
        self.hold(own, offer.from);
        Err(own)
    }

    /// Checks whether a record may proceed to its partition: no record is unplaced, and the records
    /// in the topic's queue came after it. If not, it is queued in the topic's queue or stays in
    /// its own.
    fn passes_topic(&mut self, from: Option<HoldQueue>) -> Result<(), HoldQueue> {
        if self.unplaced.is_some() || (from.is_none() && self.queued > 0) {
            // The first record of a queue stays there.
            let queue = from.unwrap_or(HoldQueue::Topic);
            self.hold(queue, from);
            return Err(queue);
        }
        Ok(())
    }

    /// Chooses the partition of a record for which hashing gives `choice` of `count`: `choice`, or
    /// the current partition of records without a key.
    fn choose(
        &mut self,
        (choice, count): (i32, i32),
        keyed: bool,
        keyless: Keyless,
        now: Instant,
    ) -> i32 {
        let (false, Keyless::Sticky(linger)) = (keyed, keyless) else {
            return choice;
        };
        match self.keyless {
            Some((last, since))
                if last < count && now.saturating_duration_since(since) < linger =>
            {
                last
            }
            _ => {
                self.keyless = Some((choice, now));
                choice
            }
        }
    }

    fn hold(&mut self, queue: HoldQueue, from: Option<HoldQueue>) {
        if from != Some(queue) {
            self.leave(from);
            *self.queued(queue) += 1;
            self.all_queued += 1;
        }
    }

    fn leave(&mut self, queue: Option<HoldQueue>) {
        if let Some(queue) = queue {
            let queued = self.queued(queue);
            *queued = queued.saturating_sub(1);
            self.all_queued = self.all_queued.saturating_sub(1);
        }
    }

    fn queued(&mut self, queue: HoldQueue) -> &mut u64 {
        match queue {
            HoldQueue::Topic => &mut self.queued,
            HoldQueue::Partition(partition) => {
                &mut self.partitions.entry(partition).or_default().queued
            }
        }
    }

    /// Returns true if a retry is to be requested: a queue may proceed, and no request is pending.
    fn request_retry(&mut self, may_go_on: bool) -> bool {
        let requests = may_go_on && self.all_queued > 0 && !self.retry_pending;
        self.retry_pending |= requests;
        requests
    }
}

impl PartitionGate {
    /// Creates a gate without an open partition.
    pub(crate) fn new(topic: usize, keyless: Keyless) -> Self {
        Self {
            topic,
            keyless,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        lock(&self.state)
    }

    /// Returns the topic's number in the sink.
    pub(crate) fn topic(&self) -> usize {
        self.topic
    }

    /// Returns true if records without a key are hashed, too, so that all belong to one partition.
    pub(crate) fn hashes_all(&self) -> bool {
        self.keyless == Keyless::Hashed
    }

    /// Offers a record that names no partition. `knows`: what the producer knows of the topic.
    /// `hash`: the partition of the key, by the number of partitions.
    ///
    /// `Err`: the record is held in that queue. `Ok(None)`: the record has entered without a
    /// partition; then [`place`](Self::place) or [`withdraw`](Self::withdraw) is called, or the
    /// record stays unplaced. `Ok(Some)`: the gate has chosen the partition, and the record counts
    /// as in flight there.
    pub(crate) fn enter(
        &self,
        offer: Offer,
        knows: Knows,
        keyed: bool,
        hash: impl FnOnce(i32) -> i32,
    ) -> Result<Option<i32>, HoldQueue> {
        let mut state = self.state();
        state.passes_topic(offer.from)?;
        // The record may stay unplaced and then belong to any partition, so no partition may have a
        // queue.
        let passes_none = state.all_queued == state.queued;
        let alone = state.in_flight.is_empty();
        let only_here = knows != Knows::Nothing && state.in_flight.only_in(offer.producer.number);
        if passes_none && (alone || only_here) {
            state.leave(offer.from);
            state.unplaced = Some((offer.seq, offer.producer.number));
            state.in_flight.add(offer.producer.number);
            return Ok(None);
        }
        let count = match knows {
            // The producer would refuse a partition that it does not know.
            Knows::Partitions(count) => count,
            Knows::Topic | Knows::Nothing => state.count,
        };
        if count == 0 {
            state.hold(HoldQueue::Topic, offer.from);
            return Err(HoldQueue::Topic);
        }
        // All records without a key have the same hash, so the next partition is chosen instead.
        let choice = match state.keyless {
            Some((last, _)) if !keyed && !self.hashes_all() => (last + 1) % count,
            _ => hash(count),
        };
        let partition = state.choose((choice, count), keyed, self.keyless, offer.now);
        state.admit(partition, offer)?;
        Ok(Some(partition))
    }

    /// Enters the partitioner's choice, one of `count`, for the record that has just entered.
    /// `Err`: the record is held in that queue, and does not count as entered any more.
    pub(crate) fn place(
        &self,
        offer: Offer,
        choice: i32,
        keyed: bool,
        count: i32,
    ) -> Result<i32, HoldQueue> {
        let mut state = self.state();
        state.count = count;
        let partition = state.choose((choice, count), keyed, self.keyless, offer.now);
        state.unplaced = None;
        state.in_flight.remove(offer.producer.number);
        // The record left its queue when it entered.
        state.admit(
            partition,
            Offer {
                from: None,
                ..offer
            },
        )?;
        Ok(partition)
    }

    /// Enters the partitioner's late choice, one of `count`, for an unplaced record.
    ///
    /// True: the queues must be retried, see [`retry_started`](Self::retry_started).
    #[must_use]
    pub(crate) fn placed_late(&self, seq: u64, partition: i32, count: i32) -> bool {
        let mut state = self.state();
        state.count = count;
        let Some((_, producer)) = state.unplaced.take_if(|(unplaced, _)| *unplaced == seq) else {
            return false;
        };
        let there = state.partitions.entry(partition).or_default();
        if there.in_flight == 0 {
            there.own(producer);
        }
        there.in_flight += 1;
        state.request_retry(true)
    }

    /// Offers a record whose partition is known; otherwise as [`enter`](Self::enter).
    pub(crate) fn enter_at(&self, partition: i32, offer: Offer) -> Result<(), HoldQueue> {
        let mut state = self.state();
        // An unplaced record may belong to the same partition.
        state.passes_topic(offer.from)?;
        state.admit(partition, offer)
    }

    /// Removes a record that has entered, with or without a partition, because librdkafka refused
    /// it.
    pub(crate) fn withdraw(&self, producer: ProducerId, partition: Option<i32>) {
        let mut state = self.state();
        state.in_flight.remove(producer.number);
        match partition {
            None => state.unplaced = None,
            Some(partition) => {
                if let Some(there) = state.partitions.get_mut(&partition) {
                    there.in_flight = there.in_flight.saturating_sub(1);
                }
            }
        }
    }

    /// Forgets what is known of the topic's partitions, and the queues, whose records the caller takes.
    /// Returns false, and does nothing, if a record is in flight.
    pub(crate) fn reset(&self) -> bool {
        let mut state = self.state();
        let is_idle = state.in_flight.is_empty();
        if is_idle {
            *state = GateState::default();
        }
        is_idle
    }

    /// Notes that the sender starts to retry the queues: from now on another retry may be
    /// requested.
    pub(crate) fn retry_started(&self) {
        self.state().retry_pending = false;
    }

    /// Enters an acknowledged record of this producer. `fresh`: its timestamp is less than [`OPEN`]
    /// old. A broker drops the state of a producer by the timestamp of its last record, so an older
    /// record opens nothing.
    ///
    /// True: the queues must be retried, see [`retry_started`](Self::retry_started).
    #[must_use]
    pub(crate) fn delivered(
        &self,
        seq: u64,
        partition: i32,
        producer: ProducerId,
        fresh: bool,
        now: Instant,
    ) -> bool {
        let mut state = self.state();
        state.in_flight.remove(producer.number);
        let was_unplaced = state
            .unplaced
            .take_if(|(unplaced, _)| *unplaced == seq)
            .is_some();
        let there = state.partitions.entry(partition).or_default();
        if was_unplaced && there.in_flight == 0 {
            there.own(producer.number);
        }
        if there.owner.producer == producer.number {
            there.owner.acknowledged = fresh.then_some(now);
        }
        if !was_unplaced {
            // librdkafka moves records when a topic is created again with fewer partitions: the
            // count of one partition then stays too high, and that of another would become
            // negative.
            there.in_flight = there.in_flight.saturating_sub(1);
        }
        let goes_on = there.queued > 0 && there.in_flight == 0;
        let none = state.in_flight.is_empty();
        if none {
            for there in state.partitions.values_mut() {
                there.in_flight = 0;
            }
        }
        state.request_retry(goes_on || was_unplaced || none)
    }
}

#[cfg(test)]
mod tests;
