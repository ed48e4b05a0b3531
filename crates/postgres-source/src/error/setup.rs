//! [`SetupError`]: the database is not set up as the relay needs it.

use std::fmt;

use walrelay_lsn::Lsn;
use walrelay_relay::TableName;
use walrelay_sink::Disposition;
use walrelay_walsender::{quote_ident, quote_literal};

use crate::catalog::{CONFLICTING, Generated};
use crate::foreign_tables::{self, Carries};
use crate::state_version::VERSION;
use crate::{columns_remedy, script};

/// The database is not set up as the relay needs it. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The log cannot be decoded at this `wal_level`.
    #[error(
        "the server runs with wal_level = {level}; reading an outbox from the log needs {}",
        if *replica_suffices { "replica or logical" } else { "logical" }
    )]
    WalLevel {
        /// The server's `wal_level`.
        level: String,
        /// `replica` would do: Postgres 19 and newer.
        replica_suffices: bool,
    },
    /// A newer walrelay has written data that this one cannot read.
    #[error(
        "schema walrelay_state of the database is of version {0}, this walrelay knows version {VERSION}: a newer \
         walrelay has written it"
    )]
    StateVersion(u32),
    /// A configured table is missing.
    #[error("table {table} does not exist in the database")]
    TableMissing {
        /// The table.
        table: TableName,
        /// A table that exists and has nearly this name.
        near: Option<TableName>,
    },
    /// A view, a foreign table, or an unlogged table.
    #[error("{0} is not a table whose changes are written to the log")]
    TableKind(TableName),
    /// Partitions whose rows are in no log.
    #[error("partition {} of table {table} is unlogged: its rows are not in the log, and not relayed", partitions.join(", "))]
    PartitionKind {
        /// The table.
        table: TableName,
        /// The partitions.
        partitions: Vec<String>,
    },
    /// The router reads a column that refers to a large object.
    #[error(
        "column {column} of table {table} refers to a large object, whose content is not in the log"
    )]
    LargeObject {
        /// The table.
        table: TableName,
        /// The column.
        column: String,
    },
    /// A mark would move the row to another partition.
    #[error(
        "mark_sent sets column {column}, by which table {table} is partitioned: a marked row would \
         move to another partition, and be sent again as an insert"
    )]
    MarkMovesRows {
        /// The table.
        table: TableName,
        /// The column.
        column: String,
    },
    /// The table lacks columns that the router reads.
    #[error("table {table} has no column {}", missing.join(", "))]
    ColumnsMissing {
        /// The table.
        table: TableName,
        /// The columns that lack.
        missing: Vec<String>,
        /// The columns of the table.
        present: Vec<String>,
        /// The columns are named by templates, not by Debezium's options.
        by_templates: bool,
    },
    /// No column shows a row's age, and `[prune]` deletes old rows.
    #[error("[prune]: table {table} has no column {}, which would tell a row's age", wanted.join(" or "))]
    AgeUnknown {
        /// The table.
        table: TableName,
        /// The names of which it needs one.
        wanted: Vec<String>,
    },
    /// The server does not send the column.
    #[error(
        "column {column} of table {table} is generated ({}), and {}",
        kind(*generated),
        unsent(*generated, publication, *published, *major)
    )]
    ColumnGenerated {
        /// The table.
        table: TableName,
        /// The column.
        column: String,
        /// The way in which the column is generated.
        generated: Generated,
        /// Name of the publication.
        publication: String,
        /// The publication exists.
        published: bool,
        /// Major version of the server.
        major: u32,
    },
    /// The publication is missing and may not be created.
    #[error("publication {0} does not exist")]
    PublicationMissing(String),
    /// The log that the slot has reached was written before the publication was made, or after it was dropped.
    #[error(
        "publication {publication} did not exist at the place of the log that slot {slot} has reached, behind {at}: \
         Postgres reads each change with the catalogs of its time"
    )]
    PublicationNotYet {
        /// Name of the publication.
        publication: String,
        /// Name of the slot.
        slot: String,
        /// The position up to which everything is relayed.
        at: Lsn,
    },
    /// The slot would skip rows that were committed without the publication.
    #[error("publication {publication} does not exist, though slot {slot} does")]
    PublicationGone {
        /// Name of the publication.
        publication: String,
        /// Name of the slot.
        slot: String,
    },
    /// `publish` of the publication lacks `insert`.
    #[error("publication {0} does not publish inserts")]
    PublicationWithoutInsert(String),
    /// Outbox tables are not part of the publication.
    #[error(
        "publication {publication} does not carry table {}{}",
        foreign_tables::named(tables),
        uncarried(gap.as_ref())
    )]
    PublicationLacks {
        /// Name of the publication.
        publication: String,
        /// The tables that the publication lacks.
        tables: Vec<TableName>,
        /// The range whose rows of these tables are not relayed. `None`: there is no slot, or rows
        /// may be carried under the names of partitions.
        gap: Option<Gap>,
    },
    /// The publication was changed while the slot was read, so that rows are or were left out.
    #[error(
        "publication {publication} was changed, or dropped and recreated, and carries {now} now: rows that it left out \
         and that were committed {gap} are not relayed"
    )]
    PublicationChanged {
        /// Name of the publication.
        publication: String,
        /// The outbox tables.
        tables: Vec<TableName>,
        /// What it carries now.
        now: String,
        /// The range in which rows may have been left out.
        gap: Gap,
    },
    /// The publication has tables that the configuration does not name.
    #[error(
        "publication {publication} carries {}, which [source] tables does not name",
        foreign_tables::listed(tables)
    )]
    PublicationForeign {
        /// Name of the publication.
        publication: String,
        /// The tables that the configuration does not name.
        tables: Vec<TableName>,
        /// The configured tables.
        wanted: Vec<TableName>,
        /// The tables that the publication was made for.
        carries: Carries,
    },
    /// A column list leaves out a column that the router reads.
    #[error("publication {publication} leaves out column {} of table {table}", missing.join(", "))]
    PublicationColumns {
        /// Name of the publication.
        publication: String,
        /// The table.
        table: TableName,
        /// The columns that lack.
        missing: Vec<String>,
    },
    /// The slot is on the primary.
    #[error("the server is a standby, and replication slot {0} is not on it")]
    Standby(String),
    /// The slot is missing and may not be created silently.
    #[error("replication slot {slot} does not exist{}", if_dropped(gap.as_ref()))]
    SlotMissing {
        /// Name of the slot.
        slot: String,
        /// The range that is not relayed if the slot was dropped. `None`: no relay was set up
        /// before.
        gap: Option<Gap>,
    },
    /// `max_replication_slots` has no room for the slot.
    #[error(
        "replication slot {slot} cannot be created: {needed} free one(s) of max_replication_slots are needed{}, and \
         {free} are free",
        if *needed > 1 { ", one of them for the time of the snapshot" } else { "" }
    )]
    SlotLimit {
        /// Name of the slot.
        slot: String,
        /// Slots that are free.
        free: i64,
        /// Slots that are needed.
        needed: i64,
    },
    /// The slot is beyond the position that its relay has noted at most.
    #[error(
        "replication slot {slot} is at {to}, and a relay noted {from} at most: something else \
         moved the slot, or dropped and recreated it: changes committed from {from} to {to} may \
         not be relayed"
    )]
    SlotPassedOver {
        /// Name of the slot.
        slot: String,
        /// The noted position.
        from: Lsn,
        /// The slot's position.
        to: Lsn,
    },
    /// A polling relay may send the rows: before `cutover switch`, and after `cutover rollback`.
    #[error(
        "replication slot {0} does not exist, and [source] mark_sent is set: a polling relay may \
         send the same events"
    )]
    NotSwitched(String),
    /// The slot that this process was reading is gone, with the WAL that it retained.
    #[error(
        "replication slot {slot}, which was being relayed, does not exist any more: changes \
         committed {gap} are not relayed"
    )]
    SlotGone {
        /// Name of the slot.
        slot: String,
        /// The range that is not relayed.
        gap: Gap,
    },
    /// The slot is not one of `pgoutput`.
    #[error(
        "replication slot {slot} is {kind} with plugin {plugin}; it must be logical with pgoutput"
    )]
    SlotPlugin {
        /// Name of the slot.
        slot: String,
        /// `physical` or `logical`.
        kind: String,
        /// The plugin.
        plugin: String,
    },
    /// The slot sends a prepared transaction at PREPARE TRANSACTION, before its commit.
    #[error("replication slot {0} was created with two_phase, which a relay cannot read")]
    SlotTwoPhase(String),
    /// The slot decodes another database.
    #[error("replication slot {slot} decodes database {found}, not {connected}")]
    SlotDatabase {
        /// Name of the slot.
        slot: String,
        /// The database of the slot.
        found: String,
        /// The database of the connection.
        connected: String,
    },
    /// The server has invalidated the slot, usually because it removed WAL that the slot needs.
    #[error(
        "replication slot {slot} is lost ({reason}): changes committed {gap} cannot be relayed \
         from it"
    )]
    SlotLost {
        /// Name of the slot.
        slot: String,
        /// Postgres' own text.
        reason: String,
        /// The range that is not relayed.
        gap: Gap,
        /// Every row of the gap has this `xmin` or a later one.
        catalog_xmin: Option<u32>,
    },
    /// No column shows which rows were sent.
    #[error("[source] snapshot = \"unsent\": table {0} has neither dispatched_at nor sent_at")]
    SnapshotRule(TableName),
    /// No column has the order of the commits of a key.
    #[error(
        "table {0} has no column that orders its rows: a snapshot would send the events of each key in any order"
    )]
    SnapshotOrder(TableName),
    /// The server is older than failover slots.
    #[error("[source] failover needs Postgres 17 or newer; the server is Postgres {0}")]
    FailoverTooOld(u32),
}

