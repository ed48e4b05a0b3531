//! [`UnconfirmedKeys`]: the keys and hashes of the unconfirmed rows of a table, compared with the rows that it has.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_lsn::RelationId;
use walrelay_pgoutput::{Insert, Relation, Value};
use walrelay_relay::{TableName, row_hash};
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::RollbackError;
use crate::catalog;
use crate::confirmation::count_rows;
use crate::script;
use crate::sent_keys;

/// Keys inserted by one statement, at most.
pub(super) const KEYS_PER_INSERT: usize = 500;
/// The time that a commit may take from its record to its end, and the interval of the queries.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);
const COMMIT_INTERVAL: Duration = Duration::from_millis(50);

/// A temporary table with the primary keys of an outbox table's unconfirmed rows.
#[derive(Debug)]
pub(super) struct UnconfirmedKeys {
    pub(super) table: TableName,
    /// The SQL condition for its rows that are not marked.
    unsent: String,
    /// `ONLY "schema"."table"`, or without ONLY if it is partitioned: children by INHERITS are published
    /// under their own names.
    from: String,
    pub(super) temporary: String,
    /// Names of the primary key's columns.
    pub(super) key: Vec<String>,
    /// Names of the columns that are compared.
    compared: Vec<String>,
    /// The table and its partitions, each of which may be published under its own name.
    pub(super) relations: Vec<RelationId>,
    /// The columns of a row, by the relation that the stream announces.
    columns: HashMap<RelationId, RowColumns>,
    /// The compared columns of all announcements.
    hashed: Vec<Vec<String>>,
    /// The number of rows.
    inserted: u64,
    /// The rows that are not stored yet, as rows of `VALUES`.
    pending: Vec<String>,
}

/// Positions of columns in a row.
#[derive(Debug)]
struct RowColumns {
    key: Vec<usize>,
    hashed: Vec<usize>,
    /// The index of the compared columns.
    list: usize,
}

impl UnconfirmedKeys {
    /// Creates the temporary table, empty. The columns `skipped` are not compared.
    pub(super) async fn create(
        session: &mut Session,
        number: usize,
        table: TableName,
        unsent: String,
        skipped: &[String],
    ) -> Result<Self, RollbackError> {
        // Fails if the table does not exist.
        let relations = relations(session, &table).await?;
        let facts = catalog::table(&session.query(&catalog::table_sql(&table)).await?);
        let Some(facts) = facts.filter(|facts| !facts.primary_key.is_empty()) else {
            return Err(RollbackError::Key(table));
        };
        let key = facts.primary_key;
        let temporary = format!("walrelay_unconfirmed_{number}");
        let columns: Vec<String> = key.iter().map(|name| quote_ident(name)).collect();
        let name = script::table(&table);
        let create = format!(
            "DROP TABLE IF EXISTS pg_temp.{temporary}; CREATE TEMPORARY TABLE {temporary} AS SELECT {}, \
             0::int8 AS walrelay_number, 0::int4 AS walrelay_list, ''::text AS walrelay_hash FROM {name} WHERE false",
            columns.join(", "),
        );
        session.query(&create).await?;
        let compared = facts.columns.into_iter().map(|column| column.name);
        Ok(Self {
            from: script::rows_of(&table, facts.kind == "p"),
            table,
            unsent,
            temporary,
            key,
            compared: compared.filter(|name| !skipped.contains(name)).collect(),
            relations,
            columns: HashMap::new(),
            hashed: Vec::new(),
            inserted: 0,
            pending: Vec::new(),
        })
    }

    /// Finds the columns of a relation of this table. A column that the table does not have any more cannot be
    /// compared.
    pub(super) fn relation(&mut self, relation: &Relation<'_>) -> Result<(), RollbackError> {
        let names: Vec<&str> = relation.columns().map(|column| column.name).collect();
        let find = |key: &String| names.iter().position(|name| name == key);
        let key: Option<Vec<usize>> = self.key.iter().map(find).collect();
        let key = key.ok_or_else(|| RollbackError::Key(self.table.clone()))?;
        let is_compared = |name: &str| self.compared.iter().any(|compared| compared == name);
        let (hashed, list): (Vec<usize>, Vec<String>) = names
            .iter()
            .enumerate()
            .filter(|(_, name)| is_compared(name))
            .map(|(at, name)| (at, (*name).to_owned()))
            .unzip();
        let known = self.hashed.iter().position(|known| *known == list);
        let list = known.unwrap_or_else(|| {
            self.hashed.push(list);
            self.hashed.len() - 1
        });
        self.columns
            .insert(relation.id, RowColumns { key, hashed, list });
        Ok(())
    }

