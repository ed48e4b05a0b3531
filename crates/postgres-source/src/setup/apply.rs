//! Carries out a [`Plan`]: creates or replaces publication and slot.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use walrelay_lsn::Lsn;
use walrelay_walsender::{
    ConnInfo, Error, ErrorClass, Session, SlotOptions, quote_ident, quote_literal,
};

use super::waited::{ON_STANDBY, SlotWait};
use super::{Action, Moment, Plan, plan};
use crate::catalog::row::is_true;
use crate::catalog::{Facts, Wanted, inspect, slot};
use crate::deadline::{bounded, bounded_by};
use crate::epoch::raise_for_new_slot;
use crate::error::{Gap, PostgresError, SetupError, SlotSetupError};
use crate::position_note;
use crate::script;
use crate::sent_rows::account;
use crate::snapshot::record as snapshot_record;

/// The time that a session tries to lock the setup of a slot, before a new one does. Another relay
/// may take long: Postgres waits for open transactions before it creates a slot, and a snapshot is
/// read under the lock.
const LOCK_DEADLINE: Duration = Duration::from_secs(30);
/// Interval of the tries to lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(200);
/// The time that the undoing of an unfinished setup may take. A stop waits for it.
pub(crate) const UNDO_DEADLINE: Duration = Duration::from_secs(5);
/// Interval of the queries for a slot whose creation was ended.
const UNDO_INTERVAL: Duration = Duration::from_millis(20);

/// Locks the setup of this slot until `unlock_setup` or the end of the session. Without the lock,
/// of two relays that start at the same time one could find the publication without the slot, and
/// take the slot for dropped.
///
/// The lock is tried again and again: a server process that waits for a lock does not notice that
/// its client is gone, and would be left behind by each attempt.
pub async fn lock_setup(control: &mut Session, slot: &str) -> Result<(), Error> {
    let sql = format!(
        "SELECT pg_catalog.pg_try_advisory_lock({}) AS locked",
        lock_key(slot)
    );
    loop {
        let rows = control.query(&sql).await?;
        if rows.first().is_some_and(|row| is_true(&row, "locked")) {
            return Ok(());
        }
        sleep(LOCK_INTERVAL).await;
    }
}

pub(crate) async fn unlock_setup(control: &mut Session, slot: &str) -> Result<(), Error> {
    let sql = format!("SELECT pg_catalog.pg_advisory_unlock({})", lock_key(slot));
    control.query(&sql).await.map(drop)
}

fn lock_key(slot: &str) -> String {
    let name = quote_literal(&format!("walrelay slot {slot}"));
    format!("pg_catalog.hashtextextended({name}, 0)")
}

/// The result of [`Setup::prepare`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Prepared {
    /// The gap that was accepted.
    pub gap: Option<Gap>,
    /// A snapshot is to be read before the slot is created. The setup is still locked.
    pub snapshot: bool,
}

/// The part of a setup that was started and not completed: a publication without its slot would look
/// as if the slot had been dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unfinished {
    /// The publication was created, and its slot was not.
    publication: bool,
    /// PID of the walsender that creates the slot.
    walsender: Option<i32>,
}

/// A setup that is being carried out. It outlives a future that is dropped by a stop, so that it can
/// be undone.
#[derive(Debug)]
pub(crate) struct Setup {
    /// Holds the setup lock.
    pub control: Session,
    pub unfinished: Unfinished,
    /// The server, and where it is told what the creation of the slot waits for.
    waits: (ConnInfo, Arc<SlotWait>),
}

impl Unfinished {
    pub(crate) fn is_nothing(self) -> bool {
        self == Self::default()
    }

    /// Ends the creation of the slot and drops the publication again, unless the slot exists by now.
    /// `control` holds the setup lock.
    pub(crate) async fn undo(
        self,
        wanted: &Wanted,
        control: &mut Session,
    ) -> Result<(), PostgresError> {
        if self.is_nothing() {
            return Ok(());
        }
        let undone = self.undo_without_limit(wanted, control);
        bounded_by(UNDO_DEADLINE, "undoing an unfinished setup", undone).await
    }

