//! Carries out a [`Plan`]: creates or replaces publication and slot.

use std::time::Duration;

use tracing::{debug, info, warn};
use walrelay_lsn::Lsn;
use walrelay_walsender::{Error, ErrorClass, Session, SlotOptions, quote_ident, quote_literal};

use super::{Action, Moment, Plan, plan};
use crate::postgres::catalog::{Facts, Wanted, inspect};
use crate::postgres::deadline::{bounded, bounded_by};
use crate::postgres::error::{Gap, PostgresError, SetupError};
use crate::postgres::script;

/// How long another relay may take to set up the same slot. Postgres waits for open transactions
/// before it creates a slot.
const LOCK_DEADLINE: Duration = Duration::from_secs(30);

/// Locks the setup of this slot until [`unlock_setup`] or the end of the session. Without the lock,
/// of two relays that start at the same time one could find the publication without the slot, and
/// take the slot for dropped.
pub(crate) async fn lock_setup(control: &mut Session, slot: &str) -> Result<(), Error> {
    let sql = format!("SELECT pg_catalog.pg_advisory_lock({})", lock_key(slot));
    control.query(&sql).await.map(drop)
}

pub(crate) async fn unlock_setup(control: &mut Session, slot: &str) -> Result<(), Error> {
    let sql = format!("SELECT pg_catalog.pg_advisory_unlock({})", lock_key(slot));
    control.query(&sql).await.map(drop)
}

fn lock_key(slot: &str) -> String {
    let name = quote_literal(&format!("walrelay slot {slot}"));
    format!("pg_catalog.hashtextextended({name}, 0)")
}

/// The result of [`prepare`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Prepared {
    /// The gap that was accepted.
    pub(crate) gap: Option<Gap>,
    /// A snapshot is to be read before the slot is created. The setup is still locked.
    pub(crate) snapshot: bool,
}

/// Plans the setup, and carries out the plan under the setup lock.
pub(crate) async fn prepare(
    wanted: &Wanted,
    moment: Moment,
    facts: &Facts,
    control: &mut Session,
    replication: &mut Session,
) -> Result<Prepared, PostgresError> {
    match plan(wanted, facts, moment) {
        Ok(plan) if plan.actions.is_empty() => {
            log_notes(&plan.notes);
            return Ok(Prepared::default());
        }
        // Another relay may be about to create the slot: plan again under the lock.
        Ok(_) | Err(SetupError::SlotMissing { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let slot = wanted.slot.as_str();
    let doing = "waiting for another relay that sets up the slot";
    bounded_by(LOCK_DEADLINE, doing, lock_setup(control, slot)).await?;
    let facts = bounded("reading the catalogs", inspect(control, wanted)).await?;
    let Plan {
        actions,
        notes,
        gap,
    } = plan(wanted, &facts, moment)?;
    log_notes(&notes);
    let snapshot = actions.contains(&Action::Snapshot);
    let slot_start = carry_out(actions, wanted, control, replication).await?;
    if snapshot {
        // The lock is held until the slot exists.
        return Ok(Prepared { gap, snapshot });
    }
    unlock_setup(control, slot).await?;
    let gap = gap.map(|gap| Gap {
        to: slot_start.or(gap.to),
        ..gap
    });
    if let Some(gap) = gap {
        warn!(
            slot,
            "accepted by --accept-gap: what was committed {gap} is not relayed"
        );
    }
    Ok(Prepared { gap, snapshot })
}

/// Carries out the actions. Returns the start of the new slot, if one was created.
async fn carry_out(
    actions: Vec<Action>,
    wanted: &Wanted,
    control: &mut Session,
    replication: &mut Session,
) -> Result<Option<Lsn>, PostgresError> {
    let slot = wanted.slot.as_str();
    let mut slot_start = None;
    let mut published = false;
    for action in actions {
        match action {
            Action::CreatePublication => {
                let sql = script::create_publication(&wanted.publication, &wanted.tables);
                control.query(&sql).await?;
                published = true;
                info!(
                    publication = wanted.publication,
                    "created the publication: inserts of the outbox tables only"
                );
            }
            Action::RecreateSlot => {
                control.query(&script::drop_slot(slot)).await?;
                warn!(slot, "dropped the slot, which was lost");
                slot_start = Some(create_slot(wanted, replication).await?);
            }
            // The caller reads the snapshot.
            Action::Snapshot => {}
            Action::CreateSlot => match create_slot(wanted, replication).await {
                Ok(consistent_point) => slot_start = Some(consistent_point),
                Err(error) => {
                    if published {
                        drop_publication(wanted, control).await;
                    }
                    return Err(error.into());
                }
            },
        }
    }
    Ok(slot_start)
}

fn log_notes(notes: &[String]) {
    for note in notes {
        warn!("{note}");
    }
}

async fn create_slot(wanted: &Wanted, replication: &mut Session) -> Result<Lsn, Error> {
    let slot = wanted.slot.as_str();
    // Postgres waits for all transactions that are open now, so there is no deadline.
    info!(
        slot,
        "creating the slot: Postgres waits for open transactions first"
    );
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

/// Drops the publication again. A publication without its slot would look as if the slot had been
/// dropped.
async fn drop_publication(wanted: &Wanted, control: &mut Session) {
    let sql = format!("DROP PUBLICATION {}", quote_ident(&wanted.publication));
    if let Err(error) = control.query(&sql).await
        && error.class() != ErrorClass::ServerUnavailable
    {
        debug!(%error, "the publication stays without a slot");
    }
}
