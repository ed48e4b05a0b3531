//! Checks the relay's slot, other slots that keep WAL, and transactions that hold the slot back.

use walrelay_postgres_source::position_note::{Access, Standing};
use walrelay_postgres_source::{
    Plan, PostgresError, PublishedTable, ROLLING, RetainedWal, SetupError, SlotRow, SlotSetupError,
    Survey, bookmark_slot, expected_rows, script, slot_fits, unread,
};
use walrelay_sink::{ACCEPT_LOSS, Loss};
use walrelay_sink_kind::check::shortened;
use walrelay_walsender::{Session, quote_ident, quote_literal};

use super::{DatabaseState, check_result, failed};
use crate::commands::inspect::check::item::Check;
use crate::commands::terminal::units::bytes;

/// Seconds after which an open transaction is reported.
const LONG: u64 = 60;
/// Seconds after which an open transaction is reported that delays the creation of the slot, or the
/// removal of much WAL.
const LONG_IF_WAITED_FOR: u64 = 1;
/// Number of slots or transactions that a finding names at most.
const NAMED: usize = 5;

/// Checks that the slot fits, or can be created.
pub(super) fn slot(db: &DatabaseState<'_>) -> Check {
    let name = &db.wanted.slot;
    let finding = match (&db.facts.slot, db.config.sink.confirms()) {
        (None, false) => {
            format!("{name} does not exist: run prints from then on")
        }
        (None, _) if db.wanted.snapshot.is_some() => {
            format!(
                "{name} does not exist: run reads the rows that are there first, then creates it"
            )
        }
        (None, _) => format!("{name} does not exist: run creates it"),
        (Some(slot), _) => match slot.active_pid {
            Some(pid) => match db.reader.as_ref().filter(|reader| reader.pid == pid) {
                Some(reader) => format!("{name} is being read by {reader}"),
                None => format!("{name} is being read by server process {pid}"),
            },
            None => format!("{name} exists, and no client reads it now"),
        },
    };
    let fits = slot_fits(&db.wanted, &db.facts, db.moment, &mut Plan::default());
    check_result(fits, finding)
}

/// Checks the slot's position against the one in the state file, and the one that its relay has noted.
pub(super) fn position(db: &DatabaseState<'_>) -> Option<Check> {
    if let Err(error) = &db.continued {
        return Some(failed(error.clone()));
    }
    let (standing, access) = db.noted?;
    let name = &db.wanted.slot;
    let slot = db.facts.slot.as_ref();
    if let (Standing::PassedOver { from }, Some(slot)) = (standing, slot) {
        let error = SetupError::Slot(SlotSetupError::PassedOver {
            slot: name.clone(),
            from,
            to: slot.confirmed.unwrap_or(from),
        });
        return Some(if slot.active_pid.is_none() {
            failed(error)
        } else {
            let finding =
                format!("its reader notes no position: the next start stops, for {error}");
            let remedy = "see in the relay's log why it cannot note positions";
            Check::warn(finding, remedy)
        });
    }
    Some(if access == Access::None {
        let role = &db.survey.role;
        Check::warn(
            format!(
                "role {role} may not note positions in walrelay_state: a slot that something else moves, or \
                 recreates, while no relay runs is not noticed"
            ),
            format!("as a user who may create it: walrelay init --role {role}"),
        )
    } else {
        Check::pass(format!(
            "the positions of {name} are noted: a start stops if something else moved the slot"
        ))
    })
}

/// Checks that no move of the outbox is unfinished: inserts fail meanwhile.
pub(super) fn moved(db: &DatabaseState<'_>) -> Option<Check> {
    let (unfinished, awaited) = &db.moved;
    if let Some(state) = awaited {
        return Some(failed(PostgresError::AwaitsSwitch {
            slot: db.wanted.slot.clone(),
            state: *state,
        }));
    }
    let unfinished = unfinished.as_ref()?;
    Some(Check::warn(unfinished.to_string(), unfinished.remedy()))
}

/// Checks the error with which the last run ended, if there was one.
pub(super) fn last_run(db: &DatabaseState<'_>) -> Option<Check> {
    let error = db.last_error.as_ref()?;
    let finding = format!("the last run {}", error.text());
    let slot = db.facts.slot.as_ref();
    Some(if error.is_passed(slot.and_then(|slot| slot.confirmed)) {
        Check::pass(format!("{finding}; the slot has passed that place since"))
    } else if slot.is_some_and(|slot| slot.active_pid.is_some()) {
        Check::pass(format!("{finding}; the slot is being read again"))
    } else {
        // The cause may be mended by now: while it lasts, other checks fail.
        let remedy = error.remedy.as_deref();
        Check::warn(
            finding,
            remedy.unwrap_or("repair the named fault, and start walrelay run"),
        )
    })
}

