//! Queries of the catalogs: what `setup`, `check`, `slots` and the router need to know.

mod columns;
mod decoding;
mod facts;
mod locks;
mod places;
mod published;
mod retained;
pub(crate) mod row;
mod slots;
mod survey;
mod wanted;

use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Row, Rows, Session, quote_literal};

use crate::{script, state_version};
pub use columns::describe;
pub use decoding::LogicalDecoding;
pub use facts::{
    ColumnFacts, Facts, Generated, PublicationEntry, PublicationFacts, PublishedTable, ServerFacts,
    SlotReader, TableFacts,
};
pub use locks::{TableLock, table_locks};
pub use places::place;
pub(crate) use published::Filters;
use published::{entries_sql, published_tables_sql};
pub use retained::RetainedWal;
use row::{is_true, json, parsed, text};
pub(super) use slots::CONFLICTING;
pub use slots::{SlotRow, slots};
use slots::{first_slot, slot_sql};
pub use survey::Transaction;
pub use survey::{
    PublishedOperations, Sample, Survey, TableSurvey, lacking_to_publish, sample, survey,
};
pub use wanted::{AccountSettings, Poller, Selection, Wanted};

/// Reads the [`Facts`] over an ordinary session, in one round trip if all tables exist.
pub async fn inspect(session: &mut Session, wanted: &Wanted) -> Result<Facts, Error> {
    let major = session.server_version().major;
    // The slot is read before the publication. Relays create the publication first, so if another
    // relay is setting up at this moment, a slot that is found here has its publication.
    let mut statements = vec![
        server_sql(),
        slot_sql(major, &wanted.slot),
        format!(
            "SELECT oid, xmin AS version, pg_catalog.to_jsonb(pg_publication) AS row, pubinsert, pubupdate, \
             puballtables, {} AS pubschemas, {} AS unfinished FROM pg_catalog.pg_publication WHERE pubname = {}",
            publishes_schemas(major),
            script::publication_is_marked(&wanted.slot),
            quote_literal(&wanted.publication)
        ),
        published_tables_sql(major, &wanted.publication, Filters::Hidden),
        entries_sql(major, &wanted.publication, &wanted.tables),
    ];
    statements.extend(wanted.tables.iter().map(table_sql));
    let mut answers = session.query_all(&statements).await?.into_iter();
    // One answer for each statement.
    let mut next = || answers.next().unwrap_or_default();
    let server = server(major, &next());
    let slot = first_slot(&next());
    let publication = publication(&next(), &next(), &next());
    let tables = wanted.tables.iter();
    let tables: Vec<_> = tables.map(|name| (name.clone(), table(&next()))).collect();
    let others = if tables.iter().all(|(_, found)| found.is_some()) {
        Vec::new()
    } else {
        other_tables(session).await?
    };
    Ok(Facts {
        server,
        tables,
        others,
        publication,
        slot,
    })
}

/// Tables of the database that a configuration may mean.
async fn other_tables(session: &mut Session) -> Result<Vec<TableName>, Error> {
    let sql = "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c \
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
               WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition \
               AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2 LIMIT 5000";
    let rows = session.query(sql).await?;
    let named = rows
        .iter()
        .filter_map(|row| Some(TableName::new(row.get(0)?, row.get(1)?)));
    Ok(named.collect())
}

/// Queries the slot's row in `pg_replication_slots`; `None` if there is none.
pub(super) async fn slot(session: &mut Session, name: &str) -> Result<Option<SlotRow>, Error> {
    let sql = slot_sql(session.server_version().major, name);
    Ok(first_slot(&session.query(&sql).await?))
}

/// A slot and the WAL that the server keeps for it.
#[derive(Debug, Clone)]
pub struct SlotStanding {
    /// `None`: no slot has this name.
    pub slot: Option<SlotRow>,
    /// What is known of the WAL that the server keeps for it.
    pub retained: RetainedWal,
    /// The flushed end of the server's WAL.
    pub server_end: Option<Lsn>,
    /// Seconds since the slot lost its reader. `None` before Postgres 17, and while it has a
    /// reader.
    pub inactive_seconds: Option<f64>,
    /// `synchronized_standby_slots`, while the slot's reader is sent nothing because a standby of these
    /// slots has not got the WAL (Postgres 17).
    pub waits_for_standbys: Option<String>,
    /// The replays that run in this database, of whatever slot.
    pub replays: Vec<RunningReplay>,
}

/// A running `walrelay replay`, by the copy that it reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningReplay {
    /// The name of the copy.
    pub copy: String,
    /// The process that reads it.
    pub pid: i64,
    /// The position up to which its records are acknowledged.
    pub position: Option<Lsn>,
}

/// The prefix of the copies that replays read.
pub(crate) const REPLAY_COPY: &str = "walrelay_replay_";

