//! The snapshot before the slot: what keeps it, and how the slot comes to be.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::info;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{Chain, Looked, Opened};
use walrelay_walsender::{Session, SystemIdentity};

use super::PostgresSource;
use super::inspections::OwnLooks;
use super::stream::Stream;
use crate::postgres::bookmarks::copy_slot;
use crate::postgres::catalog::{Facts, ServerFacts, Wanted, slot};
use crate::postgres::deadline::bounded;
use crate::postgres::error::PostgresError;
use crate::postgres::setup::unlock_setup;
use crate::postgres::snapshot::{Anchor, Plan};

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
            let copy = copy_slot(&self.temporary, name, false);
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

impl PostgresSource {
    /// Makes the snapshot, and opens its rows.
    pub(super) async fn begin_snapshot(
        &mut self,
        control: Session,
        replication: Session,
        server: ServerFacts,
        system: SystemIdentity,
    ) -> Result<Opened<Stream>, PostgresError> {
        let temporary = format!("walrelay_snapshot_{:08x}", fastrand::u32(..));
        info!(
            slot = self.wanted.slot,
            "there is no slot: reading the rows that are there first. Postgres waits for open transactions before"
        );
        let plan = Plan {
            info: self.info.clone(),
            publication: self.wanted.publication.clone(),
            tables: self.wanted.tables.clone(),
            selection: self.wanted.snapshot.clone().unwrap_or_default(),
            progress: Arc::clone(&self.snapshot_progress),
        };
        let anchor = Anchor::with_slot(plan, replication, &temporary).await?;
        let snapshot = self.snapshot.insert(InitialSnapshot {
            anchor,
            temporary,
            control,
            system,
            server_start: server.start,
        });
        snapshot.open().await
    }

    /// What a snapshot leaves to do. `None`: there is none, or its rows are read, or it is lost.
    pub(super) async fn continue_snapshot(
        &mut self,
    ) -> Result<Option<Opened<Stream>>, PostgresError> {
        let Some(snapshot) = &mut self.snapshot else {
            return Ok(None);
        };
        if !self.snapshot_progress.is_acknowledged() {
            // The rows can be read again, from the same moment, as long as the server keeps it.
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

/// A look at the temporary slot of the snapshot.
pub(super) fn looked_at_snapshot(
    asked_at: Instant,
    facts: Result<Facts, PostgresError>,
) -> Result<Looked, PostgresError> {
    match facts {
        Ok(Facts {
            slot: Some(slot), ..
        }) if slot.lost().is_none() => Ok(OwnLooks::answered(asked_at)),
        Ok(_) => Err(PostgresError::SnapshotLost),
        Err(error) => Ok(Looked::Failed {
            reason: Chain(&error).to_string(),
        }),
    }
}
