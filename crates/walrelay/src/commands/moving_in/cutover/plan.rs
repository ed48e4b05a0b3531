//! `walrelay cutover plan`: shows the present state, the steps, and the obstacles.

use walrelay_postgres_source::{Moment, inspect, plan as plan_setup};
use walrelay_walsender::{Session, quote_literal};

use super::{check_snapshot_mode, marking};
use crate::cli::{Exit, Failure};
use crate::commands::assembly::server::{Server, failure};
use crate::commands::assembly::{block_on, wanted};
use crate::commands::print_text;

pub(super) fn plan(server: &Server) -> Result<(), Failure> {
    let (text, obstacles) = block_on(Box::pin(describe(server)))??;
    print_text(&text)?;
    let Some(first) = obstacles.into_iter().next() else {
        return print_text("Nothing is in the way.\n");
    };
    Err(first)
}

/// The text to print, and the obstacles.
async fn describe(server: &Server) -> Result<(String, Vec<Failure>), Failure> {
    let config = &server.config;
    let source = &config.source;
    let mut session = server.connect().await?;
    let mut obstacles = Vec::new();
    let facts = inspect(&mut session, &wanted(config)).await?;
    if let Err(error) = plan_setup(&wanted(config), &facts, Moment::Print) {
        obstacles.push(failure(error));
    }
    obstacles.extend(check_snapshot_mode(config).err());
    let names: Vec<String> = source.tables.iter().map(ToString::to_string).collect();
    let mut lines = vec![format!("Outbox         {}", names.join(", "))];
    let marking = marking(config);
    match marking.unmarked(&mut session).await {
        Ok(rows) => lines.push(format!(
            "Not sent       {rows} rows now, by {}",
            source
                .snapshot_where
                .as_deref()
                .unwrap_or("dispatched_at or sent_at")
        )),
        Err(error) => obstacles.push(error.into()),
    }
    lines.push(format!(
        "Marked sent    {}",
        match &source.mark_sent {
            Some(set) => format!("SET {set}, by the running relay"),
            None => "not by walrelay: rollback needs [source] mark_sent".to_owned(),
        }
    ));
    let slot = server.find_slot(&mut session).await?;
    lines.push(format!(
        "Slot           {}, {}",
        source.slot,
        if slot.is_some() {
            "which exists already"
        } else {
            "which switch makes"
        }
    ));
    if slot.is_some() {
        obstacles.push(slot_exists(&source.slot));
    }
    let lockers = lockers(&mut session, server).await?;
    lines.push(format!(
        "Sessions that wrote or locked the outbox just now: {}",
        if lockers.is_empty() {
            "none".to_owned()
        } else {
            lockers.join("; ")
        }
    ));
    session.close().await;
    lines.push(STEPS.to_owned());
    for obstacle in &obstacles {
        lines.push(format!("In the way: {} [{}]", obstacle.what, obstacle.id));
    }
    Ok((lines.join("\n") + "\n", obstacles))
}

const STEPS: &str = "
1. shadow    publishes to shadow topics beside the polling relay and compares. Reads a temporary slot.
             Costs: the log is decoded once more; shadow topics are written.
2. switch    stops the polling relay, waits for its locks, publishes the rows that it has not marked, makes the slot.
             Events that it published and did not mark are repeated. Until `walrelay run` is started, events wait.
3. run       relays from there on. With mark_sent it marks rows behind the confirmed position.
4. verify    looks for each row of the outbox in Kafka.
   rollback  stops the relay, marks what it published, drops the slot: the polling relay goes on.
             Events that were in flight are repeated.";

/// The failure that the slot exists before the switch.
pub(super) fn slot_exists(slot: &str) -> Failure {
    let what = format!("slot {slot} exists: a relay was set up with it already");
    Failure::new("cutover-slot", Exit::Config, what).remedy(
        "if a relay uses it, the cutover was made: go on with walrelay cutover verify. Otherwise drop it: walrelay \
         slots drop",
    )
}

/// SQL for the transactions of other sessions that hold a lock on an outbox table which writes or
/// locks rows.
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