/// A range of the WAL whose events are not relayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The last position known to be relayed.
    pub from: Option<Lsn>,
    /// The end of the server's WAL when the gap was found, or the start of the new slot.
    pub to: Option<Lsn>,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            Some(from) => write!(f, "from {from} "),
            None => f.write_str("from the slot's last position, which is unknown, "),
        }?;
        match self.to {
            Some(to) => write!(f, "to {to}"),
            None => f.write_str("on"),
        }
    }
}

fn uncarried(gap: Option<&Gap>) -> String {
    gap.map_or_else(String::new, |gap| {
        format!(": changes committed to it {gap} are not relayed")
    })
}

fn if_dropped(gap: Option<&Gap>) -> String {
    gap.map_or_else(String::new, |gap| {
        format!(
            ", though a relay was set up here: if it was dropped, changes committed {gap} are not \
             relayed"
        )
    })
}

/// The remedy of a gap: how the relay goes on.
pub const GO_ON: &str = "run walrelay run --accept-gap once to go on";
/// The remedy of a gap: how its events are sent.
pub const PUBLISH: &str = "publish the rows of the gap by inserting them again";

fn kind(generated: Generated) -> &'static str {
    match generated {
        Generated::Stored => "STORED",
        Generated::Virtual => "VIRTUAL",
    }
}

