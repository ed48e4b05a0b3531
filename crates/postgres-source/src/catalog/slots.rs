//! Replication slots of the server.

use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_walsender::{Error, Row, Rows, Session, quote_literal};

use super::row::{is_true, parsed, text};

/// [`SlotRow::invalidated`] on Postgres 16, which has no reason: recovery on a standby has removed
/// rows that the slot needs, or the primary's `wal_level` was lowered.
pub(crate) const CONFLICTING: &str = "conflicting with recovery";

/// A row of `pg_replication_slots`, with the WAL that the slot retains. Any role may read it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlotRow {
    /// The column `slot_name`.
    pub name: String,
    /// `slot_type`: `logical` or `physical`.
    pub kind: String,
    /// `None` for a physical slot.
    pub plugin: Option<String>,
    /// `None` for a physical slot.
    pub database: Option<String>,
    /// The slot ends with the session that created it.
    pub temporary: bool,
    /// The slot decodes a prepared transaction at PREPARE TRANSACTION.
    pub two_phase: bool,
    /// The process that reads the slot.
    pub active_pid: Option<i64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// `restart_lsn`: the server keeps the WAL from here on for the slot.
    pub restart: Option<Lsn>,
    /// `confirmed_flush_lsn`; `None` for a physical slot.
    pub confirmed: Option<Lsn>,
    /// Bytes of WAL from `restart` to the end.
    pub retained: Option<u64>,
    /// Bytes of WAL that can be written before the slot may lose WAL; `None` without
    /// `max_slot_wal_keep_size`. Negative values are stored as 0.
    pub safe_wal_size: Option<u64>,
    /// Time as the server prints it (Postgres 17 and newer).
    pub inactive_since: Option<String>,
    /// `inactive_since` as a timestamp: the slot was neither read nor moved since then.
    pub unmoved_since: Option<PgTimestamp>,
    /// The reason why the slot cannot be read any more: `invalidation_reason` (Postgres 17 and
    /// newer), `conflicting` (16).
    pub invalidated: Option<String>,
    /// Rows of transactions that committed after `confirmed` have this `xmin` or a later one.
    pub catalog_xmin: Option<u32>,
    /// Standbys keep a copy of the slot (Postgres 17 and newer).
    pub failover: Option<bool>,
    /// The slot is such a copy (Postgres 17 and newer).
    pub synced: Option<bool>,
    /// The reason why the last synchronisation of such a copy changed nothing (Postgres 19 and newer).
    pub sync_skipped: Option<String>,
}

impl SlotRow {
    /// Returns whether the slot is invalidated, or the server has removed its WAL.
    pub fn is_lost(&self) -> bool {
        self.lost().is_some()
    }

    /// Returns why the slot is lost; `None` if it can be read.
    pub fn lost(&self) -> Option<String> {
        let removed = self.wal_status.as_deref() == Some("lost");
        let reason = self.invalidated.clone();
        reason.or_else(|| removed.then(|| "wal_status = lost".to_owned()))
    }
}

fn select(major: u32) -> String {
    let by_version = match major {
        ..16 => {
            "NULL AS inactive_since, NULL AS unmoved_since, NULL AS invalidated, NULL AS failover, \
             NULL AS synced, NULL AS sync_skipped"
        }
        16 => &format!(
            "NULL AS inactive_since, NULL AS unmoved_since, CASE WHEN conflicting \
             THEN '{CONFLICTING}' END AS invalidated, NULL AS failover, NULL AS synced, NULL AS sync_skipped"
        ),
        17.. => &format!(
            "inactive_since, (1000000 * extract(epoch FROM inactive_since \
              - timestamptz '2000-01-01 00:00:00+00'))::int8 AS unmoved_since, \
             invalidation_reason AS invalidated, failover, synced, {} AS sync_skipped",
            if major < 19 {
                "NULL"
            } else {
                "slotsync_skip_reason"
            }
        ),
    };
    format!(
        "SELECT slot_name, slot_type, plugin, database, temporary, two_phase, active_pid, wal_status, restart_lsn, \
         confirmed_flush_lsn, safe_wal_size, catalog_xmin, {by_version}, pg_catalog.pg_wal_lsn_diff(\
          CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() \
          ELSE pg_catalog.pg_current_wal_flush_lsn() END, restart_lsn)::int8 AS retained \
         FROM pg_catalog.pg_replication_slots"
    )
}

/// Returns a query of all slots, ordered by name.
pub(super) fn slots_sql(major: u32) -> String {
    format!("{} ORDER BY slot_name", select(major))
}

/// Returns a query of one slot.
pub(super) fn slot_sql(major: u32, name: &str) -> String {
    format!(
        "{} WHERE slot_name = {}",
        select(major),
        quote_literal(name)
    )
}

/// Returns the slot of the first row, if there is one.
pub(super) fn first_slot(rows: &Rows) -> Option<SlotRow> {
    rows.first().map(|row| slot_row(&row))
}

pub(super) fn slot_row(row: &Row<'_>) -> SlotRow {
    let optional = |column| row.get(column).map(str::to_owned);
    let boolean = |column| row.get(column).map(|value| value == "t");
    let bytes = |column| parsed::<i64>(row, column).map(|bytes| u64::try_from(bytes).unwrap_or(0));
    SlotRow {
        name: text(row, "slot_name"),
        kind: text(row, "slot_type"),
        plugin: optional("plugin"),
        database: optional("database"),
        temporary: is_true(row, "temporary"),
        two_phase: is_true(row, "two_phase"),
        active_pid: parsed(row, "active_pid"),
        wal_status: optional("wal_status"),
        restart: parsed(row, "restart_lsn"),
        confirmed: parsed(row, "confirmed_flush_lsn"),
        retained: bytes("retained"),
        safe_wal_size: bytes("safe_wal_size"),
        inactive_since: optional("inactive_since"),
        unmoved_since: parsed(row, "unmoved_since").map(PgTimestamp::new),
        invalidated: optional("invalidated"),
        catalog_xmin: parsed(row, "catalog_xmin"),
        failover: boolean("failover"),
        synced: boolean("synced"),
        sync_skipped: optional("sync_skipped"),
    }
}

/// Queries all slots of the server, ordered by name.
pub async fn slots(session: &mut Session) -> Result<Vec<SlotRow>, Error> {
    let sql = slots_sql(session.server_version().major);
    let rows = session.query(&sql).await?;
    Ok(rows.iter().map(|row| slot_row(&row)).collect())
}
