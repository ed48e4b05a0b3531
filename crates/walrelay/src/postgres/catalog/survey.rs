//! What `walrelay check` reads besides the [`Facts`](super::Facts): limits, rights, other slots, open
//! transactions. All of it is visible to a role that may only replicate, but for what says otherwise.

use std::collections::BTreeMap;

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::row::{is_true, parsed, text};
use super::slots::{SlotRow, slot_row, slots_sql};
use super::{TableFacts, Wanted};
use crate::postgres::script;

/// Settings that are read, where the server's version has them.
const SETTINGS: [&str; 8] = [
    "max_wal_senders",
    "max_replication_slots",
    "max_slot_wal_keep_size",
    "max_wal_size",
    "wal_sender_timeout",
    "idle_replication_slot_timeout",
    "synchronized_standby_slots",
    "server_version",
];

/// How many rows the size of payloads is measured of, about.
const SAMPLED_ROWS: u32 = 100_000;
/// How many blocks at the table's end, and how many rows of these, name topics.
const LAST_BLOCKS: u32 = 100;
const LAST_ROWS: u32 = 1_000;
/// Longer values name no topic.
const LONGEST_VALUE: u32 = 256;
/// How long a query of an outbox table may take.
const STATEMENT_TIMEOUT_MS: u32 = 3_000;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Survey {
    settings: BTreeMap<String, (String, Option<String>)>,
    pub(crate) role: String,
    /// The role sees the sessions of other roles: it is a member of `pg_read_all_stats`.
    pub(crate) sees_sessions: bool,
    /// Walsenders that run, of any role.
    pub(crate) walsenders: u64,
    pub(crate) slots: Vec<SlotRow>,
    /// Transactions that have written, and so hold back every logical slot.
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) prepared: Vec<Prepared>,
    pub(crate) publication: Option<PublishedOperations>,
    /// Of each wanted table that exists.
    pub(crate) tables: Vec<(TableName, TableSurvey)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Transaction {
    pub(crate) pid: i64,
    /// `None`: the role may not see it.
    pub(crate) seconds: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Prepared {
    pub(crate) gid: String,
    pub(crate) database: String,
    pub(crate) seconds: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PublishedOperations {
    /// Operations that it carries besides `insert`: of `update`, `delete` and `truncate`.
    pub(crate) others: Vec<&'static str>,
    /// Changes of partitions are announced as those of their root.
    pub(crate) via_root: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TableSurvey {
    /// `pg_class.relreplident`: `d` default, `n` nothing, `f` full, `i` index.
    pub(crate) identity: String,
    pub(crate) primary_key: bool,
    /// The role may read the columns that the router reads.
    pub(crate) readable: bool,
}

impl Survey {
    /// A setting as a number in its own unit.
    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        self.settings.get(name)?.0.parse().ok()
    }

    pub(crate) fn setting(&self, name: &str) -> Option<&str> {
        Some(self.settings.get(name)?.0.as_str())
    }

    /// A setting with its unit, as people read it; `None` where it is 0, or unknown to this version.
    pub(crate) fn duration(&self, name: &str) -> Option<String> {
        let (value, unit) = self.settings.get(name)?;
        (value != "0").then(|| format!("{value} {}", unit.as_deref().unwrap_or_default()))
    }

    #[cfg(test)]
    pub(crate) fn with(mut self, name: &str, value: &str, unit: &str) -> Self {
        let value = (value.to_owned(), Some(unit.to_owned()));
        self.settings.insert(name.to_owned(), value);
        self
    }
}

/// Reads the [`Survey`] in one round trip.
pub(crate) async fn survey(session: &mut Session, wanted: &Wanted) -> Result<Survey, Error> {
    let names: Vec<String> = SETTINGS.iter().map(|name| quote_literal(name)).collect();
    let mut statements = vec![
        format!(
            "SELECT name, setting, unit FROM pg_catalog.pg_settings WHERE name IN ({})",
            names.join(", ")
        ),
        "SELECT current_user AS role, \
         pg_catalog.pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_sessions, \
         (SELECT count(*) FROM pg_catalog.pg_stat_replication) AS walsenders"
            .to_owned(),
        slots_sql(session.server_version().major),
        "SELECT pid, extract(epoch FROM pg_catalog.clock_timestamp() - xact_start)::int8 AS seconds \
         FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL \
         AND pid <> pg_catalog.pg_backend_pid() ORDER BY backend_xid::text::int8"
            .to_owned(),
        "SELECT gid, database, \
         extract(epoch FROM pg_catalog.clock_timestamp() - prepared)::int8 AS seconds \
         FROM pg_catalog.pg_prepared_xacts ORDER BY prepared"
            .to_owned(),
        format!(
            "SELECT pubupdate, pubdelete, pubtruncate, pubviaroot \
             FROM pg_catalog.pg_publication WHERE pubname = {}",
            quote_literal(&wanted.publication)
        ),
    ];
    let columns: Vec<String> = wanted
        .columns
        .iter()
        .map(|name| quote_literal(name))
        .collect();
    let columns = if columns.is_empty() {
        "NULL".to_owned()
    } else {
        columns.join(", ")
    };
    for table in &wanted.tables {
        statements.push(format!(
            "SELECT c.relreplident AS identity, EXISTS (SELECT FROM pg_catalog.pg_index i \
              WHERE i.indrelid = c.oid AND i.indisprimary) AS primary_key, \
             pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE') AND NOT EXISTS (\
              SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid \
              AND a.attnum > 0 AND NOT a.attisdropped AND a.attname IN ({columns}) \
              AND NOT pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT')) AS readable \
             FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass({})",
            quote_literal(&script::table(table))
        ));
    }
    let mut answers = session.query_all(&statements).await?.into_iter();
    // One for each statement.
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

/// What a sample of an outbox table shows.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Sample {
    /// The most bytes that the router's columns of one row have together, as text.
    pub(crate) largest: Option<u64>,
    /// Some of the rows at the table's end, with its columns in order; long values are left out.
    pub(crate) rows: Vec<Vec<Option<String>>>,
}

/// Reads a sample of a table that the role may read, for some seconds at most.
pub(crate) async fn sample(
    session: &mut Session,
    name: &TableName,
    table: &TableFacts,
    columns: &[&str],
    read: &[String],
) -> Result<Sample, Error> {
    let of = script::table(name);
    let text = |column: &str| format!("{}::text", quote_ident(column));
    let sizes = read.iter().map(|column| {
        let text = text(column);
        format!("coalesce(octet_length({text}), 0)")
    });
    let size: Vec<String> = sizes.chain(["0".to_owned()]).collect();
    let short = columns.iter().map(|column| {
        let (text, known) = (text(column), read.iter().any(|read| read == column));
        if known {
            format!("CASE WHEN octet_length({text}) <= {LONGEST_VALUE} THEN {text} END")
        } else {
            "NULL::text".to_owned()
        }
    });
    let short: Vec<String> = short.collect();
    let timeout = format!("SET statement_timeout = {STATEMENT_TIMEOUT_MS}");
    session.query(&timeout).await?;
    let rows = session
        .query(&format!(
            "SELECT least(100, {SAMPLED_ROWS} * 100.0 / greatest(reltuples, 1)) AS share, \
             pg_catalog.pg_relation_size(oid) / current_setting('block_size')::int8 AS blocks \
             FROM pg_catalog.pg_class WHERE oid = {}::regclass",
            quote_literal(&of)
        ))
        .await?;
    let row = rows.first();
    let share: f64 = row
        .as_ref()
        .and_then(|row| parsed(row, "share"))
        .unwrap_or(100.0);
    let blocks: u32 = row
        .as_ref()
        .and_then(|row| parsed(row, "blocks"))
        .unwrap_or(0);
    let largest = session
        .query(&format!(
            "SELECT max({}) AS largest FROM {of} TABLESAMPLE SYSTEM ({share})",
            size.join(" + ")
        ))
        .await?;
    // The rows of a partitioned table lie elsewhere.
    let end = match blocks.checked_sub(LAST_BLOCKS) {
        Some(first) if table.kind == "r" && first > 0 => {
            format!("WHERE ctid >= '({first},0)'::tid ")
        }
        _ => String::new(),
    };
    let rows = session
        .query(&format!(
            "SELECT {} FROM {of} {end}LIMIT {LAST_ROWS}",
            short.join(", ")
        ))
        .await?;
    session.query("RESET statement_timeout").await?;
    Ok(Sample {
        largest: largest.first().and_then(|row| parsed(&row, "largest")),
        rows: rows
            .iter()
            .map(|row| {
                (0..columns.len())
                    .map(|at| row.get(at).map(str::to_owned))
                    .collect()
            })
            .collect(),
    })
}
