use std::fmt;

use crate::Seq;
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Records per word. The other half of a word is its lap, see [`AckRing`].
///
/// Under the model checker a word has two records, so that few steps cross its end and go around
/// the ring.
pub(crate) const CHUNK: u64 = if cfg!(loom) { 2 } else { 32 };
const ACKS: u64 = (1 << CHUNK) - 1;
const LAP_SHIFT: u32 = 32;

/// The number of no record: "none" in [`AckRing::nacked`].
pub(crate) const NO_SEQ: u64 = u64::MAX;

/// A ring of acknowledgement bits, one per record in flight, shared by threads.
///
/// Allocated once, with half a byte per record of capacity.
///
/// # How it works
/// Records are grouped into chunks of 32 by their number. A word of the ring holds the 32 bits of
/// one chunk and, in its upper half, the *lap*: how many times the ring was completed before this
/// chunk (modulo 2³²). When the owner has collected all bits of a chunk, it turns the word over to
/// the chunk one lap on, with a single store that clears the bits and raises the lap.
///
/// An acknowledgement sets its bit by compare-and-swap on the whole word, lap included. This makes
/// a repeated acknowledgement harmless: the word may be turned over between the check of the window
/// and the write, and a plain `fetch_or` would then set the bit of a record one lap on, which is
/// not delivered.
///
/// There are twice as many words as the capacity needs. So the chunk that is partly collected and
/// the chunk of the newest record in flight never share a word, and the capacity is exact.
///
/// # Memory ordering
/// - *Turning over against acknowledging.* The owner stores the word when all its bits are set.
///   From then on no acknowledgement of the old lap writes to the word, because it finds its bit
///   set. An acknowledgement of the new lap comes only after the owner offered that record to the
///   sink, hence after the store; the transfer of the record to the sink's thread orders the two.
///   So the store overwrites nothing and needs no ordering of its own. The same holds for `tail`,
///   the low end of the window: a thread that acknowledges a record sees at least the `tail` for
///   which the record was offered.
/// - *The owner that collects an acknowledgement sees everything written before it*: release on the
///   swap, acquire on the owner's load. Several threads set bits of one word; their swaps continue
///   one another's release sequence, so one load acquires from all.
/// - *Waking.* The owner stores (`tail`, `parked`), then loads the bits; a thread sets a bit, then
///   loads `parked` and `tail`. At least one must see the other's store, which takes a full barrier
///   between the two steps on both sides: the `SeqCst` fences in [`AckRing::park`], `publish` and
///   `after_change`. Fences instead of `SeqCst` accesses, because the model checker supports only
///   fences.
/// - *Which acknowledgement wakes.* Only the record at `tail` can move the prefix, so only its
///   acknowledgement wakes the owner. If it came while `tail` was still lower, the owner sees the
///   bit when it checks again after publishing the new `tail`.
pub struct AckRing {
    words: Box<[AtomicU64]>,
    /// log2 of the number of words.
    lap_bits: u32,
    capacity: u64,
    /// The lowest record not collected yet. Written by the owner.
    tail: AtomicU64,
    /// The lowest record that failed, or [`NO_SEQ`].
    nacked: AtomicU64,
    /// True if there was a nack or a wake since [`AckRing::unpark`].
    woken: AtomicBool,
    /// True if the owner waits or is about to. The thread that clears this flag must wake the owner.
    parked: AtomicBool,
    strays: AtomicU64,
}

impl AckRing {
    /// The greatest capacity, in records.
    pub const MAX_CAPACITY: u64 = 1 << 26;

    /// Creates a ring for records from number 0, with room for at least `capacity` records: the
    /// next power of two, from 32 to [`AckRing::MAX_CAPACITY`].
    pub fn new(capacity: usize) -> Self {
        Self::starting_at(Seq::new(0), capacity)
    }

