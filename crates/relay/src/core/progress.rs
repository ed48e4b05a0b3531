//! The progress of a core: positions, figures, what is in flight. Nothing here changes the core.

use std::collections::BTreeMap;
use std::time::Duration;

use walrelay_checkpoint::Seq;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_pgoutput::{Begin, PgTimestamp};
use walrelay_sink::EventPosition;

use super::Core;
use crate::event::SentEvent;
use crate::interface::observer::{Counts, Progress, TopicProgress};
use crate::table::TableName;

impl Core {
    pub(crate) fn progress(&self) -> Progress {
        Progress {
            counts: self.counts,
            received: self.received(),
            confirmed: self.acknowledged_position(),
            in_flight: self.ledger.unacknowledged(),
            first: self.first_in_flight(),
            oldest: self.transactions.oldest(),
        }
    }

    /// Returns the commit end of the acknowledged prefix, which may be confirmed. Never moves backwards.
    pub fn acknowledged_position(&self) -> CommitEnd {
        // Never `None`: the ledger was created with a start position.
        self.ledger
            .confirmed()
            .unwrap_or(CommitEnd::from_slot(Lsn::ZERO))
    }

    /// Returns the highest commit that was received or confirmed.
    pub fn seen(&self) -> CommitEnd {
        let confirmed = self.acknowledged_position();
        self.ledger
            .last_commit()
            .map_or(confirmed, |last| last.max(confirmed))
    }

    /// Returns the end of the last transaction that had a row, acknowledged or not: zero if none had.
    pub(crate) fn end_of_rows(&self) -> CommitEnd {
        self.end_of_rows
    }

    /// Returns the position that may be reported as written: the highest one received or confirmed.
    pub fn received(&self) -> Lsn {
        self.received.max(self.acknowledged_position().lsn())
    }

    /// Returns the event that record `seq` stands for, while it is in flight.
    pub fn event_of(&self, seq: Seq) -> Option<SentEvent> {
        Some(SentEvent {
            id: self.in_flight.event(seq.get())?,
            dead_letter: self.diversions.is_dead_letter(seq.get()),
        })
    }

    /// Returns the event of the lowest record in flight.
    pub(super) fn first_in_flight(&self) -> Option<EventPosition> {
        let lowest = (self.in_flight() > 0).then(|| self.lowest_in_flight());
        self.in_flight.event(lowest?)
    }

    /// Returns the first event that neither was processed nor is one that this sink has taken before.
    pub(super) fn first_unread(&self) -> Option<EventPosition> {
        self.transactions.processed.max(self.taken_before)
    }

    /// Returns the topics of the records so far.
    pub fn by_topic(&self) -> Vec<TopicProgress<'_>> {
        let from = self.lowest_in_flight();
        self.in_flight.by_topic(&self.ledger, from, self.next)
    }

    /// Counts the events that were enqueued and are not acknowledged, by transaction. The key is
    /// the start of the transaction's commit record.
    pub(crate) fn unacknowledged(&self) -> BTreeMap<u64, u64> {
        self.in_flight.events(self.lowest_in_flight(), self.next)
    }

    /// Returns the first event that may not be acknowledged: every event before it is acknowledged,
    /// or was skipped or not selected. `None`: no event is known to be.
    pub fn first_unacknowledged(&self) -> Option<EventPosition> {
        let in_flight = self
            .in_flight
            .first_event(self.lowest_in_flight(), self.next);
        in_flight
            .or_else(|| self.first_unread())
            .max(self.acknowledged_before)
    }

    /// Returns the lowest sequence number that is not acknowledged: it grows when the acknowledged
    /// prefix grows.
    pub fn lowest_in_flight(&self) -> u64 {
        self.next - self.in_flight()
    }

    /// Returns true if a record is acknowledged behind one that is not.
    pub(crate) fn has_acknowledged_behind(&self) -> bool {
        self.ledger.unacknowledged() < self.ledger.in_flight()
    }

    /// Returns the number of records enqueued and not acknowledged.
    pub fn in_flight(&self) -> u64 {
        self.ledger.in_flight()
    }

    /// Returns the time from the commit of the transaction that began last to `sent_at`, by the
    /// server's clock. `sent_at`: when the server sent a message, in µs since 2000.
    pub(crate) fn lag(&self, sent_at: i64) -> Duration {
        let last_begun = self.transactions.last_begun;
        let committed = last_begun.map_or(sent_at, PgTimestamp::get);
        Duration::from_micros(sent_at.saturating_sub(committed).try_into().unwrap_or(0))
    }

    /// Returns true if no acknowledgement can move the confirmed position any more: all records are
    /// acknowledged, or the lowest record in flight has failed.
    pub fn is_settled(&self) -> bool {
        let nacked = self.ledger.ring().nacked();
        self.in_flight() == 0 || nacked.is_some_and(|seq| seq.get() <= self.lowest_in_flight())
    }

    /// Returns true if a Begin was received whose Commit has not arrived yet.
    pub fn is_inside_transaction(&self) -> bool {
        self.transactions.open.is_some()
    }

    /// Returns the tables, by their names in the WAL, one of which the next row is of. Empty: the
    /// server has announced none on this connection.
    pub(crate) fn tables_of_next_row(&self) -> Vec<TableName> {
        self.tables.next_row_tables()
    }

    /// Returns the open transaction and the number of its rows that were processed, if all
    /// transactions before it are acknowledged.
    pub(crate) fn open_behind_acknowledged(&self) -> Option<(Begin, u64)> {
        let open = self.transactions.open.as_ref()?;
        (self.acknowledged_position() == self.seen()).then(|| (open.begin, open.rows()))
    }

    /// Returns the figures so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}