/// Checks the losses of the destination that relays of the slot have noted.
pub(super) fn losses(db: &DatabaseState<'_>) -> Vec<Check> {
    let losses = db.run.iter().flat_map(|run| &run.losses);
    let check = |loss: &Loss| {
        let finding = format!(
            "the destination has lost events that it had acknowledged: {}",
            loss.text()
        );
        let remedy = loss.remedy(db.epoch);
        Check::warn(finding, format!("{remedy}. {ACCEPT_LOSS}"))
    };
    losses.map(check).collect()
}

/// Checks the snapshot: how many rows `run` would read first, or would not because the slot exists.
pub(super) async fn snapshot(session: &mut Session, db: &DatabaseState<'_>) -> Option<Check> {
    let selection = db.wanted.snapshot.as_ref()?;
    if db.facts.slot.is_some() {
        if !db.config.sink.confirms() {
            return None;
        }
        return match unread(session, &db.wanted).await {
            Ok(unread) => unread.map(|unread| Check::warn(unread.to_string(), unread.remedy())),
            Err(error) => Some(failed(error)),
        };
    }
    let published: Vec<PublishedTable> = if let Some(publication) = &db.facts.publication {
        let tables = publication.tables.iter();
        let wanted = tables.filter(|published| db.wanted.tables.contains(&published.table));
        wanted.cloned().collect()
    } else {
        // `run` creates the publication with all columns.
        let tables = db.wanted.tables.iter().map(|table| PublishedTable {
            table: table.clone(),
            columns: None,
            row_filter: None,
        });
        tables.collect()
    };
    Some(match expected_rows(session, &published, selection).await {
        Ok(rows) => Check::pass(format!(
            "about {rows} row(s) are read first, by the server's statistics"
        )),
        Err(error) => failed(error),
    })
}

/// Checks the WAL that the server keeps for the slot.
pub(super) fn retained(db: &DatabaseState<'_>) -> Option<Check> {
    let slot = db.facts.slot.as_ref().filter(|slot| !slot.is_lost())?;
    let retention = RetainedWal::new(&db.facts.server, slot);
    let kept = bytes(retention.retained);
    let Some(warning) = retention.warning(db.config.source.retained_wal_warning) else {
        return Some(Check::pass(format!("{kept} for slot {}", db.wanted.slot)));
    };
    let remedy = if slot.active_pid.is_some() {
        "see in the relay's log why nothing is confirmed; until then raise max_slot_wal_keep_size if \
         it is set"
    } else {
        "start the relay. If none is to read the slot any more, walrelay slots drop"
    };
    Some(Check::warn(format!("{warning}: {kept}"), remedy))
}

/// Checks the rolling bookmark, if `[retention]` is configured.
pub(super) fn rolling(db: &DatabaseState<'_>) -> Option<Check> {
    let retention = db.config.retention?;
    let relay = &db.wanted.slot;
    let name = match bookmark_slot(relay, ROLLING) {
        Ok(name) => name,
        Err(why) => return Some(Check::warn(why, "choose a shorter name for [source] slot")),
    };
    let row = |name: &str| db.survey.slots.iter().find(|slot| slot.name == name);
    let Some(bookmark) = row(&name) else {
        let finding = format!("{name} does not exist: the running relay makes it");
        return Some(Check::pass(finding));
    };
    if bookmark.is_lost() {
        let finding = format!("{name} is lost: nothing can be replayed from it");
        let remedy = "the running relay recreates it; raise max_slot_wal_keep_size, or lower \
                      [retention] max_wal below it";
        return Some(Check::warn(finding, remedy));
    }
    // WAL that is kept for the bookmark alone.
    let kept = row(relay)
        .and_then(|relay| relay.restart)
        .zip(bookmark.restart);
    let kept = kept.map_or(0, |(relay, bookmark)| relay.bytes_since(bookmark));
    let limit = bytes(retention.max_wal);
    let finding = format!("{name} keeps {} of {limit}", bytes(kept));
    Some(if kept > retention.max_wal {
        let remedy = "start the relay, which moves it; or walrelay bookmark advance rolling";
        Check::warn(finding, remedy)
    } else {
        Check::pass(finding)
    })
}

