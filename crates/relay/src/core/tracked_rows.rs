//! [`TrackedRows`]: the rows of events, for their marks and for the account of sent rows.

use walrelay_lsn::Xid;
use walrelay_pgoutput::Relation;
use walrelay_sink::EventPosition;

use super::read::WalEvent;
use super::transactions::{Ignored, OpenTransaction};
use crate::account::PendingAccount;
use crate::poison::{Diverted, PoisonAction};
use crate::sent_rows::PendingRows;
use crate::table::TableName;

/// The rows of events, until it is known whether they were sent: their keys, by which they are marked as sent, and
/// their account. A logical message has no row.
#[derive(Debug, Default)]
pub(super) struct TrackedRows {
    /// `None`: the keys of rows are not noted.
    pub(super) keys: Option<PendingRows>,
    /// `None`: sent rows are not accounted. In a box, because the core is part of large futures.
    pub(super) account: Option<Box<PendingAccount>>,
}

impl TrackedRows {
    /// Returns true if so many rows wait for their marks that no further one should be sent.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.keys.as_ref().is_some_and(PendingRows::is_full)
    }

    /// Learns an outbox table.
    pub(super) fn announce(&mut self, relation: &Relation<'_>, table: &TableName) {
        if let Some(keys) = &mut self.keys {
            keys.announce(relation, table);
        }
        if let Some(account) = &mut self.account {
            account.announce(relation);
        }
    }

    /// Ends a connection. `cut`: the transaction that it cut.
    pub(super) fn disconnected(&mut self, cut: Option<&OpenTransaction>) {
        if let Some(account) = &mut self.account {
            if let Some(open) = cut {
                account.forget_from(open.first_position());
            }
            account.clear_tables();
        }
        if let Some(keys) = &mut self.keys {
            // The keys of a cut transaction are kept: no row that was taken is read again.
            keys.retract();
            keys.clear_tables();
        }
    }

    /// Reads the row of an event for the account, before the event is decided about.
    #[inline]
    pub(super) fn read(&mut self, position: EventPosition, wal_event: &WalEvent<'_>) {
        if let (Some(account), WalEvent::Row(insert)) = (&mut self.account, wal_event) {
            account.offer(position, insert.relation, &insert.tuple);
        }
    }

    /// Writes the key of the row of an event that is offered to the sink.
    #[inline]
    pub(super) fn offer(&mut self, position: EventPosition, xid: Xid, wal_event: &WalEvent<'_>) {
        if let (Some(keys), WalEvent::Row(insert)) = (&mut self.keys, wal_event) {
            keys.offer(position, insert.relation, xid, &insert.tuple);
        }
    }

    /// Counts a row that is ignored with its transaction.
    #[inline]
    pub(super) fn ignored(
        &mut self,
        position: EventPosition,
        ignored: Ignored,
        wal_event: &WalEvent<'_>,
    ) {
        if ignored == Ignored::InSink {
            self.read(position, wal_event);
            if let (Some(account), WalEvent::Row(_)) = (&mut self.account, wal_event) {
                account.keep_stored();
            }
        }
    }

    /// Counts a row that was read and is passed over: its event is before the first one that this sink gets.
    pub(super) fn resumed(&mut self, position: EventPosition) {
        if let Some(account) = &mut self.account {
            account.keep_acknowledged();
        }
        if let Some(keys) = &mut self.keys {
            keys.resume_dead(position);
        }
    }

    /// Counts the row that was offered: an earlier sink acknowledged its record.
    pub(super) fn acknowledged(&mut self) {
        if let Some(account) = &mut self.account {
            account.keep_acknowledged();
        }
        if let Some(keys) = &mut self.keys {
            keys.keep_offered();
        }
    }

    /// Counts the row that was offered: the sink took its record, or it needs none. `dead_letter`: the record is one.
    #[inline]
    pub(super) fn sent(&mut self, dead_letter: bool) {
        if let Some(keys) = &mut self.keys {
            keys.keep_offered();
        }
        if let Some(account) = &mut self.account {
            account.keep_offered(dead_letter);
        }
    }

    /// Corrects the key of the row that was offered: its event is diverted and not sent, so the row does not count as
    /// sent.
    pub(super) fn diverted(&mut self, event: &Diverted) {
        if let Some(keys) = &mut self.keys {
            match event.action {
                PoisonAction::DeadLetter => keys.offered_is_dead(&event.cause),
                PoisonAction::Skip | PoisonAction::Halt => keys.retract(),
            }
        }
    }

    /// Counts the row that was offered: its event is skipped.
    pub(super) fn skipped(&mut self) {
        if let Some(account) = &mut self.account {
            account.keep_offered(false);
        }
    }

    /// Notes that the row of an event in flight is that of a dead letter.
    pub(super) fn settled(&mut self, position: EventPosition, cause: &str) {
        if let Some(keys) = &mut self.keys {
            keys.event_is_dead(position, cause);
        }
        if let Some(account) = &mut self.account {
            account.divert(position);
        }
    }
}
