//! The queries of the catalogs.

mod columns;
pub(super) mod facts;
mod privileges;
mod row;
mod slots;
mod survey;

use walrelay_lsn::Lsn;
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Rows, Session, quote_literal};

use super::retention::Retention;
use super::snapshot::Selection;
pub(crate) use columns::describe;
pub(crate) use facts::{
    Facts, PublicationFacts, PublishedTable, ServerFacts, SlotFacts, SlotReader, TableFacts,
};
pub(crate) use privileges::lacking_to_publish;
use row::{is_true, json, parsed, text};
pub(crate) use slots::{SlotRow, slots};
#[cfg(test)]
pub(crate) use survey::Transaction;
pub(crate) use survey::{PublishedOperations, Sample, Survey, TableSurvey, sample, survey};

/// What the configuration asks of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) slot: String,
    pub(crate) publication: String,
    /// The outbox tables.
    pub(crate) tables: Vec<TableName>,
    /// Columns that the router reads of each.
    pub(crate) columns: Vec<String>,
    /// Templates name the columns, not Debezium's options.
    pub(crate) by_templates: bool,
    /// The prefix of the messages that are events, too.
    pub(crate) messages: Option<String>,
    /// What is missing may be created.
    pub(crate) create: bool,
    /// Standbys are to keep a copy of the slot (17 and newer).
    pub(crate) failover: bool,
    /// The rows that are relayed before the slot is made.
    pub(crate) snapshot: Option<Selection>,
}

/// Reads the [`Facts`] over an ordinary session, in one round trip.
pub(crate) async fn inspect(session: &mut Session, wanted: &Wanted) -> Result<Facts, Error> {
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

/// The slot as it is now.
pub(super) async fn slot(session: &mut Session, name: &str) -> Result<Option<SlotFacts>, Error> {
    let sql = slot_sql(session.server_version().major, name);
    Ok(slot_facts(&session.query(&sql).await?))
}

/// A slot, and the server's log about it.
#[derive(Debug, Clone)]
pub(crate) struct SlotStanding {
    /// `None`: there is no slot of the name.
    pub(crate) slot: Option<SlotFacts>,
    pub(crate) retention: Retention,
    /// How far the server's log is on disk.
    pub(crate) server_end: Option<Lsn>,
    /// How long the slot has had no reader; `None` before 17, and while it has one.
    pub(crate) inactive_seconds: Option<f64>,
}

/// How a slot stands, in one round trip.
pub(crate) async fn slot_standing(
    session: &mut Session,
    name: &str,
) -> Result<SlotStanding, Error> {
    let major = session.server_version().major;
    // As JSON: before 17 there is no such column.
    let inactive = format!(
        "SELECT extract(epoch FROM clock_timestamp() - (to_jsonb(s)->>'inactive_since')::timestamptz) AS seconds \
         FROM pg_catalog.pg_replication_slots s WHERE slot_name = {}",
        quote_literal(name)
    );
    let statements = [SERVER.to_owned(), slot_sql(major, name), inactive];
    let mut answers = session.query_all(&statements).await?.into_iter();
    let mut next = || answers.next().unwrap_or_default();
    let server = server(major, &next());
    let slot = slot_facts(&next());
    let inactive = next();
    let retention = slot.as_ref().map(|slot| Retention::of(&server, slot));
    Ok(SlotStanding {
        slot,
        retention: retention.unwrap_or_default(),
        server_end: server.wal_end,
        inactive_seconds: inactive.first().and_then(|row| parsed(&row, "seconds")),
    })
}

/// The process that reads the slot, by `pg_stat_replication`.
pub(super) async fn reader(session: &mut Session, name: &str) -> Result<Option<SlotReader>, Error> {
    let sql = format!(
        "SELECT s.active_pid, r.application_name FROM pg_catalog.pg_replication_slots s \
         LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid WHERE s.slot_name = {}",
        quote_literal(name)
    );
    let rows = session.query(&sql).await?;
    Ok(rows.first().and_then(|row| {
        Some(SlotReader {
            pid: parsed(&row, "active_pid")?,
            application_name: row.get("application_name").map(str::to_owned),
        })
    }))
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
    let Some(row) = rows.first() else {
        return ServerFacts {
            major,
            ..ServerFacts::default()
        };
    };
    // A segment's name begins with the timeline, in eight hexadecimal digits.
    let timeline = row.get("segment").and_then(|name| name.get(..8));
    // In MB; -1 is off.
    let megabytes: Option<u64> = parsed(&row, "keep_size");
    ServerFacts {
        major,
        wal_level: text(&row, "wal_level"),
        database: text(&row, "database"),
        in_recovery: is_true(&row, "in_recovery"),
        wal_end: parsed(&row, "wal_end"),
        max_slot_wal_keep_size: megabytes.map(|megabytes| megabytes << 20),
        timeline: timeline.and_then(|hex| u32::from_str_radix(hex, 16).ok()),
        start: text(&row, "start"),
    }
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
        columns: json(&row, "columns").unwrap_or_default(),
        types: json(&row, "types").unwrap_or_default(),
        generated: json(&row, "generated").unwrap_or_default(),
        kind: text(&row, "kind"),
        permanent: is_true(&row, "permanent"),
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
    let insert = is_true(&publications.first()?, "pubinsert");
    let tables = published(tables);
    Some(PublicationFacts { insert, tables })
}

fn published(tables: &Rows) -> Vec<PublishedTable> {
    let tables = tables.iter().map(|row| PublishedTable {
        table: TableName {
            schema: text(&row, "schemaname"),
            name: text(&row, "tablename"),
        },
        columns: json(&row, "columns"),
        row_filter: row.get("rowfilter").map(str::to_owned),
    });
    tables.collect()
}

/// The tables that a publication carries.
pub(super) async fn published_tables(
    session: &mut Session,
    publication: &str,
) -> Result<Vec<PublishedTable>, Error> {
    let sql = published_tables_sql(session.server_version().major, publication);
    Ok(published(&session.query(&sql).await?))
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
        let optional = |column| row.get(column).map(str::to_owned);
        let safe: Option<i64> = parsed(&row, "safe_wal_size");
        SlotFacts {
            kind: text(&row, "slot_type"),
            plugin: optional("plugin"),
            database: optional("database"),
            active_pid: parsed(&row, "active_pid"),
            confirmed: parsed(&row, "confirmed_flush_lsn"),
            restart: parsed(&row, "restart_lsn"),
            wal_status: optional("wal_status"),
            safe_wal_size: safe.map(|bytes| u64::try_from(bytes).unwrap_or(0)),
            invalidated: optional("invalidated"),
            catalog_xmin: parsed(&row, "catalog_xmin"),
            failover: row.get("failover").map(|failover| failover == "t"),
        }
    })
}
