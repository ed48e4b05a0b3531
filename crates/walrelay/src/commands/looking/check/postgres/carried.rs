//! The check of what the slot carries: only such rows are marked or deleted.

use walrelay_postgres_source::{CarriedError, NotCarried};
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session};

use super::DatabaseState;
use crate::commands::assembly::{carrier, not_carried_remedy};
use crate::commands::looking::check::item::Check;

/// Checks each table, if rows are marked or deleted and there is a slot.
pub(super) async fn carried(
    session: &mut Session,
    db: &DatabaseState<'_>,
) -> Result<Vec<Check>, Error> {
    let mut checks = Vec::new();
    let Some(slot) = db.facts.slot.as_ref().filter(|_| db.wanted.record) else {
        return Ok(checks);
    };
    let others = db.config.prune.as_ref().map(|prune| &*prune.slots);
    let carrier = carrier(db.config, others.unwrap_or_default());
    for table in &db.wanted.tables {
        // What is found is not recorded.
        session.query("BEGIN").await?;
        let found = carrier.carried(session, table).await;
        session.query("ROLLBACK").await?;
        checks.push(match found {
            Ok(_) => passes(table),
            // A relay notes the position when it reads the slot.
            Err(CarriedError::Not(NotCarried::Unnoted(_))) if slot.active_pid.is_none() => {
                passes(table)
            }
            Err(CarriedError::Not(why)) => {
                let remedy = not_carried_remedy(&why);
                Check::warn(
                    format!(
                        "no row of {table} is deleted, and of those that a running relay did not send none is marked: \
                         {why}"
                    ),
                    remedy,
                )
            }
            Err(CarriedError::Sql(error)) => return Err(error),
        });
    }
    Ok(checks)
}

fn passes(table: &TableName) -> Check {
    Check::pass(format!(
        "rows of {table} are marked and deleted once they are sent"
    ))
}
