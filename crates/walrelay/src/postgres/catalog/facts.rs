//! What the catalogs say, as data.

use walrelay_lsn::Lsn;
use walrelay_relay::TableName;

/// What the catalogs say about all that is [`Wanted`](super::Wanted).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) server: ServerFacts,
    /// Each wanted table, in the order asked; `None` where there is none of that name.
    pub(crate) tables: Vec<(TableName, Option<TableFacts>)>,
    pub(crate) publication: Option<PublicationFacts>,
    pub(crate) slot: Option<SlotFacts>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ServerFacts {
    /// The major version.
    pub(crate) major: u32,
    pub(crate) wal_level: String,
    pub(crate) database: String,
    /// A standby.
    pub(crate) in_recovery: bool,
    /// How far the log is on disk; on a standby, how far it has been replayed.
    pub(crate) wal_end: Option<Lsn>,
    /// In bytes; `None` where it is switched off.
    pub(crate) max_slot_wal_keep_size: Option<u64>,
    /// The timeline that it writes; `None` on a standby.
    pub(crate) timeline: Option<u32>,
    /// `pg_postmaster_start_time()`, in seconds since 1970 with six decimals.
    pub(crate) start: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableFacts {
    /// Names of its columns, in order.
    pub(crate) columns: Vec<String>,
    /// `pg_type.oid` and `atttypmod` of each.
    pub(crate) types: Vec<(u32, i32)>,
    /// Those among them that are generated: only a publication that says so carries them.
    pub(crate) generated: Vec<String>,
    /// `pg_class.relkind`: `r` ordinary, `p` partitioned, others cannot be published.
    pub(crate) kind: String,
    /// `relpersistence` is permanent; an unlogged table writes no WAL.
    pub(crate) permanent: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublicationFacts {
    /// It publishes INSERTs.
    pub(crate) insert: bool,
    /// The tables whose changes it carries, as they are announced in the stream: partitions are listed
    /// here themselves unless `publish_via_partition_root` is set.
    pub(crate) tables: Vec<PublishedTable>,
}

impl PublicationFacts {
    /// The tables with a row filter, and the filter.
    pub(crate) fn filtered(&self) -> impl Iterator<Item = (&TableName, &str)> {
        let tables = self.tables.iter();
        tables.filter_map(|published| Some((&published.table, published.row_filter.as_deref()?)))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublishedTable {
    pub(crate) table: TableName,
    /// The columns it carries; `None` where the server's version knows no column lists.
    pub(crate) columns: Option<Vec<String>>,
    /// As the server prints it.
    pub(crate) row_filter: Option<String>,
}

/// A row of `pg_replication_slots`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotFacts {
    /// `logical` or `physical`.
    pub(crate) kind: String,
    pub(crate) plugin: Option<String>,
    pub(crate) database: Option<String>,
    /// The process that reads it now.
    pub(crate) active_pid: Option<i64>,
    pub(crate) confirmed: Option<Lsn>,
    /// From here on the server keeps the log for it.
    pub(crate) restart: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub(crate) wal_status: Option<String>,
    /// In bytes; below zero counts as zero.
    pub(crate) safe_wal_size: Option<u64>,
    /// Why it cannot be read any more: `invalidation_reason` (17 and newer), `conflicting` (16).
    pub(crate) invalidated: Option<String>,
    /// Rows of transactions that committed after `confirmed` have this `xmin` or a later one.
    pub(crate) catalog_xmin: Option<u32>,
    /// Standbys keep a copy of it; `None` before 17.
    pub(crate) failover: Option<bool>,
}

/// The process that reads a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotReader {
    pub(crate) pid: i64,
    /// `None` if the process is no walsender (a function of SQL that reads the slot), or belongs to another
    /// role and is hidden from us (`pg_read_all_stats` shows it).
    pub(crate) application_name: Option<String>,
}

impl Facts {
    /// The columns of a wanted table that a relay will be sent, with `pg_type.oid` and `atttypmod`:
    /// those that the publication carries, or would if it were created.
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
        let columns = table.columns.iter().zip(&table.types);
        columns
            .filter(|(column, _)| match listed {
                Some(listed) => listed.contains(column),
                None => !table.generated.contains(column),
            })
            .map(|(column, (oid, modifier))| (column.as_str(), *oid, *modifier))
            .collect()
    }
}

impl SlotFacts {
    /// Why the slot cannot be read any more.
    pub(crate) fn lost(&self) -> Option<String> {
        let removed = self.wal_status.as_deref() == Some("lost");
        let reason = self.invalidated.clone();
        reason.or_else(|| removed.then(|| "wal_status = lost".to_owned()))
    }
}
