//! Carrying out a [`Plan`]: publication and slot are created, or replaced.

use std::time::Duration;

use tracing::{debug, info, warn};
use walrelay_lsn::Lsn;
use walrelay_walsender::{Error, ErrorClass, Session, SlotOptions, quote_ident, quote_literal};

use super::{Action, Moment, Plan, plan};
use crate::postgres::catalog::{Facts, Wanted, inspect};
use crate::postgres::deadline::{bounded, bounded_by};
use crate::postgres::error::{Gap, PostgresError, SetupError};
use crate::postgres::script;

/// How long another relay may take to set up the same slot: before Postgres creates a slot, it waits for
/// open transactions.
const LOCK_DEADLINE: Duration = Duration::from_secs(30);

/// Locks the setup of this slot until [`unlock_setup`] or the end of the session. Of two relays that start
/// at the same time, one would otherwise find a publication without a slot, which looks like a slot that
/// was dropped.
pub(crate) async fn lock_setup(control: &mut Session, slot: &str) -> Result<(), Error> {
    let sql = format!("SELECT pg_catalog.pg_advisory_lock({})", key(slot));
    control.query(&sql).await.map(drop)
}

pub(crate) async fn unlock_setup(control: &mut Session, slot: &str) -> Result<(), Error> {
    let sql = format!("SELECT pg_catalog.pg_advisory_unlock({})", key(slot));
    control.query(&sql).await.map(drop)
}

fn key(slot: &str) -> String {
    let name = quote_literal(&format!("walrelay slot {slot}"));
    format!("pg_catalog.hashtextextended({name}, 0)")
}

/// What [`prepare`] came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Prepared {
    /// A gap that was accepted.
    pub(crate) gap: Option<Gap>,
    /// There is no slot, and a snapshot is to be read before it is made. The setup is locked still.
    pub(crate) snapshot: bool,
}

/// Plans and carries out the plan.
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
        // Another relay may be about to create the slot.
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
    let mut begins = None;
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
                begins = Some(create_slot(wanted, replication).await?);
            }
            // The last action of its plan. The lock is held until the slot is there.
            Action::Snapshot => {
                return Ok(Prepared {
                    gap,
                    snapshot: true,
                });
            }
            Action::CreateSlot => match create_slot(wanted, replication).await {
                Ok(consistent_point) => begins = Some(consistent_point),
                Err(error) => {
                    if published {
                        drop_publication(wanted, control).await;
                    }
                    return Err(error.into());
                }
            },
        }
    }
    unlock_setup(control, slot).await?;
    let gap = gap.map(|gap| Gap {
        to: begins.or(gap.to),
        ..gap
    });
    if let Some(gap) = gap {
        warn!(
            slot,
            "accepted by --accept-gap: what was committed {gap} is not relayed"
        );
    }
    Ok(Prepared {
        gap,
        snapshot: false,
    })
}

fn log_notes(notes: &[String]) {
    for note in notes {
        warn!("{note}");
    }
}

async fn create_slot(wanted: &Wanted, replication: &mut Session) -> Result<Lsn, Error> {
    let slot = wanted.slot.as_str();
    // This takes as long as the oldest transaction that is open now, so it has no deadline.
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

/// A publication without its slot would look as if somebody had dropped the slot.
async fn drop_publication(wanted: &Wanted, control: &mut Session) {
    let sql = format!("DROP PUBLICATION {}", quote_ident(&wanted.publication));
    if let Err(error) = control.query(&sql).await
        && error.class() != ErrorClass::ServerUnavailable
    {
        debug!(%error, "the publication stays without a slot");
    }
}
