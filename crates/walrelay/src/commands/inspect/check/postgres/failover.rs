//! Checks whether the slot survives a failover (Postgres 17 and newer).

use walrelay_failure::Exit;
use walrelay_postgres_source::{SlotRow, slots};
use walrelay_walsender::{
    ConnInfo, Error, Host, Session, SessionKind, TargetSessionAttrs, quote_literal,
};

use super::{DatabaseState, POSTGRES_ANSWER_LIMIT};
use crate::commands::inspect::check::item::Check;

/// The first version with failover slots.
const SINCE: u32 = 17;

/// Returns true if standbys are to have a copy of the slot.
fn is_configured(db: &DatabaseState<'_>) -> bool {
    let slot = db.facts.slot.as_ref();
    db.facts.server.major >= SINCE
        && (db.wanted.failover || slot.is_some_and(|slot| slot.failover == Some(true)))
}

/// Checks whether the slot is a failover slot, or need not be one.
pub(super) fn slot(db: &DatabaseState<'_>) -> Check {
    let name = &db.wanted.slot;
    let major = db.facts.server.major;
    if major < SINCE {
        return Check::pass(format!(
            "Postgres {major} has none: after a failover the slot is not on the new primary"
        ));
    }
    let slot = db.facts.slot.as_ref();
    let is_one = slot.map(|slot| slot.failover == Some(true));
    match (db.wanted.failover, is_one) {
        (_, Some(true)) => Check::pass(format!("standbys may keep a copy of slot {name}")),
        (true, None) => Check::pass(format!("slot {name} is created as one")),
        (true, Some(false)) => Check::warn(
            format!("slot {name} is no failover slot, though [source] failover is set"),
            format!(
                "restart the relay; or with the relay stopped, by psql \"dbname={} replication=database\": \
                 ALTER_REPLICATION_SLOT {name} (FAILOVER true)",
                db.facts.server.database
            ),
        ),
        (false, _) => match standby_streaming_slots(db).next() {
            Some(standby) => Check::warn(
                format!(
                    "a standby may stream by slot {}, and slot {name} is no failover slot: after a \
                     failover it is not on the new primary",
                    standby.name
                ),
                "[source] failover = true, for a recreated slot; docs/operate/troubleshooting.md, \
                 \"Failover of Postgres\"",
            ),
            None => Check::pass("not asked for, and no standby has a slot"),
        },
    }
}

/// Queries the physical slots, by which standbys stream.
fn standby_streaming_slots<'d>(db: &'d DatabaseState<'_>) -> impl Iterator<Item = &'d SlotRow> {
    let slots = db.survey.slots.iter();
    slots.filter(|slot| slot.plugin.is_none() && slot.database.is_none() && !slot.temporary)
}

/// Checks `synchronized_standby_slots`: Postgres sends a failover slot's changes to the relay only
/// once these standbys have received them.
pub(super) fn standby_slots(db: &DatabaseState<'_>) -> Check {
    if !is_configured(db) {
        return Check::pass("of no use without a failover slot");
    }
    let setting = db.survey.setting("synchronized_standby_slots");
    let listed = setting.unwrap_or_default().split(',');
    let listed = listed.map(|name| name.trim().trim_matches('"'));
    let listed: Vec<&str> = listed.filter(|name| !name.is_empty()).collect();
    let reload = "SELECT pg_reload_conf();";
    if listed.is_empty() {
        let remedy = match standby_streaming_slots(db).next() {
            Some(slot) => format!(
                "ALTER SYSTEM SET synchronized_standby_slots = {}; {reload}",
                quote_literal(&slot.name)
            ),
            None => format!(
                "have the standby stream by a slot (primary_slot_name), and ALTER SYSTEM SET \
                 synchronized_standby_slots to it; {reload}"
            ),
        };
        return Check::warn(
            "synchronized_standby_slots is empty: events may be relayed that a standby has not got, \
             and be missing in the database after a failover",
            remedy,
        );
    }
    for name in &listed {
        let slot = standby_streaming_slots(db).find(|slot| slot.name == *name);
        let problem = match slot {
            None => "does not exist",
            Some(slot) if slot.active_pid.is_none() => "is read by no standby",
            Some(_) => continue,
        };
        let others: Vec<&str> = listed
            .iter()
            .copied()
            .filter(|other| other != name)
            .collect();
        return Check::fail(
            ("standby-slots", Exit::Unavailable),
            format!(
                "slot {name} of synchronized_standby_slots {problem}: the relay is sent nothing until it is"
            ),
            format!(
                "start that standby, or remove the slot: ALTER SYSTEM SET \
                 synchronized_standby_slots = {}; {reload}",
                quote_literal(&others.join(", "))
            ),
        );
    }
    Check::pass(format!("the relay waits for {}", listed.join(", ")))
}

