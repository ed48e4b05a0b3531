//! Facts from the catalogs as data: server, tables, publication, slot.

use std::fmt;

use serde::Deserialize;
use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_relay::TableName;

use super::slots::SlotRow;

/// The state of everything that [`Wanted`](super::Wanted) names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The server.
    pub server: ServerFacts,
    /// The wanted tables, in the order of `Wanted`; `None` if the table does not exist.
    pub tables: Vec<(TableName, Option<TableFacts>)>,
    /// The other tables of the database, 5,000 at most, if one of the wanted does not exist.
    pub others: Vec<TableName>,
    /// `None`: no publication has this name.
    pub publication: Option<PublicationFacts>,
    /// `None`: no slot has this name.
    pub slot: Option<SlotRow>,
}

/// The state of the server itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerFacts {
    /// The major version.
    pub major: u32,
    /// The setting of this name.
    pub wal_level: String,
    /// The setting of this name: the level at which the log is written. `None` before Postgres 19.
    pub effective_wal_level: Option<String>,
    /// The database of the connection.
    pub database: String,
    /// The server is a standby.
    pub in_recovery: bool,
    /// The flushed end of the WAL; on a standby, the replayed end.
    pub wal_end: Option<Lsn>,
    /// Bytes; `None` without a limit.
    pub max_slot_wal_keep_size: Option<u64>,
    /// The timeline that the server writes; `None` on a standby.
    pub timeline: Option<u32>,
    /// `pg_postmaster_start_time()`, in seconds since 1970 with six decimals.
    pub start: String,
    /// Slots that can be created within `max_replication_slots`.
    pub free_slots: Option<i64>,
    /// The oldest open or prepared transaction that has written something: process, application and
    /// age, as far as the role may see them. Every slot keeps the WAL since its first write.
    pub oldest_transaction: Option<String>,
    /// The version of the schema `walrelay_state`; 1 if there is none yet, 0 if nothing was read.
    pub state_version: u32,
}

/// A row of `pg_class`, with the columns of the table.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct TableFacts {
    /// The column `pg_class.oid`.
    pub oid: u32,
    /// `pg_class.relkind`: `r` ordinary, `p` partitioned. Other kinds cannot be published.
    pub kind: String,
    /// `pg_class.relpersistence` is `p` (permanent). An unlogged table writes no WAL.
    pub permanent: bool,
    /// The column `pg_class.relreplident`.
    pub identity: String,
    /// The columns, in order.
    pub columns: Vec<ColumnFacts>,
    /// Names of the primary key's columns; empty without one.
    pub primary_key: Vec<String>,
    /// Its unlogged and temporary partitions, to any depth, whose rows are in no log; quoted.
    #[serde(default)]
    pub unlogged: Vec<String>,
    /// Its foreign partitions, to any depth, whose rows are in no log either; quoted. Archives have them.
    #[serde(default)]
    pub foreign: Vec<String>,
    /// Columns by which it and its partitions are partitioned. An UPDATE that changes one may move the row
    /// to another partition, which is a DELETE and an INSERT.
    #[serde(default)]
    pub partition_key: Vec<String>,
}

impl TableFacts {
    /// Returns a warning about the foreign partitions of this table.
    pub fn foreign_warning(&self, name: &TableName) -> Option<String> {
        (!self.foreign.is_empty()).then(|| {
            format!(
                "partition {} of {name} is a foreign table: rows that are inserted into it are not in the log, and not \
                 relayed",
                self.foreign.join(", ")
            )
        })
    }
}

/// A row of `pg_attribute`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ColumnFacts {
    /// The column `pg_attribute.attname`.
    pub name: String,
    /// The column `pg_attribute.atttypid`.
    pub type_oid: u32,
    /// The type that a domain is made of; otherwise the type itself.
    #[serde(default)]
    pub base_oid: u32,
    /// The column `pg_attribute.atttypmod`.
    pub modifier: i32,
    /// The column belongs to the replica identity.
    pub is_key: bool,
    /// The way in which the column is generated; `None` for an ordinary column. A publication
    /// carries a generated column only if it lists the column.
    pub generated: Option<Generated>,
    /// The type is `smallint`, `integer` or `bigint`.
    pub integer: bool,
    /// An identity column (`pg_attribute.attidentity`): its numbers ascend with the INSERTs.
    pub identity: bool,
}