    /// Creates a ring as [`AckRing::new`] does, for records from number `first`: for a ring that
    /// replaces another one.
    pub fn starting_at(first: Seq, capacity: usize) -> Self {
        let capacity = (capacity as u64)
            .clamp(CHUNK, Self::MAX_CAPACITY)
            .next_power_of_two();
        let count = 2 * capacity / CHUNK;
        let lap_bits = count.trailing_zeros();
        let first = first.get();
        let first_chunk = first / CHUNK;
        let mut words: Box<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        for chunk in first_chunk..first_chunk + count {
            let before = if chunk == first_chunk {
                (1 << (first % CHUNK)) - 1
            } else {
                0
            };
            let word = fresh(chunk, lap_bits) | before;
            words[(chunk % count) as usize] = AtomicU64::new(word);
        }
        Self {
            words,
            lap_bits,
            capacity,
            tail: AtomicU64::new(first),
            nacked: AtomicU64::new(NO_SEQ),
            woken: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            strays: AtomicU64::new(0),
        }
    }

    /// Returns the greatest number of records in flight.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Acknowledges the record `seq`: it is durable. May be called from any thread, in any order,
    /// also before the owner has entered the record as sent.
    ///
    /// Returns whether the caller must wake the owner: the owner is parked, and this is the record
    /// it waits for. Of all reports after one [`AckRing::park`] at most one returns `true`.
    ///
    /// An acknowledgement that is repeated, or whose record is none of the `capacity` records from
    /// the lowest uncollected one, is counted in [`AckRing::strays`] and has no other effect.
    pub fn ack(&self, seq: Seq) -> bool {
        if !self.mark(seq.get()) {
            self.strays.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.after_change(|| self.tail.load(Ordering::Relaxed) == seq.get())
    }

    /// Reports the record `seq` as failed. From then on nothing at or after it is confirmed through
    /// this ring, even if it is acknowledged as well. Returns whether the caller must wake the
    /// owner, as [`AckRing::ack`] does. A report outside the window is counted as a stray.
    pub fn nack(&self, seq: Seq) -> bool {
        if !self.is_in_window(seq.get()) {
            self.strays.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        // Release: see `run_from`.
        self.nacked.fetch_min(seq.get(), Ordering::AcqRel);
        self.wake()
    }

    /// Returns the lowest record reported as failed.
    pub fn nacked(&self) -> Option<Seq> {
        let seq = self.nacked.load(Ordering::Acquire);
        (seq != NO_SEQ).then_some(Seq::new(seq))
    }

    /// Reports another change that a parked owner must check, such as room in the sink's queue.
    /// Returns whether the caller must wake the owner, as [`AckRing::ack`] does. Until the next
    /// [`AckRing::unpark`], [`Ledger::has_news`](crate::Ledger::has_news) is `true`.
    pub fn wake(&self) -> bool {
        // A swap instead of a store, so that the second of two wakes continues the first one's
        // release sequence.
        self.woken.swap(true, Ordering::AcqRel);
        self.after_change(|| true)
    }

    /// Announces that the owner is going to wait. Before it waits, the owner must call
    /// [`Ledger::has_news`](crate::Ledger::has_news) or
    /// [`Ledger::advance`](crate::Ledger::advance), and check whatever else it waits for: a change
    /// before this call does not wake it.
    pub fn park(&self) {
        // A swap, so that the model checker orders this after the write of a waking thread: it
        // orders two plain stores only by what their threads have seen.
        self.parked.swap(true, Ordering::Relaxed);
        // Pairs with the fence in `after_change`.
        fence(Ordering::SeqCst);
    }

    /// Ends the wait, for whatever reason, and clears the wakes up to now: the owner must check
    /// everything next. A thread that saw the owner parked may still be about to wake it.
    pub fn unpark(&self) {
        self.parked.swap(false, Ordering::Relaxed);
        self.woken.swap(false, Ordering::AcqRel);
    }

    /// Returns the number of ignored reports: repeated ones, and ones outside the window.
    pub fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }

    fn is_in_window(&self, seq: u64) -> bool {
        let tail = self.tail.load(Ordering::Relaxed);
        seq >= tail && seq - tail < self.capacity
    }

    /// Sets the bit of `seq`; returns whether it was in the window and not set.
    fn mark(&self, seq: u64) -> bool {
        if !self.is_in_window(seq) {
            return false;
        }
        let word = self.word(seq);
        let lap = fresh(seq / CHUNK, self.lap_bits) >> LAP_SHIFT;
        let bit = 1 << (seq % CHUNK);
        let mut seen = word.load(Ordering::Relaxed);
        // Bounded, but for spurious failures: each failure is another bit of the word, set by
        // another thread, or its turning over, after which the lap differs.
        while seen >> LAP_SHIFT == lap && seen & bit == 0 {
            match word.compare_exchange_weak(seen, seen | bit, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Returns true if the owner must be woken for a change just made. Calls `concerns_owner` after
    /// the fence.
    fn after_change(&self, concerns_owner: impl FnOnce() -> bool) -> bool {
        // Pairs with the fences in `park` and `publish`.
        fence(Ordering::SeqCst);
        // The load comes first: while the owner is busy, no thread writes to the shared cache line.
        concerns_owner()
            && self.parked.load(Ordering::Relaxed)
            && self
                .parked
                .compare_exchange(true, false, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    fn word(&self, seq: u64) -> &AtomicU64 {
        // The number of words is a power of two.
        &self.words[(seq / CHUNK) as usize & (self.words.len() - 1)]
    }

    // The methods below are called by the owner only.

    /// Returns the lowest record not collected.
    pub(crate) fn tail(&self) -> u64 {
        self.tail.load(Ordering::Relaxed)
    }

    /// Returns true if there was a nack or a wake since [`AckRing::unpark`].
    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed)
    }

    /// Returns the exclusive end of the run of acknowledged records from `from` on, limited to the
    /// chunk of `from` and to the lowest failed record. `from` must not lie below the tail.
    pub(crate) fn run_from(&self, from: u64) -> u64 {
        let acks = self.word(from).load(Ordering::Acquire) & ACKS;
        let run = (acks >> (from % CHUNK)).trailing_ones();
        // Loaded after the bits: if a record is reported as failed and then as delivered, the load
        // that sees its bit is followed by one that sees the failure.
        let nacked = self.nacked.load(Ordering::Acquire);
        from.saturating_add(u64::from(run)).min(nacked).max(from)
    }

    /// Returns true if this record, which is not collected, is acknowledged and has not failed.
    pub(crate) fn is_acked(&self, seq: u64) -> bool {
        let word = self.word(seq).load(Ordering::Acquire);
        word & 1 << (seq % CHUNK) != 0 && self.nacked.load(Ordering::Acquire) != seq
    }

    /// Returns the number of records in `from..end` that are not acknowledged, and `from`'s chunk has
    /// all of them.
    pub(crate) fn open_in_chunk(&self, from: u64, end: u64) -> u64 {
        let acks = (self.word(from).load(Ordering::Acquire) & ACKS) >> (from % CHUNK);
        let acks = acks & ((1 << (end - from)) - 1);
        end - from - u64::from(acks.count_ones())
    }

    /// Gives the word of the chunk that ends before `end` to the chunk one lap on. Every record of
    /// the old chunk must be collected.
    pub(crate) fn turn_over(&self, end: u64) {
        let chunk = end / CHUNK - 1;
        let next = chunk + self.words.len() as u64;
        self.word(chunk * CHUNK)
            .store(fresh(next, self.lap_bits), Ordering::Relaxed);
    }

    /// Publishes that everything below `tail` is collected. The owner must check the bit of `tail`
    /// afterwards.
    pub(crate) fn publish(&self, tail: u64) {
        self.tail.store(tail, Ordering::Relaxed);
        // Pairs with the fence in `after_change`.
        fence(Ordering::SeqCst);
    }
}

impl fmt::Debug for AckRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AckRing")
            .field("capacity", &self.capacity)
            .field("tail", &self.tail())
            .field("nacked", &self.nacked())
            .field("parked", &self.parked.load(Ordering::Relaxed))
            .field("strays", &self.strays())
            .finish_non_exhaustive()
    }
}

/// Returns the word of `chunk` without any bit set.
fn fresh(chunk: u64, lap_bits: u32) -> u64 {
    (chunk >> lap_bits) << LAP_SHIFT
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
