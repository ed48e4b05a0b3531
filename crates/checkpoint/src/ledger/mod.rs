use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use walrelay_lsn::{CommitEnd, Lsn};

use crate::ring::{CHUNK, NO_SEQ};
use crate::{AckRing, LedgerError, Seq};

/// A received Commit: `end` may be confirmed when every record below `upto` is acknowledged.
#[derive(Debug, Clone, Copy)]
struct Committed {
    upto: u64,
    end: CommitEnd,
}

/// The account of records and transactions: it knows the records in flight, the transactions that
/// they belong to, and the position that may be confirmed.
///
/// # The rules
/// - A commit's end is confirmed when every record sent before that Commit was received is
///   acknowledged, whichever transaction the record belongs to. A Commit without records waits for
///   the same condition, so that the confirmed position is always a prefix of the stream.
/// - A keepalive's position is confirmed only when no transaction is open and no record is in
///   flight. Otherwise it proves nothing: the server has sent up to there, but the records up to
///   there are not delivered.
/// - No commit whose prefix includes a failed record is ever confirmed by this ledger. The caller
///   starts over from the confirmed position with a new ring and a new ledger.
///
/// The ledger holds one entry per transaction in flight. Its memory grows to the greatest number of
/// entries seen and is kept. A transaction without records shares the entry before it.
#[derive(Debug)]
pub struct Ledger {
    ring: Arc<AckRing>,
    /// The number below which every record is acknowledged and collected.
    tail: u64,
    /// The number of the next record.
    next: u64,
    open: bool,
    /// Strictly ascending in `upto`.
    committed: VecDeque<Committed>,
    confirmed: Option<CommitEnd>,
    /// The last Commit of this connection.
    floor: Option<CommitEnd>,
    last_commit: Option<CommitEnd>,
}

impl Ledger {
    /// Creates a ledger for an unused ring. `confirmed` is the position confirmed before, such as
    /// the slot's.
    pub fn new(ring: Arc<AckRing>, confirmed: Option<CommitEnd>) -> Self {
        let first = ring.tail();
        Self {
            ring,
            tail: first,
            next: first,
            open: false,
            committed: VecDeque::new(),
            confirmed,
            floor: None,
            last_commit: None,
        }
    }

    /// Opens a transaction; [`LedgerError::AlreadyOpen`] if one is open.
    pub fn begin(&mut self) -> Result<(), LedgerError> {
        if self.open {
            return Err(LedgerError::AlreadyOpen);
        }
        self.open = true;
        Ok(())
    }

    /// Returns the number of the next record, or `None` while [`AckRing::capacity`] records are in
    /// flight (as of the last [`Ledger::advance`]). Changes nothing: a record that the sink refused
    /// is offered again with the same number.
    pub fn next_seq(&self) -> Option<Seq> {
        let has_room = self.in_flight() < self.ring.capacity() && self.next != NO_SEQ;
        has_room.then_some(Seq::new(self.next))
    }

    /// Enters the record `seq` of the open transaction, which the sink accepted. `seq` is the
    /// number from [`Ledger::next_seq`]. The record may be acknowledged already.
    pub fn sent(&mut self, seq: Seq) -> Result<(), LedgerError> {
        if !self.open {
            return Err(LedgerError::NotOpen);
        }
        let Some(expected) = self.next_seq() else {
            return Err(LedgerError::Full {
                in_flight: self.in_flight(),
            });
        };
        if seq != expected {
            return Err(LedgerError::UnexpectedSeq { expected, got: seq });
        }
        self.next += 1;
        Ok(())
    }

    /// Completes the open transaction. `end` is the end of its commit record, as Postgres sent it;
    /// [`LedgerError::CommitBackwards`] if it lies before the previous Commit of this connection.
    pub fn commit(&mut self, end: CommitEnd) -> Result<(), LedgerError> {
        if !self.open {
            return Err(LedgerError::NotOpen);
        }
        if let Some(last) = self.floor.filter(|last| end < *last) {
            return Err(LedgerError::CommitBackwards { last, end });
        }
        self.open = false;
        self.floor = Some(end);
        self.last_commit = self.last_commit.max(Some(end));
        match self.committed.back_mut() {
            // No record since the previous Commit, so both are safe under the same condition.
            // `max`: a new connection may repeat an earlier Commit.
            Some(before) if before.upto == self.next => before.end = before.end.max(end),
            _ => self.committed.push_back(Committed {
                upto: self.next,
                end,
            }),
        }
        Ok(())
    }

