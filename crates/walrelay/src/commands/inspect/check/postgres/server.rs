//! Checks the server and the role: versions, limits, privileges, clocks.

use std::time::Duration;

use walrelay_failure::Exit;
use walrelay_postgres_source::{
    LogicalDecoding, failover_known, names_standby, slots_needed, state_version_known, wal_level,
};
use walrelay_walsender::Error;

use super::{DatabaseState, check_result, failed};
use crate::commands::inspect::check::item::Check;
use crate::commands::terminal::units::bytes;

/// The oldest version that the tests run with.
const OLDEST: u32 = 14;
/// Difference of the clocks in seconds from which on latencies and the ends of tokens are wrong.
const CLOCK_DIFFERENCE: f64 = 1.0;
/// Postgres' default of `wal_sender_timeout`.
const LONG_TIMEOUT: Duration = Duration::from_secs(60);

/// Checks the server's version, and whether the configuration needs a newer one.
pub(super) fn version(db: &DatabaseState<'_>) -> Check {
    if let Err(error) = failover_known(&db.wanted, &db.facts) {
        return failed(error);
    }
    let major = db.facts.server.major;
    let version = db.survey.setting("server_version").unwrap_or_default();
    if major < OLDEST {
        return Check::warn(
            format!("Postgres {version} is older than {OLDEST}, the oldest that is tested"),
            "upgrade the server",
        );
    }
    let lacks = match major {
        ..15 => "; no column lists and row filters (15), no failover slots (17)",
        15 | 16 => "; no failover slots (17)",
        17.. => "",
    };
    Check::pass(format!("Postgres {version}{lacks}"))
}

/// Checks that the log can be decoded, and warns if the last slot takes that with it.
pub(super) fn logical(db: &DatabaseState<'_>) -> Check {
    let server = &db.facts.server;
    let level = &server.wal_level;
    let of_primary = if server.in_recovery {
        " of the primary"
    } else {
        ""
    };
    match wal_level(&db.facts) {
        Err(error) => failed(error),
        Ok(LogicalDecoding::Always) => Check::pass(level.as_str()),
        Ok(LogicalDecoding::WhileASlotExists { is_on: false }) => Check::pass(format!(
            "{level}: the first logical slot{of_primary} switches logical decoding on, without a restart"
        )),
        Ok(LogicalDecoding::WhileASlotExists { is_on: true }) => Check::warn(
            format!(
                "{level}: logical decoding is on until the last logical slot{of_primary} is dropped or lost, \
                 which also loses the logical slots of standbys"
            ),
            "keep a logical slot, or run ALTER SYSTEM SET wal_level = 'logical' and restart the server, \
             which keeps it on",
        ),
    }
}

/// Checks that what relays keep in the database is of a known version.
pub(super) fn state_version(db: &DatabaseState<'_>) -> Check {
    let version = db.facts.server.state_version;
    let finding = format!("schema walrelay_state: version {version}");
    check_result(state_version_known(&db.facts), &finding)
}

/// Checks that the role could open a replication connection.
pub(super) fn replication(db: &DatabaseState<'_>, opened: Result<(), Error>) -> Check {
    // `too_many_connections`: the limit of walsenders raises it, too, and has a check of its own.
    if matches!(&opened, Err(error) if error.sqlstate() == Some("53300")) {
        return Check::warn(
            "not seen: the server lets in no more replication connections",
            "end one of them, or raise the limit, and check again",
        );
    }
    let role = &db.survey.role;
    check_result(
        opened,
        format!("role {role} may open a replication connection"),
    )
}

/// Returns how much of a limit is free, the same as a finding, and the SQL that raises the limit.
fn free_of_limit(
    db: &DatabaseState<'_>,
    setting: &str,
    used: u64,
) -> Option<(u64, String, String)> {
    let limit = u64::try_from(db.survey.number(setting)?).unwrap_or(0);
    let free = limit.saturating_sub(used);
    let finding = format!("{free} of {setting} = {limit} are free");
    let raised = (limit + 5).max(10);
    let raise = format!("ALTER SYSTEM SET {setting} = {raised}; then restart the server");
    Some((free, finding, raise))
}

/// Checks that a walsender is free: the relay takes one, and for a moment a second one after a
/// broken connection.
pub(super) fn walsenders(db: &DatabaseState<'_>) -> Check {
    let free = free_of_limit(db, "max_wal_senders", db.survey.walsenders);
    let Some((free, finding, raise)) = free else {
        return Check::pass("the server does not say its limit");
    };
    let slot = db.facts.slot.as_ref();
    let relay_runs = slot.is_some_and(|slot| slot.active_pid.is_some());
    match (free, relay_runs) {
        (0, false) => Check::fail(
            ("server-limit", Exit::Config),
            format!("{finding}: the relay cannot connect"),
            raise,
        ),
        (0, true) => Check::warn(
            format!("{finding}: after a broken connection the relay has to wait for its own"),
            raise,
        ),
        _ => Check::pass(finding),
    }
}

