use std::collections::VecDeque;
use std::sync::Arc;

use walrelay_lsn::{CommitEnd, Lsn};

use crate::ring::{CHUNK, NO_SEQ};
use crate::{AckRing, LedgerError, Seq};

/// A commit that was received: when every record below `upto` is acknowledged, `end` may be
/// confirmed.
#[derive(Debug, Clone, Copy)]
struct Committed {
    upto: u64,
    end: CommitEnd,
}

/// The owner's side: which records are in flight, to which transactions they belong, and what may
/// be confirmed.
///
/// # The rules
/// - A commit's end is confirmed when every record handed over before that commit was received is
///   acknowledged, whichever transaction it belongs to. Commits without a record of their own wait
///   for the same: it costs a moment and makes the confirmed position a prefix of the stream.
/// - A keepalive's position is confirmed when no transaction is open and no record in flight.
///   Otherwise it says nothing: the server has sent up to there, nobody has delivered up to there.
/// - A record that failed ends what this ledger will ever confirm just before it. The caller starts
///   over from the confirmed position with a new ring and a new ledger.
///
/// It holds one entry per transaction in flight, in memory that grows to the greatest number seen
/// and stays; transactions without records share the entry before them.
#[derive(Debug)]
pub struct Ledger {
    ring: Arc<AckRing>,
    /// Everything below is acknowledged and collected.
    tail: u64,
    /// The number of the next record.
    next: u64,
    open: bool,
    /// Ascending, strictly, in `upto`.
    committed: VecDeque<Committed>,
    confirmed: Option<CommitEnd>,
    /// The last commit of this connection.
    floor: Option<CommitEnd>,
    last_commit: Option<CommitEnd>,
}

impl Ledger {
    /// A ledger for a ring that nobody has used. `confirmed` is what was confirmed before, the
    /// slot's position for instance.
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

    /// A transaction begins; [`LedgerError::AlreadyOpen`] if one is open.
    pub fn begin(&mut self) -> Result<(), LedgerError> {
        if self.open {
            return Err(LedgerError::AlreadyOpen);
        }
        self.open = true;
        Ok(())
    }

    /// The number the next record gets, or `None` while [`AckRing::capacity`] records are in flight
    /// (as of the last [`Ledger::advance`]). Changes nothing: a record that was refused is offered
    /// again with the same number.
    pub fn next_seq(&self) -> Option<Seq> {
        let has_room = self.in_flight() < self.ring.capacity() && self.next != NO_SEQ;
        has_room.then_some(Seq::new(self.next))
    }

    /// The sink accepted the record `seq`, which is the one [`Ledger::next_seq`] gave, in the open
    /// transaction. It may be acknowledged already.
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

    /// The open transaction is complete; `end` is the end of its commit record, as Postgres sent
    /// it. [`LedgerError::CommitBackwards`] if that lies before the commit received last on this
    /// connection.
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
            // No record since the commit before: what makes that one safe makes this one safe.
            // (Not lowered, should a new connection repeat an earlier commit.)
            Some(before) if before.upto == self.next => before.end = before.end.max(end),
            _ => self.committed.push_back(Committed {
                upto: self.next,
                end,
            }),
        }
        Ok(())
    }

    /// The connection was lost. If a transaction is open, its records stay in flight and belong to
    /// no commit; Postgres will send it again from its start. The next connection may repeat
    /// commits.
    pub fn abandon(&mut self) {
        self.open = false;
        self.floor = None;
    }

    /// A keepalive came with this `wal_end`. It is confirmed if no transaction is open and nothing
    /// is in flight as of the last [`Ledger::advance`]; returns whether the confirmed position
    /// moved.
    ///
    /// The keepalive must have been received after everything the ledger was told of and before
    /// anything it was not.
    pub fn idle(&mut self, wal_end: Lsn) -> bool {
        if self.open || self.in_flight() > 0 || wal_end.is_zero() {
            return false;
        }
        let before = self.confirmed;
        self.settle();
        self.raise(CommitEnd::from_idle_keepalive(wal_end));
        self.confirmed != before
    }

    /// Collects acknowledgements; the new position if the confirmed one moved.
    ///
    /// Costs a look at one word per 32 records and a step per transaction.
    pub fn advance(&mut self) -> Option<CommitEnd> {
        let before = self.confirmed;
        self.collect();
        self.settle();
        self.confirmed.filter(|_| self.confirmed != before)
    }

    /// Whether there is something to look at: an acknowledgement that [`Ledger::advance`] would
    /// collect, or a nack or a wake since [`AckRing::unpark`]. For the look between
    /// [`AckRing::park`] and waiting.
    pub fn has_news(&self) -> bool {
        let collectable = self.tail < self.next && self.ring.run_from(self.tail) > self.tail;
        collectable || self.ring.is_woken()
    }

    /// What may be confirmed to Postgres. Never moves backwards.
    pub fn confirmed(&self) -> Option<CommitEnd> {
        self.confirmed
    }

    /// Records from the lowest one that is not known to be acknowledged to the newest one.
    pub fn in_flight(&self) -> u64 {
        self.next - self.tail
    }

    /// Whether a transaction has begun and neither been committed nor abandoned.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Commits received and not confirmed yet; those that share an entry count once.
    pub fn pending(&self) -> u64 {
        self.committed.len() as u64
    }

    /// Transactions begun and not confirmed yet: [`Ledger::pending`] and the open one.
    pub fn open_transactions(&self) -> u64 {
        self.pending() + u64::from(self.open)
    }

    /// The highest commit received so far, on any connection.
    pub fn last_commit(&self) -> Option<CommitEnd> {
        self.last_commit
    }

    /// The ring that acknowledgements go to.
    pub fn ring(&self) -> &Arc<AckRing> {
        &self.ring
    }

    /// Moves the tail over what is acknowledged.
    fn collect(&mut self) {
        loop {
            let start = self.tail;
            while self.tail < self.next {
                // A bit beyond `next` is a record whose report overtook our `sent`.
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
            // And look again: from here on the acknowledgement of the new tail wakes a parked
            // owner, one that came just before did not.
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
