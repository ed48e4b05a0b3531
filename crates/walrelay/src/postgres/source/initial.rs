//! [`InitialSnapshot`]: the snapshot before the slot, and the creation of the slot after it.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::info;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{Chain, Looked, Opened};
use walrelay_walsender::{Session, SystemIdentity};

use super::PostgresSource;
use super::inspections::OwnLooks;
use super::opening::Connected;
use super::stream::Stream;
use crate::postgres::bookmarks::copy_slot;
use crate::postgres::catalog::{Facts, Wanted, slot};
use crate::postgres::deadline::bounded;
use crate::postgres::error::PostgresError;
use crate::postgres::setup::unlock_setup;
use crate::postgres::snapshot::{Anchor, Plan};

/// A snapshot that is being read. The permanent slot is created after all rows are acknowledged
/// (docs/adr/0028-a-slot-after-the-snapshot.md).
#[derive(Debug)]
pub(super) struct InitialSnapshot {
    pub(super) anchor: Anchor,
    /// Name of the temporary slot, which keeps the WAL from the snapshot's position on.
    pub(super) temporary: String,
    /// Holds the setup lock, so that only one of several relays reads the snapshot.
    pub(super) control: Session,
    pub(super) system: SystemIdentity,
    pub(super) server_start: String,
}

impl InitialSnapshot {
    /// Opens the stream of the rows, from the first row.
    pub(super) async fn open(&mut self) -> Result<Opened<Stream>, PostgresError> {
        // The server may have ended the session of the snapshot, which this process does not
        // notice.
        let temporary = slot(&mut self.control, &self.temporary);
        if bounded("reading the slot", temporary).await?.is_none() {
            return Err(PostgresError::SnapshotLost);
        }
        let (stream, tables) = self.anchor.open_rows().await?;
        Ok(Opened {
            stream: Stream::Rows(Box::new(stream)),
            system_id: self.system.system_id.clone(),
            timeline: self.system.timeline,
            server_start: self.server_start.clone(),
            ancestors: Vec::new(),
            flushed: self.system.flushed.max(self.anchor.point),
            // No WAL is relayed yet.
            confirmed: CommitEnd::from_slot(Lsn::ZERO),
            // No lease is needed: no other process can read a temporary slot.
            server_timeout: None,
            tables,
            predecessor: None,
        })
    }

    /// Creates the slot at the position where the snapshot ends, unless it exists.
    pub(super) async fn make_slot(&mut self, wanted: &Wanted) -> Result<(), PostgresError> {
        let name = &wanted.slot;
        let found = bounded("reading the slot", slot(&mut self.control, name)).await?;
        if found.is_none() {
            let copy = copy_slot(&self.temporary, name, false);
            self.control.query(&copy).await?;
        }
        // `pg_copy_logical_replication_slot` does not copy the failover property.
        if wanted.failover {
            self.anchor.exporter.set_failover(name).await?;
        }
        Ok(())
    }

    /// Closes the sessions of the snapshot and unlocks the setup.
    pub(super) async fn end(mut self, wanted: &Wanted) -> Result<(), PostgresError> {
        let progress = &self.anchor.plan.progress;
        progress.end();
        let seconds = self.anchor.begun.elapsed().as_secs_f64();
        info!(
            slot = wanted.slot,
            consistent_point = %self.anchor.point,
            rows = progress.of_attempt(),
            seconds,
            "the snapshot is complete: created the slot, which goes on from there"
        );
        self.anchor.exporter.close().await;
        unlock_setup(&mut self.control, &wanted.slot).await?;
        self.control.close().await;
        Ok(())
    }
}

impl PostgresSource {
    /// Exports the snapshot and opens its rows.
    pub(super) async fn begin_snapshot(
        &mut self,
        connected: Connected,
    ) -> Result<Opened<Stream>, PostgresError> {
        let temporary = format!("walrelay_snapshot_{:08x}", fastrand::u32(..));
        info!(
            slot = self.wanted.slot,
            "there is no slot: reading the existing rows first; Postgres waits for open transactions before that"
        );
        let plan = Plan {
            info: self.info.clone(),
            publication: self.wanted.publication.clone(),
            tables: self.wanted.tables.clone(),
            selection: self.wanted.snapshot.clone().unwrap_or_default(),
            progress: Arc::clone(&self.snapshot_progress),
        };
        let anchor = Anchor::with_slot(plan, connected.replication, &temporary).await?;
        let snapshot = self.snapshot.insert(InitialSnapshot {
            anchor,
            temporary,
            control: connected.control,
            system: connected.system,
            server_start: connected.server.start,
        });
        snapshot.open().await
    }

    /// Opens the rows of an unfinished snapshot again, or creates the slot after a finished one.
    /// `None`: the slot is to be opened, or a new snapshot to be exported.
    pub(super) async fn continue_snapshot(
        &mut self,
    ) -> Result<Option<Opened<Stream>>, PostgresError> {
        let Some(snapshot) = &mut self.snapshot else {
            return Ok(None);
        };
        if !self.snapshot_progress.is_acknowledged() {
            // The same snapshot can be read again as long as the server keeps it.
            match snapshot.open().await {
                Ok(opened) => return Ok(Some(opened)),
                Err(error) => {
                    info!(reason = %Chain(&error), "the snapshot cannot be read again: a new one is made");
                    self.snapshot = None;
                    return Ok(None);
                }
            }
        }
        let made = snapshot.make_slot(&self.wanted).await;
        let snapshot = self.snapshot.take();
        made?;
        if let Some(snapshot) = snapshot {
            snapshot.end(&self.wanted).await?;
        }
        Ok(None)
    }
}

/// The answer to a look at the snapshot's temporary slot.
pub(super) fn snapshot_looked(
    asked_at: Instant,
    facts: Result<Facts, PostgresError>,
) -> Result<Looked, PostgresError> {
    match facts {
        Ok(Facts {
            slot: Some(slot), ..
        }) if slot.lost().is_none() => Ok(OwnLooks::ours(asked_at, None)),
        Ok(_) => Err(PostgresError::SnapshotLost),
        Err(error) => Ok(Looked::Failed {
            reason: Chain(&error).to_string(),
        }),
    }
}
