//! [`InitialSnapshot`]: the snapshot before the slot, and the creation of the slot after it.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{Chain, Opened, SentAccount, SentRows, SlotCheck};
use walrelay_walsender::{Session, SystemIdentity};

use super::PostgresSource;
use super::inspections::OwnSlotChecks;
use super::opening::Connected;
use super::stream::Stream;
use crate::bookmarks::copy_slot;
use crate::catalog::{Wanted, slot};
use crate::deadline::bounded;
use crate::error::PostgresError;
use crate::position_note;
use crate::sent_rows::account;
use crate::setup::{unlock_setup, unmark};
use crate::snapshot::{Anchor, Plan, Proof, SnapshotLock, record};

/// `configuration_limit_exceeded`: no slot is free (`ReplicationSlotCreate` in `slot.c`).
const SLOTS_IN_USE: &str = "53400";

/// A snapshot that is being read. The permanent slot is created after all rows are acknowledged
/// (docs/adr/0028-a-slot-after-the-snapshot.md).
#[derive(Debug)]
pub(super) struct InitialSnapshot {
    anchor: Anchor,
    /// The lock by which only one of several relays reads the snapshot.
    lock: SnapshotLock,
    /// The time that a proof that the lock is held is valid: `wal_sender_timeout`, or longer after an
    /// attempt that was too slow for it.
    lease: Duration,
    /// The snapshot cannot be read any more. It still holds the lock, if the session lives: the
    /// records in flight must be given up first.
    over: bool,
    system: SystemIdentity,
    server_start: String,
}

impl InitialSnapshot {
    /// Opens the stream of the rows, from the first row.
    async fn open(
        &mut self,
        slot: &str,
        sent: Option<&SentRows>,
    ) -> Result<Opened<Stream>, PostgresError> {
        // The server may have ended the sessions of the snapshot, which this process does not
        // notice.
        bounded("reading the slot", self.lock.prove()).await?;
        let gap = self.lock.take_longest_gap();
        if gap > self.lease {
            // No other relay read anything meanwhile. With the same lease, a slow process would read the
            // first rows again and again.
            self.lease = self.lease.saturating_mul(2);
            info!(
                unproven_ms = u64::try_from(gap.as_millis()).unwrap_or(u64::MAX),
                lease_s = self.lease.as_secs(),
                "the lock of the snapshot was held, and its proof came too late: doubled its time"
            );
        }
        let (stream, tables) = self.anchor.open_rows().await?;
        if let Some(sent) = sent {
            sent.set_time_zone(stream.time_zone());
        }
        // The lease begins now, and opening may have waited for a lock on the tables.
        bounded("reading the slot", self.lock.prove()).await?;
        Ok(Opened {
            former: None,
            stream: Stream::Rows(Box::new(stream.under(self.lock.watch()))),
            system_id: self.system.system_id.clone(),
            timeline: self.system.timeline,
            slot: Some(slot.to_owned()),
            server_start: self.server_start.clone(),
            ancestors: Vec::new(),
            flushed: self.system.flushed.max(self.anchor.point),
            // No WAL is relayed yet.
            confirmed: CommitEnd::from_slot(Lsn::ZERO),
            server_timeout: Some(self.lease),
            tables,
            predecessor: None,
            epoch: self.anchor.epoch,
        })
    }

    /// Waits for the next proof, which the thread of the lock gives unasked; pending if there is none
    /// any more. Cancel-safe.
    pub(super) async fn slot_checked(&mut self) -> Result<SlotCheck, PostgresError> {
        match self.lock.next_proof().await {
            Proof::Held(asked_at) => Ok(OwnSlotChecks::ours(asked_at, None)),
            Proof::Unanswered(reason) => Ok(SlotCheck::Failed { reason }),
            Proof::Lost => {
                self.over = true;
                Err(PostgresError::SnapshotLost)
            }
        }
    }

    /// Creates the slot at the position where the snapshot ends, unless it exists.
    ///
    /// The rows of the snapshot are all acknowledged: `account` is written first.
    async fn make_slot(
        &mut self,
        wanted: &Wanted,
        account: Option<&SentAccount>,
    ) -> Result<(), PostgresError> {
        let name = &wanted.slot;
        self.lock.prove().await?;
        let mut session = self.lock.session().await;
        let found = bounded("reading the slot", slot(&mut session, name)).await?;
        if found.is_none() {
            if let Some(account) = account
                && account::ensure(&mut session, wanted.create).await?
            {
                let (system, point) = (&self.system.system_id, self.anchor.point);
                let counted = account.take();
                account::replace(&mut session, wanted, system, point, counted.as_ref()).await?;
            }
            self.record(&mut session, name).await;
            let copy = copy_slot(self.lock.temporary(), name, false);
            session.query(&copy).await?;
            position_note::made(&mut session, name).await?;
        }
        unmark(&mut session, wanted).await?;
        // `pg_copy_logical_replication_slot` does not copy the failover property.
        if wanted.failover {
            self.anchor.exporter.set_failover(name).await?;
        }
        Ok(())
    }

