//! The relay's slot, and what else keeps WAL or holds the slot back.

use walrelay_relay::TableName;
use walrelay_walsender::{Session, quote_literal};

use super::Seen;
use crate::commands::check::item::{Check, Item};
use crate::commands::units::bytes;
use crate::config::SinkConfig;
use crate::failures;
use crate::postgres::{
    Plan, PublicationFacts, PublishedTable, ROLLING, Retention, SlotRow, bookmark_slot,
    expected_rows, script, slot_fits,
};

/// A transaction that is open for so many seconds is long.
const LONG: u64 = 60;
/// The same where it keeps a slot from being created, or much WAL from being removed.
const LONG_WHERE_WAITED_FOR: u64 = 1;
/// How many of a kind are named.
const NAMED: usize = 5;

pub(super) fn slot(seen: &Seen<'_>) -> Check {
    let name = &seen.wanted.slot;
    let fits = slot_fits(seen.wanted, seen.facts, seen.moment, &mut Plan::default());
    if let Err(error) = fits {
        return Check::failed(Item::Slot, &failures::postgres(error.into()));
    }
    let finding = match (&seen.facts.slot, &seen.config.sink) {
        (None, SinkConfig::Stdout { confirm: false }) => {
            format!("{name} does not exist: run prints from then on")
        }
        (None, _) if seen.wanted.snapshot.is_some() => {
            format!(
                "{name} does not exist: run reads the rows that are there first, then creates it"
            )
        }
        (None, _) => format!("{name} does not exist: run creates it"),
        (Some(slot), _) => match slot.active_pid {
            Some(pid) => format!("{name} is being read by server process {pid}"),
            None => format!("{name} exists, and nobody reads it now"),
        },
    };
    Check::pass(Item::Slot, finding)
}

/// What a snapshot would read, where `run` would begin with one.
pub(super) async fn snapshot(session: &mut Session, seen: &Seen<'_>) -> Option<Check> {
    let selection = seen.wanted.snapshot.as_ref()?;
    if seen.facts.slot.is_some() {
        return None;
    }
    let of_publication = |publication: &PublicationFacts| publication.tables.clone();
    // As it is created: with all columns.
    let created = || {
        let tables = seen.wanted.tables.iter();
        let whole = |table: &TableName| PublishedTable {
            table: table.clone(),
            columns: None,
            row_filter: None,
        };
        tables.map(whole).collect()
    };
    let published = seen.facts.publication.as_ref();
    let published = published.map_or_else(created, of_publication);
    Some(match expected_rows(session, &published, selection).await {
        Ok(rows) => Check::pass(
            Item::Snapshot,
            format!("about {rows} row(s) are read first, by the server's statistics"),
        ),
        Err(error) => Check::failed(Item::Snapshot, &failures::postgres(error)),
    })
}

/// What the server keeps for the slot.
pub(super) fn retained(seen: &Seen<'_>) -> Option<Check> {
    let slot = seen
        .facts
        .slot
        .as_ref()
        .filter(|slot| slot.lost().is_none())?;
    let retention = Retention::of(&seen.facts.server, slot);
    let kept = bytes(retention.retained);
    let name = &seen.wanted.slot;
    let warning = retention.warning(seen.config.source.retained_wal_warning);
    Some(match warning {
        None => Check::pass(Item::RetainedWal, format!("{kept} for slot {name}")),
        Some(warning) => {
            let remedy = if slot.active_pid.is_some() {
                "see in the relay's log why nothing is confirmed; until then raise \
                 max_slot_wal_keep_size if it is set"
            } else {
                "start the relay. If none is to read the slot any more, walrelay slots drop"
            };
            Check::warn(Item::RetainedWal, format!("{warning}: {kept}"), remedy)
        }
    })
}

/// The bookmark that the running relay keeps, where it is to keep one.
pub(super) fn rolling(seen: &Seen<'_>) -> Option<Check> {
    let retention = seen.config.retention?;
    let item = Item::RollingBookmark;
    let relay = &seen.wanted.slot;
    let name = match bookmark_slot(relay, ROLLING) {
        Ok(name) => name,
        Err(why) => {
            return Some(Check::warn(
                item,
                why,
                "choose a shorter name for [source] slot",
            ));
        }
    };
    let row = |name: &str| seen.survey.slots.iter().find(|slot| slot.name == name);
    let Some(bookmark) = row(&name) else {
        let finding = format!("{name} does not exist: the running relay makes it");
        return Some(Check::pass(item, finding));
    };
    if bookmark.is_lost() {
        let finding = format!("{name} is lost: nothing can be replayed from it");
        let remedy = "the running relay makes it anew; raise max_slot_wal_keep_size, or lower \
                      [retention] max_wal below it";
        return Some(Check::warn(item, finding, remedy));
    }
    let restart = |slot: Option<&SlotRow>| slot.and_then(|slot| slot.restart);
    let alone = restart(row(relay)).zip(restart(Some(bookmark)));
    let alone = alone.map_or(0, |(relay, bookmark)| relay.bytes_since(bookmark));
    let finding = format!(
        "{name} keeps {} of {}",
        bytes(alone),
        bytes(retention.max_wal)
    );
    Some(if alone > retention.max_wal {
        let remedy = "start the relay, which moves it; or walrelay bookmark advance rolling";
        Check::warn(item, finding, remedy)
    } else {
        Check::pass(item, finding)
    })
}

