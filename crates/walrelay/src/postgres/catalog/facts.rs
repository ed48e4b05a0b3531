//! Facts from the catalogs as data: server, tables, publication, slot.

use serde::Deserialize;
use walrelay_lsn::Lsn;
use walrelay_relay::TableName;

use super::slots::SlotRow;

/// The state of everything that [`Wanted`](super::Wanted) names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) server: ServerFacts,
    /// The wanted tables, in the order of `Wanted`; `None` if the table does not exist.
    pub(crate) tables: Vec<(TableName, Option<TableFacts>)>,
    pub(crate) publication: Option<PublicationFacts>,
    pub(crate) slot: Option<SlotRow>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ServerFacts {
    /// The major version.
    pub(crate) major: u32,
    pub(crate) wal_level: String,
    pub(crate) database: String,
    /// The server is a standby.
    pub(crate) in_recovery: bool,
    /// The flushed end of the WAL; on a standby, the replayed end.
    pub(crate) wal_end: Option<Lsn>,
    /// Bytes; `None` without a limit.
    pub(crate) max_slot_wal_keep_size: Option<u64>,
    /// The timeline that the server writes; `None` on a standby.
    pub(crate) timeline: Option<u32>,
    /// `pg_postmaster_start_time()`, in seconds since 1970 with six decimals.
    pub(crate) start: String,
}

/// A row of `pg_class`, with the columns of the table.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub(crate) struct TableFacts {
    pub(crate) oid: u32,
    /// `pg_class.relkind`: `r` ordinary, `p` partitioned. Other kinds cannot be published.
    pub(crate) kind: String,
    /// `pg_class.relpersistence` is `p` (permanent). An unlogged table writes no WAL.
    pub(crate) permanent: bool,
    /// `pg_class.relreplident`.
    pub(crate) identity: String,
    pub(crate) columns: Vec<ColumnFacts>,
    /// Names of the primary key's columns; empty without one.
    pub(crate) primary_key: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub(crate) struct ColumnFacts {
    pub(crate) name: String,
    pub(crate) type_oid: u32,
    /// `atttypmod`.
    pub(crate) modifier: i32,
    /// The column belongs to the replica identity.
    pub(crate) is_key: bool,
    /// How the column is generated; `None` for an ordinary column. A publication carries a generated
    /// column only if it lists the column.
    pub(crate) generated: Option<Generated>,
    /// The type is `smallint`, `integer` or `bigint`.
    pub(crate) integer: bool,
    /// An identity column (`pg_attribute.attidentity`): its numbers ascend with the INSERTs.
    pub(crate) identity: bool,
}

/// `pg_attribute.attgenerated` of a generated column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Generated {
    #[serde(rename = "s")]
    Stored,
    /// Postgres 18 and newer.
    #[serde(rename = "v")]
    Virtual,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublicationFacts {
    /// The publication publishes INSERTs.
    pub(crate) insert: bool,
    /// It was made `FOR ALL TABLES`.
    pub(crate) all_tables: bool,
    /// It was made `FOR TABLES IN SCHEMA`, perhaps among others.
    pub(crate) schemas: bool,
    /// The tables whose changes it carries, under the names that the stream announces: without
    /// `publish_via_partition_root`, partitions are listed themselves.
    pub(crate) tables: Vec<PublishedTable>,
}

impl PublicationFacts {
    /// The tables that have a row filter, each with its filter.
    pub(crate) fn filtered(&self) -> impl Iterator<Item = (&TableName, &str)> {
        let tables = self.tables.iter();
        tables.filter_map(|published| Some((&published.table, published.row_filter.as_deref()?)))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublishedTable {
    pub(crate) table: TableName,
    /// The columns that the publication carries; `None` before Postgres 15, which has no column
    /// lists.
    pub(crate) columns: Option<Vec<String>>,
    /// The condition as the server prints it.
    pub(crate) row_filter: Option<String>,
}

/// The process that reads a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotReader {
    pub(crate) pid: i64,
    /// `None` if the process is no walsender (an SQL function reads the slot), or if it belongs to
    /// another role and this role lacks `pg_read_all_stats`.
    pub(crate) application_name: Option<String>,
}

impl Facts {
    /// The columns of a wanted table that the relay receives, with `pg_type.oid` and `atttypmod`:
    /// those that the publication carries, or would carry if it were created.
    pub(crate) fn sent<'f>(
        &'f self,
        name: &TableName,
        table: &'f TableFacts,
    ) -> Vec<(&'f str, u32, i32)> {
        let listed = self.publication.as_ref().and_then(|publication| {
            let mut tables = publication.tables.iter();
            tables
                .find(|published| published.table == *name)?
                .columns
                .as_ref()
        });
        let columns = table.columns.iter().filter(|column| match listed {
            Some(listed) => listed.contains(&column.name),
            None => column.generated.is_none(),
        });
        columns
            .map(|column| (column.name.as_str(), column.type_oid, column.modifier))
            .collect()
    }
}
