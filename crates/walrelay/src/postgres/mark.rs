//! Marks confirmed rows as sent, in the column that a polling relay uses (`[source] mark_sent`).

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use walrelay_lsn::{Lsn, RelationId};
use walrelay_pgoutput::{DecodeError, Insert, Message, Relation, Value, decode};
use walrelay_relay::{Source as _, TableName, WalStream as _};
use walrelay_walsender::{Frame, Session, SessionKind, quote_ident, quote_literal};

use super::catalog;
use super::confirmed::{
    ConfirmedError, ConfirmedRows, begin_snapshot, count_rows, flush_wal, retry, wait_confirmed,
};
use super::error::PostgresError;
use super::script;
use super::snapshot::{Selection, unsent_condition};
use super::source::{CopySource, Original};

/// Rows marked by one transaction, at most.
const BATCH: u32 = 2_000;
/// Delay between two transactions.
const PAUSE: Duration = Duration::from_millis(20);
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Keys inserted by one statement, at most.
const KEYS_PER_INSERT: usize = 500;

/// Which rows are marked as sent, and how.
#[derive(Debug, Clone)]
pub(crate) struct Marking {
    /// A row is marked only if this slot has confirmed it.
    pub(crate) slot: String,
    pub(crate) tables: Vec<TableName>,
    /// Selects the rows that are not marked yet.
    pub(crate) selection: Selection,
    /// The SQL assignments of `UPDATE … SET` that mark a row.
    pub(crate) set: String,
}

