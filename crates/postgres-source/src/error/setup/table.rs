//! [`TableSetupError`]: an outbox table is not as the relay needs it.

use walrelay_relay::TableName;
use walrelay_walsender::quote_ident;

use super::gap::PUBLISH;
use super::generated::GeneratedColumn;
use crate::{columns_remedy, script};

/// An outbox table is missing, or not as the relay needs it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableSetupError {
    /// A configured table is missing.
    #[error("table {table} does not exist in the database")]
    Missing {
        /// The table.
        table: TableName,
        /// A table that exists and has nearly this name.
        near: Option<TableName>,
    },
    /// A view, a foreign table, or an unlogged table.
    #[error("{0} is not a table whose changes are written to the log")]
    Kind(TableName),
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
    #[error("{0}")]
    ColumnGenerated(GeneratedColumn),
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
}

impl TableSetupError {
    pub(super) fn id(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "table-missing",
            Self::Kind(_) | Self::PartitionKind { .. } => "table-kind",
            Self::LargeObject { .. } => "column-large-object",
            Self::MarkMovesRows { .. } => "mark-sent-moves-rows",
            Self::ColumnsMissing { .. } => "column-missing",
            Self::AgeUnknown { .. } => "prune-column",
            Self::ColumnGenerated(_) => "column-generated",
            Self::SnapshotRule { .. } => "snapshot-rule",
            Self::SnapshotOrder(_) => "snapshot-order",
        }
    }

    pub(super) fn remedy(&self) -> String {
        match self {
            Self::Missing {
                near: Some(near), ..
            } => format!(
                "did you mean {near}? Correct [source] tables. If the table was renamed to this name, rows that the \
                 log has under the former name are sent as its own"
            ),
            Self::Missing { table, .. } => format!(
                "create {table} (walrelay init --dry-run prints the SQL), or correct [source] \
                 tables or the database in [source] url. If it was renamed, name it as it is named \
                 now: rows that the log has under the former name are sent as its own"
            ),
            Self::Kind(_) => "name an ordinary or partitioned table that is not UNLOGGED in \
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
            Self::ColumnGenerated(column) => column.remedy(),
            Self::SnapshotRule { .. } => {
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
        }
    }
}
