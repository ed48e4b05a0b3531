//! The database of a report: the server, its outbox tables, the slot, and other readers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use walrelay_lsn::Lsn;
use walrelay_relay::Danger;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SourceReport {
    /// The connection string without its secrets.
    pub server: String,
    pub publication: String,
    pub tables: Vec<String>,
    /// The highest position received.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub received_lsn: Option<Lsn>,
    /// The position that may be confirmed in the slot.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub confirmed_lsn: Option<Lsn>,
    /// The end of the server's WAL, as the server reported it last.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub server_lsn: Option<Lsn>,
    /// WAL from the confirmed position to the end of the server's WAL.
    pub lag_bytes: Option<u64>,
    /// Age of the oldest commit that is not acknowledged; 0 if everything is acknowledged. It also
    /// grows while the relay has no connection, and while its pipeline does not report.
    pub lag_seconds: f64,
    /// Attempts that failed and were followed by another, by cause.
    pub reconnects: BTreeMap<String, u64>,
    /// The number of those within the last ten minutes, at most 11.
    #[serde(default)]
    pub recent_reconnects: u64,
    /// `source.retained_wal_warning`; `null` if it is off.
    #[serde(default)]
    pub retained_wal_warning_bytes: Option<u64>,
    /// Status updates sent to the server.
    pub feedback_sent: u64,
    /// How far the server's clock is ahead of this machine's, at least; negative if it is behind.
    #[serde(default)]
    pub clock_offset_seconds: Option<f64>,
    /// Who keeps services from writing to an outbox table by a lock, for some seconds: process,
    /// application, mode and age; `null` if nobody does.
    #[serde(default)]
    pub table_lock: Option<String>,
    /// Sessions, modes and tables of `table_lock`: without the age and without those they wait for, which change.
    #[serde(default)]
    pub table_lock_holder: Option<String>,
    /// What to do about it.
    #[serde(default)]
    pub table_lock_remedy: Option<String>,
    /// Sizes and ages of the outbox tables, as the server reported them last; empty before the first answer.
    #[serde(default)]
    pub outboxes: Vec<OutboxReport>,
    /// Why the last query of the outbox tables failed.
    #[serde(default)]
    pub outbox_error: Option<String>,
    /// The last round of the audit; `null` without `[audit]`, and before the first round.
    #[serde(default)]
    pub audit: Option<AuditReport>,
    /// Rows of tables that are no outboxes, which were passed over, by table.
    #[serde(default)]
    pub passed_over_rows: BTreeMap<String, u64>,
    /// The replays that run in the database, of whatever slot or bookmark.
    #[serde(default)]
    pub replays: Vec<ReplayReport>,
}

/// A running `walrelay replay`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReplayReport {
    /// The process id on the server.
    pub pid: i64,
    /// The temporary slot that it reads.
    pub copy: String,
    /// The position up to which its records are acknowledged.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub position: Option<Lsn>,
    /// WAL from there to the end of the server's WAL. The replay may end before.
    pub behind_bytes: Option<u64>,
}

impl ReplayReport {
    /// Returns who replays, and how far it is.
    pub fn text(&self) -> String {
        let Self { pid, copy, .. } = self;
        self.position.map_or_else(
            || format!("server process {pid} reads {copy}"),
            |position| format!("server process {pid} reads {copy}, acknowledged up to {position}"),
        )
    }
}

/// A round of the audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AuditReport {
    /// Its end, in milliseconds since 1970.
    pub at_ms: u64,
    /// The outbox tables.
    pub tables: Vec<AuditedTable>,
    /// Why the round did not look at everything that it was to look at.
    pub error: Option<String>,
}

/// An outbox table, as the audit has seen it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AuditedTable {
    /// `schema.table`.
    pub table: String,
    /// Rows without evidence that they were sent, though the slot is past them.
    pub rows: u64,
    /// The part of the table that was looked at, in percent.
    pub percent: u64,
}

/// Sizes and ages of an outbox table with its partitions. Counts are those of the server's statistics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OutboxReport {
    /// `schema.table`.
    pub table: String,
    /// Rows, estimated.
    pub rows: Option<u64>,
    /// Bytes of the table with its indexes and TOAST.
    pub bytes: Option<u64>,
    /// Dead rows, estimated.
    pub dead_rows: Option<u64>,
    /// Time since the last vacuum; `null` if there was none since the statistics began.
    pub vacuum_seconds: Option<f64>,
    /// Age of the oldest row by the age column; `null` if there is none, or no index tells it.
    pub oldest_seconds: Option<f64>,
    /// Age of the oldest row without the mark of `mark_sent`; 0 if there is none, `null` if rows are not marked, or no
    /// index tells it.
    pub oldest_unmarked_seconds: Option<f64>,
    /// By how much the oldest row is older than `[prune] keep`; `null` without it.
    pub prune_overdue_seconds: Option<f64>,
    /// Which ages are not known, and the index that would tell them.
    pub unknown: Vec<String>,
}

