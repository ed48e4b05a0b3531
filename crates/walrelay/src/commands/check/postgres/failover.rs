//! Whether the slot survives a failover (Postgres 17 and newer).

use walrelay_walsender::{ConnInfo, Error, Host, Session, SessionKind, TargetSessionAttrs};

use super::Seen;
use crate::cli::Exit;
use crate::commands::check::item::{Check, Item};
use crate::postgres::{SlotRow, slots};

/// The first version with failover slots.
const SINCE: u32 = 17;

/// Whether standbys are to have a copy of the slot.
pub(super) fn asked_for(seen: &Seen<'_>) -> bool {
    let slot = seen.facts.slot.as_ref();
    seen.facts.server.major >= SINCE
        && (seen.wanted.failover || slot.is_some_and(|slot| slot.failover == Some(true)))
}

pub(super) fn slot(seen: &Seen<'_>) -> Check {
    let item = Item::FailoverSlot;
    let name = &seen.wanted.slot;
    let major = seen.facts.server.major;
    if major < SINCE {
        return Check::pass(
            item,
            format!(
                "Postgres {major} has none: after a failover the slot is not on the new primary"
            ),
        );
    }
    let is_one = seen
        .facts
        .slot
        .as_ref()
        .map(|slot| slot.failover == Some(true));
    match (seen.wanted.failover, is_one) {
        (_, Some(true)) => Check::pass(item, format!("standbys may keep a copy of slot {name}")),
        (true, None) => Check::pass(item, format!("slot {name} is created as one")),
        (true, Some(false)) => Check::warn(
            item,
            format!("slot {name} is no failover slot, though [source] failover is set"),
            format!(
                "with the relay stopped, by psql \"dbname={} replication=database\": \
                 ALTER_REPLICATION_SLOT {name} (FAILOVER true)",
                seen.facts.server.database
            ),
        ),
        (false, _) => match physical(seen).next() {
            Some(standby) => Check::warn(
                item,
                format!(
                    "a standby may stream by slot {}, and slot {name} is no failover slot: after a \
                     failover it is not on the new primary",
                    standby.name
                ),
                "[source] failover = true, for a slot that is made anew; docs/OPERATIONS.md, \
                 \"Failover of Postgres\"",
            ),
            None => Check::pass(item, "not asked for, and no standby has a slot"),
        },
    }
}

/// Slots by which standbys stream.
fn physical<'s>(seen: &Seen<'s>) -> impl Iterator<Item = &'s SlotRow> {
    let slots = seen.survey.slots.iter();
    slots.filter(|slot| slot.plugin.is_none() && slot.database.is_none() && !slot.temporary)
}

