//! The server and the role: versions, limits, rights, clocks.

use std::time::Duration;

use walrelay_walsender::Error;

use super::Seen;
use crate::cli::Exit;
use crate::commands::check::item::{Check, Item};
use crate::commands::units::bytes;
use crate::failures;
use crate::postgres::{PostgresError, failover_known, wal_level};

/// The oldest version that the tests run with.
const OLDEST: u32 = 14;
/// At or above this difference, latencies and the ends of tokens are wrong.
const CLOCK_DIFFERENCE: f64 = 1.0;
/// Postgres' default of `wal_sender_timeout`.
const LONG_TIMEOUT: Duration = Duration::from_secs(60);

/// What the server's version has, and whether the configuration asks for more.
pub(super) fn version(seen: &Seen<'_>) -> Check {
    let Seen {
        wanted,
        facts,
        survey,
        ..
    } = seen;
    if let Err(error) = failover_known(wanted, facts) {
        return Check::failed(Item::Version, &failures::postgres(error.into()));
    }
    let major = facts.server.major;
    let version = survey.setting("server_version").unwrap_or_default();
    if major < OLDEST {
        return Check::warn(
            Item::Version,
            format!("Postgres {version} is older than {OLDEST}, the oldest that is tested"),
            "upgrade the server",
        );
    }
    let lacks = match major {
        ..15 => "; no column lists and row filters (15), no failover slots (17)",
        15 | 16 => "; no failover slots (17)",
        17.. => "",
    };
    Check::pass(Item::Version, format!("Postgres {version}{lacks}"))
}

pub(super) fn logical(seen: &Seen<'_>) -> Check {
    match wal_level(seen.facts) {
        Ok(()) => Check::pass(Item::WalLevel, "logical"),
        Err(error) => Check::failed(Item::WalLevel, &failures::postgres(error.into())),
    }
}

/// Whether the role could open a replication connection.
pub(super) fn replication(seen: &Seen<'_>, opened: Result<(), Error>) -> Check {
    let item = Item::Replication;
    match opened {
        Ok(()) => Check::pass(
            item,
            format!(
                "role {} may open a replication connection",
                seen.survey.role
            ),
        ),
        // The limit is named by its own check.
        Err(error) if is_limit(&error) => Check::warn(
            item,
            "not seen: the server lets in no more replication connections",
            "end one of them, or raise the limit, and check again",
        ),
        Err(error) => Check::failed(item, &failures::postgres(error.into())),
    }
}

/// `too_many_connections`, also of walsenders.
fn is_limit(error: &Error) -> bool {
    error.sqlstate() == Some("53300")
}

/// The relay takes one walsender, and for a moment a second one after a broken connection.
pub(super) fn walsenders(seen: &Seen<'_>) -> Check {
    let Some(limit) = seen.survey.number("max_wal_senders") else {
        return Check::pass(Item::WalSenders, "the server does not say its limit");
    };
    let limit = u64::try_from(limit).unwrap_or(0);
    let used = seen.survey.walsenders;
    let free = limit.saturating_sub(used);
    let finding = format!("{free} of max_wal_senders = {limit} are free");
    let remedy = format!(
        "ALTER SYSTEM SET max_wal_senders = {}; then restart the server",
        (limit + 5).max(10)
    );
    let relay_runs = seen
        .facts
        .slot
        .as_ref()
        .is_some_and(|slot| slot.active_pid.is_some());
    match (free, relay_runs) {
        (0, false) => Check::fail(
            Item::WalSenders,
            ("server-limit", Exit::Config),
            format!("{finding}: the relay cannot connect"),
            remedy,
        ),
        (0, true) => Check::warn(
            Item::WalSenders,
            format!("{finding}: after a broken connection the relay has to wait for its own"),
            remedy,
        ),
        _ => Check::pass(Item::WalSenders, finding),
    }
}

/// A slot that does not exist yet needs room.
pub(super) fn slot_limit(seen: &Seen<'_>) -> Check {
    let Some(limit) = seen.survey.number("max_replication_slots") else {
        return Check::pass(Item::SlotLimit, "the server does not say its limit");
    };
    let limit = usize::try_from(limit).unwrap_or(0);
    let free = limit.saturating_sub(seen.survey.slots.len());
    let finding = format!("{free} of max_replication_slots = {limit} are free");
    if free == 0 && seen.facts.slot.is_none() {
        return Check::fail(
            Item::SlotLimit,
            ("server-limit", Exit::Config),
            format!("{finding}: the relay's slot cannot be created"),
            format!(
                "drop a slot that nobody reads (walrelay slots list), or ALTER SYSTEM SET \
                 max_replication_slots = {}; then restart the server",
                (limit + 5).max(10)
            ),
        );
    }
    Check::pass(Item::SlotLimit, finding)
}