/// Checks that a slot can be created, if it does not exist.
pub(super) fn slot_limit(db: &DatabaseState<'_>) -> Check {
    let free = free_of_limit(db, "max_replication_slots", db.survey.slots.len() as u64);
    let Some((free, finding, raise)) = free else {
        return Check::pass("the server does not say its limit");
    };
    let needed = slots_needed(&db.wanted).cast_unsigned();
    if free < needed && db.facts.slot.is_none() {
        return Check::fail(
            ("server-limit", Exit::Config),
            format!(
                "{finding}: the relay's slot cannot be created{}",
                if needed > 1 {
                    ", because the snapshot before it needs another one meanwhile"
                } else {
                    ""
                }
            ),
            format!("drop an unused slot (walrelay slots list), or {raise}"),
        );
    }
    Check::pass(finding)
}

/// Checks the `wal_sender_timeout` that the relay sets for its session: for so long, the slot stays
/// in use after the relay's machine has vanished.
pub(super) fn wal_sender_timeout(db: &DatabaseState<'_>) -> Check {
    let timeout = db.config.source.wal_sender_timeout;
    if timeout > LONG_TIMEOUT {
        return Check::warn(
            format!(
                "{timeout:?} for the relay's session: for so long a relay whose machine has vanished \
                 keeps the slot"
            ),
            "[source] wal_sender_timeout = \"5s\"",
        );
    }
    let server = db.survey.duration("wal_sender_timeout");
    Check::pass(format!(
        "{timeout:?} for the relay's session, whatever the server has ({})",
        server.as_deref().unwrap_or("off")
    ))
}

/// Checks that the server does not take the relay for a synchronous standby: each commit would wait
/// for the sink, and hang while no relay runs.
pub(super) fn synchronous_standby(db: &DatabaseState<'_>) -> Check {
    let setting = db.survey.setting("synchronous_standby_names");
    let setting = setting.unwrap_or_default();
    let name = &db.application_name;
    if names_standby(setting, name) {
        return Check::warn(
            format!(
                "synchronous_standby_names = '{setting}' makes the relay a synchronous standby: each \
                 commit waits until the relay has confirmed it, and hangs while no relay runs"
            ),
            format!("name the standbys in synchronous_standby_names, without {name}"),
        );
    }
    Check::pass(format!(
        "no commit waits for the relay (synchronous_standby_names = '{setting}')"
    ))
}

/// Checks the server's clock minus this machine's, in seconds, with its uncertainty.
pub(super) fn clock((difference, uncertainty): (f64, f64)) -> Check {
    let apart = difference.abs();
    if apart - uncertainty >= CLOCK_DIFFERENCE {
        let way = if difference > 0.0 { "ahead" } else { "behind" };
        return Check::warn(
            format!(
                "the server's clock is {apart:.1} s {way} of this machine's: latencies in the log are \
                 wrong by that"
            ),
            "synchronise both clocks (NTP)",
        );
    }
    Check::pass(format!(
        "the server's clock differs by {apart:.3} s, give or take {uncertainty:.3} s; a sink's \
         servers do not tell theirs"
    ))
}

pub(super) fn connection(db: &DatabaseState<'_>, encrypted: bool) -> Check {
    let server = &db.facts.server;
    let (database, role) = (&server.database, &db.survey.role);
    let tls = if encrypted { ", with TLS" } else { "" };
    let standby = if server.in_recovery {
        ", a standby"
    } else {
        ""
    };
    Check::pass(format!("database {database}, as role {role}{tls}{standby}"))
}

/// Checks `max_slot_wal_keep_size`: without it the slot may fill the disk, and with it the slot may
/// be lost.
pub(super) fn keep_size(db: &DatabaseState<'_>) -> Check {
    let set = "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();";
    let Some(limit) = db.facts.server.max_slot_wal_keep_size else {
        return Check::warn(
            "-1: while nothing is confirmed, the slot keeps WAL until the disk of the server is full",
            format!("{set} with the size that the disk can spare"),
        );
    };
    let megabytes = db.survey.number("max_wal_size").unwrap_or(0);
    let checkpoint = u64::try_from(megabytes).unwrap_or(0) << 20;
    if limit < checkpoint {
        return Check::warn(
            format!(
                "{}, which is less than max_wal_size ({}): a short stop of the relay under load loses \
                 the slot",
                bytes(limit),
                bytes(checkpoint)
            ),
            set,
        );
    }
    Check::pass(format!("{}: a slot that needs more is lost", bytes(limit)))
}

/// Checks `idle_replication_slot_timeout`, by which a server from 18 on invalidates slots that
/// nobody reads.
pub(super) fn idle_timeout(db: &DatabaseState<'_>) -> Check {
    match db.survey.duration("idle_replication_slot_timeout") {
        Some(timeout) => Check::warn(
            format!(
                "idle_replication_slot_timeout = {timeout}: a relay that is down for longer loses its slot"
            ),
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
        ),
        None => Check::pass("an unused slot is not invalidated for that"),
    }
}
