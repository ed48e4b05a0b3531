//! Which records of a topic may be in flight together, and in which producer. The table of cases is in
//! docs/ARCHITECTURE.md, "Producer modes"; the reasons are in docs/adr/0021-order-per-partition.md.
//!
//! The sink has two producers, and each may have several requests in flight. Order per partition rests on two
//! rules, which one lock per topic enforces:
//!
//! 1. **One owner.** All records of a partition that are in flight are in one producer, the partition's owner. The
//!    owner changes only while no record of the partition is in flight.
//! 2. **The first record is alone.** A producer with several requests in flight sends a second record to a partition
//!    only if the partition is *open* for it: a broker acknowledged a record of this producer there within [`OPEN`].
//!    Then the broker has state of the producer and orders its requests by sequence number. A broker without
//!    that state accepts any number as the first (KIP-360), and a request that must be repeated would come after those
//!    behind it (docs/adr/0007-one-request-in-flight.md).
//!
//! # Hold queues
//! A record that a rule holds back is queued in a [`HoldQueue`]: that of its partition, or that of the topic while its
//! partition is not known. The gate counts the queued records, [`HoldQueues`](super::hold_queues::HoldQueues) keeps
//! them. **No record passes a queue**: a record for a partition whose queue is not empty is queued behind it.
//!
//! # Unplaced records
//! librdkafka keeps a record aside while it does not know the topic's partitions, and chooses the partition later, on
//! a thread of its own. Such a record is *unplaced*. It is alone in its topic: when it is queued, nothing else of the
//! topic is in flight in any producer and no partition has a queue, and nothing is admitted until it is
//! [placed](PartitionGate::placed_late) or acknowledged.
//!
//! The gate itself chooses the partition if a partition has a queue, or if something is in flight and this producer may
//! not know the topic or another producer has records in it. It chooses by the number of partitions that the producer's
//! partitioner saw last, or else that of another. A record without a key goes to the partition after that of the
//! previous one.
//!
//! # No lost wake-up
//! A record is queued under the lock under which reports are entered. So the record that it waits for is in flight,
//! and the report about that one requests a retry of the topic's queues. No second retry is requested until the sender
//! has [started](PartitionGate::retry_started) the first. A failure admits nothing: the sink is broken, and all held
//! records are reported as failed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::sync::lock;

/// How long an acknowledgement proves that the broker has state of the producer. The broker drops the state of a
/// producer that was silent for `producer.id.expiration.ms`: a day by default, reckoned from the records' timestamps,
/// which may be as old again (see [`PartitionGate::delivered`]). A shorter time would hold back records of partitions
/// that were silent for that long.
pub(crate) const OPEN: Duration = Duration::from_secs(30 * 60);

/// The gate of one topic, for all producers of a sink.
#[derive(Debug)]
pub(crate) struct PartitionGate {
    /// The topic's number in the sink.
    topic: usize,
    keyless: Keyless,
    state: Mutex<State>,
}

/// Where records without a key go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keyless {
    /// They are hashed like all others: all to one partition.
    Hashed,
    /// To one partition for so long, then to another.
    Sticky(Duration),
}

/// Where a record is queued that is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HoldQueue {
    /// Its partition is not known, or that of one before it is not.
    Topic,
    /// Its partition's.
    Partition(i32),
}

/// How many requests a producer may have in flight to a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requests {
    /// One: none is ever behind another that must be repeated.
    One,
    /// Several: the second rule is needed.
    Several,
}

/// A producer, as gates know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Producer {
    /// Unique in the sink, from 1: a producer that is made anew has state at no broker.
    pub(crate) id: u32,
    pub(crate) requests: Requests,
}

/// What a producer's librdkafka knows of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Knows {
    /// Perhaps nothing: it may keep a record aside.
    Nothing,
    /// It has sent a record.
    Topic,
    /// There were so many partitions when its partitioner was asked last.
    Partitions(i32),
}

/// A record that is offered to a producer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) seq: u64,
    pub(crate) producer: Producer,
    /// The queue that the record is the first of.
    pub(crate) from: Option<HoldQueue>,
    pub(crate) now: Instant,
}