/// Why rows are not marked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MarkError {
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    #[error(transparent)]
    Confirmed(#[from] ConfirmedError),
    #[error("the log cannot be decoded")]
    Decode(#[from] DecodeError),
    /// The publication carries no primary key, so the table's rows cannot be matched with rows of
    /// the stream.
    #[error("table {0} has no primary key in the publication")]
    Key(TableName),
}

impl From<walrelay_walsender::Error> for MarkError {
    fn from(error: walrelay_walsender::Error) -> Self {
        Self::Postgres(error.into())
    }
}

impl Marking {
    /// Marks all confirmed rows of all tables, and returns the number of newly marked rows.
    pub(crate) async fn run(&self, session: &mut Session) -> Result<u64, MarkError> {
        let mut total = 0;
        for table in &self.tables {
            let unsent = unsent_condition(session, table, &self.selection).await?;
            let table_name = script::table(table);
            let rows = ConfirmedRows {
                slots: std::slice::from_ref(&self.slot),
                table,
                condition: &unsent,
                order: "",
                change: &format!("UPDATE {table_name} AS rows SET {}\n FROM batch", self.set),
                batch: BATCH,
                pause: PAUSE,
                lock_timeout: LOCK_TIMEOUT,
            };
            total += rows.change_all(session, |_| {}).await?;
        }
        Ok(total)
    }

    /// Marks the rows that are confirmed in a slot without a reader, and returns their number.
    ///
    /// One transaction takes its snapshot, then reads the end of the WAL. Rows that the WAL holds
    /// between the slot's position and this end are not confirmed: their keys are written into
    /// temporary tables, and all other rows that the snapshot sees are marked. The transaction is
    /// retried if the relay that was stopped marked some of these rows meanwhile.
    pub(crate) async fn run_stopped(
        &self,
        session: &mut Session,
        original: &Original,
    ) -> Result<u64, MarkError> {
        retry(
            session,
            async |session: &mut Session| self.mark_confirmed(session, original).await,
            |error| {
                matches!(error, MarkError::Confirmed(error) if error.is_serialization_failure())
            },
        )
        .await
    }

    async fn mark_confirmed(
        &self,
        session: &mut Session,
        original: &Original,
    ) -> Result<u64, MarkError> {
        let mut conditions = Vec::new();
        for table in &self.tables {
            conditions.push(unsent_condition(session, table, &self.selection).await?);
        }
        let end = begin_snapshot(session, LOCK_TIMEOUT).await?;
        // A walsender sends only flushed WAL. This session cannot flush it, because its transaction
        // stays open.
        let mut other = Session::connect(&original.info, SessionKind::Sql, &[]).await?;
        flush_wal(&mut other).await?;
        other.close().await;
        let mut unconfirmed = Vec::new();
        for (number, table) in self.tables.iter().enumerate() {
            unconfirmed.push(UnconfirmedKeys::create(session, number, table).await?);
        }
        collect_unconfirmed(session, original.clone(), end, &mut unconfirmed).await?;
        let mut total = 0;
        for (condition, keys) in conditions.iter().zip(&unconfirmed) {
            let mark = keys.mark_others(condition, &self.set);
            let marked = count_rows(session, &mark).await;
            total += marked.map_err(ConfirmedError::from)?;
        }
        session.query("COMMIT").await?;
        Ok(total)
    }

    /// Waits until the slot has confirmed everything that is committed now.
    pub(crate) async fn wait_confirmed(&self, session: &mut Session) -> Result<(), ConfirmedError> {
        // A new slot has already confirmed the end of an idle WAL, so write to the WAL first.
        flush_wal(session).await?;
        let position = begin_snapshot(session, LOCK_TIMEOUT).await?;
        session.query("COMMIT").await?;
        flush_wal(session).await?;
        wait_confirmed(session, std::slice::from_ref(&self.slot), position).await
    }

    /// The values of `column`, quoted SQL, in the rows that are not marked.
    pub(crate) async fn unmarked_ids(
        &self,
        session: &mut Session,
        column: &str,
    ) -> Result<HashSet<String>, PostgresError> {
        let column = format!("{column}::text");
        let mut ids = HashSet::new();
        for sql in self.unmarked_rows(session, &column).await? {
            let rows = session.query(&sql).await.map_err(PostgresError::of_rows)?;
            ids.extend(rows.iter().filter_map(|row| row.get(0).map(str::to_owned)));
        }
        Ok(ids)
    }

    /// Counts the rows that are not marked.
    pub(crate) async fn unmarked(&self, session: &mut Session) -> Result<u64, PostgresError> {
        let mut total = 0;
        for sql in self.unmarked_rows(session, "count(*) AS rows").await? {
            let count = count_rows(session, &sql).await;
            total += count.map_err(PostgresError::of_rows)?;
        }
        Ok(total)
    }

    /// A query for each table: `what` of the rows that are not marked.
    async fn unmarked_rows(
        &self,
        session: &mut Session,
        what: &str,
    ) -> Result<Vec<String>, PostgresError> {
        let mut queries = Vec::new();
        for table in &self.tables {
            let unsent = unsent_condition(session, table, &self.selection).await?;
            let table = script::table(table);
            queries.push(format!("SELECT {what} FROM {table} WHERE (\n{unsent}\n)"));
        }
        Ok(queries)
    }
}

/// A temporary table with the primary keys of an outbox table's unconfirmed rows.
struct UnconfirmedKeys<'a> {
    table: &'a TableName,
    temporary: String,
    /// Names of the primary key's columns.
    key: Vec<String>,
    /// The table and its partitions, each of which may be published under its own name.
    relations: Vec<RelationId>,
    /// The positions of the key's columns in a row, by the relation that the stream announces.
    positions: HashMap<RelationId, Vec<usize>>,
    /// The keys that are not stored yet, as rows of `VALUES`.
    pending: Vec<String>,
}

impl<'a> UnconfirmedKeys<'a> {
    /// Creates the temporary table, empty. It is dropped at the end of the transaction.
    async fn create(
        session: &mut Session,
        number: usize,
        table: &'a TableName,
    ) -> Result<Self, MarkError> {
        // Fails if the table does not exist.
        let relations = relations(session, table).await?;
        let facts = catalog::table(&session.query(&catalog::table_sql(table)).await?);
        let key = facts.map(|facts| facts.primary_key).unwrap_or_default();
        if key.is_empty() {
            return Err(MarkError::Key(table.clone()));
        }
        let temporary = format!("walrelay_unconfirmed_{number}");
        let columns: Vec<String> = key.iter().map(|name| quote_ident(name)).collect();
        let create = format!(
            "CREATE TEMPORARY TABLE {temporary} ON COMMIT DROP AS SELECT {} FROM {} WHERE false",
            columns.join(", "),
            script::table(table)
        );
        session.query(&create).await?;
        Ok(Self {
            table,
            temporary,
            key,
            relations,
            positions: HashMap::new(),
            pending: Vec::new(),
        })
    }

