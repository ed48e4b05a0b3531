//! [`PublicationSetupError`]: the publication is not as the relay needs it.

use walrelay_lsn::Lsn;
use walrelay_relay::TableName;
use walrelay_walsender::{quote_ident, quote_literal};

use super::gap::{GO_ON, Gap, PUBLISH};
use crate::foreign_tables::{self, Carries};
use crate::script;

/// The publication is missing, or lacks tables, rows or columns that the relay reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublicationSetupError {
    /// The publication is missing and may not be created.
    #[error("publication {0} does not exist")]
    Missing(String),
    /// The log that the slot has reached was written before the publication was made, or after it was dropped.
    #[error(
        "publication {publication} did not exist at the place of the log that slot {slot} has reached, behind {at}: \
         Postgres reads each change with the catalogs of its time"
    )]
    NotYet {
        /// Name of the publication.
        publication: String,
        /// Name of the slot.
        slot: String,
        /// The position up to which everything is relayed.
        at: Lsn,
    },
    /// The slot would skip rows that were committed without the publication.
    #[error("publication {publication} does not exist, though slot {slot} does")]
    Gone {
        /// Name of the publication.
        publication: String,
        /// Name of the slot.
        slot: String,
    },
    /// `publish` of the publication lacks `insert`.
    #[error("publication {0} does not publish inserts")]
    WithoutInsert(String),
    /// Outbox tables are not part of the publication.
    #[error(
        "publication {publication} does not carry table {}{}",
        foreign_tables::named(tables),
        uncarried(gap.as_ref())
    )]
    Lacks {
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
    Changed {
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
    Foreign {
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
    Columns {
        /// Name of the publication.
        publication: String,
        /// The table.
        table: TableName,
        /// The columns that lack.
        missing: Vec<String>,
    },
}

impl PublicationSetupError {
    pub(super) fn id(&self) -> &'static str {
        match self {
            Self::Missing(_) => "publication-missing",
            Self::NotYet { .. } => "publication-not-yet",
            Self::Gone { .. } => "publication-gone",
            Self::WithoutInsert(_) => "publication-without-insert",
            Self::Lacks { .. } => "publication-lacks-table",
            Self::Changed { .. } => "publication-changed",
            Self::Foreign { .. } => "publication-foreign-table",
            Self::Columns { .. } => "publication-lacks-column",
        }
    }

    pub(super) fn remedy(&self) -> String {
        match self {
            Self::Missing(_) => "run walrelay init".to_owned(),
            Self::NotYet { slot, .. } => format!(
                "if the publication is there now, pass over the changes before it by walrelay \
                 slots advance {slot} --to now, start again, and {PUBLISH}. If it is not: \
                 docs/operate/troubleshooting.md, \"The publication is gone\""
            ),
            Self::Gone { slot, .. } => format!(
                "if nothing was written to the outbox since the publication was dropped, create it \
                 again (walrelay init --dry-run prints the SQL) and start the relay, once with --accept-gap; otherwise drop the slot as well \
                 (SELECT pg_drop_replication_slot({})), run walrelay init, and publish the \
                 rows of the meantime by inserting them again",
                quote_literal(slot)
            ),
            Self::WithoutInsert(publication) => format!(
                "run ALTER PUBLICATION {} SET (publish = 'insert'); rows of the meantime are in no stream: if the next start \
                 ends with publication-changed, it names their range",
                quote_ident(publication)
            ),
            Self::Lacks {
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
            Self::Changed {
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
            Self::Foreign {
                publication,
                tables,
                wanted,
                carries,
            } => foreign_tables::remedy(&quote_ident(publication), tables, wanted, *carries),
            Self::Columns {
                publication, table, ..
            } => format!(
                "run ALTER PUBLICATION {} SET TABLE {} without a column list, or with these columns. Then {GO_ON}: another \
                 list is another entry of the publication. If the relay ends with column-missing, a row of the meantime \
                 lacks the column for ever: the remedy of that error passes over it",
                quote_ident(publication),
                script::table(table)
            ),
        }
    }
}

fn uncarried(gap: Option<&Gap>) -> String {
    gap.map_or_else(String::new, |gap| {
        format!(": changes committed to it {gap} are not relayed")
    })
}
