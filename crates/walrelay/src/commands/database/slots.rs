//! `walrelay slots`: lists, creates, drops and advances replication slots.
//!
//! # Invariants
//! - A slot that is being read is neither dropped nor advanced.
//! - A change that loses events is made only after the operator has agreed, by an answer or by
//!   `--yes`, and a bookmark keeps a copy of the relay's slot.

use serde::Serialize;
use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;
use walrelay_postgres_source::epoch::raise_for_new_slot;
use walrelay_postgres_source::{
    KeptBy, NOT_WRITABLE, ON_STANDBY, SlotRow, advance_slot as advance_sql, position_note, script,
    slot_reader, slots as read_slots, snapshot_record, wait_for_lock,
};
use walrelay_walsender::{ErrorClass, Session};

use crate::cli::{
    AdvanceSlotArgs, AdvanceTo, AskArgs, CreateSlotArgs, DropSlotArgs, ListSlotsArgs, SlotsCommand,
};
use crate::commands::assembly::block_on;
use crate::commands::assembly::server::{Server, failure};
use crate::commands::database::kept::{KeptBookmark, keep_bookmark, kept_notice};
use crate::commands::terminal::confirm::{ask_to_continue, confirm};
use crate::commands::terminal::units::{Column, bytes, list_text};
use crate::commands::{CommandResult, EnvVars, print_line, print_notice, print_text};

/// Runs `walrelay slots`.
pub(crate) fn slots(command: &SlotsCommand, env: EnvVars<'_>) -> CommandResult {
    let config = match command {
        SlotsCommand::List(args) => &args.config,
        SlotsCommand::Create(args) => &args.change.config,
        SlotsCommand::Drop(args) => &args.ask.change.config,
        SlotsCommand::Advance(args) => &args.ask.change.config,
    };
    let server = Server::load(config, env)?;
    Ok(block_on(Box::pin(async {
        match command {
            SlotsCommand::List(args) => list(args, server).await,
            SlotsCommand::Create(args) => create(args, server).await,
            SlotsCommand::Drop(args) => drop_by_name(args, server).await,
            SlotsCommand::Advance(args) => advance_by_name(args, server).await,
        }
    }))??)
}

async fn list(args: &ListSlotsArgs, server: Server) -> Result<(), Failure> {
    let mut session = server.connect().await?;
    let slots = read_slots(&mut session).await.map_err(failure)?;
    session.close().await;
    print_text(&list_text(args.output, &slots, &COLUMNS, slot_json)?)
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
        return print_line(&sql);
    }
    let in_recovery = "SELECT pg_catalog.pg_is_in_recovery()";
    let rows = session.query(in_recovery).await.map_err(failure)?;
    if rows
        .first()
        .and_then(|row| row.get(0).map(|answer| answer == "t"))
        == Some(true)
    {
        print_notice(&format!("creating slot {name}: {ON_STANDBY}"));
    }
    let raised = raise_for_new_slot(&mut session, name).await;
    raised.map_err(failure)?;
    // Nothing is known of what was committed before.
    position_note::forget(&mut session, name)
        .await
        .map_err(failure)?;
    let forgotten = snapshot_record::forget(&mut session, name).await;
    forgotten.map_err(failure)?;
    session.query(&sql).await.map_err(failure)?;
    let noted = position_note::made(&mut session, name).await;
    noted.map_err(failure)?;
    session.close().await;
    print_line(&format!(
        "created slot {name}: events committed from now on can be relayed, and the server keeps \
         WAL for it"
    ))
}

async fn drop_by_name(args: &DropSlotArgs, server: Server) -> Result<(), Failure> {
    let name = &args.name;
    let session = server.connect().await?;
    let keep = keeps(&server, name, args.no_bookmark);
    drop_slot(
        session,
        name,
        name,
        &args.ask,
        keep.then_some(KeptBy::Drop),
        |slot| match (slot.confirmed, slot.retained) {
            (Some(confirmed), _) => {
                format!("each unrelayed event from {confirmed} on is lost to its reader")
            }
            (None, retained) => format!(
                "{} of WAL that a standby may need are no longer kept",
                bytes(retained.unwrap_or(0))
            ),
        },
    )
    .await
}

