//! The snapshot before the slot: what keeps it, and how the slot comes to be.

use tracing::info;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::Opened;
use walrelay_walsender::{Session, SystemIdentity};

use super::stream::Stream;
use crate::postgres::catalog::{Wanted, slot};
use crate::postgres::deadline::bounded;
use crate::postgres::error::PostgresError;
use crate::postgres::script;
use crate::postgres::setup::unlock_setup;
use crate::postgres::snapshot::Anchor;

/// A snapshot that is being read. The permanent slot does not exist before all of it is acknowledged
/// (docs/adr/0028-a-slot-after-the-snapshot.md).
#[derive(Debug)]
pub(super) struct InitialSnapshot {
    pub(super) anchor: Anchor,
    /// The temporary slot, which keeps the log from the snapshot's position on.
    pub(super) temporary: String,
    /// Holds the lock of the setup: of two relays, one reads the snapshot.
    pub(super) control: Session,
    pub(super) system: SystemIdentity,
    pub(super) server_start: String,
}

impl InitialSnapshot {
    /// The rows, from the first.
    pub(super) async fn open(&mut self) -> Result<Opened<Stream>, PostgresError> {
        // The server may have lost the sessions that this process still holds.
        let temporary = slot(&mut self.control, &self.temporary);
        if bounded("reading the slot", temporary).await?.is_none() {
            return Err(PostgresError::SnapshotLost);
        }
        let opened = self.anchor.read().await?;
        Ok(Opened {
            stream: Stream::Rows(Box::new(opened.stream)),
            system_id: self.system.system_id.clone(),
            timeline: self.system.timeline,
            server_start: self.server_start.clone(),
            ancestors: Vec::new(),
            flushed: self.system.flushed.max(self.anchor.point()),
            // Nothing of the log is relayed yet, whatever was sent of the snapshot.
            confirmed: CommitEnd::from_slot(Lsn::ZERO),
            // Nothing else can read a temporary slot.
            server_timeout: None,
            tables: opened.tables,
            predecessor: None,
        })
    }

    /// Makes the slot, which begins where the snapshot ends. May be called again if it was dropped in between.
    pub(super) async fn make_slot(&mut self, wanted: &Wanted) -> Result<(), PostgresError> {
        let name = &wanted.slot;
        let found = bounded("reading the slot", slot(&mut self.control, name)).await?;
        if found.is_none() {
            let copy = script::copy_slot(&self.temporary, name);
            self.control.query(&copy).await?;
        }
        // A copy is no failover slot.
        if wanted.failover {
            self.anchor.exporter().set_failover(name).await?;
        }
        Ok(())
    }

    /// Ends what the snapshot needed.
    pub(super) async fn end(mut self, wanted: &Wanted) -> Result<(), PostgresError> {
        let progress = self.anchor.progress();
        progress.end();
        let seconds = self.anchor.age().as_secs_f64();
        info!(
            slot = wanted.slot,
            consistent_point = %self.anchor.point(),
            rows = progress.of_attempt(),
            seconds,
            "the snapshot is complete: created the slot, which goes on from there"
        );
        self.anchor.into_session().close().await;
        unlock_setup(&mut self.control, &wanted.slot).await?;
        self.control.close().await;
        Ok(())
    }
}