/// `synchronized_standby_slots`: the relay is sent nothing that these standbys have not got.
pub(super) fn standby_slots(seen: &Seen<'_>) -> Check {
    let item = Item::StandbySlots;
    if !asked_for(seen) {
        return Check::pass(item, "of no use without a failover slot");
    }
    let setting = seen.survey.setting("synchronized_standby_slots");
    let listed = setting.unwrap_or_default().split(',').map(unquoted);
    let listed: Vec<&str> = listed.filter(|name| !name.is_empty()).collect();
    let reload = "SELECT pg_reload_conf();";
    if listed.is_empty() {
        let remedy = match physical(seen).next() {
            Some(slot) => format!(
                "ALTER SYSTEM SET synchronized_standby_slots = '{}'; {reload}",
                slot.name
            ),
            None => format!(
                "have the standby stream by a slot (primary_slot_name), and ALTER SYSTEM SET \
                 synchronized_standby_slots to it; {reload}"
            ),
        };
        return Check::warn(
            item,
            "synchronized_standby_slots is empty: events may be relayed that a standby has not got, \
             and be missing in the database after a failover",
            remedy,
        );
    }
    for name in &listed {
        let found = physical(seen).find(|slot| slot.name == *name);
        let lacks = match found {
            None => "does not exist",
            Some(slot) if slot.active_pid.is_none() => "is read by no standby",
            Some(_) => continue,
        };
        return Check::fail(
            item,
            ("standby-slots", Exit::Unavailable),
            format!(
                "slot {name} of synchronized_standby_slots {lacks}: the relay is sent nothing until it is"
            ),
            format!(
                "start that standby, or take the slot out: ALTER SYSTEM SET \
                 synchronized_standby_slots = '{}'; {reload}",
                listed
                    .iter()
                    .filter(|other| *other != name)
                    .copied()
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        );
    }
    Check::pass(item, format!("the relay waits for {}", listed.join(", ")))
}

fn unquoted(name: &str) -> &str {
    name.trim().trim_matches('"')
}

/// What the other servers of the URL say of the slot.
pub(super) struct Standby {
    host: String,
    /// `None`: no standby.
    found: Result<Option<Vec<SlotRow>>, Error>,
}

/// Asks each server of the URL but the one that is connected.
pub(super) async fn standbys(info: &ConnInfo, connected: &Host) -> Vec<Standby> {
    let mut standbys = Vec::new();
    for host in info.hosts.iter().filter(|host| *host != connected) {
        let mut info = info.clone();
        info.hosts = vec![host.clone()];
        info.target_session_attrs = TargetSessionAttrs::Any;
        standbys.push(Standby {
            host: host.to_string(),
            found: standby(&info).await,
        });
    }
    standbys
}

async fn standby(info: &ConnInfo) -> Result<Option<Vec<SlotRow>>, Error> {
    let mut session = Session::connect(info, SessionKind::Sql, &[]).await?;
    let sql = "SELECT pg_catalog.pg_is_in_recovery()";
    let rows = session.query(sql).await?;
    let standby = rows.first().is_some_and(|row| row.get(0) == Some("t"));
    let found = if standby {
        Some(slots(&mut session).await?)
    } else {
        None
    };
    session.close().await;
    Ok(found)
}

/// Whether each standby has a copy of the slot that survives its promotion.
pub(super) fn copies(seen: &Seen<'_>, standbys: &[Standby]) -> Vec<Check> {
    let item = Item::StandbyCopy;
    if !asked_for(seen) {
        return vec![Check::pass(item, "none without a failover slot")];
    }
    if standbys.is_empty() {
        return vec![Check::warn(
            item,
            "[source] url names no standby, so its copy of the slot cannot be seen",
            "name all hosts in [source] url, with target_session_attrs=read-write",
        )];
    }
    let name = &seen.wanted.slot;
    let check = |standby: &Standby| {
        let host = &standby.host;
        let lacks = match &standby.found {
            Err(error) => {
                return Check::warn(
                    item,
                    format!("{host} does not answer: {error}"),
                    "start it, or let the role in",
                );
            }
            Ok(None) => return Check::pass(item, format!("{host} is no standby")),
            Ok(Some(slots)) => match slots.iter().find(|slot| slot.name == *name) {
                Some(slot) if slot.invalidated.is_some() => "its copy is invalid".to_owned(),
                Some(slot) if slot.synced != Some(true) => {
                    "its slot of that name is no copy".to_owned()
                }
                Some(slot) if slot.temporary => {
                    return Check::warn(
                        item,
                        format!("the copy of slot {name} on standby {host} is not complete yet"),
                        "start the relay, if none runs: the copy is complete once the slot has moved on",
                    );
                }
                Some(_) => {
                    return Check::pass(item, format!("{host} has a copy of slot {name}"));
                }
                None => "it has no copy".to_owned(),
            },
        };
        Check::warn(
            item,
            format!("standby {host} is not ready to take slot {name} over: {lacks}"),
            "on the standby: ALTER SYSTEM SET sync_replication_slots = on; ALTER SYSTEM SET \
             hot_standby_feedback = on; SELECT pg_reload_conf(); with a dbname in primary_conninfo, and \
             a slot in primary_slot_name",
        )
    };
    standbys.iter().map(check).collect()
}
