//! `walrelay cutover plan`: shows the present state, the steps, and the obstacles.

use std::fmt;

use serde::Serialize;
use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::{Moment, inspect, plan as plan_setup};
use walrelay_walsender::{Session, quote_literal};

use super::{check_snapshot_mode, marking};
use crate::cli::PlanCutoverArgs;
use crate::commands::assembly::server::{Server, failure};
use crate::commands::assembly::{block_on, wanted};
use crate::commands::print_as;

pub(super) fn plan(args: &PlanCutoverArgs, server: &Server) -> Result<(), Failure> {
    let (state, obstacles) = block_on(Box::pin(read_state(server)))??;
    print_as(args.output, &state, &state)?;
    obstacles.into_iter().next().map_or(Ok(()), Err)
}

/// The present state, and what is in the way.
#[derive(Debug, Serialize)]
struct PresentState {
    tables: Vec<String>,
    /// Rows that are not marked as sent; `None` if they cannot be counted.
    unmarked_rows: Option<u64>,
    /// The condition or the columns by which they are known.
    unmarked_by: String,
    /// `[source] mark_sent`.
    mark_sent: Option<String>,
    slot: String,
    slot_exists: bool,
    /// Sessions that hold a lock of the outbox.
    lockers: Vec<String>,
    obstacles: Vec<Obstacle>,
}

#[derive(Debug, Serialize)]
struct Obstacle {
    id: &'static str,
    what: String,
    remedy: Option<String>,
}

/// Reads the present state, and the obstacles as failures.
async fn read_state(server: &Server) -> Result<(PresentState, Vec<Failure>), Failure> {
    let config = &server.config;
    let source = &config.source;
    let mut session = server.connect().await?;
    let mut obstacles = Vec::new();
    let facts = inspect(&mut session, &wanted(config)).await?;
    if let Err(error) = plan_setup(&wanted(config), &facts, Moment::Print) {
        obstacles.push(failure(error));
    }
    obstacles.extend(check_snapshot_mode(config).err());
    let unmarked_rows = match marking(config).unmarked(&mut session).await {
        Ok(rows) => Some(rows),
        Err(error) => {
            obstacles.push(error.into());
            None
        }
    };
    let slot_exists = server.find_slot(&mut session).await?.is_some();
    if slot_exists {
        obstacles.push(slot_exists_already(&source.slot));
    }
    let lockers = lockers(&mut session, server).await?;
    session.close().await;
    let by = source.snapshot_where.as_deref();
    let state = PresentState {
        tables: source.tables.iter().map(ToString::to_string).collect(),
        unmarked_rows,
        unmarked_by: by.unwrap_or("dispatched_at or sent_at").to_owned(),
        mark_sent: source.mark_sent.clone(),
        slot: source.slot.clone(),
        slot_exists,
        lockers,
        obstacles: obstacles
            .iter()
            .map(|of| Obstacle {
                id: of.id,
                what: of.what.clone(),
                remedy: of.remedy.clone(),
            })
            .collect(),
    };
    Ok((state, obstacles))
}

impl fmt::Display for PresentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Outbox         {}", self.tables.join(", "))?;
        if let Some(rows) = self.unmarked_rows {
            writeln!(f, "Not sent       {rows} rows now, by {}", self.unmarked_by)?;
        }
        if let Some(set) = &self.mark_sent {
            writeln!(f, "Marked sent    SET {set}, by the running relay")?;
        } else {
            let what = "not by walrelay: rollback needs [source] mark_sent";
            writeln!(f, "Marked sent    {what}")?;
        }
        let slot = if self.slot_exists {
            "which exists already"
        } else {
            "which switch makes"
        };
        writeln!(f, "Slot           {}, {slot}", self.slot)?;
        let lockers = if self.lockers.is_empty() {
            "none".to_owned()
        } else {
            self.lockers.join("; ")
        };
        let what = "Sessions that wrote or locked the outbox just now";
        writeln!(f, "{what}: {lockers}")?;
        writeln!(f, "{STEPS}")?;
        for obstacle in &self.obstacles {
            writeln!(f, "In the way: {} [{}]", obstacle.what, obstacle.id)?;
        }
        if self.obstacles.is_empty() {
            writeln!(f, "Nothing is in the way.")?;
        }
        Ok(())
    }
}

const STEPS: &str = "
1. shadow    publishes to shadow topics alongside the polling relay and compares. Reads a temporary slot.
             Costs: the log is decoded once more; shadow topics are written.
2. switch    stops the polling relay, waits for its locks, publishes the rows that it has not marked, makes the slot.
             Events that it published and did not mark are repeated. Until `walrelay run` is started, events wait.
3. run       relays from there on. With mark_sent it marks rows behind the confirmed position.
4. verify    looks for each row of the outbox in its topic.
   rollback  stops the relay, marks what it published, drops the slot: the polling relay goes on.
             Events that were in flight are repeated.";

/// Returns the failure that the slot exists before the switch.
pub(super) fn slot_exists_already(slot: &str) -> Failure {
    let what = format!("slot {slot} exists: a relay was set up with it already");
    Failure::new("cutover-slot", Exit::Config, what).remedy(
        "if a relay uses it, the cutover was made: go on with walrelay cutover verify. Otherwise drop it: walrelay \
         slots drop",
    )
}

/// Returns SQL for the transactions of other sessions that hold a lock on an outbox table which
/// writes or locks rows.
pub(super) fn lockers_sql(server: &Server) -> String {
    let tables = server.config.source.tables.iter();
    let tables = tables.map(|table| {
        let (schema, name) = (quote_literal(&table.schema), quote_literal(&table.name));
        format!("({schema}, {name})")
    });
    let tables: Vec<String> = tables.collect();
    format!(
        "SELECT DISTINCT format('pid %s %s of %s, %s for %s s', a.pid, coalesce(nullif(a.application_name, ''), '-'), \
         a.usename, a.state, coalesce(extract(epoch FROM now() - a.xact_start)::int, 0)) AS who, l.virtualtransaction \
         FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_class c ON c.oid = l.relation \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid \
         WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_catalog.pg_backend_pid() \
         AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()) \
         AND l.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', \
         'AccessExclusiveLock') AND coalesce(a.backend_type, '') <> 'autovacuum worker' \
         AND (n.nspname, c.relname) IN ({})",
        tables.join(", ")
    )
}

async fn lockers(session: &mut Session, server: &Server) -> Result<Vec<String>, Failure> {
    let rows = session.query(&lockers_sql(server)).await?;
    let who = rows.iter().filter_map(|row| row.get(0).map(str::to_owned));
    Ok(who.collect())
}