/// The snapshot: rows that are read before the slot is created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SnapshotReport {
    /// Whether the rows are being read now.
    pub running: bool,
    /// Rows read by this attempt.
    pub rows: u64,
    /// Rows in the snapshot by the server's statistics; `null` before the snapshot began.
    pub expected_rows: Option<u64>,
    /// Rows read by all attempts of this process.
    pub rows_total: u64,
}

/// The server's view of the slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SlotReport {
    /// A walsender reads the slot.
    pub active: bool,
    /// The process id of that walsender.
    pub active_pid: Option<i64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// WAL that the server keeps for the slot: from its `restart_lsn` on.
    pub retained_bytes: u64,
    /// WAL that may still be written before the slot is in danger; `null` without
    /// `max_slot_wal_keep_size`.
    pub safe_wal_bytes: Option<u64>,
    /// `max_slot_wal_keep_size`; `null` if it is off.
    pub limit_bytes: Option<u64>,
    /// The oldest open transaction of the server, which may hold the log: process, application and age.
    #[serde(default)]
    pub oldest_transaction: Option<String>,
    /// Time since the slot had a reader (Postgres 17 and newer).
    pub inactive_seconds: Option<f64>,
    /// Why the slot is lost, in Postgres' own words: `invalidation_reason`, before Postgres 17
    /// `wal_status = lost` or a conflict. `null` while it is valid.
    pub invalidation_reason: Option<String>,
    /// `synchronized_standby_slots`, while Postgres sends nothing because a standby of these slots has not
    /// got the log; `null` otherwise.
    #[serde(default)]
    pub waits_for_standbys: Option<String>,
    /// When the server reported this.
    pub seen_ms: u64,
}

impl SlotReport {
    /// Judges the figures. `warn_above`: bytes of retained WAL to warn about; 0 disables that warning.
    pub fn danger(&self, warn_above: u64) -> Danger {
        let left = self.safe_wal_bytes.zip(self.limit_bytes);
        let status = self.wal_status.as_deref();
        Danger::judge(status, self.retained_bytes, left, warn_above)
    }
}

/// The locks that keep services from writing to an outbox table.
#[derive(Debug, Clone)]
pub struct TableLockReport {
    /// Who holds or awaits them: process, application, mode and age.
    pub text: String,
    /// Sessions, modes and tables, without what changes.
    pub holder: String,
    /// What an operator can do about them.
    pub remedy: String,
}

/// A move of the outbox that has not ended on this server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MoveReport {
    /// `prepared`, `fenced` or `drained`.
    pub state: String,
    /// The state and its consequence.
    pub text: String,
    /// How to finish the move, and how to give it up.
    pub remedy: String,
    /// When the state was recorded.
    pub since_ms: u64,
}

/// The rolling bookmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BookmarkReport {
    /// The name of the bookmark's slot.
    pub slot: String,
    /// The position that replays can begin at.
    #[cfg_attr(test, schemars(with = "String"))]
    pub position: Lsn,
    /// WAL that the server keeps for the bookmark alone.
    pub retained_bytes: u64,
    /// `retention.max_wal`.
    pub max_wal_bytes: u64,
    /// Events of at least the last so many seconds can be replayed from the bookmark.
    pub reachable_seconds: f64,
    /// `retention.keep`.
    pub keep_seconds: f64,
    /// Why less than `keep_seconds` can be replayed: `max_wal`, or the bookmark was `lost` or
    /// `dropped`. `null` if the bookmark was not cut short in that time, as far as this process
    /// knows.
    pub cut_short: Option<String>,
    /// When the server reported this.
    pub seen_ms: u64,
}

impl BookmarkReport {
    /// `[retention] max_wal` moved the bookmark early.
    pub const BY_SIZE: &str = "max_wal";
    /// The server has removed WAL that the bookmark needs.
    pub const LOST: &str = "lost";
    /// Something else dropped the slot of the bookmark.
    pub const DROPPED: &str = "dropped";
    /// The values of `cut_short`.
    pub const CUTS: [&str; 3] = [Self::BY_SIZE, Self::LOST, Self::DROPPED];
}
