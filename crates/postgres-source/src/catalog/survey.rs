//! The data that `walrelay check` reads besides the [`Facts`](super::Facts): limits, privileges,
//! other slots, open transactions. A role that may only replicate can read all of it, unless a
//! field says otherwise.

use std::collections::BTreeMap;

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Row, Session, quote_ident, quote_literal};

use super::locks::{TableLock, locks, locks_sql};
use super::row::{is_true, parsed, text};
use super::slots::{SlotRow, slot_row, slots_sql};
use super::{TableFacts, Wanted};
use crate::script;

/// Server settings to read. Those that the server's version lacks are left out.
const SETTINGS: [&str; 9] = [
    "max_wal_senders",
    "max_replication_slots",
    "max_slot_wal_keep_size",
    "max_wal_size",
    "wal_sender_timeout",
    "idle_replication_slot_timeout",
    "synchronized_standby_slots",
    "synchronous_standby_names",
    "server_version",
];

/// About how many rows the largest row size is measured over.
const SAMPLED_ROWS: u32 = 100_000;
/// The sample of rows: at most `LAST_ROWS` rows of the table's last `LAST_BLOCKS` blocks.
const LAST_BLOCKS: u32 = 100;
const LAST_ROWS: u32 = 1_000;
/// Bytes of the longest value in the sample of rows; longer values name no topic.
const LONGEST_VALUE: u32 = 256;
/// Timeout of a query of an outbox table, in milliseconds.
const STATEMENT_TIMEOUT_MS: u32 = 3_000;

/// The data that `walrelay check` reads besides the facts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// Value and unit of each setting.
    settings: BTreeMap<String, (String, Option<String>)>,
    /// The role of the connection.
    pub role: String,
    /// The role is a member of `pg_read_all_stats`, so it sees the sessions of other roles.
    pub sees_sessions: bool,
    /// Number of running walsenders, of any role.
    pub walsenders: u64,
    /// All slots of the server.
    pub slots: Vec<SlotRow>,
    /// Transactions that have written something, and so hold back every logical slot.
    pub transactions: Vec<Transaction>,
    /// Transactions that are prepared for two-phase commit.
    pub prepared: Vec<Prepared>,
    /// Sessions that lock an outbox table.
    pub locks: Vec<TableLock>,
    /// `None`: no publication has this name.
    pub publication: Option<PublishedOperations>,
    /// The wanted tables that exist.
    pub tables: Vec<(TableName, TableSurvey)>,
}

/// A running transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// The server process.
    pub pid: i64,
    /// Age in seconds; `None` if the role may not see it.
    pub seconds: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prepared {
    pub gid: String,
    pub database: String,
    /// Age in seconds.
    pub seconds: u64,
}

/// The operations that a publication publishes besides INSERTs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PublishedOperations {
    /// The published ones of `update`, `delete` and `truncate`.
    pub others: Vec<&'static str>,
    /// Changes of partitions are published under the name of their root.
    pub via_root: bool,
}

/// The data of an outbox table that `check` reads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableSurvey {
    /// `pg_class.relreplident`: `d` default, `n` nothing, `f` full, `i` index.
    pub identity: String,
    /// The table has one.
    pub primary_key: bool,
    /// The role may read the columns that the router reads.
    pub readable: bool,
}

impl Survey {
    /// Returns a setting as a number, in the setting's own unit.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.settings.get(name)?.0.parse().ok()
    }

    /// Returns the value of a setting; `None` if the server does not know it.
    pub fn setting(&self, name: &str) -> Option<&str> {
        Some(self.settings.get(name)?.0.as_str())
    }

    /// Returns a setting with its unit, as text; `None` if it is 0, or unknown to the server's
    /// version.
    pub fn duration(&self, name: &str) -> Option<String> {
        let (value, unit) = self.settings.get(name)?;
        (value != "0").then(|| format!("{value} {}", unit.as_deref().unwrap_or_default()))
    }

    /// Replaces a setting, for tests of what is made of a survey.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str, unit: &str) -> Self {
        let value = (value.to_owned(), Some(unit.to_owned()));
        self.settings.insert(name.to_owned(), value);
        self
    }
}

