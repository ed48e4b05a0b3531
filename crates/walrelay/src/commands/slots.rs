//! `walrelay slots`: replication slots are listed, created, dropped and advanced.
//!
//! # Invariants
//! - A slot that is being read is neither dropped nor advanced.
//! - Nothing that loses events is done before somebody has agreed to it.

use std::io::{self, Write};

use serde::Serialize;
use walrelay_lsn::Lsn;
use walrelay_walsender::Session;

use super::confirm::{confirm, go_on};
use super::connect::block_on;
use super::server::{Server, failure};
use super::units::{bytes, columns};
use super::{Ended, Env, output};
use crate::cli::{
    AdvanceSlotArgs, AdvanceTo, AskArgs, CreateSlotArgs, DropSlotArgs, Exit, Failure,
    ListSlotsArgs, Output, SlotsArgs, SlotsCommand, printable,
};
use crate::postgres::{SlotRow, advance_slot as advance_sql, script, slots as read_slots};

/// `walrelay slots`.
pub(crate) fn slots(args: &SlotsArgs, env: Env<'_>) -> Ended {
    let config = match &args.command {
        SlotsCommand::List(args) => &args.config,
        SlotsCommand::Create(args) => &args.change.config,
        SlotsCommand::Drop(args) => &args.ask.change.config,
        SlotsCommand::Advance(args) => &args.ask.change.config,
    };
    let server = Server::of(config, env)?;
    Ok(block_on(Box::pin(async {
        match &args.command {
            SlotsCommand::List(args) => list(args, server).await,
            SlotsCommand::Create(args) => create(args, server).await,
            SlotsCommand::Drop(args) => drop_named(args, server).await,
            SlotsCommand::Advance(args) => advance_named(args, server).await,
        }
    }))??)
}

/// Whether a change is made, and whether somebody is asked before.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) dry_run: bool,
    pub(super) yes: bool,
}

impl From<&AskArgs> for Change {
    fn from(args: &AskArgs) -> Self {
        Self {
            dry_run: args.change.dry_run,
            yes: args.yes,
        }
    }
}

async fn list(args: &ListSlotsArgs, server: Server) -> Result<(), Failure> {
    let mut session = server.connect().await?;
    let slots = read_slots(&mut session).await.map_err(failure)?;
    session.close().await;
    let mut out = Vec::new();
    match args.output {
        Output::Table => table(&slots, &mut out).map_err(output)?,
        Output::Json => slots
            .iter()
            .try_for_each(|slot| line(slot, &mut out))
            .map_err(output)?,
    }
    io::stdout().write_all(&out).map_err(output)
}

async fn create(args: &CreateSlotArgs, server: Server) -> Result<(), Failure> {
    let name = args.name.as_ref().unwrap_or(&server.config.source.slot);
    let mut session = server.connect().await?;
    let slots = read_slots(&mut session).await.map_err(failure)?;
    if slots.iter().any(|slot| slot.name == *name) {
        let what = format!("replication slot {name} exists already");
        return Err(Failure::new("slot-exists", Exit::Usage, what)
            .remedy("choose another name, or drop it: walrelay slots drop"));
    }
    let sql = script::create_slot(name, server.config.source.failover);
    if args.change.dry_run {
        return say(&sql);
    }
    session.query(&sql).await.map_err(failure)?;
    session.close().await;
    say(&format!(
        "created slot {name}: what is committed from now on can be relayed, and the server keeps WAL for it"
    ))
}

async fn drop_named(args: &DropSlotArgs, server: Server) -> Result<(), Failure> {
    let name = &args.name;
    let session = server.connect().await?;
    drop_slot(session, name, name, (&args.ask).into(), |slot| match (
        slot.confirmed,
        slot.retained,
    ) {
        (Some(confirmed), _) => format!(
            "what was committed from {confirmed} on and is not relayed yet is lost to its reader"
        ),
        (None, retained) => format!(
            "{} of WAL that a standby may need are no longer kept",
            bytes(retained.unwrap_or(0))
        ),
    })
    .await
}

/// Drops a slot that nobody reads. `known_as`: what is typed to agree. `lost`: what is lost with it.
pub(super) async fn drop_slot(
    mut session: Session,
    name: &str,
    known_as: &str,
    change: Change,
    lost: impl Fn(&SlotRow) -> String,
) -> Result<(), Failure> {
    let slot = unread(&mut session, name).await?;
    warn(&format!("dropping slot {name}: {}", lost(&slot)));
    let sql = script::drop_slot(name);
    if change.dry_run {
        return say(&sql);
    }
    if !change.yes {
        let question = format!("Type {known_as} to drop it: ");
        confirm(&question, |answer| answer == known_as).map_err(not_agreed)?;
    }
    session.query(&sql).await.map_err(failure)?;
    session.close().await;
    say(&format!("dropped slot {name}"))
}

