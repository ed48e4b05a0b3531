use walrelay_lsn::Lsn;
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Row, Rows, Session, quote_literal};

use super::Wanted;

/// What the catalogs say about all that is [`Wanted`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The server and its settings.
    pub server: ServerFacts,
    /// Each wanted table, in the order asked; `None` where there is none of that name.
    pub tables: Vec<(TableName, Option<TableFacts>)>,
    /// The publication, if it exists.
    pub publication: Option<PublicationFacts>,
    /// The slot, if it exists.
    pub slot: Option<SlotFacts>,
}

/// The server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// The major version.
    pub major: u32,
    /// `wal_level`.
    pub wal_level: String,
    /// `current_database()`.
    pub database: String,
    /// `pg_is_in_recovery()`: a standby.
    pub in_recovery: bool,
    /// How far the log is on disk; on a standby, how far it has been replayed.
    pub wal_end: Option<Lsn>,
    /// `max_slot_wal_keep_size` in bytes; `None` where it is switched off.
    pub max_slot_wal_keep_size: Option<u64>,
    /// The timeline that it writes; `None` on a standby.
    pub timeline: Option<u32>,
    /// `pg_postmaster_start_time()`, in seconds since 1970 with six decimals.
    pub start: String,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFacts {
    /// Names of its columns, in order.
    pub columns: Vec<String>,
    /// `pg_type.oid` and `atttypmod` of each.
    pub types: Vec<(u32, i32)>,
    /// Those among them that are generated: only a publication that says so carries them.
    pub generated: Vec<String>,
    /// `pg_class.relkind`: `r` ordinary, `p` partitioned, others cannot be published.
    pub kind: String,
    /// `relpersistence` is permanent; an unlogged table writes no WAL.
    pub permanent: bool,
}

/// A publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicationFacts {
    /// It publishes INSERTs.
    pub insert: bool,
    /// The tables whose changes it carries, as they are announced in the stream: partitions stand
    /// here themselves unless `publish_via_partition_root` is set.
    pub tables: Vec<PublishedTable>,
}

/// A table of a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedTable {
    /// Its name.
    pub table: TableName,
    /// The columns it carries; `None` where the server's version knows no column lists.
    pub columns: Option<Vec<String>>,
    /// A row filter, as the server prints it.
    pub row_filter: Option<String>,
}

/// A replication slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotFacts {
    /// `logical` or `physical`.
    pub kind: String,
    /// Its output plugin.
    pub plugin: Option<String>,
    /// The database it decodes.
    pub database: Option<String>,
    /// The process that reads it now.
    pub active_pid: Option<i64>,
    /// `confirmed_flush_lsn`.
    pub confirmed: Option<Lsn>,
    /// `restart_lsn`: from where the server keeps the log for it.
    pub restart: Option<Lsn>,
    /// `wal_status`: `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// `safe_wal_size` in bytes; below zero counts as zero.
    pub safe_wal_size: Option<u64>,
    /// Why it cannot be read any more: `invalidation_reason` (17 and newer), `conflicting` (16).
    pub invalidated: Option<String>,
    /// Rows of transactions that committed after `confirmed` have this `xmin` or a later one.
    pub catalog_xmin: Option<u32>,
    /// Whether standbys keep a copy of it; `None` before 17.
    pub failover: Option<bool>,
}

impl Facts {
    /// The columns of a wanted table that a relay will be sent, with `pg_type.oid` and `atttypmod`:
    /// those that the publication carries, or would if it were created.
    pub fn sent<'f>(&'f self, name: &TableName, table: &'f TableFacts) -> Vec<(&'f str, u32, i32)> {
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
    pub fn lost(&self) -> Option<String> {
        let removed = self.wal_status.as_deref() == Some("lost");
        let reason = self.invalidated.clone();
        reason.or_else(|| removed.then(|| "wal_status = lost".to_owned()))
    }
}

