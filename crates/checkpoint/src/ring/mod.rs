use std::fmt;

use crate::Seq;
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Records per word. The other half of a word is its lap, see [`AckRing`].
///
/// The model checker gets words of two records, so that few steps lead over their ends and around
/// the ring.
pub(crate) const CHUNK: u64 = if cfg!(loom) { 2 } else { 32 };
const ACKS: u64 = (1 << CHUNK) - 1;
const LAP_SHIFT: u32 = 32;

/// No record has this number: it stands for "none" in [`AckRing::nacked`].
pub(crate) const NO_SEQ: u64 = u64::MAX;

/// What threads share: one bit per record in flight, of a fixed number of records.
///
/// Allocated once; half a byte per record of capacity.
///
/// # How it works
/// Records are grouped into chunks of 32 by their number. A word of the ring holds the 32 bits of
/// one chunk and, in its upper half, the *lap*: how many times the ring was gone around when this
/// chunk got its turn (modulo 2³²). When the owner has collected all bits of a chunk it turns the
/// word over to the chunk one lap on, with a single store that clears the bits and raises the lap.
///
/// An acknowledgement sets its bit by compare-and-swap on the whole word, lap included. That is
/// what makes one that comes twice harmless: between its look at the window and its write, the
/// word may have been turned over, and with a plain `fetch_or` the bit would then be that of a
/// record one lap on, which nobody has delivered.
///
/// There are twice as many words as the capacity asks for. So the chunk that is half collected and
/// that of the newest record in flight never want the same word, and the capacity is exact.
///
/// # Memory ordering
/// - *Turning over against acknowledging.* The owner stores the word when all its bits are set.
///   From then on no acknowledgement of the old lap writes to it (it finds its bit set), and one of
///   the new lap comes only after the owner has offered that record to the sink, hence after the
///   store: whatever brings the record to the sink's thread orders the two. So the store overwrites
///   nothing, and needs no ordering of its own. The same holds for `tail`, the low end of the
///   window: a thread that acknowledges a record sees at least the `tail` for which it was offered.
/// - *What was written before an acknowledgement is seen by the owner who collects it*: release on
///   the swap, acquire on the owner's load. Several threads set bits of one word; their swaps
///   continue one another's release sequence, so one load acquires from all.
/// - *Waking.* The owner announces (`tail`, `parked`), then looks at the bits; a thread sets a bit,
///   then looks at `parked` and `tail`. Each must not miss the other, which takes a full barrier
///   between the two steps on both sides: the `SeqCst` fences in [`AckRing::park`],
///   `publish` and `after_change`. Fences, not `SeqCst` accesses, since the
///   model checker understands only those.
/// - *Who is woken.* Only the record at `tail` can move the prefix, so only its acknowledgement
///   wakes. If it was acknowledged while `tail` was still lower, the owner sees the bit when it
///   looks again after publishing the new `tail`.
pub struct AckRing {
    words: Box<[AtomicU64]>,
    /// log2 of the number of words.
    lap_bits: u32,
    capacity: u64,
    /// The lowest record that is not collected yet. Written by the owner.
    tail: AtomicU64,
    /// The lowest record that failed, or [`NO_SEQ`].
    nacked: AtomicU64,
    /// Something changed that is not an acknowledgement.
    woken: AtomicBool,
    /// The owner waits, or is about to. Who takes it down must wake it.
    parked: AtomicBool,
    strays: AtomicU64,
}

impl AckRing {
    /// The greatest capacity there is, in records.
    pub const MAX_CAPACITY: u64 = 1 << 26;

    /// A ring for records from number 0, with room for at least `capacity` records: the next power
    /// of two, from 32 to [`AckRing::MAX_CAPACITY`].
    pub fn new(capacity: usize) -> Self {
        Self::starting_at(Seq::new(0), capacity)
    }

    /// The same for records from number `first`, for a ring that follows another one.
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