/// Checks for other slots that keep much WAL, as they fill the same disk.
pub(super) fn other_slots(db: &DatabaseState<'_>) -> Check {
    let relay = &db.wanted.slot;
    // The rolling bookmark has an item of its own.
    let retention = db.config.retention.as_ref();
    let rolling = retention.and_then(|_| bookmark_slot(relay, ROLLING).ok());
    let is_other = |slot: &&SlotRow| {
        slot.name != *relay && !slot.temporary && Some(&slot.name) != rolling.as_ref()
    };
    let other_slots: Vec<&SlotRow> = db.survey.slots.iter().filter(is_other).collect();
    let above = db.config.source.retained_wal_warning;
    let much = other_slots.iter().filter(|slot| {
        let kept = slot.retained;
        above > 0 && kept.is_some_and(|kept| kept > above)
    });
    let much: Vec<_> = much.collect();
    let Some(first) = much.first() else {
        let count = other_slots.len();
        return Check::pass(format!("{count} other slot(s), none keeps much WAL"));
    };
    let named = much.iter().map(|slot| {
        let kept = bytes(slot.retained.unwrap_or(0));
        let state = match (slot.active_pid, &slot.inactive_since) {
            (Some(_), _) => "in use".to_owned(),
            (None, Some(since)) => format!("not in use since {since}"),
            (None, None) => "not in use".to_owned(),
        };
        format!("{} keeps {kept} ({state})", slot.name)
    });
    Check::warn(
        list(named),
        format!(
            "once it is no longer needed: {}",
            script::drop_slot(&first.name)
        ),
    )
}

/// Checks for long transactions: those that have written hold back every logical slot, and delay
/// the creation of one.
pub(super) fn transactions(db: &DatabaseState<'_>) -> Check {
    let above = db.config.source.retained_wal_warning;
    let slot = db.facts.slot.as_ref();
    let waited_for = slot
        .is_none_or(|slot| above > 0 && RetainedWal::new(&db.facts.server, slot).retained > above);
    let limit = if waited_for { LONG_IF_WAITED_FOR } else { LONG };
    let consequence = if slot.is_none() {
        "the slot is not created before they end"
    } else {
        "the slot keeps WAL from their beginning on"
    };
    prepared_transactions(&db.survey, limit, consequence)
        .or_else(|| open_transactions(&db.survey, limit, consequence))
        .or_else(|| hidden_transactions(&db.survey))
        .unwrap_or_else(|| Check::pass(format!("none is open for {limit} s")))
}

/// Returns a warning about prepared transactions that are at least `limit` seconds old.
fn prepared_transactions(survey: &Survey, limit: u64, consequence: &str) -> Option<Check> {
    let prepared = survey.prepared.iter().filter(|of| of.seconds >= limit);
    let prepared: Vec<_> = prepared.collect();
    let first = prepared.first()?;
    let named = prepared.iter().map(|of| {
        format!(
            "prepared transaction {} of database {} for {} s",
            of.gid, of.database, of.seconds
        )
    });
    Some(Check::warn(
        format!("open: {}: {consequence}", list(named)),
        format!(
            "in database {}: ROLLBACK PREPARED {}; or COMMIT PREPARED, as its owner knows",
            first.database,
            quote_literal(&first.gid)
        ),
    ))
}

/// Returns a warning about transactions that have been open for at least `limit` seconds.
fn open_transactions(survey: &Survey, limit: u64, consequence: &str) -> Option<Check> {
    let transactions = survey.transactions.iter();
    let open = transactions.filter_map(|of| Some((of.pid, of.seconds?)));
    let open: Vec<_> = open.filter(|(_, seconds)| *seconds >= limit).collect();
    let (first, _) = open.first()?;
    let named = open
        .iter()
        .map(|(pid, seconds)| format!("transaction of server process {pid} for {seconds} s"));
    Some(Check::warn(
        format!("open: {}: {consequence}", list(named)),
        format!("have it committed, or SELECT pg_terminate_backend({first});"),
    ))
}

/// Returns a warning about transactions whose age the role may not see.
fn hidden_transactions(survey: &Survey) -> Option<Check> {
    let hidden = survey.transactions.iter().filter(|of| of.seconds.is_none());
    let hidden = hidden.count();
    let role = &survey.role;
    (hidden > 0 && !survey.sees_sessions).then(|| {
        Check::warn(
            format!(
                "{hidden} transaction(s) of other roles are open, and role {role} may not see for how long"
            ),
            format!("GRANT pg_read_all_stats TO {};", quote_ident(role)),
        )
    })
}

/// Lists the first of these texts, and how many more there are.
fn list(texts: impl Iterator<Item = String>) -> String {
    shortened(texts.collect(), NAMED).join(", ")
}