/// Reads the [`Facts`] over an ordinary session, in one round trip.
pub async fn inspect(session: &mut Session, wanted: &Wanted) -> Result<Facts, Error> {
    let major = session.server_version().major;
    // The slot before the publication: they are created the other way round, so that a slot that is seen
    // was made after a publication that another relay is making at this moment.
    let mut statements = vec![
        SERVER.to_owned(),
        slot_sql(major, &wanted.slot),
        format!(
            "SELECT pubinsert FROM pg_catalog.pg_publication WHERE pubname = {}",
            quote_literal(&wanted.publication)
        ),
        published_tables_sql(major, &wanted.publication),
    ];
    statements.extend(wanted.tables.iter().map(table_sql));
    let mut answers = session.query_all(&statements).await?.into_iter();
    // One for each statement.
    let mut next = || answers.next().unwrap_or_default();
    let server = server(major, &next());
    let slot = slot_facts(&next());
    let publication = publication(&next(), &next());
    let tables = wanted.tables.iter();
    let tables = tables.map(|name| (name.clone(), table(&next()))).collect();
    Ok(Facts {
        server,
        tables,
        publication,
        slot,
    })
}

fn text(row: &Row<'_>, column: &str) -> String {
    row.get(column).unwrap_or_default().to_owned()
}

fn names(row: &Row<'_>, column: &str) -> Option<Vec<String>> {
    // Arrays are asked for as JSON: an array literal of names has its own quoting.
    row.get(column)
        .and_then(|json| serde_json::from_str(json).ok())
}

const SERVER: &str = "SELECT current_setting('wal_level') AS wal_level, \
     current_database() AS database, pg_catalog.pg_is_in_recovery() AS in_recovery, \
     CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN \
      pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_flush_lsn()) END AS segment, \
     extract(epoch FROM pg_catalog.pg_postmaster_start_time()) AS start, \
     (SELECT setting FROM pg_catalog.pg_settings \
      WHERE name = 'max_slot_wal_keep_size') AS keep_size, \
     CASE WHEN pg_catalog.pg_is_in_recovery() \
      THEN pg_catalog.pg_last_wal_replay_lsn() \
      ELSE pg_catalog.pg_current_wal_flush_lsn() END AS wal_end";

fn server(major: u32, rows: &Rows) -> ServerFacts {
    let mut facts = ServerFacts {
        major,
        wal_level: String::new(),
        database: String::new(),
        in_recovery: false,
        wal_end: None,
        max_slot_wal_keep_size: None,
        timeline: None,
        start: String::new(),
    };
    if let Some(row) = rows.first() {
        facts.wal_level = text(&row, "wal_level");
        facts.database = text(&row, "database");
        facts.in_recovery = row.get("in_recovery") == Some("t");
        facts.start = text(&row, "start");
        // A segment's name begins with the timeline, in eight hexadecimal digits.
        let timeline = row.get("segment").and_then(|name| name.get(..8));
        facts.timeline = timeline.and_then(|hex| u32::from_str_radix(hex, 16).ok());
        // In MB; -1 is off.
        let megabytes: Option<u64> = row.get("keep_size").and_then(|size| size.parse().ok());
        facts.max_slot_wal_keep_size = megabytes.map(|megabytes| megabytes << 20);
        facts.wal_end = lsn(&row, "wal_end");
    }
    facts
}

fn table_sql(name: &TableName) -> String {
    format!(
        "SELECT c.relkind::text AS kind, c.relpersistence = 'p' AS permanent, \
         (SELECT json_agg(a.attname ORDER BY a.attnum) FROM pg_catalog.pg_attribute a \
          WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns, \
         (SELECT json_agg(json_build_array(a.atttypid::int8, a.atttypmod) ORDER BY a.attnum) \
          FROM pg_catalog.pg_attribute a \
          WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS types, \
         (SELECT json_agg(a.attname ORDER BY a.attnum) FROM pg_catalog.pg_attribute a \
          WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
          AND a.attgenerated <> '') AS generated \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = {} AND c.relname = {} AND c.relkind IN ('r', 'p', 'v', 'm', 'f')",
        quote_literal(&name.schema),
        quote_literal(&name.name),
    )
}

fn table(rows: &Rows) -> Option<TableFacts> {
    rows.first().map(|row| TableFacts {
        columns: names(&row, "columns").unwrap_or_default(),
        types: row
            .get("types")
            .and_then(|json| serde_json::from_str(json).ok())
            .unwrap_or_default(),
        generated: names(&row, "generated").unwrap_or_default(),
        kind: text(&row, "kind"),
        permanent: row.get("permanent") == Some("t"),
    })
}