/// Returns whether a copy of this slot is kept: of the relay's own, unless the operator says otherwise.
fn keeps(server: &Server, name: &str, no_bookmark: bool) -> bool {
    name == server.slot() && !no_bookmark
}

/// Keeps a copy of the slot as a bookmark, unless Postgres has removed its WAL.
async fn keep_copy(
    session: &mut Session,
    slot: &SlotRow,
    keep: Option<KeptBy>,
) -> Result<Option<KeptBookmark>, Failure> {
    match keep {
        Some(by) if slot.confirmed.is_some() && !slot.is_lost() => {
            let kept = keep_bookmark(session, &slot.name, by).await?;
            Ok(Some(kept))
        }
        _ => Ok(None),
    }
}

/// Drops a slot that nobody reads. The operator types `known_as` to agree; `loss` describes what is
/// lost with the slot; `keep`: the command, if a bookmark keeps a copy of it.
pub(crate) async fn drop_slot(
    mut session: Session,
    name: &str,
    known_as: &str,
    ask: &AskArgs,
    keep: Option<KeptBy>,
    loss: impl Fn(&SlotRow) -> String,
) -> Result<(), Failure> {
    let slot = find_unread(&mut session, name).await?;
    print_notice(&format!("dropping slot {name}: {}", loss(&slot)));
    let sql = script::drop_slot(name);
    if ask.change.dry_run {
        return print_line(&sql);
    }
    if !ask.yes {
        let question = format!("Type {known_as} to drop it: ");
        confirm(&question, |answer| answer == known_as, not_agreed())?;
    }
    // A relay that starts meanwhile creates its slot under this lock: only the dropped one is forgotten.
    wait_for_lock(&mut session, name).await?;
    let slot = find_unread(&mut session, name).await?;
    let kept = keep_copy(&mut session, &slot, keep).await?;
    if let Err(error) = session.query(&sql).await {
        return Err(match error.class() {
            // A relay has started since the question.
            ErrorClass::SlotInUse => busy(&mut session, name, error.to_string()).await,
            _ => failure(error),
        });
    }
    // A slot of the same name is another one, whoever creates it.
    let is_raised = match raise_for_new_slot(&mut session, name).await {
        // The next relay, or command that creates the slot, reports it.
        Err(error)
            if error
                .sqlstate()
                .is_some_and(|of| NOT_WRITABLE.contains(&of)) =>
        {
            false
        }
        raised => raised.map_err(failure)?,
    };
    position_note::forget(&mut session, name)
        .await
        .map_err(failure)?;
    let forgotten = snapshot_record::forget(&mut session, name).await;
    forgotten.map_err(failure)?;
    session.close().await;
    if is_raised && kept.is_some() {
        print_notice(
            "a move has raised the epoch of positions since the slot was created: walrelay replay refuses the bookmark \
             (before-move). To send its events again, run walrelay resend on their rows",
        );
    }
    print_line(&format!("dropped slot {name}{}", copy_of(kept.as_ref())))
}

/// Returns the words about a copy of the slot, if there is one.
fn copy_of(kept: Option<&KeptBookmark>) -> String {
    kept.map_or_else(String::new, |kept| {
        format!(
            ", a copy of which is bookmark {}. {}",
            kept.name,
            kept_notice(kept)
        )
    })
}

async fn advance_by_name(args: &AdvanceSlotArgs, server: Server) -> Result<(), Failure> {
    let consequence = "events in them are never relayed";
    let session = server.connect().await?;
    let keep = keeps(&server, &args.name, args.no_bookmark).then_some(KeptBy::Advance);
    advance_slot(session, &args.name, args.to, &args.ask, keep, consequence).await
}