    async fn undo_without_limit(self, wanted: &Wanted, control: &mut Session) -> Result<(), Error> {
        let name = &wanted.slot;
        // The transaction of CREATE PUBLICATION may be open.
        control.query("ROLLBACK").await?;
        if let Some(walsender) = self.walsender {
            // The walsender waits for transactions, and does not notice that its client is gone. The
            // server drops a slot that is not complete before the process is gone.
            let end = format!(
                "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity \
                 WHERE pid = {walsender} AND query LIKE 'CREATE_REPLICATION_SLOT%'"
            );
            while !control.query(&end).await?.is_empty() {
                sleep(UNDO_INTERVAL).await;
            }
        }
        let found = slot(control, name).await?;
        if self.publication && found.is_none() {
            let publication = &wanted.publication;
            let sql = format!("DROP PUBLICATION IF EXISTS {}", quote_ident(publication));
            control.query(&sql).await?;
            info!(
                publication,
                "dropped the publication again: its slot was not created"
            );
        }
        Ok(())
    }
}

impl Setup {
    pub(crate) fn new(control: Session, info: ConnInfo, waits: Arc<SlotWait>) -> Self {
        Self {
            control,
            unfinished: Unfinished::default(),
            waits: (info, waits),
        }
    }

    /// Plans the setup, and carries out the plan under the setup lock. If that fails, the caller
    /// undoes the unfinished part.
    pub(crate) async fn prepare(
        &mut self,
        wanted: &Wanted,
        moment: Moment,
        facts: &Facts,
        replication: &mut Session,
    ) -> Result<Prepared, PostgresError> {
        match plan(wanted, facts, moment) {
            Ok(plan) if plan.actions.is_empty() => {
                log_notes(&plan.notes);
                return Ok(Prepared::default());
            }
            // Another relay may be about to create the slot: plan again under the lock.
            Ok(_)
            | Err(SetupError::Slot(
                SlotSetupError::Missing { .. } | SlotSetupError::NotSwitched(_),
            )) => {}
            Err(error) => return Err(error.into()),
        }
        let slot = wanted.slot.as_str();
        let control = &mut self.control;
        wait_for_lock(control, slot).await?;
        let facts = bounded("reading the catalogs", inspect(control, wanted)).await?;
        let Plan {
            actions,
            notes,
            gap,
        } = plan(wanted, &facts, moment)?;
        log_notes(&notes);
        let snapshot = actions.contains(&Action::Snapshot);
        let in_recovery = facts.server.in_recovery;
        let slot_start = self
            .carry_out(actions, wanted, moment, in_recovery, replication)
            .await?;
        if snapshot {
            if let Some(gap) = gap {
                warn!(
                    slot,
                    "accepted by --accept-gap: of the changes committed {gap}, the snapshot relays \
                     the existing rows"
                );
            }
            // The lock is held until the slot exists.
            return Ok(Prepared { gap, snapshot });
        }
        unlock_setup(&mut self.control, slot).await?;
        let gap = gap.map(|gap| Gap {
            to: slot_start.or(gap.to),
            ..gap
        });
        if let Some(gap) = gap {
            warn!(
                slot,
                "accepted by --accept-gap: changes committed {gap} are not relayed"
            );
        }
        Ok(Prepared { gap, snapshot })
    }

    /// Carries out the actions. Returns the start of the new slot, if one was created.
    async fn carry_out(
        &mut self,
        actions: Vec<Action>,
        wanted: &Wanted,
        moment: Moment,
        in_recovery: bool,
        replication: &mut Session,
    ) -> Result<Option<Lsn>, PostgresError> {
        let slot = wanted.slot.as_str();
        let mut slot_start = None;
        let snapshot = actions.contains(&Action::Snapshot);
        for action in actions {
            match action {
                Action::CreatePublication => {
                    self.create_publication(wanted).await?;
                    // The next start reads an interrupted snapshot again, from the publication on.
                    self.unfinished.publication &= !snapshot;
                }
                Action::DropSlot => {
                    self.control.query(&script::drop_slot(slot)).await?;
                    warn!(slot, "dropped the slot, which was lost");
                }
                Action::EnableFailover => match replication.set_failover(slot).await {
                    Ok(()) => info!(
                        slot,
                        "made the slot a failover slot: standbys may keep a copy"
                    ),
                    // START_REPLICATION, which is next, reports the slot's reader.
                    Err(error) if error.class() == ErrorClass::SlotInUse => {}
                    Err(error) => return Err(error.into()),
                },
                // The caller reads the snapshot, and creates the slot.
                Action::Snapshot => {
                    raise_for_new_slot(&mut self.control, slot).await?;
                    position_note::forget(&mut self.control, slot).await?;
                    snapshot_record::forget(&mut self.control, slot).await?;
                    account::begin(&mut self.control, wanted).await?;
                }
                Action::FinishSetup => unmark(&mut self.control, wanted).await?,
                Action::CreateSlot => {
                    // A copy that is printed is another slot. A standby cannot be written: a lower epoch fails there.
                    if moment != Moment::Print {
                        raise_for_new_slot(&mut self.control, slot).await?;
                    }
                    if moment != Moment::Print && !in_recovery {
                        position_note::forget(&mut self.control, slot).await?;
                        snapshot_record::forget(&mut self.control, slot).await?;
                        account::begin(&mut self.control, wanted).await?;
                    }
                    slot_start = Some(self.create_slot(wanted, in_recovery, replication).await?);
                    if moment != Moment::Print {
                        position_note::made(&mut self.control, slot).await?;
                    }
                    if moment != Moment::Print && !in_recovery {
                        unmark(&mut self.control, wanted).await?;
                    }
                }
            }
        }
        Ok(slot_start)
    }