/// Returns why the server does not send a generated column.
fn unsent(generated: Generated, publication: &str, published: bool, major: u32) -> String {
    match generated {
        Generated::Virtual => "Postgres publishes no virtual column".to_owned(),
        Generated::Stored if major < 18 => {
            format!("Postgres {major} publishes no generated column")
        }
        Generated::Stored if published => format!("publication {publication} does not carry it"),
        Generated::Stored => {
            format!("publication {publication} would not carry it as the relay creates it")
        }
    }
}

/// Returns what prevents that a slot is lost again for this reason: `invalidation_reason` of
/// `pg_replication_slots`, or our text for `conflicting`.
fn prevention(reason: &str) -> &'static str {
    match reason {
        "rows_removed" | CONFLICTING => {
            "set hot_standby_feedback = on on this standby, and let the standby stream from a slot of the \
             primary (primary_slot_name): otherwise the primary removes catalog rows that the slot needs. A \
             new slot on a standby waits until SELECT pg_log_standby_snapshot() runs on the primary"
        }
        "wal_level_insufficient" => {
            "keep wal_level = logical on the primary, or, from Postgres 19 on, a logical slot there"
        }
        "idle_timeout" => "raise idle_replication_slot_timeout, or keep a relay running",
        _ => "raise max_slot_wal_keep_size",
    }
}

