//! [`SetupError`]: the database is not set up as the relay needs it.

mod gap;
mod remedies;

use walrelay_lsn::Lsn;
use walrelay_relay::TableName;
use walrelay_sink::Disposition;

pub use gap::{GO_ON, Gap, PUBLISH};

use crate::catalog::Generated;
use crate::foreign_tables::{self, Carries};
use crate::state_version::VERSION;

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
    #[error("[source] snapshot = \"unsent\": table {table} has {columns}")]
    SnapshotRule {
        /// The table.
        table: TableName,
        /// The columns that it has, or lacks.
        columns: &'static str,
    },
    /// No column has the order of the commits of a key.
    #[error(
        "table {0} has no column that orders its rows: a snapshot would send the events of each key in any order"
    )]
    SnapshotOrder(TableName),
    /// The server is older than failover slots.
    #[error("[source] failover needs Postgres 17 or newer; the server is Postgres {0}")]
    FailoverTooOld(u32),
}

impl SetupError {
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