    /// How many records can be in flight.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The record `seq` is durable. From any thread, in any order, also before the owner has
    /// recorded it as sent. Returns whether the owner must be woken: it is parked, and this is the
    /// record it waits for. Of all calls after one [`AckRing::park`] at most one returns `true`.
    ///
    /// If the record was acknowledged before, or is none of the `capacity` records from the lowest
    /// outstanding one, this is counted in [`AckRing::strays`] and has no other effect.
    pub fn ack(&self, seq: Seq) -> bool {
        if !self.mark(seq.get()) {
            self.strays.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.after_change(|| self.tail.load(Ordering::Relaxed) == seq.get())
    }

    /// The record `seq` will not be delivered. Nothing from it on is confirmed by this ring any
    /// more, also if it is acknowledged as well. Returns whether the owner must be woken, as
    /// [`AckRing::ack`] does; out of the window it is a stray.
    pub fn nack(&self, seq: Seq) -> bool {
        if !self.is_in_window(seq.get()) {
            self.strays.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        // Release: see `run_from`.
        self.nacked.fetch_min(seq.get(), Ordering::AcqRel);
        self.wake()
    }

    /// The lowest record that was reported as failed.
    pub fn nacked(&self) -> Option<Seq> {
        let seq = self.nacked.load(Ordering::Acquire);
        (seq != NO_SEQ).then_some(Seq::new(seq))
    }

    /// Something else changed that a parked owner must look at, such as room in the sink's queue.
    /// Returns whether it must be woken, as [`AckRing::ack`] does. If it is not parked, its next
    /// [`Ledger::has_news`](crate::Ledger::has_news) is `true`.
    pub fn wake(&self) -> bool {
        // A swap and not a store, so that of two wakes the second hands on what the first
        // released.
        self.woken.swap(true, Ordering::AcqRel);
        self.after_change(|| true)
    }

    /// The owner announces that it is going to wait. It must look once more before it really does,
    /// with [`Ledger::has_news`](crate::Ledger::has_news) or
    /// [`Ledger::advance`](crate::Ledger::advance) (and at what it is woken for): what happened
    /// before this call wakes nobody.
    pub fn park(&self) {
        // A swap, so that this comes after what a waking thread wrote also in the eyes of the model
        // checker, which orders two plain stores only by what their threads have seen.
        self.parked.swap(true, Ordering::Relaxed);
        // Pairs with the fence in `after_change`.
        fence(Ordering::SeqCst);
    }

    /// The owner is back, whatever the reason, and is going to look at everything: wakes up to now
    /// are taken note of. A wake-up may still be under way from a thread that saw it parked.
    pub fn unpark(&self) {
        self.parked.swap(false, Ordering::Relaxed);
        self.woken.swap(false, Ordering::AcqRel);
    }

    /// How many reports were ignored: repeated ones, and ones for records that are not in flight.
    pub fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }

    fn is_in_window(&self, seq: u64) -> bool {
        let tail = self.tail.load(Ordering::Relaxed);
        seq >= tail && seq - tail < self.capacity
    }

    /// Sets the bit of `seq`; whether it was in the window and not set.
    fn mark(&self, seq: u64) -> bool {
        if !self.is_in_window(seq) {
            return false;
        }
        let word = self.word(seq);
        let lap = fresh(seq / CHUNK, self.lap_bits) >> LAP_SHIFT;
        let bit = 1 << (seq % CHUNK);
        let mut seen = word.load(Ordering::Relaxed);
        // Ends soon: each failure is another bit of the word, set by another thread, or its turning
        // over, after which the lap differs.
        while seen >> LAP_SHIFT == lap && seen & bit == 0 {
            match word.compare_exchange_weak(seen, seen | bit, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// After a change: whether the owner must be woken for it. `concerns_owner` is asked after the
    /// fence.
    fn after_change(&self, concerns_owner: impl FnOnce() -> bool) -> bool {
        // Pairs with those in `park` and `publish`.
        fence(Ordering::SeqCst);
        // The load first, so that a busy owner costs no write to a line that all threads share.
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

    // What follows is the owner's alone.

    /// The lowest record that is not collected.
    pub(crate) fn tail(&self) -> u64 {
        self.tail.load(Ordering::Relaxed)
    }

    /// Whether there was a wake since [`AckRing::unpark`].
    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed)
    }

    /// The end (exclusive) of the acknowledged records that follow one another from `from` on, as
    /// far as its chunk goes and no further than a failed one. `from` must not lie below the tail.
    pub(crate) fn run_from(&self, from: u64) -> u64 {
        let acks = self.word(from).load(Ordering::Acquire) & ACKS;
        let run = (acks >> (from % CHUNK)).trailing_ones();
        // Looked at after the bits: a record that is reported as failed and then as delivered is
        // seen to have failed by whoever sees its bit.
        let nacked = self.nacked.load(Ordering::Acquire);
        from.saturating_add(u64::from(run)).min(nacked).max(from)
    }

    /// Every record of the chunk that ends before `end` was collected: its word goes to the chunk
    /// one lap on.
    pub(crate) fn turn_over(&self, end: u64) {
        let chunk = end / CHUNK - 1;
        let next = chunk + self.words.len() as u64;
        self.word(chunk * CHUNK)
            .store(fresh(next, self.lap_bits), Ordering::Relaxed);
    }

    /// Everything below `tail` was collected. The owner must look at the bit of `tail` afterwards.
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

/// The word of `chunk` with no bit set.
fn fresh(chunk: u64, lap_bits: u32) -> u64 {
    (chunk >> lap_bits) << LAP_SHIFT
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