/// How long a relay whose machine has vanished keeps the slot. The relay sets it for its own session.
pub(super) fn wal_sender_timeout(seen: &Seen<'_>) -> Check {
    let timeout = seen.config.source.wal_sender_timeout;
    if timeout > LONG_TIMEOUT {
        return Check::warn(
            Item::WalSenderTimeout,
            format!(
                "{timeout:?} for the relay's session: for so long a relay whose machine has vanished \
                 keeps the slot"
            ),
            "[source] wal_sender_timeout = \"5s\"",
        );
    }
    let server = seen.survey.duration("wal_sender_timeout");
    Check::pass(
        Item::WalSenderTimeout,
        format!(
            "{timeout:?} for the relay's session, whatever the server has ({})",
            server.as_deref().unwrap_or("off")
        ),
    )
}

/// `difference`: the server's clock minus ours, in seconds; `within`: how far off that may be.
pub(super) fn clock(difference: f64, within: f64) -> Check {
    let unseen = "a broker does not tell its own";
    if difference.abs() - within >= CLOCK_DIFFERENCE {
        let way = if difference > 0.0 { "ahead" } else { "behind" };
        return Check::warn(
            Item::Clock,
            format!(
                "the server's clock is {:.1} s {way} of this machine's: latencies in the log are wrong \
                 by that",
                difference.abs()
            ),
            "synchronise both clocks (NTP)",
        );
    }
    Check::pass(
        Item::Clock,
        format!(
            "the server's clock differs by {:.3} s, give or take {within:.3} s; {unseen}",
            difference.abs()
        ),
    )
}

pub(super) fn connection(seen: &Seen<'_>, encrypted: bool) -> Check {
    let server = &seen.facts.server;
    let standby = if server.in_recovery {
        ", a standby"
    } else {
        ""
    };
    let tls = if encrypted { ", with TLS" } else { "" };
    Check::pass(
        Item::Connection,
        format!(
            "database {}, as role {}{tls}{standby}",
            server.database, seen.survey.role
        ),
    )
}

/// What keeps the server from filling its disk, and what it does to the slot instead.
pub(super) fn keep_size(seen: &Seen<'_>) -> Check {
    let item = Item::KeepSize;
    let reload = "SELECT pg_reload_conf();";
    match seen.facts.server.max_slot_wal_keep_size {
        None => Check::warn(
            item,
            "-1: while nothing is confirmed, the slot keeps WAL until the disk of the server is full",
            format!(
                "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; {reload} with what the disk has to \
                 spare"
            ),
        ),
        Some(limit) => {
            let megabytes = seen.survey.number("max_wal_size").unwrap_or(0);
            let checkpoint = u64::try_from(megabytes).unwrap_or(0) << 20;
            if limit < checkpoint {
                return Check::warn(
                    item,
                    format!(
                        "{}, which is less than max_wal_size ({}): a short stop of the relay under load \
                         loses the slot",
                        bytes(limit),
                        bytes(checkpoint)
                    ),
                    format!("ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; {reload}"),
                );
            }
            Check::pass(
                item,
                format!("{}: a slot that needs more is lost", bytes(limit)),
            )
        }
    }
}

/// Since 18 the server may invalidate a slot that nobody reads.
pub(super) fn idle_timeout(seen: &Seen<'_>) -> Check {
    match seen.survey.duration("idle_replication_slot_timeout") {
        Some(timeout) => Check::warn(
            Item::IdleTimeout,
            format!(
                "idle_replication_slot_timeout = {timeout}: a relay that is down for longer loses its slot"
            ),
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
        ),
        None => Check::pass(
            Item::IdleTimeout,
            "a slot that nobody reads is not invalidated for that",
        ),
    }
}

/// An error of a query that every role may make.
pub(super) fn unanswered(error: impl Into<PostgresError>) -> Check {
    Check::failed(Item::Connection, &failures::postgres(error.into()))
}