/// Reads the [`Survey`] in one round trip.
pub async fn survey(session: &mut Session, wanted: &Wanted) -> Result<Survey, Error> {
    let statements = statements(session.server_version().major, wanted);
    let mut answers = session.query_all(&statements).await?.into_iter();
    // One answer for each statement, in the same order.
    let mut next = || answers.next().unwrap_or_default();
    let mut found = Survey::default();
    for row in next().iter() {
        let value = (text(&row, "setting"), row.get("unit").map(str::to_owned));
        found.settings.insert(text(&row, "name"), value);
    }
    if let Some(row) = next().first() {
        found.role = text(&row, "role");
        found.sees_sessions = is_true(&row, "sees_sessions");
        found.walsenders = parsed(&row, "walsenders").unwrap_or(0);
    }
    found.slots = next().iter().map(|row| slot_row(&row)).collect();
    found.transactions = next()
        .iter()
        .map(|row| Transaction {
            pid: parsed(&row, "pid").unwrap_or(0),
            seconds: parsed(&row, "seconds"),
        })
        .collect();
    found.prepared = next()
        .iter()
        .map(|row| Prepared {
            gid: text(&row, "gid"),
            database: text(&row, "database"),
            seconds: parsed(&row, "seconds").unwrap_or(0),
        })
        .collect();
    found.locks = locks(&next());
    found.publication = next().first().map(|row| PublishedOperations {
        others: ["update", "delete", "truncate"]
            .into_iter()
            .filter(|operation| is_true(&row, &format!("pub{operation}")))
            .collect(),
        via_root: is_true(&row, "pubviaroot"),
    });
    for table in &wanted.tables {
        if let Some(row) = next().first() {
            let facts = TableSurvey {
                identity: text(&row, "identity"),
                primary_key: is_true(&row, "primary_key"),
                readable: is_true(&row, "readable"),
            };
            found.tables.push((table.clone(), facts));
        }
    }
    Ok(found)
}

/// Returns the statements of [`survey`], in the order in which it reads their answers.
fn statements(major: u32, wanted: &Wanted) -> Vec<String> {
    let names = SETTINGS.map(quote_literal);
    let mut statements = vec![
        format!(
            "SELECT name, setting, unit FROM pg_catalog.pg_settings WHERE name IN ({})",
            names.join(", ")
        ),
        "SELECT current_user AS role, \
         pg_catalog.pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_sessions, \
         (SELECT count(*) FROM pg_catalog.pg_stat_replication) AS walsenders"
            .to_owned(),
        slots_sql(major),
        "SELECT pid, extract(epoch FROM pg_catalog.clock_timestamp() - xact_start)::int8 AS seconds \
         FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL \
         AND pid <> pg_catalog.pg_backend_pid() ORDER BY backend_xid::text::int8"
            .to_owned(),
        "SELECT gid, database, \
         extract(epoch FROM pg_catalog.clock_timestamp() - prepared)::int8 AS seconds \
         FROM pg_catalog.pg_prepared_xacts ORDER BY prepared"
            .to_owned(),
        locks_sql(&wanted.tables),
        format!(
            "SELECT pubupdate, pubdelete, pubtruncate, pubviaroot \
             FROM pg_catalog.pg_publication WHERE pubname = {}",
            quote_literal(&wanted.publication)
        ),
    ];
    let columns = wanted.names().map(quote_literal);
    // `IN ()` is a syntax error; `IN (NULL)` finds no column.
    let columns: Vec<String> = columns.chain(["NULL".to_owned()]).collect();
    let columns = columns.join(", ");
    for table in &wanted.tables {
        statements.push(format!(
            "SELECT c.relreplident AS identity, EXISTS (SELECT FROM pg_catalog.pg_index i \
              WHERE i.indrelid = c.oid AND i.indisprimary) AS primary_key, \
             pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE') AND NOT EXISTS (\
              SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid \
              AND a.attnum > 0 AND NOT a.attisdropped AND a.attname IN ({columns}) \
              AND NOT pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT')) AS readable \
             FROM pg_catalog.pg_class c WHERE {}",
            is_table(table)
        ));
    }
    statements
}

/// Returns a condition on `pg_class c` that holds for a table. A cast to `regclass` fails
/// for a role without USAGE on the schema, which the relay does not need.
fn is_table(table: &TableName) -> String {
    format!(
        "c.relname = {} AND c.relnamespace = (\
         SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = {})",
        quote_literal(&table.name),
        quote_literal(&table.schema)
    )
}