    /// Records that the snapshot was read to its end: a slot without that may be another program's.
    async fn record(&self, session: &mut Session, slot: &str) {
        let recorded = record::complete(session, slot, self.anchor.point).await;
        let reason = match recorded {
            Ok(true) => return,
            Ok(false) => "the slot's name is longer than 54 bytes".to_owned(),
            Err(error) => Chain(&error).to_string(),
        };
        warn!(
            slot,
            reason,
            "the end of the snapshot is not recorded in walrelay_state, so later starts warn of rows before the \
             slot: let walrelay init --role create the record, or remove snapshot from [source]"
        );
    }

    /// Closes the sessions of the snapshot and unlocks the setup.
    async fn end(self, wanted: &Wanted) -> Result<(), PostgresError> {
        let progress = &self.anchor.plan.progress;
        let seconds = self.anchor.begun.elapsed().as_secs_f64();
        info!(
            slot = wanted.slot,
            consistent_point = %self.anchor.point,
            rows = progress.rows_in_attempt(),
            seconds,
            "the snapshot is complete: created the slot, which goes on from there"
        );
        self.anchor.exporter.close().await;
        unlock_setup(&mut *self.lock.session().await, &wanted.slot).await?;
        self.lock.close();
        Ok(())
    }
}

impl PostgresSource {
    /// Exports the snapshot and opens its rows.
    pub(super) async fn begin_snapshot(
        &mut self,
        connected: Connected,
    ) -> Result<Opened<Stream>, PostgresError> {
        let Some(thread) = self.lock_thread.take() else {
            // The slot vanished between two looks at the catalogs: begin with the second one.
            return Err(PostgresError::SetupBusy(self.wanted.slot.clone()));
        };
        let temporary = format!("walrelay_snapshot_{:08x}", fastrand::u32(..));
        info!(
            slot = self.wanted.slot,
            "there is no slot: reading the existing rows first; Postgres waits for open transactions before that"
        );
        if let Some(account) = &self.account {
            account.begin_snapshot();
        }
        let plan = Plan {
            info: self.info.clone(),
            slot: self.wanted.slot.clone(),
            publication: self.wanted.publication.clone(),
            tables: self.wanted.tables.clone(),
            selection: self.wanted.snapshot.clone().unwrap_or_default(),
            progress: Arc::clone(&self.findings.snapshot),
        };
        let in_recovery = connected.facts.server.in_recovery;
        let anchor = Anchor::with_slot(plan, connected.replication, &temporary);
        let named = self
            .findings
            .slot_wait
            .name_while(&self.info, in_recovery, anchor);
        let mut anchor = named.await?;
        anchor.epoch = connected.epoch;
        let lease = self.wal_sender_timeout;
        let snapshot = self.snapshot.insert(InitialSnapshot {
            anchor,
            lock: SnapshotLock::new(thread, connected.control, temporary, lease),
            lease,
            over: false,
            system: connected.system,
            server_start: connected.facts.server.start,
        });
        snapshot
            .open(&self.wanted.slot, self.sent_rows.as_deref())
            .await
    }

    /// Opens the rows of an unfinished snapshot again, or creates the slot after a finished one.
    /// `None`: the slot is to be opened, or a new snapshot to be exported.
    ///
    /// # Errors
    /// [`PostgresError::SnapshotLost`] once if the snapshot cannot be read again: the caller gives up
    /// the records in flight before the lock is released.
    pub(super) async fn continue_snapshot(
        &mut self,
    ) -> Result<Option<Opened<Stream>>, PostgresError> {
        let Some(snapshot) = &mut self.snapshot else {
            return Ok(None);
        };
        if snapshot.over {
            self.snapshot = None;
            self.findings.snapshot.end();
            return Ok(None);
        }
        if !self.findings.snapshot.is_acknowledged() {
            // The same snapshot can be read again as long as the server keeps it.
            return match snapshot
                .open(&self.wanted.slot, self.sent_rows.as_deref())
                .await
            {
                Ok(opened) => Ok(Some(opened)),
                Err(error) => {
                    info!(reason = %Chain(&error), "the snapshot cannot be read again: a new one is made");
                    snapshot.over = true;
                    Err(PostgresError::SnapshotLost)
                }
            };
        }
        let made = snapshot
            .make_slot(&self.wanted, self.account.as_deref())
            .await;
        // The rows need not be read again for a slot that another one leaves free.
        if let Err(PostgresError::Wal(error)) = &made
            && error.sqlstate() == Some(SLOTS_IN_USE)
        {
            return made.map(|()| None);
        }
        let snapshot = self.snapshot.take();
        self.findings.snapshot.end();
        made?;
        if let Some(snapshot) = snapshot {
            snapshot.end(&self.wanted).await?;
        }
        Ok(None)
    }
}