    /// Collects an inserted row, if it is one of this table. Returns whether it is.
    pub(super) fn insert(&mut self, insert: &Insert<'_>) -> bool {
        let Some(columns) = self.columns.get(&insert.relation) else {
            return false;
        };
        let values: Vec<Value<'_>> = insert.tuple.values().collect();
        let value = |at: &usize| values.get(*at).copied().unwrap_or(Value::Null);
        let key = columns.key.iter().map(|at| match value(at) {
            Value::Text(text) => quote_literal(&String::from_utf8_lossy(text)),
            _ => "NULL".to_owned(),
        });
        let key: Vec<String> = key.collect();
        let mut hash = String::new();
        for byte in row_hash(columns.hashed.iter().map(value)) {
            // Writing to a string does not fail.
            let _ = write!(hash, "{byte:02x}");
        }
        self.inserted += 1;
        let (key, number, list) = (key.join(", "), self.inserted, columns.list);
        self.pending
            .push(format!("({key}, {number}, {list}, '{hash}')"));
        true
    }

    /// Stores the collected rows if there are `at_least` so many.
    pub(super) async fn store(
        &mut self,
        session: &mut Session,
        at_least: usize,
    ) -> Result<(), RollbackError> {
        if self.pending.len() < at_least {
            return Ok(());
        }
        for chunk in self.pending.chunks(KEYS_PER_INSERT) {
            let (name, rows) = (&self.temporary, chunk.join(", "));
            let insert = format!("INSERT INTO pg_temp.{name} VALUES {rows}");
            session.query(&insert).await?;
        }
        self.pending.clear();
        Ok(())
    }

    /// Counts the events that no row holds. A row holds the last event of its key, if it was not changed since. A row
    /// that is marked counts as sent. A transaction is invisible from its commit record until its commit is
    /// complete, which takes as long as a flush, or an answer of a synchronous standby.
    pub(super) async fn count_without_row(&self, session: &mut Session) -> Result<u64, Error> {
        let key: Vec<String> = self.key.iter().map(|name| quote_ident(name)).collect();
        // The condition is on lines of its own, because it may end in a comment.
        let missing = format!(
            "SELECT count(*) AS rows FROM (SELECT *, pg_catalog.row_number() OVER (PARTITION BY {key} \
              ORDER BY walrelay_number DESC) AS walrelay_nth FROM pg_temp.{temporary}) AS unconfirmed \
             WHERE walrelay_nth > 1 OR NOT EXISTS (SELECT FROM {from} WHERE {same_key} \
              AND ((\n{unsent}\n) IS NOT TRUE OR {same_row}))",
            key = key.join(", "),
            temporary = self.temporary,
            from = self.from,
            same_key = self.same_key(),
            unsent = self.unsent,
            same_row = self.same_row(),
        );
        let begun = Instant::now();
        loop {
            let absent = count_rows(session, &missing).await?;
            if absent == 0 || begun.elapsed() > COMMIT_TIMEOUT {
                return Ok(absent);
            }
            sleep(COMMIT_INTERVAL).await;
        }
    }

    /// Writes a condition for the table's row of an unconfirmed key. Without an alias of the table:
    /// a condition next to it may name the table.
    fn same_key(&self) -> String {
        let table = script::table(&self.table);
        let names = self.key.iter().map(|name| quote_ident(name));
        let same: Vec<String> = names
            .map(|name| format!("unconfirmed.{name} = {table}.{name}"))
            .collect();
        same.join(" AND ")
    }

    /// Writes a condition for a row that has the hash of the unconfirmed one.
    fn same_row(&self) -> String {
        let table = script::table(&self.table);
        let lists = self.hashed.iter().enumerate().map(|(list, columns)| {
            if columns.is_empty() {
                return format!(" WHEN {list} THEN true");
            }
            let hash = sent_keys::hash_of_columns(&table, columns);
            format!(" WHEN {list} THEN {hash} = unconfirmed.walrelay_hash")
        });
        let lists: Vec<String> = lists.collect();
        if lists.is_empty() {
            return "false".to_owned();
        }
        format!(
            "CASE unconfirmed.walrelay_list{} ELSE false END",
            lists.concat()
        )
    }
}

/// Queries the OIDs of a table and all its partitions.
async fn relations(
    session: &mut Session,
    table: &TableName,
) -> Result<Vec<RelationId>, RollbackError> {
    let sql = format!(
        "WITH RECURSIVE tree AS (SELECT {}::pg_catalog.regclass::pg_catalog.oid AS oid UNION \
         SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree t ON i.inhparent = t.oid \
         JOIN pg_catalog.pg_class c ON c.oid = t.oid AND c.relkind = 'p') \
         SELECT oid::int8 FROM tree",
        quote_literal(&script::table(table))
    );
    let rows = session.query(&sql).await?;
    let oids = rows.iter().filter_map(|row| row.get(0)?.parse().ok());
    Ok(oids.map(RelationId::new).collect())
}