async fn advance_named(args: &AdvanceSlotArgs, server: Server) -> Result<(), Failure> {
    let passed = "events in them are never relayed";
    let session = server.connect().await?;
    advance_slot(session, &args.name, args.to, (&args.ask).into(), passed).await
}

/// Advances a slot that nobody reads. `passed`: what that means for the events in between.
pub(super) async fn advance_slot(
    mut session: Session,
    name: &str,
    to: AdvanceTo,
    change: Change,
    passed: &str,
) -> Result<(), Failure> {
    let slot = unread(&mut session, name).await?;
    let rows = session
        .query(
            "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() \
              THEN pg_catalog.pg_last_wal_replay_lsn() \
              ELSE pg_catalog.pg_current_wal_flush_lsn() END AS wal_end, \
             current_database() AS database",
        )
        .await
        .map_err(failure)?;
    let row = rows.first();
    let end: Option<Lsn> = row
        .as_ref()
        .and_then(|row| row.get("wal_end")?.parse().ok());
    let database = row.as_ref().and_then(|row| row.get("database"));
    if slot.database.is_some() && slot.database.as_deref() != database {
        let found = slot.database.as_deref().unwrap_or_default();
        return Err(Failure::new(
            "slot-database",
            Exit::Config,
            format!("replication slot {name} decodes database {found}, which is not connected"),
        )
        .remedy(format!("connect to database {found} in [source] url")));
    }
    let from = slot.confirmed.or(slot.restart).unwrap_or(Lsn::new(0));
    let to = match (to, end) {
        (AdvanceTo::Now, Some(end)) => end,
        (AdvanceTo::Lsn(to), Some(end)) if to > end => {
            return Err(Failure::new(
                "slot-position",
                Exit::Usage,
                format!("the log ends at {end}, before {to}"),
            )
            .remedy("choose an earlier position, or now"));
        }
        (AdvanceTo::Lsn(to), _) => to,
        (AdvanceTo::Now, None) => from,
    };
    if to < from {
        return Err(Failure::new(
            "slot-position",
            Exit::Usage,
            format!("slot {name} is at {from}, after {to}: a slot does not go backwards"),
        )
        .remedy(
            "the events before it are in the table: docs/OPERATIONS.md, \"Publishing rows again\"",
        ));
    }
    warn(&format!(
        "advancing slot {name} from {from} to {to}: {} of WAL are skipped, and {passed}",
        bytes(to.bytes_since(from))
    ));
    let sql = advance_sql(name, to);
    if change.dry_run {
        return say(&format!("{sql};"));
    }
    if !change.yes {
        go_on().map_err(not_agreed)?;
    }
    let rows = session.query(&sql).await.map_err(failure)?;
    let at = rows.first().and_then(|row| row.get(0).map(str::to_owned));
    session.close().await;
    say(&format!(
        "slot {name} is at {}",
        at.unwrap_or_else(|| to.to_string())
    ))
}

/// The slot, if there is one that nobody reads.
async fn unread(session: &mut Session, name: &str) -> Result<SlotRow, Failure> {
    let slots = read_slots(session).await.map_err(failure)?;
    let Some(slot) = slots.into_iter().find(|slot| slot.name == name) else {
        let what = format!("there is no replication slot {name}");
        return Err(Failure::new("slot-unknown", Exit::Usage, what).remedy("walrelay slots list"));
    };
    match slot.active_pid {
        Some(pid) => {
            let what = format!("slot {name} is being read by server process {pid}");
            Err(Failure::new("slot-busy", Exit::Unavailable, what)
                .remedy("stop its reader first: a relay, or a standby"))
        }
        None => Ok(slot),
    }
}

fn not_agreed(why: &'static str) -> Failure {
    let what = format!("nothing was changed: {why}");
    Failure::new("slots-not-agreed", Exit::Usage, what)
        .remedy("look with --dry-run, then say --yes to go on without being asked")
}

pub(super) fn say(line: &str) -> Result<(), Failure> {
    writeln!(io::stdout(), "{line}").map_err(output)
}