fn replays_sql() -> String {
    format!(
        "SELECT slot_name, active_pid, confirmed_flush_lsn FROM pg_catalog.pg_replication_slots \
         WHERE temporary AND active_pid IS NOT NULL AND database = pg_catalog.current_database() \
         AND pg_catalog.starts_with(slot_name::text, {}) ORDER BY slot_name",
        quote_literal(REPLAY_COPY)
    )
}

/// Queries the [`SlotStanding`] in one round trip.
pub async fn slot_standing(session: &mut Session, name: &str) -> Result<SlotStanding, Error> {
    let major = session.server_version().major;
    // By `to_jsonb`: the column does not exist before Postgres 17.
    let inactive = format!(
        "SELECT extract(epoch FROM clock_timestamp() - (to_jsonb(s)->>'inactive_since')::timestamptz) AS seconds, \
         (SELECT pg_catalog.current_setting('synchronized_standby_slots', true) \
          FROM pg_catalog.pg_stat_activity a \
          WHERE a.pid = s.active_pid AND a.wait_event = 'WaitForStandbyConfirmation') AS standbys \
         FROM pg_catalog.pg_replication_slots s WHERE slot_name = {}",
        quote_literal(name)
    );
    let statements = [server_sql(), slot_sql(major, name), inactive, replays_sql()];
    let mut answers = session.query_all(&statements).await?.into_iter();
    let mut next = || answers.next().unwrap_or_default();
    let server = server(major, &next());
    let slot = first_slot(&next());
    let inactive = next();
    let replays = next();
    let retained = slot.as_ref().map(|slot| RetainedWal::new(&server, slot));
    Ok(SlotStanding {
        slot,
        retained: retained.unwrap_or_default(),
        server_end: server.wal_end,
        inactive_seconds: inactive.first().and_then(|row| parsed(&row, "seconds")),
        waits_for_standbys: inactive
            .first()
            .and_then(|row| row.get("standbys").map(str::to_owned)),
        replays: replays
            .iter()
            .filter_map(|row| {
                Some(RunningReplay {
                    copy: row.get("slot_name")?.to_owned(),
                    pid: parsed(&row, "active_pid")?,
                    position: parsed(&row, "confirmed_flush_lsn"),
                })
            })
            .collect(),
    })
}

/// Reads the server's clock.
pub async fn server_clock(session: &mut Session) -> Result<Option<PgTimestamp>, Error> {
    let sql = "SELECT (1000000 * extract(epoch FROM pg_catalog.clock_timestamp() \
         - timestamptz '2000-01-01 00:00:00+00'))::int8 AS micros";
    let rows = session.query(sql).await?;
    let micros = rows.first().and_then(|row| parsed(&row, "micros"));
    Ok(micros.map(PgTimestamp::new))
}

/// Checks whether commits wait for walsenders with this `application_name`.
pub(crate) async fn is_synchronous(session: &mut Session, name: &str) -> Result<bool, Error> {
    let sql = "SELECT pg_catalog.current_setting('synchronous_standby_names') AS names";
    let rows = session.query(sql).await?;
    let row = rows.first();
    let setting = row.as_ref().and_then(|row| row.get("names"));
    Ok(names_standby(setting.unwrap_or_default(), name))
}

/// Returns true if the value of `synchronous_standby_names` names this `application_name`: in the
/// form `FIRST n (names)`, `ANY n (names)`, or only as names.
/// <https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-SYNCHRONOUS-STANDBY-NAMES>
pub fn names_standby(setting: &str, name: &str) -> bool {
    let names = setting.split_once('(').map_or(setting, |(_, names)| names);
    let mut names = names.trim_end_matches(')').split(',').map(str::trim);
    names.any(|listed| listed == "*" || listed.trim_matches('"').eq_ignore_ascii_case(name))
}

/// Queries the process that reads a slot, as `pg_stat_activity` and `pg_stat_replication` show
/// it.
pub async fn slot_reader(session: &mut Session, name: &str) -> Result<Option<SlotReader>, Error> {
    let sql = format!(
        "SELECT s.active_pid, a.application_name, pg_catalog.host(a.client_addr) AS host, \
         a.client_port, r.pid IS NOT NULL AS walsender, (1000000 * \
         extract(epoch FROM a.backend_start - timestamptz '2000-01-01 00:00:00+00'))::int8 AS since \
         FROM pg_catalog.pg_replication_slots s \
         LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid \
         LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid WHERE s.slot_name = {}",
        quote_literal(name)
    );
    let rows = session.query(&sql).await?;
    Ok(rows.first().and_then(|row| {
        Some(SlotReader {
            pid: parsed(&row, "active_pid")?,
            application_name: row.get("application_name").map(str::to_owned),
            client: row.get("host").map(|host| {
                let host = if host.contains(':') {
                    format!("[{host}]")
                } else {
                    host.to_owned()
                };
                format!("{host}:{}", row.get("client_port").unwrap_or("?"))
            }),
            walsender: is_true(&row, "walsender"),
            since: parsed(&row, "since").map(PgTimestamp::new),
        })
    }))
}

