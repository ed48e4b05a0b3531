//! The start and the end of a connection, as a core sees them.

use walrelay_event_router::TableFacts;
use walrelay_lsn::{CommitEnd, Lsn};

use super::{Core, CoreError};

impl Core {
    /// Notes that a connection streams from `confirmed`, the slot's position. Call it before the
    /// first frame of the connection.
    pub fn connected(&mut self, confirmed: CommitEnd) {
        self.disconnected();
        self.received = confirmed.lsn();
        // What is confirmed counts as enqueued, too, by an earlier sink or process if not by this
        // one: after a server restart the slot may be before the position that the server reported.
        self.transactions.enqueued_before = self.ledger.last_commit().max(self.ledger.confirmed());
        if let Some(account) = &mut self.tracked_rows.account {
            account.connected();
        }
    }

    /// Sets the epoch that the positions of all later events have. It is part of the positions of records
    /// only: the positions that are confirmed are those of the server. Call it before
    /// [`connected`](Self::connected).
    pub fn set_epoch(&mut self, epoch: u8) {
        self.transactions.epoch = epoch;
    }

    /// Sets the system identifier of the cluster whose events are read from now on: their dead letters name it.
    pub fn set_system(&mut self, system: &str) {
        system.clone_into(&mut self.diversions.system);
        if let Some(parking) = &self.diversions.decisions.policy().parking {
            parking.set_cluster(system);
        }
        if let Some(keys) = &self.tracked_rows.keys {
            keys.set_system(system);
        }
    }

    /// Returns an error if the sink's position is beyond the end of the server's WAL, `flushed`. A
    /// server sends only WAL that it has flushed, so the sink got that position from another WAL:
    /// the server was restored, or has lost its end in a failover.
    ///
    /// # Errors
    /// [`CoreError::SinkPosition`].
    pub fn check_sink_position(&self, flushed: Lsn) -> Result<(), CoreError> {
        match self.transactions.durable_before {
            Some(position) if position > flushed => Err(CoreError::SinkPosition {
                position,
                at: flushed,
                cut: false,
            }),
            _ => Ok(()),
        }
    }

    /// Passes facts of the catalogs about the tables to the router. Call it before the first frame
    /// that announces a table.
    pub fn describe(&mut self, tables: Vec<TableFacts>) {
        self.router.describe(tables);
    }

    /// Notes that the connection ended: no more of its frames are passed to the core.
    pub fn disconnected(&mut self) {
        let cut = self
            .transactions
            .open
            .take()
            .filter(|open| open.ignored.is_none());
        if let Some(open) = &cut {
            self.taken_before = self.taken_before.max(Some(open.next_position()));
        }
        self.tracked_rows.disconnected(cut.as_ref());
        self.batch = None;
        self.ledger.abandon();
        self.tables.clear();
        self.router.clear();
    }

    /// Forgets which events of a transaction that was cut this sink has taken: other events may have
    /// their positions now, as after a snapshot that was not finished.
    pub fn forget_taken(&mut self) {
        self.taken_before = None;
    }
}