/// Slots of others that keep much WAL: the disk is shared.
pub(super) fn others(seen: &Seen<'_>) -> Check {
    let item = Item::OtherSlots;
    let above = seen.config.source.retained_wal_warning;
    let others: Vec<&SlotRow> = seen
        .survey
        .slots
        .iter()
        // The rolling bookmark has an item of its own.
        .filter(|slot| {
            let rolling =
                bookmark_slot(&seen.wanted.slot, ROLLING).is_ok_and(|name| name == slot.name);
            slot.name != seen.wanted.slot
                && !slot.temporary
                && !(rolling && seen.config.retention.is_some())
        })
        .collect();
    let much: Vec<&&SlotRow> = others
        .iter()
        .filter(|slot| above > 0 && slot.retained.is_some_and(|bytes| bytes > above))
        .collect();
    let Some(first) = much.first() else {
        let count = others.len();
        return Check::pass(item, format!("{count} other slot(s), none keeps much WAL"));
    };
    let named = much.iter().take(NAMED).map(|slot| {
        let kept = bytes(slot.retained.unwrap_or(0));
        let state = match (slot.active_pid, &slot.inactive_since) {
            (Some(_), _) => "in use".to_owned(),
            (None, Some(since)) => format!("not in use since {since}"),
            (None, None) => "not in use".to_owned(),
        };
        format!("{} keeps {kept} ({state})", slot.name)
    });
    Check::warn(
        item,
        list(named, much.len()),
        format!("once nobody needs it: {}", script::drop_slot(&first.name)),
    )
}

/// Transactions that have written hold back every logical slot, and the creation of one.
pub(super) fn transactions(seen: &Seen<'_>) -> Check {
    let item = Item::Transactions;
    let above = seen.config.source.retained_wal_warning;
    let waited_for =
        seen.facts.slot.as_ref().is_none_or(|slot| {
            above > 0 && Retention::of(&seen.facts.server, slot).retained > above
        });
    let limit = if waited_for {
        LONG_WHERE_WAITED_FOR
    } else {
        LONG
    };
    let what = if seen.facts.slot.is_none() {
        "the slot is not created before they end"
    } else {
        "the slot keeps WAL from their beginning on"
    };
    let survey = seen.survey;
    let prepared = survey.prepared.iter().filter(|of| of.seconds >= limit);
    let prepared: Vec<_> = prepared.collect();
    if let Some(first) = prepared.first() {
        let named = prepared.iter().take(NAMED).map(|of| {
            format!(
                "prepared transaction {} of database {} for {} s",
                of.gid, of.database, of.seconds
            )
        });
        return Check::warn(
            item,
            format!("open: {}: {what}", list(named, prepared.len())),
            format!(
                "in database {}: ROLLBACK PREPARED {}; or COMMIT PREPARED, as its owner knows",
                first.database,
                quote_literal(&first.gid)
            ),
        );
    }
    let long = |seconds: Option<u64>| seconds.is_some_and(|seconds| seconds >= limit);
    let open: Vec<_> = survey
        .transactions
        .iter()
        .filter(|of| long(of.seconds))
        .collect();
    if let Some(first) = open.first() {
        let named = open.iter().take(NAMED).map(|of| {
            let seconds = of.seconds.unwrap_or(0);
            format!("transaction of server process {} for {seconds} s", of.pid)
        });
        return Check::warn(
            item,
            format!("open: {}: {what}", list(named, open.len())),
            format!(
                "have it committed, or SELECT pg_terminate_backend({});",
                first.pid
            ),
        );
    }
    let unseen = survey.transactions.iter().filter(|of| of.seconds.is_none());
    let unseen = unseen.count();
    if unseen > 0 && !survey.sees_sessions {
        let role = &survey.role;
        return Check::warn(
            item,
            format!(
                "{unseen} transaction(s) of other roles are open, and role {role} may not see for how long"
            ),
            format!(
                "GRANT pg_read_all_stats TO {};",
                walrelay_walsender::quote_ident(role)
            ),
        );
    }
    Check::pass(item, format!("none is open for {limit} s"))
}

/// The first few, and how many there are more.
fn list(named: impl Iterator<Item = String>, all: usize) -> String {
    let mut named: Vec<String> = named.collect();
    if all > named.len() {
        named.push(format!("and {} more", all - named.len()));
    }
    named.join(", ")
}