    /// Handles a lost connection. Records of the open transaction stay in flight and belong to no
    /// commit; Postgres sends that transaction again from its start. The next connection may repeat
    /// commits.
    pub fn abandon(&mut self) {
        self.open = false;
        self.floor = None;
    }

    /// Confirms the `wal_end` of a keepalive if no transaction is open and nothing is in flight as
    /// of the last [`Ledger::advance`]. Returns whether the confirmed position moved.
    ///
    /// Source: see [`CommitEnd::from_idle_keepalive`].
    ///
    /// Call it in stream order: after every message received before the keepalive was entered into
    /// the ledger, and before any message received after it is.
    pub fn idle(&mut self, wal_end: Lsn) -> bool {
        if self.open || self.in_flight() > 0 || wal_end.is_zero() {
            return false;
        }
        let before = self.confirmed;
        self.settle();
        self.raise(CommitEnd::from_idle_keepalive(wal_end));
        self.confirmed != before
    }

    /// Collects acknowledgements; returns the confirmed position if it moved.
    ///
    /// Cost: one load per 32 records and one step per transaction.
    pub fn advance(&mut self) -> Option<CommitEnd> {
        let before = self.confirmed;
        self.collect();
        self.settle();
        self.confirmed.filter(|_| self.confirmed != before)
    }

    /// Returns true if there is an acknowledgement that [`Ledger::advance`] would collect, or was a
    /// nack or a wake since [`AckRing::unpark`]. To be checked between [`AckRing::park`] and
    /// waiting.
    pub fn has_news(&self) -> bool {
        let collectable = self.tail < self.next && self.ring.run_from(self.tail) > self.tail;
        collectable || self.ring.is_woken()
    }

    /// Returns the position that may be confirmed to Postgres. Never moves backwards.
    pub fn confirmed(&self) -> Option<CommitEnd> {
        self.confirmed
    }

    /// Returns the number of records from the lowest one not collected as acknowledged to the
    /// newest one.
    pub fn in_flight(&self) -> u64 {
        self.next - self.tail
    }

    /// Returns true if one of these records, which were sent, is not acknowledged or has failed.
    ///
    /// Cost: one load per 32 records.
    pub fn is_in_flight(&self, records: Range<u64>) -> bool {
        let mut from = records.start.max(self.tail);
        while from < records.end {
            let end = self.ring.run_from(from);
            if end == from {
                return true;
            }
            from = end;
        }
        false
    }

    /// Returns true if this record, which was sent, is acknowledged: also if one before it is in flight or
    /// has failed.
    pub fn is_acknowledged(&self, record: Seq) -> bool {
        record.get() < self.tail || self.ring.is_acked(record.get())
    }

    /// Returns the number of records that were sent and are not acknowledged.
    ///
    /// Cost: one load per 32 records.
    pub fn unacknowledged(&self) -> u64 {
        let (mut from, mut open) = (self.tail, 0);
        while from < self.next {
            let end = (from - from % CHUNK + CHUNK).min(self.next);
            open += self.ring.open_in_chunk(from, end);
            from = end;
        }
        open
    }

    /// Returns true if a transaction has begun and was neither committed nor abandoned.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Returns the number of commits received and not confirmed yet; commits that share an entry
    /// count once.
    pub fn pending(&self) -> u64 {
        self.committed.len() as u64
    }

    /// Returns the highest commit received so far, on any connection.
    pub fn last_commit(&self) -> Option<CommitEnd> {
        self.last_commit
    }

    /// Returns the ring that receives the acknowledgements.
    pub fn ring(&self) -> &Arc<AckRing> {
        &self.ring
    }

    /// Moves the tail over the acknowledged records.
    fn collect(&mut self) {
        loop {
            let start = self.tail;
            while self.tail < self.next {
                // A bit at or above `next` is a record acknowledged before our `sent`.
                let end = self.ring.run_from(self.tail).min(self.next);
                if end == self.tail {
                    break;
                }
                self.tail = end;
                if !end.is_multiple_of(CHUNK) {
                    break;
                }
                self.ring.turn_over(end);
            }
            if self.tail == start {
                return;
            }
            // Check again after publishing: from here on the acknowledgement of the new tail wakes
            // a parked owner, but one that came just before did not.
            self.ring.publish(self.tail);
        }
    }

    /// Confirms the commits whose records are all collected.
    fn settle(&mut self) {
        while let Some(first) = self.committed.front().copied()
            && first.upto <= self.tail
        {
            self.raise(first.end);
            self.committed.pop_front();
        }
    }

    fn raise(&mut self, end: CommitEnd) {
        self.confirmed = self.confirmed.max(Some(end));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