/// Advances a slot that nobody reads. `consequence` describes what it means for the events in
/// between; `keep`: the command, if a bookmark keeps a copy of it.
pub(crate) async fn advance_slot(
    mut session: Session,
    name: &str,
    to: AdvanceTo,
    ask: &AskArgs,
    keep: Option<KeptBy>,
    consequence: &str,
) -> Result<(), Failure> {
    let slot = find_unread(&mut session, name).await?;
    let from = slot.confirmed.or(slot.restart).unwrap_or(Lsn::new(0));
    let to = target(&mut session, &slot, from, to).await?;
    print_notice(&format!(
        "advancing slot {name} from {from} to {to}: {} of WAL are skipped, and {consequence}",
        bytes(to.bytes_since(from))
    ));
    let sql = advance_sql(name, to);
    if ask.change.dry_run {
        return print_line(&format!("{sql};"));
    }
    if !ask.yes {
        ask_to_continue(not_agreed())?;
    }
    let kept = keep_copy(&mut session, &slot, keep.filter(|_| to > from)).await?;
    let rows = session.query(&sql).await.map_err(failure)?;
    let forgotten = position_note::forget_position(&mut session, name).await;
    forgotten.map_err(failure)?;
    let at = rows.first().and_then(|row| row.get(0).map(str::to_owned));
    session.close().await;
    print_line(&format!(
        "slot {name} is at {}{}",
        at.unwrap_or_else(|| to.to_string()),
        copy_of(kept.as_ref())
    ))
}

/// Checks that the slot can be advanced over this connection, and returns the position to advance
/// to.
async fn target(
    session: &mut Session,
    slot: &SlotRow,
    from: Lsn,
    to: AdvanceTo,
) -> Result<Lsn, Failure> {
    let name = &slot.name;
    let sql = "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() \
                THEN pg_catalog.pg_last_wal_replay_lsn() \
                ELSE pg_catalog.pg_current_wal_flush_lsn() END AS wal_end, \
               current_database() AS database";
    let rows = session.query(sql).await.map_err(failure)?;
    let row = rows.first();
    let row = row.as_ref();
    let end: Option<Lsn> = row.and_then(|row| row.get("wal_end")?.parse().ok());
    let connected = row.and_then(|row| row.get("database"));
    if let Some(found) = slot
        .database
        .as_deref()
        .filter(|found| Some(*found) != connected)
    {
        let what =
            format!("replication slot {name} decodes database {found}, which is not connected");
        return Err(Failure::new("slot-database", Exit::Config, what)
            .remedy(format!("connect to database {found} in [source] url")));
    }
    let out_of_range = |what| Failure::new("slot-position", Exit::Usage, what);
    let to = match (to, end) {
        (AdvanceTo::Now, Some(end)) => end,
        (AdvanceTo::Lsn(to), Some(end)) if to > end => {
            return Err(out_of_range(format!("the log ends at {end}, before {to}"))
                .remedy("choose an earlier position, or now"));
        }
        (AdvanceTo::Lsn(to), _) => to,
        (AdvanceTo::Now, None) => from,
    };
    if to < from {
        let what = format!("slot {name} is at {from}, after {to}: a slot does not go backwards");
        return Err(out_of_range(what).remedy(
            "the events before it are in the table: docs/operate/troubleshooting.md, \"Publishing rows again\"",
        ));
    }
    Ok(to)
}

/// Returns the slot of this name; fails if it does not exist or is being read.
async fn find_unread(session: &mut Session, name: &str) -> Result<SlotRow, Failure> {
    let slots = read_slots(session).await.map_err(failure)?;
    let Some(slot) = slots.into_iter().find(|slot| slot.name == name) else {
        let what = format!("there is no replication slot {name}");
        return Err(Failure::new("slot-unknown", Exit::Usage, what).remedy("walrelay slots list"));
    };
    match slot.active_pid {
        Some(pid) => Err(busy(session, name, format!("server process {pid}")).await),
        None => Ok(slot),
    }
}

/// Makes the failure of a change to a slot that is read. `by`: the reader, if it cannot be queried.
async fn busy(session: &mut Session, name: &str, by: String) -> Failure {
    let reader = slot_reader(session, name).await.ok().flatten();
    let reader = reader.map_or(by, |reader| reader.to_string());
    let what = format!("slot {name} is being read by {reader}: nothing was changed");
    Failure::new("slot-busy", Exit::Unavailable, what)
        .remedy("stop its reader first: a relay, or a standby")
}

