//! How far a core has come: positions, figures, what is in flight. Nothing here changes it.

use std::collections::BTreeMap;
use std::time::Duration;

use walrelay_checkpoint::Seq;
use walrelay_lsn::{CommitEnd, Lsn};

use super::Core;
use crate::interface::environment::{Counts, Progress};
use crate::interface::event::SentEvent;

impl Core {
    /// How far this core has come.
    pub(crate) fn progress(&self) -> Progress {
        Progress {
            counts: self.counts,
            received: self.received(),
            confirmed: self.confirmed(),
            in_flight: self.in_flight(),
            oldest: self.transactions.oldest(),
        }
    }

    /// What may be reported to Postgres as flushed. Never moves backwards.
    pub fn confirmed(&self) -> CommitEnd {
        // The ledger was given a position to start from.
        self.ledger
            .confirmed()
            .unwrap_or(CommitEnd::from_slot(Lsn::ZERO))
    }

    /// The highest commit that was received or confirmed.
    pub fn seen(&self) -> CommitEnd {
        let confirmed = self.confirmed();
        self.ledger
            .last_commit()
            .map_or(confirmed, |last| last.max(confirmed))
    }

    /// What may be reported as written: the highest position received, at least what is confirmed.
    pub fn received(&self) -> Lsn {
        self.received.max(self.confirmed().lsn())
    }

    /// The event that the record of this number stands for, while it is in flight.
    pub fn event_of(&self, seq: Seq) -> Option<SentEvent> {
        self.in_flight.of(seq.get())
    }

    /// How many events of each transaction, by the start of its commit record, were enqueued and are
    /// not acknowledged.
    pub(crate) fn unacknowledged(&self) -> BTreeMap<u64, u64> {
        self.in_flight.events(self.lowest_in_flight(), self.next)
    }

    /// The lowest number that is not acknowledged: it moves with each acknowledgement that counts.
    pub fn lowest_in_flight(&self) -> u64 {
        self.next - self.in_flight()
    }

    /// Records enqueued and not acknowledged.
    pub fn in_flight(&self) -> u64 {
        self.ledger.in_flight()
    }

    /// How much later than the commit of its transaction the server sent a message. `sent_at`: µs since 2000.
    pub(crate) fn lag(&self, sent_at: i64) -> Duration {
        self.transactions.lag(sent_at)
    }

    /// Whether waiting for acknowledgements cannot move the confirmed position any more: all have
    /// arrived, or the next one that is missing has failed.
    pub fn is_settled(&self) -> bool {
        let nacked = self.ledger.ring().nacked();
        self.in_flight() == 0 || nacked.is_some_and(|seq| seq.get() <= self.lowest_in_flight())
    }

    /// Whether a transaction was begun and its commit not received yet.
    pub fn is_inside_transaction(&self) -> bool {
        self.transactions.open.is_some()
    }

    /// The figures so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}