/// For people, beside what was asked for.
pub(super) fn warn(line: &str) {
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "{line}");
}

fn table(slots: &[SlotRow], out: &mut dyn Write) -> io::Result<()> {
    let head = [
        "SLOT",
        "PLUGIN",
        "DATABASE",
        "PID",
        "WAL",
        "RETAINED",
        "SAFE",
        "RESTART",
        "CONFIRMED",
        "FAILOVER",
        "INACTIVE SINCE",
        "INVALID",
    ];
    let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
    let optional = |text: Option<String>| text.map_or_else(|| "-".to_owned(), |t| printable(&t));
    let size = |count: Option<u64>| optional(count.map(bytes));
    for slot in slots {
        let failover = match (slot.failover, slot.synced) {
            (_, Some(true)) => Some("copy".to_owned()),
            (Some(true), _) => Some("yes".to_owned()),
            (Some(false), _) => Some("no".to_owned()),
            (None, _) => None,
        };
        let plugin = slot.plugin.clone();
        rows.push(vec![
            printable(&slot.name),
            optional(plugin.or_else(|| Some("(physical)".to_owned()))),
            optional(slot.database.clone()),
            optional(slot.active_pid.map(|pid| pid.to_string())),
            optional(slot.wal_status.clone()),
            size(slot.retained),
            size(slot.safe_wal_size),
            optional(slot.restart.map(|lsn| lsn.to_string())),
            optional(slot.confirmed.map(|lsn| lsn.to_string())),
            optional(failover),
            optional(slot.inactive_since.clone()),
            optional(slot.invalidated.clone()),
        ]);
    }
    columns(&rows, out)
}

/// A slot as a program sees it.
#[derive(Serialize)]
struct Line<'a> {
    slot: &'a str,
    plugin: Option<&'a str>,
    database: Option<&'a str>,
    temporary: bool,
    active_pid: Option<i64>,
    wal_status: Option<&'a str>,
    restart_lsn: Option<String>,
    confirmed_flush_lsn: Option<String>,
    retained_bytes: Option<u64>,
    safe_wal_size: Option<u64>,
    inactive_since: Option<&'a str>,
    invalidation_reason: Option<&'a str>,
    failover: Option<bool>,
    synced: Option<bool>,
}

/// One object on a line.
fn line(slot: &SlotRow, out: &mut Vec<u8>) -> io::Result<()> {
    let line = Line {
        slot: &slot.name,
        plugin: slot.plugin.as_deref(),
        database: slot.database.as_deref(),
        temporary: slot.temporary,
        active_pid: slot.active_pid,
        wal_status: slot.wal_status.as_deref(),
        restart_lsn: slot.restart.map(|lsn| lsn.to_string()),
        confirmed_flush_lsn: slot.confirmed.map(|lsn| lsn.to_string()),
        retained_bytes: slot.retained,
        safe_wal_size: slot.safe_wal_size,
        inactive_since: slot.inactive_since.as_deref(),
        invalidation_reason: slot.invalidated.as_deref(),
        failover: slot.failover,
        synced: slot.synced,
    };
    serde_json::to_writer(&mut *out, &line)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> SlotRow {
        SlotRow {
            name: "walrelay".into(),
            plugin: Some("pgoutput".into()),
            database: Some("app".into()),
            active_pid: Some(7),
            wal_status: Some("reserved".into()),
            restart: Some(Lsn::new(16)),
            confirmed: Some(Lsn::new(32)),
            retained: Some(2048),
            failover: Some(false),
            ..SlotRow::default()
        }
    }

    #[test]
    fn a_table_lines_up() {
        let mut out = Vec::new();
        table(&[slot()], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let (head, row) = text.split_once('\n').unwrap();
        assert_eq!(head.find("RETAINED"), row.find("2.0 KiB"), "{text}");
        assert!(row.contains("0/20"), "{text}");
    }

    #[test]
    fn a_line_is_an_object_with_every_figure() {
        let mut out = Vec::new();
        line(&slot(), &mut out).unwrap();
        let object: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let expected = serde_json::json!({
            "slot": "walrelay", "plugin": "pgoutput", "database": "app", "wal_status": "reserved",
            "restart_lsn": "0/10", "confirmed_flush_lsn": "0/20", "inactive_since": null,
            "invalidation_reason": null, "active_pid": 7, "retained_bytes": 2048,
            "safe_wal_size": null, "temporary": false, "failover": false, "synced": null,
        });
        assert_eq!(object, expected);
    }
}