fn not_agreed() -> Failure {
    Failure::new("slots-not-agreed", Exit::Usage, "nothing was changed")
        .remedy("look with --dry-run, then say --yes to go on without being asked")
}

const COLUMNS: [Column<SlotRow>; 12] = [
    ("SLOT", |slot| Some(slot.name.clone())),
    ("PLUGIN", |slot| {
        let plugin = slot.plugin.as_deref();
        Some(plugin.unwrap_or("(physical)").to_owned())
    }),
    ("DATABASE", |slot| slot.database.clone()),
    ("PID", |slot| slot.active_pid.map(|pid| pid.to_string())),
    ("WAL", |slot| slot.wal_status.clone()),
    ("RETAINED", |slot| slot.retained.map(bytes)),
    ("SAFE", |slot| slot.safe_wal_size.map(bytes)),
    ("RESTART", |slot| slot.restart.map(|lsn| lsn.to_string())),
    ("CONFIRMED", |slot| {
        slot.confirmed.map(|lsn| lsn.to_string())
    }),
    ("FAILOVER", |slot| {
        let failover = match (slot.failover, slot.synced) {
            (_, Some(true)) => "copy",
            (Some(true), _) => "yes",
            (Some(false), _) => "no",
            (None, _) => return None,
        };
        Some(failover.to_owned())
    }),
    ("INACTIVE SINCE", |slot| slot.inactive_since.clone()),
    ("INVALID", |slot| slot.invalidated.clone()),
];

/// A slot in the output format `json`.
#[derive(Serialize)]
struct SlotJson<'a> {
    slot: &'a str,
    plugin: Option<&'a str>,
    database: Option<&'a str>,
    temporary: bool,
    active_pid: Option<i64>,
    wal_status: Option<&'a str>,
    restart_lsn: Option<Lsn>,
    confirmed_flush_lsn: Option<Lsn>,
    retained_bytes: Option<u64>,
    safe_wal_size: Option<u64>,
    inactive_since: Option<&'a str>,
    invalidation_reason: Option<&'a str>,
    failover: Option<bool>,
    synced: Option<bool>,
}

fn slot_json(slot: &SlotRow) -> SlotJson<'_> {
    SlotJson {
        slot: &slot.name,
        plugin: slot.plugin.as_deref(),
        database: slot.database.as_deref(),
        temporary: slot.temporary,
        active_pid: slot.active_pid,
        wal_status: slot.wal_status.as_deref(),
        restart_lsn: slot.restart,
        confirmed_flush_lsn: slot.confirmed,
        retained_bytes: slot.retained,
        safe_wal_size: slot.safe_wal_size,
        inactive_since: slot.inactive_since.as_deref(),
        invalidation_reason: slot.invalidated.as_deref(),
        failover: slot.failover,
        synced: slot.synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Output;

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
        let text = list_text(Output::Table, &[slot()], &COLUMNS, slot_json).unwrap();
        let (head, row) = text.split_once('\n').unwrap();
        assert_eq!(head.find("RETAINED"), row.find("2.0 KiB"), "{text}");
        assert!(row.contains("0/20"), "{text}");
    }

    #[test]
    fn a_line_is_an_object_with_every_figure() {
        let line = list_text(Output::Json, &[slot()], &COLUMNS, slot_json).unwrap();
        assert!(line.ends_with("}\n") && line.lines().count() == 1, "{line}");
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        let expected = serde_json::json!({
            "slot": "walrelay", "plugin": "pgoutput", "database": "app", "wal_status": "reserved",
            "restart_lsn": "0/10", "confirmed_flush_lsn": "0/20", "inactive_since": null,
            "invalidation_reason": null, "active_pid": 7, "retained_bytes": 2048,
            "safe_wal_size": null, "temporary": false, "failover": false, "synced": null,
        });
        assert_eq!(object, expected);
    }
}