    /// Creates the publication, in a transaction: a statement that waits for a lock while this
    /// process ends is rolled back. Marks it until the slot is made.
    async fn create_publication(&mut self, wanted: &Wanted) -> Result<(), Error> {
        let control = &mut self.control;
        let sql = script::create_publication(&wanted.publication, &wanted.tables);
        control.query("BEGIN").await?;
        control.query(&sql).await?;
        let mark = script::mark_publication(&wanted.publication, &wanted.slot);
        control.query(&mark).await?;
        self.unfinished.publication = true;
        control.query("COMMIT").await?;
        info!(
            publication = wanted.publication,
            "created the publication: inserts of the outbox tables only"
        );
        Ok(())
    }

    async fn create_slot(
        &mut self,
        wanted: &Wanted,
        in_recovery: bool,
        replication: &mut Session,
    ) -> Result<Lsn, Error> {
        self.unfinished.walsender = Some(replication.backend_pid());
        let (info, waits) = &self.waits;
        let made = create_slot(wanted, in_recovery, replication);
        let start = waits.name_while(info, in_recovery, made).await?;
        self.unfinished = Unfinished::default();
        Ok(start)
    }
}

/// Locks the setup for this session, for 30 s at most.
///
/// # Errors
/// [`PostgresError::SetupBusy`] if another relay holds the lock for so long.
pub async fn wait_for_lock(control: &mut Session, slot: &str) -> Result<(), PostgresError> {
    match timeout(LOCK_DEADLINE, lock_setup(control, slot)).await {
        Ok(locked) => Ok(locked?),
        Err(_) => Err(PostgresError::SetupBusy(slot.to_owned())),
    }
}

/// Removes the mark of the publication that says that the slot is not made yet, if there is one. Before
/// anything is relayed from the slot.
pub async fn unmark(control: &mut Session, wanted: &Wanted) -> Result<(), Error> {
    let marked = format!(
        "SELECT FROM pg_catalog.pg_publication WHERE pubname = {} AND {}",
        quote_literal(&wanted.publication),
        script::publication_is_marked(&wanted.slot)
    );
    if !control.query(&marked).await?.is_empty() {
        let unmark = script::unmark_publication(&wanted.publication);
        control.query(&unmark).await?;
    }
    Ok(())
}

fn log_notes(notes: &[String]) {
    for note in notes {
        warn!("{note}");
    }
}

async fn create_slot(
    wanted: &Wanted,
    in_recovery: bool,
    replication: &mut Session,
) -> Result<Lsn, Error> {
    let slot = wanted.slot.as_str();
    // Postgres waits for all transactions that are open now, so there is no deadline.
    if in_recovery {
        info!(slot, "creating the slot: {ON_STANDBY}");
    } else {
        info!(
            slot,
            "creating the slot: Postgres waits for open transactions first"
        );
    }
    let options = SlotOptions {
        failover: wanted.failover,
        ..SlotOptions::default()
    };
    let created = replication.create_logical_slot(slot, options).await?;
    info!(
        slot,
        consistent_point = %created.consistent_point,
        "created the slot: rows committed from here on are relayed, earlier ones are not"
    );
    Ok(created.consistent_point)
}
