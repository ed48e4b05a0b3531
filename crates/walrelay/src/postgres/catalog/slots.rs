//! All replication slots of the server, for people.

use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_walsender::{Error, Row, Session};

use super::row::{is_true, parsed, text};

/// A row of `pg_replication_slots`, with what it costs. Any role may read it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SlotRow {
    pub(crate) name: String,
    /// `None` of a physical slot.
    pub(crate) plugin: Option<String>,
    /// `None` of a physical slot.
    pub(crate) database: Option<String>,
    /// It ends with the session that made it.
    pub(crate) temporary: bool,
    /// The process that reads it now.
    pub(crate) active_pid: Option<i64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub(crate) wal_status: Option<String>,
    pub(crate) restart: Option<Lsn>,
    /// `None` of a physical slot.
    pub(crate) confirmed: Option<Lsn>,
    /// Bytes of log from `restart` to the end.
    pub(crate) retained: Option<u64>,
    /// Bytes that may still be written before the slot is in danger; `None` without
    /// `max_slot_wal_keep_size`. Below zero counts as zero.
    pub(crate) safe_wal_size: Option<u64>,
    /// As the server prints it (17 and newer).
    pub(crate) inactive_since: Option<String>,
    /// The same as a time: since then, at least, nobody has read or moved the slot.
    pub(crate) unmoved_since: Option<PgTimestamp>,
    /// `invalidation_reason` (17 and newer), or that it conflicts with recovery (16).
    pub(crate) invalidated: Option<String>,
    /// Standbys keep a copy of it (17 and newer).
    pub(crate) failover: Option<bool>,
    /// It is such a copy (17 and newer).
    pub(crate) synced: Option<bool>,
}

impl SlotRow {
    /// The server does not have its log any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.wal_status.as_deref() == Some("lost") || self.invalidated.is_some()
    }
}

/// Asks for all slots, by name.
pub(super) fn slots_sql(major: u32) -> String {
    let news = match major {
        ..16 => {
            "NULL AS inactive_since, NULL AS unmoved_since, NULL AS invalidated, NULL AS failover, \
             NULL AS synced"
        }
        16 => {
            "NULL AS inactive_since, NULL AS unmoved_since, CASE WHEN conflicting \
             THEN 'conflicting with recovery' END AS invalidated, NULL AS failover, NULL AS synced"
        }
        17.. => {
            "inactive_since, (1000000 * extract(epoch FROM inactive_since \
              - timestamptz '2000-01-01 00:00:00+00'))::int8 AS unmoved_since, \
             invalidation_reason AS invalidated, failover, synced"
        }
    };
    format!(
        "SELECT slot_name, plugin, database, temporary, active_pid, wal_status, restart_lsn, \
         confirmed_flush_lsn, safe_wal_size, {news}, pg_catalog.pg_wal_lsn_diff(\
          CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() \
          ELSE pg_catalog.pg_current_wal_flush_lsn() END, restart_lsn)::int8 AS retained \
         FROM pg_catalog.pg_replication_slots ORDER BY slot_name"
    )
}

pub(super) fn slot_row(row: &Row<'_>) -> SlotRow {
    let optional = |column| row.get(column).map(str::to_owned);
    let boolean = |column| row.get(column).map(|value| value == "t");
    let bytes = |column| parsed::<i64>(row, column).map(|bytes| u64::try_from(bytes).unwrap_or(0));
    SlotRow {
        name: text(row, "slot_name"),
        plugin: optional("plugin"),
        database: optional("database"),
        temporary: is_true(row, "temporary"),
        active_pid: parsed(row, "active_pid"),
        wal_status: optional("wal_status"),
        restart: parsed(row, "restart_lsn"),
        confirmed: parsed(row, "confirmed_flush_lsn"),
        retained: bytes("retained"),
        safe_wal_size: bytes("safe_wal_size"),
        inactive_since: optional("inactive_since"),
        unmoved_since: parsed(row, "unmoved_since").map(PgTimestamp::new),
        invalidated: optional("invalidated"),
        failover: boolean("failover"),
        synced: boolean("synced"),
    }
}

/// All slots of the server, by name.
pub(crate) async fn slots(session: &mut Session) -> Result<Vec<SlotRow>, Error> {
    let sql = slots_sql(session.server_version().major);
    let rows = session.query(&sql).await?;
    Ok(rows.iter().map(|row| slot_row(&row)).collect())
}