/// Another server of `[source] url`.
pub(super) struct Standby {
    host: String,
    /// Its slots; `None` if the server is no standby.
    slots: Result<Option<Vec<SlotRow>>, Error>,
}

/// Queries each server of the URL but the connected one, if standbys are to have a copy of the slot.
pub(super) async fn standbys(
    db: &DatabaseState<'_>,
    info: &ConnInfo,
    connected: &Host,
) -> Vec<Standby> {
    let mut standbys = Vec::new();
    if !is_configured(db) {
        return standbys;
    }
    for host in info.hosts.iter().filter(|host| *host != connected) {
        let mut info = info.clone();
        info.hosts = vec![host.clone()];
        info.target_session_attrs = TargetSessionAttrs::Any;
        standbys.push(Standby {
            host: host.to_string(),
            slots: standby_slot_rows(&info).await,
        });
    }
    standbys
}

async fn standby_slot_rows(info: &ConnInfo) -> Result<Option<Vec<SlotRow>>, Error> {
    let mut session = Session::connect(info, SessionKind::Sql, &[]).await?;
    session.limit_answers(POSTGRES_ANSWER_LIMIT);
    let sql = "SELECT pg_catalog.pg_is_in_recovery()";
    let rows = session.query(sql).await?;
    let standby = rows.first().is_some_and(|row| row.get(0) == Some("t"));
    let slot_rows = if standby {
        Some(slots(&mut session).await?)
    } else {
        None
    };
    session.close().await;
    Ok(slot_rows)
}

/// Checks whether each standby has a copy of the slot that survives its promotion.
pub(super) fn copies(db: &DatabaseState<'_>, standbys: &[Standby]) -> Vec<Check> {
    if !is_configured(db) {
        return vec![Check::pass("none without a failover slot")];
    }
    if standbys.is_empty() {
        return vec![Check::warn(
            "[source] url names no standby, so its copy of the slot cannot be seen",
            "name all hosts in [source] url, with target_session_attrs=read-write",
        )];
    }
    standbys
        .iter()
        .map(|standby| copy(&db.wanted.slot, standby))
        .collect()
}

fn copy(name: &str, Standby { host, slots }: &Standby) -> Check {
    let slots = match slots {
        Ok(Some(slots)) => slots,
        Ok(None) => return Check::pass(format!("{host} is no standby")),
        Err(error) => {
            let finding = format!("{host} does not answer: {error}");
            return Check::warn(finding, "start it, or let the role in");
        }
    };
    // Postgres 19 and newer: none once a synchronisation has succeeded.
    let skipped = |slot: &SlotRow| match &slot.sync_skipped {
        Some(reason) => format!("; the last synchronisation was skipped ({reason})"),
        None => String::new(),
    };
    let problem = match slots.iter().find(|slot| slot.name == *name) {
        None => "it has no copy",
        Some(slot) if slot.invalidated.is_some() => "its copy is invalid",
        Some(slot) if slot.synced != Some(true) => "its slot of that name is no copy",
        Some(slot) if slot.temporary => {
            return Check::warn(
                format!(
                    "the copy of slot {name} on standby {host} is not complete yet{}",
                    skipped(slot)
                ),
                "start the relay, if none runs: the copy is complete once the slot has moved on",
            );
        }
        Some(slot) => {
            let skipped = skipped(slot);
            return Check::pass(format!("{host} has a copy of slot {name}{skipped}"));
        }
    };
    Check::warn(
        format!("standby {host} is not ready to take slot {name} over: {problem}"),
        "on the standby: ALTER SYSTEM SET sync_replication_slots = on; ALTER SYSTEM SET \
         hot_standby_feedback = on; SELECT pg_reload_conf(); with a dbname in primary_conninfo, and \
         a slot in primary_slot_name",
    )
}