impl SetupError {
    /// Returns the error's id: a short stable name, for documents and scripts.
    pub fn id(&self) -> &'static str {
        match self {
            Self::WalLevel { .. } => "wal-level",
            Self::StateVersion(_) => "state-version",
            Self::TableMissing { .. } => "table-missing",
            Self::TableKind(_) | Self::PartitionKind { .. } => "table-kind",
            Self::LargeObject { .. } => "column-large-object",
            Self::MarkMovesRows { .. } => "mark-sent-moves-rows",
            Self::ColumnsMissing { .. } => "column-missing",
            Self::AgeUnknown { .. } => "prune-column",
            Self::ColumnGenerated { .. } => "column-generated",
            Self::PublicationMissing(_) => "publication-missing",
            Self::PublicationNotYet { .. } => "publication-not-yet",
            Self::PublicationGone { .. } => "publication-gone",
            Self::PublicationWithoutInsert(_) => "publication-without-insert",
            Self::PublicationLacks { .. } => "publication-lacks-table",
            Self::PublicationChanged { .. } => "publication-changed",
            Self::PublicationForeign { .. } => "publication-foreign-table",
            Self::PublicationColumns { .. } => "publication-lacks-column",
            Self::Standby(_) => "standby",
            Self::SlotMissing { .. } => "slot-missing",
            Self::SlotLimit { .. } => "server-limit",
            Self::SlotPassedOver { .. } => "slot-passed-over",
            Self::NotSwitched(_) => "cutover-not-switched",
            Self::SlotGone { .. } => "slot-gone",
            Self::SlotPlugin { .. } => "slot-plugin",
            Self::SlotTwoPhase(_) => "slot-two-phase",
            Self::SlotDatabase { .. } => "slot-database",
            Self::SlotLost { .. } => "slot-lost",
            Self::FailoverTooOld(_) => "failover-too-old",
            Self::SnapshotRule(_) => "snapshot-rule",
            Self::SnapshotOrder(_) => "snapshot-order",
        }
    }

    /// Returns the remedy for the error.
    pub fn remedy(&self) -> String {
        match self {
            Self::WalLevel { .. } => {
                "run ALTER SYSTEM SET wal_level = 'logical' and restart the server; managed \
                 services name it rds.logical_replication = 1 (Amazon RDS, Aurora), \
                 cloudsql.logical_decoding = on (Google Cloud SQL) or wal_level in the server \
                 parameters (Azure)"
                    .to_owned()
            }
            Self::StateVersion(_) => {
                "start the newer walrelay again. To go back for good, follow docs/operate/running.md, \"Upgrade and \
                 downgrade\""
                    .to_owned()
            }
            Self::TableMissing {
                near: Some(near), ..
            } => format!(
                "did you mean {near}? Correct [source] tables. If the table was renamed to this name, rows that the \
                 log has under the former name are sent as its own"
            ),
            Self::TableMissing { table, .. } => format!(
                "create {table} (walrelay init --dry-run prints the SQL), or correct [source] \
                 tables or the database in [source] url. If it was renamed, name it as it is named \
                 now: rows that the log has under the former name are sent as its own"
            ),
            Self::TableKind(_) => "name an ordinary or partitioned table that is not UNLOGGED in \
                                   [source] tables"
                .to_owned(),
            Self::PartitionKind { partitions, .. } => format!(
                "ALTER TABLE {} SET LOGGED. Rows that it has are not relayed by that: {PUBLISH}",
                partitions.first().map_or("", String::as_str)
            ),
            Self::LargeObject { table, column } => format!(
                "store the content in the row: ALTER TABLE {} ALTER COLUMN {} TYPE bytea USING lo_get({}), and have the \
                 application write bytea or text (Hibernate: without @Lob)",
                script::table(table),
                quote_ident(column),
                quote_ident(column)
            ),
            Self::MarkMovesRows { .. } => {
                "mark by a column that is in no partition key, such as a time of its own; or remove mark_sent and let \
                 [prune] delete sent rows"
                    .to_owned()
            }
            Self::ColumnsMissing {
                present,
                by_templates,
                ..
            } => columns_remedy(present, *by_templates),
            Self::AgeUnknown { table, .. } => format!(
                "name the column of a row's time as column in [prune], or add one: ALTER TABLE {} ADD COLUMN created_at \
                 timestamptz NOT NULL DEFAULT now(); rows that are there count as made then",
                script::table(table)
            ),
            Self::ColumnGenerated {
                table,
                column,
                generated,
                publication,
                published,
                major,
            } => {
                let ordinary = format!(
                    "ALTER TABLE {} ALTER COLUMN {} DROP EXPRESSION",
                    script::table(table),
                    quote_ident(column)
                );
                let publication = quote_ident(publication);
                match generated {
                    Generated::Virtual => {
                        "make the column STORED or an ordinary one, by DROP COLUMN and ADD COLUMN, \
                         or name another column in [router]"
                            .to_owned()
                    }
                    Generated::Stored if *major < 18 => format!(
                        "make it an ordinary column, which the writer fills: {ordinary}; or name another column \
                         in [router]. Postgres 18 and newer publish stored generated columns, with \
                         publish_generated_columns = stored"
                    ),
                    Generated::Stored if *published => format!(
                        "run ALTER PUBLICATION {publication} SET (publish_generated_columns = stored); a column \
                         list, if the publication has one, must name the column instead"
                    ),
                    Generated::Stored => {
                        "run the SQL of walrelay init --dry-run with publish_generated_columns = stored \
                         in the WITH of CREATE PUBLICATION"
                            .to_owned()
                    }
                }
            }
            Self::PublicationMissing(_) => "run walrelay init".to_owned(),
            Self::PublicationNotYet { slot, .. } => format!(
                "if the publication is there now, pass over the changes before it by walrelay \
                 slots advance {slot} --to now, start again, and {PUBLISH}. If it is not: \
                 docs/operate/troubleshooting.md, \"The publication is gone\""
            ),
            Self::PublicationGone { slot, .. } => format!(
                "if nothing was written to the outbox since the publication was dropped, create it \
                 again (walrelay init --dry-run prints the SQL) and start the relay, once with --accept-gap; otherwise drop the slot as well \
                 (SELECT pg_drop_replication_slot({})), run walrelay init, and publish the \
                 rows of the meantime by inserting them again",
                quote_literal(slot)
            ),
            Self::PublicationWithoutInsert(publication) => format!(
                "run ALTER PUBLICATION {} SET (publish = 'insert'); rows of the meantime are in no stream: if the next start \
                 ends with publication-changed, it names their range",
                quote_ident(publication)
            ),
            Self::PublicationLacks {
                publication,
                tables,
                gap,
            } => format!(
                "run ALTER PUBLICATION {} ADD TABLE {}; rows written before that are not carried{}. \
                 If the table is partitioned, SET (publish_via_partition_root = true)",
                quote_ident(publication),
                script::tables(tables),
                if gap.is_some() {
                    format!(": {PUBLISH}")
                } else {
                    String::new()
                }
            ),
            Self::PublicationChanged {
                publication,
                tables,
                ..
            } => format!(
                "if it carries all events, {GO_ON}. If not, correct it first (all rows: ALTER \
                 PUBLICATION {} SET TABLE {}), {GO_ON}, and {PUBLISH}: \
                 docs/operate/troubleshooting.md, \"The publication was changed\"",
                quote_ident(publication),
                script::tables(tables)
            ),
            Self::PublicationForeign {
                publication,
                tables,
                wanted,
                carries,
            } => foreign_tables::remedy(&quote_ident(publication), tables, wanted, *carries),
            Self::PublicationColumns {
                publication, table, ..
            } => format!(
                "run ALTER PUBLICATION {} SET TABLE {} without a column list, or with these columns. Then {GO_ON}: another \
                 list is another entry of the publication. If the relay ends with column-missing, a row of the meantime \
                 lacks the column for ever: the remedy of that error passes over it",
                quote_ident(publication),
                script::table(table)
            ),
            Self::Standby(_) => {
                "name all hosts in [source] url and add target_session_attrs=read-write, so that \
                 the primary is found"
                    .to_owned()
            }
            Self::SlotMissing { .. } => format!(
                "on the first day run walrelay init. If the slot was there before, find out who \
                 dropped it, {GO_ON}, and {PUBLISH}: docs/operate/troubleshooting.md, \"The slot is gone or was \
                 moved\""
            ),
            Self::SlotLimit { .. } => {
                "drop an unused slot (walrelay slots list), or raise max_replication_slots and restart the \
                 server: the relay goes on by itself"
                    .to_owned()
            }
            Self::SlotPassedOver { .. } => format!(
                "find out what moved the slot: pg_replication_slot_advance, another reader such as Debezium, a tool that \
                 recreates slots, or a walrelay that could not note its positions. Then {GO_ON} from where the slot is, \
                 and if nothing else relayed these events, send their rows with walrelay resend: docs/operate/troubleshooting.md, \
                 \"The slot is gone or was moved\""
            ),
            Self::NotSwitched(_) => format!(
                "make the slot by walrelay cutover switch, when the polling relay is to stop. If \
                 there is none, {GO_ON}: it sends the unmarked rows, and creates the slot"
            ),
            Self::SlotGone { .. } => format!(
                "find out who dropped it, {GO_ON} with a new one, and {PUBLISH}: \
                 docs/operate/troubleshooting.md, \"The slot is gone or was moved\""
            ),
            Self::SlotPlugin { .. } => {
                "give the relay a slot of its own: another name in [source] slot".to_owned()
            }
            Self::SlotTwoPhase(slot) => {
                // In one statement: without the copy the slot must not be dropped.
                let exchange = |from: &str, to: &str| {
                    let (from, to) = (quote_literal(from), quote_literal(to));
                    format!(
                        "SELECT pg_drop_replication_slot({from}) \
                         FROM pg_copy_logical_replication_slot({from}, {to});"
                    )
                };
                let other = "walrelay_without_two_phase";
                format!(
                    "a copy of a slot has the same position with two_phase off (and failover off). While \
                     no relay runs: {} {}",
                    exchange(slot, other),
                    exchange(other, slot)
                )
            }
            Self::SlotDatabase { found, .. } => format!(
                "connect to database {found} in [source] url, or give the relay a slot of its own"
            ),
            Self::SlotLost {
                catalog_xmin,
                reason,
                ..
            } => {
                let rows = catalog_xmin.map_or_else(String::new, |xmin| {
                    format!(" (none of them has an age(xmin) above age('{xmin}'::xid))")
                });
                format!(
                    "{GO_ON} with a new one in its place, and {PUBLISH}{rows}: docs/operate/troubleshooting.md, \
                     \"The slot is lost\". So that it does not happen again, {}",
                    prevention(reason)
                )
            }
            Self::SnapshotRule(_) => {
                "write in [source] snapshot_where, in SQL, which rows no relay has \
                                      sent, or set snapshot = \"initial\" to send all"
                    .to_owned()
            }
            Self::SnapshotOrder(_) => {
                "name in [source] snapshot_order columns whose order is that of the commits of each key. If there \
                 are none, snapshot_unordered = true reads the rows in any order: for consumers to which the order \
                 of a key does not matter. A random UUID is no order, nor is a number that is added now"
                    .to_owned()
            }
            Self::FailoverTooOld(_) => {
                "remove failover from [source]; failover slots came with Postgres 17".to_owned()
            }
        }
    }

    /// Lets the range of a publication that lacks tables begin where it still carried them, at the
    /// latest: a relay confirms positions beyond until it looks at the catalogs again.
    #[must_use]
    pub(crate) fn carried_at(mut self, at: Option<Lsn>) -> Self {
        if let Self::PublicationLacks { gap: Some(gap), .. } = &mut self
            && let Some(at) = at
        {
            gap.from = Some(gap.from.map_or(at, |from| from.min(at)));
        }
        self
    }

    /// Returns whether another attempt can succeed, and who must repair the cause.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Standby(_) | Self::SlotLimit { .. } => Disposition::Retryable,
            Self::SlotGone { .. } | Self::SlotLost { .. } => Disposition::Fatal,
            _ => Disposition::Configuration,
        }
    }
}