/// Returns the privileges that the session's role lacks to create the publication, as texts for the
/// user; empty if none is missing.
///
/// Source: the documentation of CREATE PUBLICATION, "Notes": CREATE on the database, and ownership
/// of each table.
pub async fn lacking_to_publish(
    session: &mut Session,
    wanted: &Wanted,
) -> Result<Vec<String>, Error> {
    let mut lacking = Vec::new();
    let rows = session
        .query(
            "SELECT current_database() AS database, \
             pg_catalog.has_database_privilege(current_database(), 'CREATE') AS creates",
        )
        .await?;
    if let Some(row) = rows.first()
        && !is_true(&row, "creates")
    {
        lacking.push(format!("CREATE on database {}", text(&row, "database")));
    }
    for table in &wanted.tables {
        let sql = format!(
            "SELECT FROM pg_catalog.pg_class c WHERE {} \
             AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE')",
            is_table(table)
        );
        if !session.query(&sql).await?.is_empty() {
            lacking.push(format!("ownership of table {table}"));
        }
    }
    Ok(lacking)
}

/// A sample of an outbox table.
#[derive(Clone, PartialEq, Eq, Default)]
#[expect(missing_debug_implementations, reason = "rows have values")]
pub struct Sample {
    /// Bytes of the largest row: the router's columns together, as text.
    pub largest: Option<u64>,
    /// Rows at the table's end, with the values of its columns in order. `None` for NULL, for long
    /// values, and for columns that the router does not read.
    pub rows: Vec<Vec<Option<String>>>,
}

/// Reads a [`Sample`] of a table that the role may read. `columns`: all columns of the table;
/// `read`: those that the router reads.
///
/// # Errors
/// Also if a query takes longer than `STATEMENT_TIMEOUT_MS`.
pub async fn sample(
    session: &mut Session,
    name: &TableName,
    table: &TableFacts,
    columns: &[&str],
    read: &[String],
) -> Result<Sample, Error> {
    let from = script::table(name);
    let text = |column: &str| format!("{}::text", quote_ident(column));
    let sizes = read
        .iter()
        .map(|column| format!("coalesce(octet_length({}), 0)", text(column)));
    let sizes: Vec<String> = sizes.chain(["0".to_owned()]).collect();
    let values = columns.iter().map(|column| {
        let text = text(column);
        if read.iter().any(|read| read == column) {
            format!("CASE WHEN octet_length({text}) <= {LONGEST_VALUE} THEN {text} END")
        } else {
            "NULL::text".to_owned()
        }
    });
    let values: Vec<String> = values.collect();
    let timeout = format!("SET statement_timeout = {STATEMENT_TIMEOUT_MS}");
    session.query(&timeout).await?;
    let (percent, blocks) = table_size(session, &from).await?;
    let largest = format!(
        "SELECT max({}) AS largest FROM {from} TABLESAMPLE SYSTEM ({percent})",
        sizes.join(" + ")
    );
    let largest = session.query(&largest).await?;
    // A partitioned table has no blocks of its own.
    let end = match blocks.checked_sub(LAST_BLOCKS) {
        Some(first) if table.kind == "r" && first > 0 => {
            format!("WHERE ctid >= '({first},0)'::tid ")
        }
        _ => String::new(),
    };
    let rows = format!(
        "SELECT {} FROM {from} {end}LIMIT {LAST_ROWS}",
        values.join(", ")
    );
    let rows = session.query(&rows).await?;
    session.query("RESET statement_timeout").await?;
    let values = |row: Row<'_>| {
        (0..columns.len())
            .map(|at| row.get(at).map(str::to_owned))
            .collect()
    };
    Ok(Sample {
        largest: largest.first().and_then(|row| parsed(&row, "largest")),
        rows: rows.iter().map(values).collect(),
    })
}

/// Returns the percentage of a table that holds about [`SAMPLED_ROWS`] rows, and the table's number
/// of blocks.
async fn table_size(session: &mut Session, table: &str) -> Result<(f64, u32), Error> {
    let sql = format!(
        "SELECT least(100, {SAMPLED_ROWS} * 100.0 / greatest(reltuples, 1)) AS percent, \
         pg_catalog.pg_relation_size(oid) / current_setting('block_size')::int8 AS blocks \
         FROM pg_catalog.pg_class WHERE oid = {}::regclass",
        quote_literal(table)
    );
    let rows = session.query(&sql).await?;
    let row = rows.first();
    let percent = row.as_ref().and_then(|row| parsed(row, "percent"));
    let blocks = row.as_ref().and_then(|row| parsed(row, "blocks"));
    Ok((percent.unwrap_or(100.0), blocks.unwrap_or(0)))
}