    /// Finds the key's columns, if the relation is one of this table.
    fn relation(&mut self, relation: &Relation<'_>) -> Result<(), MarkError> {
        if !self.relations.contains(&relation.id) {
            return Ok(());
        }
        let names: Vec<&str> = relation.columns().map(|column| column.name).collect();
        let find = |key: &String| names.iter().position(|name| name == key);
        let positions: Option<Vec<usize>> = self.key.iter().map(find).collect();
        let positions = positions.ok_or_else(|| MarkError::Key(self.table.clone()))?;
        self.positions.insert(relation.id, positions);
        Ok(())
    }

    /// Collects the key of an inserted row, if it is one of this table.
    fn insert(&mut self, insert: &Insert<'_>) {
        let Some(positions) = self.positions.get(&insert.relation) else {
            return;
        };
        let values: Vec<Value<'_>> = insert.tuple.values().collect();
        let key = positions.iter().map(|at| match values.get(*at) {
            Some(Value::Text(text)) => quote_literal(&String::from_utf8_lossy(text)),
            _ => "NULL".to_owned(),
        });
        let key: Vec<String> = key.collect();
        self.pending.push(format!("({})", key.join(", ")));
    }

    /// Stores the collected keys if there are `at_least` so many.
    async fn store(&mut self, session: &mut Session, at_least: usize) -> Result<(), MarkError> {
        if self.pending.len() < at_least {
            return Ok(());
        }
        for chunk in self.pending.chunks(KEYS_PER_INSERT) {
            let (name, rows) = (&self.temporary, chunk.join(", "));
            let insert = format!("INSERT INTO {name} VALUES {rows}");
            session.query(&insert).await?;
        }
        self.pending.clear();
        Ok(())
    }

    /// A statement that marks the rows that fulfil `condition` and are not among these keys.
    /// Returns their number as `rows`.
    fn mark_others(&self, condition: &str, set: &str) -> String {
        let same_key: Vec<String> = self
            .key
            .iter()
            .map(|name| {
                let name = quote_ident(name);
                format!("gone.{name} = rows.{name}")
            })
            .collect();
        format!(
            "WITH marked AS (UPDATE {name} AS rows SET {set}\n WHERE (\n{condition}\n) AND NOT EXISTS \
             (SELECT FROM {temporary} AS gone WHERE {same_key}) RETURNING 1) \
             SELECT count(*) AS rows FROM marked",
            name = script::table(self.table),
            temporary = self.temporary,
            same_key = same_key.join(" AND "),
        )
    }
}

/// The OIDs of a table and all its descendants in `pg_inherits`.
async fn relations(session: &mut Session, table: &TableName) -> Result<Vec<RelationId>, MarkError> {
    let sql = format!(
        "WITH RECURSIVE tree AS (SELECT {}::pg_catalog.regclass::pg_catalog.oid AS oid UNION \
         SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree t ON i.inhparent = t.oid) \
         SELECT oid::int8 FROM tree",
        quote_literal(&script::table(table))
    );
    let rows = session.query(&sql).await?;
    let oids = rows.iter().filter_map(|row| row.get(0)?.parse().ok());
    Ok(oids.map(RelationId::new).collect())
}

/// Reads a copy of the slot up to `end`, and stores the keys of the inserted rows in the temporary
/// tables.
async fn collect_unconfirmed(
    session: &mut Session,
    original: Original,
    end: Lsn,
    tables: &mut [UnconfirmedKeys<'_>],
) -> Result<(), MarkError> {
    let name = format!("walrelay_rollback_{:08x}", fastrand::u32(..));
    let mut stream = CopySource::new(original, &name).open(None).await?.stream;
    'stream: loop {
        while let Some(frame) = stream.peek()? {
            match frame {
                Frame::Keepalive { wal_end, .. } if wal_end >= end => break 'stream,
                Frame::Keepalive { .. } => {}
                Frame::XLogData { body, .. } => match decode(body)? {
                    Message::Begin(begin) if begin.final_lsn >= end => break 'stream,
                    Message::Relation(relation) => {
                        for keys in &mut *tables {
                            keys.relation(&relation)?;
                        }
                    }
                    Message::Insert(insert) => {
                        for keys in &mut *tables {
                            keys.insert(&insert);
                        }
                    }
                    _ => {}
                },
            }
            stream.consume();
        }
        for keys in &mut *tables {
            keys.store(session, KEYS_PER_INSERT).await?;
        }
        stream.read().await?;
    }
    for keys in tables {
        keys.store(session, 1).await?;
    }
    Ok(())
}
