//! Carrying out a [`Plan`]: publication and slot are made, or made anew.

use std::time::Duration;

use tracing::{debug, info, warn};
use walrelay_lsn::Lsn;
use walrelay_walsender::{Error, ErrorClass, Session, SlotOptions, quote_ident, quote_literal};

use super::source::bounded;
use super::{
    Action, Facts, Gap, Moment, Plan, PostgresError, SetupError, Wanted, inspect, plan, script,
};

/// How long another one may take to set up the same slot. Postgres waits for open transactions
/// before it makes one.
const TURN_PATIENCE: Duration = Duration::from_secs(30);

/// Waits until nobody else sets up this slot. Two relays that start at the same time would
/// otherwise find a publication without a slot, which looks like a slot that was dropped.
pub async fn turn(control: &mut Session, slot: &str) -> Result<(), Error> {
    let sql = format!("SELECT pg_catalog.pg_advisory_lock({})", key(slot));
    control.query(&sql).await.map(drop)
}

/// Lets the next one. The end of the session does so too.
pub async fn turn_over(control: &mut Session, slot: &str) -> Result<(), Error> {
    let sql = format!("SELECT pg_catalog.pg_advisory_unlock({})", key(slot));
    control.query(&sql).await.map(drop)
}

fn key(slot: &str) -> String {
    let name = quote_literal(&format!("walrelay slot {slot}"));
    format!("pg_catalog.hashtextextended({name}, 0)")
}

/// Plans and does what the plan says. `Some`: a gap that was accepted.
pub(super) async fn prepare(
    wanted: &Wanted,
    moment: Moment,
    facts: &Facts,
    control: &mut Session,
    replication: &mut Session,
) -> Result<Option<Gap>, PostgresError> {
    match plan(wanted, facts, moment) {
        Ok(plan) if plan.actions.is_empty() => {
            say(&plan.notes);
            return Ok(None);
        }
        // Another relay may be about to make it.
        Ok(_) | Err(SetupError::SlotMissing { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let slot = wanted.slot.as_str();
    let waited = tokio::time::timeout(TURN_PATIENCE, turn(control, slot)).await;
    waited.map_err(|_| PostgresError::NoAnswer {
        doing: "waiting for another relay that sets up the slot",
        after: TURN_PATIENCE,
    })??;
    let facts = bounded("reading the catalogs", inspect(control, wanted)).await?;
    let Plan {
        actions,
        notes,
        gap,
    } = plan(wanted, &facts, moment)?;
    say(&notes);
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
            Action::CreateSlot => match create_slot(wanted, replication).await {
                Ok(consistent_point) => begins = Some(consistent_point),
                Err(error) => {
                    if published {
                        take_back(wanted, control).await;
                    }
                    return Err(error.into());
                }
            },
        }
    }
    turn_over(control, slot).await?;
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
    Ok(gap)
}

fn say(notes: &[String]) {
    for note in notes {
        warn!("{note}");
    }
}

async fn create_slot(wanted: &Wanted, replication: &mut Session) -> Result<Lsn, Error> {
    let slot = wanted.slot.as_str();
    // Takes as long as the oldest transaction that is open now, so without limit.
    info!(
        slot,
        "creating the slot: Postgres waits for open transactions first"
    );
    let options = SlotOptions {
        failover: wanted.failover,
        temporary: false,
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
async fn take_back(wanted: &Wanted, control: &mut Session) {
    let sql = format!("DROP PUBLICATION {}", quote_ident(&wanted.publication));
    if let Err(error) = control.query(&sql).await
        && error.class() != ErrorClass::ServerUnavailable
    {
        debug!(%error, "the publication stays without a slot");
    }
}