/// Checks whether a process of this server is the walsender with this PID, of the same role.
pub(super) async fn is_walsender(session: &mut Session, pid: i32) -> Result<bool, Error> {
    let sql = format!(
        "SELECT pid FROM pg_catalog.pg_stat_activity WHERE pid = {pid} AND backend_type = 'walsender'"
    );
    Ok(!session.query(&sql).await?.is_empty())
}

/// The transactions of the server that have written or are prepared: `xid`, `holder`, `database` and
/// `seconds`, for which it is open. NULL is what is not shown.
const WRITERS: &str = "SELECT backend_xid AS xid, 'server process ' || pid \
      || coalesce(' (' || nullif(application_name, '') || ')', '') AS holder, datname AS database, \
      extract(epoch FROM pg_catalog.clock_timestamp() - xact_start)::int8 AS seconds \
     FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL \
     UNION ALL SELECT transaction, 'prepared transaction ' || gid, database, \
      extract(epoch FROM pg_catalog.clock_timestamp() - prepared)::int8 \
     FROM pg_catalog.pg_prepared_xacts";

/// Returns a query of these columns of the oldest of [`WRITERS`].
pub(crate) fn oldest_writer_sql(columns: &str) -> String {
    format!(
        "SELECT {columns} FROM ({WRITERS}) AS writers ORDER BY pg_catalog.age(xid) DESC LIMIT 1"
    )
}

fn server_sql() -> String {
    let oldest = oldest_writer_sql("holder || coalesce(', open for ' || seconds || ' s', '')");
    let comment = state_version::COMMENT_SQL;
    format!(
        "SELECT current_setting('wal_level') AS wal_level, \
         current_setting('effective_wal_level', true) AS effective_wal_level, \
         current_database() AS database, pg_catalog.pg_is_in_recovery() AS in_recovery, \
         CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN \
          pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_flush_lsn()) END AS segment, \
         extract(epoch FROM pg_catalog.pg_postmaster_start_time()) AS start, \
         (SELECT setting FROM pg_catalog.pg_settings \
          WHERE name = 'max_slot_wal_keep_size') AS keep_size, \
         (SELECT s.setting::int8 - (SELECT count(*) FROM pg_catalog.pg_replication_slots) \
          FROM pg_catalog.pg_settings s WHERE s.name = 'max_replication_slots') AS free_slots, \
         ({oldest}) AS oldest_transaction, {comment} AS state_comment, \
         CASE WHEN pg_catalog.pg_is_in_recovery() \
          THEN pg_catalog.pg_last_wal_replay_lsn() \
          ELSE pg_catalog.pg_current_wal_flush_lsn() END AS wal_end"
    )
}

fn server(major: u32, rows: &Rows) -> ServerFacts {
    let Some(row) = rows.first() else {
        return ServerFacts {
            major,
            ..ServerFacts::default()
        };
    };
    // The name of a WAL segment begins with the timeline, in eight hexadecimal digits.
    let timeline = row.get("segment").and_then(|name| name.get(..8));
    // In MB. -1 means no limit, and does not parse.
    let megabytes: Option<u64> = parsed(&row, "keep_size");
    ServerFacts {
        major,
        wal_level: text(&row, "wal_level"),
        effective_wal_level: row.get("effective_wal_level").map(str::to_owned),
        database: text(&row, "database"),
        in_recovery: is_true(&row, "in_recovery"),
        wal_end: parsed(&row, "wal_end"),
        max_slot_wal_keep_size: megabytes.map(|megabytes| megabytes << 20),
        timeline: timeline.and_then(|hex| u32::from_str_radix(hex, 16).ok()),
        start: text(&row, "start"),
        free_slots: parsed(&row, "free_slots"),
        oldest_transaction: row.get("oldest_transaction").map(str::to_owned),
        state_version: state_version::from_comment(row.get("state_comment")),
    }
}

/// The table `c` and its partitions, down to the leaves: read only from the catalogs, because the functions for it
/// lock the tables.
const PARTITIONS: &str = "parts AS (SELECT c.oid AS oid, c.relkind AS kind UNION ALL \
     SELECT i.inhrelid, p.relkind FROM parts JOIN pg_catalog.pg_inherits i ON i.inhparent = parts.oid AND parts.kind = 'p' \
     JOIN pg_catalog.pg_class p ON p.oid = i.inhrelid)";