/// `pg_attribute.attgenerated` of a generated column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Generated {
    #[serde(rename = "s")]
    /// Stored with the row.
    Stored,
    /// Computed when it is read; Postgres 18 and newer.
    #[serde(rename = "v")]
    Virtual,
}

/// A row of `pg_publication`, with the tables that it carries.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent")]
pub struct PublicationFacts {
    /// The column `pg_publication.oid`.
    pub oid: u32,
    /// The publication publishes INSERTs.
    pub insert: bool,
    /// The publication publishes UPDATEs.
    pub update: bool,
    /// True if the publication was made `FOR ALL TABLES`.
    pub all_tables: bool,
    /// True if the publication was made `FOR TABLES IN SCHEMA`, perhaps among others.
    pub schemas: bool,
    /// walrelay has created the publication, and nothing was relayed from its slot yet.
    pub unfinished: bool,
    /// The tables whose changes it carries, under the names that the stream announces: without
    /// `publish_via_partition_root`, partitions are listed themselves.
    pub tables: Vec<PublishedTable>,
    /// `xmin` of its row, which each change of the row itself makes another one. Entries have rows of their own.
    pub version: u32,
    /// The row as JSON.
    pub row: String,
    /// Its entries; none if it was made `FOR ALL TABLES`.
    pub entries: Vec<PublicationEntry>,
}

/// An entry of a publication, by which it carries a table: a row of `pg_publication_rel`, or of
/// `pg_publication_namespace`. A change of it, also of its row filter, makes another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicationEntry {
    /// The column `pg_class.oid` of the table.
    pub table: u32,
    /// The OID of the entry.
    pub oid: u32,
}

impl PublicationFacts {
    /// Returns the tables that have a row filter, each with its filter.
    pub fn filtered(&self) -> impl Iterator<Item = (&TableName, &str)> {
        let tables = self.tables.iter();
        tables.filter_map(|published| Some((&published.table, published.row_filter.as_deref()?)))
    }
}

/// A row of `pg_publication_tables`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedTable {
    /// The table.
    pub table: TableName,
    /// The columns that the publication carries; `None` before Postgres 15, which has no column
    /// lists.
    pub columns: Option<Vec<String>>,
    /// The condition as the server prints it.
    pub row_filter: Option<String>,
}

/// The process that reads a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotReader {
    /// The process id on the server.
    pub pid: i64,
    /// Its `application_name`; `None` if the process is gone.
    pub application_name: Option<String>,
    /// The address and port of its client. `None` if it uses a Unix socket, or if the process belongs
    /// to another role and this role lacks `pg_read_all_stats`.
    pub client: Option<String>,
    /// The process is a walsender, and no SQL function that reads the slot.
    pub walsender: bool,
    /// The start of its connection, by the server's clock. `None` if the process belongs to another
    /// role and this role lacks `pg_read_all_stats`.
    pub since: Option<PgTimestamp>,
}

/// For example `server process 7 (walrelay), from 10.0.0.5:40312, connected since …`; without what
/// this role may not see.
impl fmt::Display for SlotReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server process {}", self.pid)?;
        // A program may have no name.
        if let Some(application) = self
            .application_name
            .as_ref()
            .filter(|name| !name.is_empty())
        {
            write!(f, " ({application})")?;
        }
        if let Some(client) = &self.client {
            write!(f, ", from {client}")?;
        }
        if let Some(since) = self.since {
            write!(f, ", connected since {since}")?;
        }
        Ok(())
    }
}

impl Facts {
    /// Returns the columns of a wanted table that the relay receives, with `pg_type.oid` and
    /// `atttypmod`: those that the publication carries, or would carry if it were created.
    pub fn sent<'f>(&'f self, name: &TableName, table: &'f TableFacts) -> Vec<(&'f str, u32, i32)> {
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