fn published_tables_sql(major: u32, publication: &str) -> String {
    // Column lists and row filters came with 15.
    let lists = if major >= 15 {
        "to_json(attnames) AS columns, rowfilter"
    } else {
        "NULL AS columns, NULL AS rowfilter"
    };
    format!(
        "SELECT schemaname, tablename, {lists} FROM pg_catalog.pg_publication_tables \
         WHERE pubname = {} ORDER BY 1, 2",
        quote_literal(publication)
    )
}

fn publication(publications: &Rows, tables: &Rows) -> Option<PublicationFacts> {
    let insert = publications.first()?.get("pubinsert") == Some("t");
    let tables = tables
        .iter()
        .map(|row| PublishedTable {
            table: TableName {
                schema: text(&row, "schemaname"),
                name: text(&row, "tablename"),
            },
            columns: names(&row, "columns"),
            row_filter: row.get("rowfilter").map(str::to_owned),
        })
        .collect();
    Some(PublicationFacts { insert, tables })
}

/// The process that reads a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotReader {
    /// The server process.
    pub pid: i64,
    /// Its `application_name`; `None` if it is no walsender (a function of SQL that reads the slot), or is
    /// another role's and hidden from us (`pg_read_all_stats` shows it).
    pub application_name: Option<String>,
}

/// Who reads the slot, by `pg_stat_replication`.
pub(super) async fn reader(session: &mut Session, name: &str) -> Result<Option<SlotReader>, Error> {
    let sql = format!(
        "SELECT s.active_pid, r.application_name FROM pg_catalog.pg_replication_slots s \
         LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid WHERE s.slot_name = {}",
        quote_literal(name)
    );
    let rows = session.query(&sql).await?;
    Ok(rows.iter().next().and_then(|row| {
        let pid = row.get("active_pid")?.parse().ok()?;
        let application_name = row.get("application_name").map(str::to_owned);
        Some(SlotReader {
            pid,
            application_name,
        })
    }))
}

fn lsn(row: &Row<'_>, column: &str) -> Option<Lsn> {
    row.get(column).and_then(|lsn| lsn.parse().ok())
}

pub(super) async fn slot(session: &mut Session, name: &str) -> Result<Option<SlotFacts>, Error> {
    let sql = slot_sql(session.server_version().major, name);
    Ok(slot_facts(&session.query(&sql).await?))
}

fn slot_sql(major: u32, name: &str) -> String {
    let news = match major {
        ..16 => "NULL AS invalidated, NULL AS failover",
        16 => {
            "CASE WHEN conflicting THEN 'conflicting with recovery' END AS invalidated, \
             NULL AS failover"
        }
        17.. => "invalidation_reason AS invalidated, failover",
    };
    format!(
        "SELECT slot_type, plugin, database, active_pid, confirmed_flush_lsn, restart_lsn, \
         wal_status, safe_wal_size, catalog_xmin, {news} \
         FROM pg_catalog.pg_replication_slots WHERE slot_name = {}",
        quote_literal(name)
    )
}

fn slot_facts(rows: &Rows) -> Option<SlotFacts> {
    rows.first().map(|row| {
        let safe: Option<i64> = row.get("safe_wal_size").and_then(|size| size.parse().ok());
        SlotFacts {
            kind: text(&row, "slot_type"),
            plugin: row.get("plugin").map(str::to_owned),
            database: row.get("database").map(str::to_owned),
            active_pid: row.get("active_pid").and_then(|pid| pid.parse().ok()),
            confirmed: lsn(&row, "confirmed_flush_lsn"),
            restart: lsn(&row, "restart_lsn"),
            wal_status: row.get("wal_status").map(str::to_owned),
            safe_wal_size: safe.map(|bytes| u64::try_from(bytes).unwrap_or(0)),
            invalidated: row.get("invalidated").map(str::to_owned),
            catalog_xmin: row.get("catalog_xmin").and_then(|xid| xid.parse().ok()),
            failover: row.get("failover").map(|failover| failover == "t"),
        }
    })
}