#[derive(Debug, Default)]
struct State {
    in_flight: InFlight,
    /// The record whose partition is not known, and its producer.
    unplaced: Option<(u64, u32)>,
    /// How many partitions there were when a partitioner was last asked. 0: none was asked yet.
    count: i32,
    /// Records queued in [`HoldQueue::Topic`].
    queued: u64,
    /// Records in any queue.
    all_queued: u64,
    /// Those that were used. Not a list: a row may name any number.
    partitions: BTreeMap<i32, Partition>,
    /// Where records without a key go, and since when.
    keyless: Option<(i32, Instant)>,
    /// A retry of the queues was requested, and the sender has not started it.
    retry_pending: bool,
}

/// Records of a topic in flight, by producer.
#[derive(Debug, Default)]
struct InFlight(Vec<(u32, u64)>);

impl InFlight {
    fn add(&mut self, producer: u32) {
        match self.0.iter_mut().find(|(id, _)| *id == producer) {
            Some((_, records)) => *records += 1,
            None => self.0.push((producer, 1)),
        }
    }

    fn remove(&mut self, producer: u32) {
        if let Some(at) = self.0.iter().position(|(id, _)| *id == producer) {
            self.0[at].1 -= 1;
            if self.0[at].1 == 0 {
                self.0.swap_remove(at);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether none is in another producer.
    fn only_in(&self, producer: u32) -> bool {
        self.0.iter().all(|(id, _)| *id == producer)
    }
}

#[derive(Debug, Default)]
struct Partition {
    /// All of them in the owner.
    in_flight: u64,
    /// Records in its queue.
    queued: u64,
    owner: Owner,
    /// The owner before. The partition may still be open for it.
    former: Owner,
}

/// A producer at a partition.
#[derive(Debug, Default)]
struct Owner {
    /// 0: nobody.
    producer: u32,
    /// The last acknowledgement, if that opens the partition.
    acknowledged: Option<Instant>,
}

impl Partition {
    /// Whether the producer may send a record there now. If nothing is in flight it becomes the owner.
    fn takes(&mut self, producer: Producer, now: Instant) -> bool {
        if self.in_flight == 0 {
            self.own(producer.id);
            return true;
        }
        let open = || {
            let acknowledged = self.owner.acknowledged;
            acknowledged.is_some_and(|at| now.saturating_duration_since(at) < OPEN)
        };
        self.owner.producer == producer.id && (producer.requests == Requests::One || open())
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

impl State {
    /// Counts a record in: in flight to a partition, if a producer may send it there now, or else in the queue.
    fn admit(&mut self, partition: i32, offer: Offer) -> Result<(), HoldQueue> {
        let there = self.partitions.entry(partition).or_default();
        let own = HoldQueue::Partition(partition);
        let first = there.queued == 0 || offer.from == Some(own);
        if first && there.takes(offer.producer, offer.now) {
            there.in_flight += 1;
            self.in_flight.add(offer.producer.id);
            self.leave(offer.from);
            return Ok(());
        }
        self.hold(own, offer.from);
        Err(own)
    }

    /// Whether a record may go on to its partition: no record is unplaced, and what is queued in the topic's queue
    /// came after it. If not it is queued there, or stays where it was.
    fn passes_topic(&mut self, from: Option<HoldQueue>) -> Result<(), HoldQueue> {
        if self.unplaced.is_some() || (from.is_none() && self.queued > 0) {
            // The first of its partition's queue stays there.
            let queue = from.unwrap_or(HoldQueue::Topic);
            self.hold(queue, from);
            return Err(queue);
        }
        Ok(())
    }

    /// The partition of a record for which hashing chooses `choice` of `count`.
    fn choose(
        &mut self,
        (choice, count): (i32, i32),
        keyed: bool,
        keyless: Keyless,
        now: Instant,
    ) -> i32 {
        let (false, Keyless::Sticky(sticks)) = (keyed, keyless) else {
            return choice;
        };
        match self.keyless {
            Some((last, since))
                if last < count && now.saturating_duration_since(since) < sticks =>
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

    /// Whether to request a retry: if some queue may go on, and no request is pending.
    fn request_retry(&mut self, may_go_on: bool) -> bool {
        let requests = may_go_on && self.all_queued > 0 && !self.retry_pending;
        self.retry_pending |= requests;
        requests
    }
}

impl PartitionGate {
    /// Nothing is open.
    pub(crate) fn new(topic: usize, keyless: Keyless) -> Self {
        Self {
            topic,
            keyless,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The topic's number.
    pub(crate) fn topic(&self) -> usize {
        self.topic
    }

    /// Whether records without a key are hashed too, all to one partition.
    pub(crate) fn hashes_all(&self) -> bool {
        self.keyless == Keyless::Hashed
    }

    /// A record is offered that names no partition. `knows`: what its producer knows of the topic. `hash`: a
    /// partition of so many, by the key.
    ///
    /// `Err`: the record is held in that queue. `Ok(None)`: then comes [`place`](Self::place), or the record stays
    /// unplaced, or [`withdraw`](Self::withdraw). `Ok(Some)`: the gate has chosen, and the record is counted there.
    pub(crate) fn enter(
        &self,
        offer: Offer,
        knows: Knows,
        keyed: bool,
        hash: impl FnOnce(i32) -> i32,
    ) -> Result<Option<i32>, HoldQueue> {
        let mut state = self.state();
        state.passes_topic(offer.from)?;
        // It may stay unplaced, and come to any partition then: it must pass no queue of one.
        let passes_none = state.all_queued == state.queued;
        let alone = state.in_flight.is_empty();
        let only_here = knows != Knows::Nothing && state.in_flight.only_in(offer.producer.id);
        if passes_none && (alone || only_here) {
            state.leave(offer.from);
            state.unplaced = Some((offer.seq, offer.producer.id));
            state.in_flight.add(offer.producer.id);
            return Ok(None);
        }
        let count = match knows {
            // It would refuse a partition that it does not know.
            Knows::Partitions(count) => count,
            Knows::Topic | Knows::Nothing => state.count,
        };
        if count == 0 {
            state.hold(HoldQueue::Topic, offer.from);
            return Err(HoldQueue::Topic);
        }
        // Every record without a key has the same hash.
        let choice = match state.keyless {
            Some((last, _)) if !keyed && !self.hashes_all() => (last + 1) % count,
            _ => hash(count),
        };
        let partition = state.choose((choice, count), keyed, self.keyless, offer.now);
        state.admit(partition, offer)?;
        Ok(Some(partition))
    }

    /// The partitioner's choice for the record that has just entered, one of `count`. `Err`: it is queued there,
    /// and counts as never having entered.
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
        state.in_flight.remove(offer.producer.id);
        // It has left its queue when it entered.
        state.admit(
            partition,
            Offer {
                from: None,
                ..offer
            },
        )?;
        Ok(partition)
    }

    /// The partitioner was asked about a record that was queued before, and has chosen one of `count`.
    ///
    /// True: a queue should be tried again, see [`retry_started`](Self::retry_started).
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

    /// A record is offered whose partition is known; as with [`enter`](Self::enter).
    pub(crate) fn enter_at(&self, partition: i32, offer: Offer) -> Result<(), HoldQueue> {
        let mut state = self.state();
        // The unplaced record may come to the same partition.
        state.passes_topic(offer.from)?;
        state.admit(partition, offer)
    }

    /// The record that has entered, and was placed there or not, was not taken after all.
    pub(crate) fn withdraw(&self, producer: Producer, partition: Option<i32>) {
        let mut state = self.state();
        state.in_flight.remove(producer.id);
        match partition {
            None => state.unplaced = None,
            Some(partition) => {
                if let Some(there) = state.partitions.get_mut(&partition) {
                    there.in_flight = there.in_flight.saturating_sub(1);
                }
            }
        }
    }

    /// The sender starts to retry the queues: from now on another retry may be requested.
    pub(crate) fn retry_started(&self) {
        self.state().retry_pending = false;
    }

    /// A broker has acknowledged a record of this producer. `fresh`: its timestamp is less than [`OPEN`] old. A broker
    /// reckons by the timestamp of the last record when it forgets a producer, so an older one opens nothing.
    ///
    /// True: a queue should be tried again, see [`retry_started`](Self::retry_started).
    #[must_use]
    pub(crate) fn delivered(
        &self,
        seq: u64,
        partition: i32,
        producer: Producer,
        fresh: bool,
        now: Instant,
    ) -> bool {
        let mut state = self.state();
        state.in_flight.remove(producer.id);
        let was_unplaced = state
            .unplaced
            .take_if(|(unplaced, _)| *unplaced == seq)
            .is_some();
        let there = state.partitions.entry(partition).or_default();
        if was_unplaced && there.in_flight == 0 {
            there.own(producer.id);
        }
        if there.owner.producer == producer.id {
            there.owner.acknowledged = fresh.then_some(now);
        }
        if !was_unplaced {
            // librdkafka moves records when a topic is made anew with fewer partitions: the count of one
            // then stays too high, and that of another would fall too low.
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