/// Writes a query of the [`TableFacts`] as JSON, in the column `facts`.
pub(super) fn table_sql(name: &TableName) -> String {
    let index_columns = |which: &str| {
        format!(
            "a.attnum = ANY ((SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] FROM pg_catalog.pg_index i \
             WHERE i.indrelid = c.oid AND {which})::int2[])"
        )
    };
    let identity = index_columns(
        "CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END",
    );
    let primary = index_columns("i.indisprimary");
    let partitions = |which: &str| {
        format!(
            "coalesce((WITH RECURSIVE {PARTITIONS} \
             SELECT json_agg(format('%I.%I', n.nspname, o.relname) ORDER BY n.nspname, o.relname) FROM parts \
             JOIN pg_catalog.pg_class o ON o.oid = parts.oid JOIN pg_catalog.pg_namespace n ON n.oid = o.relnamespace \
             WHERE o.oid <> c.oid AND {which}), '[]')"
        )
    };
    let (unlogged, foreign) = (
        partitions("o.relpersistence <> 'p'"),
        partitions("o.relkind = 'f'"),
    );
    format!(
        "SELECT json_build_object('oid', c.oid::int8, 'kind', c.relkind, \
         'permanent', c.relpersistence = 'p', 'identity', c.relreplident, \
         'columns', coalesce((SELECT json_agg(json_build_object('name', a.attname, \
         'type_oid', a.atttypid::int8, 'modifier', a.atttypmod, 'is_key', coalesce({identity}, false), \
         'generated', nullif(a.attgenerated, ''), 'integer', a.atttypid IN (20, 21, 23), \
         'base_oid', (WITH RECURSIVE base AS (SELECT a.atttypid AS oid UNION ALL SELECT t.typbasetype \
           FROM base JOIN pg_catalog.pg_type t ON t.oid = base.oid AND t.typbasetype <> 0) \
          SELECT t.oid::int8 FROM base JOIN pg_catalog.pg_type t ON t.oid = base.oid AND t.typbasetype = 0), \
         'identity', a.attidentity <> '') ORDER BY a.attnum) \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '[]'), \
         'unlogged', {unlogged}, 'foreign', {foreign}, \
         'partition_key', coalesce((WITH RECURSIVE {PARTITIONS} \
          SELECT json_agg(DISTINCT a.attname) FROM parts JOIN pg_catalog.pg_partitioned_table k ON k.partrelid = parts.oid \
          JOIN pg_catalog.pg_attribute a ON a.attrelid = parts.oid AND a.attnum > 0 AND (a.attnum = ANY (k.partattrs::int2[]) \
           OR EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass \
            AND d.objid = parts.oid AND d.objsubid = a.attnum AND d.refclassid = d.classid AND d.refobjid = parts.oid \
            AND d.refobjsubid = 0 AND d.deptype = 'i'))), '[]'), \
         'primary_key', coalesce((SELECT json_agg(a.attname ORDER BY a.attnum) \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND {primary}), '[]')) AS facts \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = {} AND c.relname = {} AND c.relkind IN ('r', 'p', 'v', 'm', 'f')",
        quote_literal(&name.schema),
        quote_literal(&name.name),
    )
}

/// Returns the first row of the answer to [`table_sql`]; `None` if the table does not exist.
pub(super) fn table(rows: &Rows) -> Option<TableFacts> {
    json(&rows.first()?, "facts")
}

/// Returns SQL for whether a publication was made `FOR TABLES IN SCHEMA`, which came with Postgres
/// 15.
fn publishes_schemas(major: u32) -> &'static str {
    if major >= 15 {
        "EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = pg_publication.oid)"
    } else {
        "false"
    }
}

fn publication(publications: &Rows, tables: &Rows, entries: &Rows) -> Option<PublicationFacts> {
    let row = publications.first()?;
    Some(PublicationFacts {
        oid: parsed(&row, "oid").unwrap_or(0),
        insert: is_true(&row, "pubinsert"),
        update: is_true(&row, "pubupdate"),
        all_tables: is_true(&row, "puballtables"),
        schemas: is_true(&row, "pubschemas"),
        unfinished: is_true(&row, "unfinished"),
        version: parsed(&row, "version").unwrap_or(0),
        row: text(&row, "row"),
        tables: published(tables),
        entries: entries.iter().filter_map(|row| entry(&row)).collect(),
    })
}

fn entry(row: &Row<'_>) -> Option<PublicationEntry> {
    Some(PublicationEntry {
        table: parsed(row, "relid")?,
        oid: parsed(row, "entry")?,
    })
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

/// Queries the tables that a publication carries.
pub(super) async fn published_tables(
    session: &mut Session,
    publication: &str,
    filters: Filters,
) -> Result<Vec<PublishedTable>, Error> {
    let sql = published_tables_sql(session.server_version().major, publication, filters);
    Ok(published(&session.query(&sql).await?))
}
