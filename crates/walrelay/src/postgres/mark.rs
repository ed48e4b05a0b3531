//! Marks rows as sent, by a column that a polling relay uses.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::sleep;
use walrelay_lsn::{Lsn, RelationId};
use walrelay_pgoutput::{DecodeError, Message, Value, decode};
use walrelay_relay::{Source as _, TableName, WalStream as _};
use walrelay_walsender::{Frame, Session, SessionKind, quote_ident, quote_literal};

use super::confirmed::{
    ATTEMPTS, ConfirmedChange, ConfirmedError, begin, confirmed, flush, number, quoted,
};
use super::error::PostgresError;
use super::snapshot::{Selection, unsent_condition};
use super::source::{CopySource, Original};

/// Rows of one transaction, and how long the next one is waited with.
const BATCH: u32 = 2_000;
const PAUSE: Duration = Duration::from_millis(20);
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Which rows are marked, and how.
#[derive(Debug, Clone)]
pub(crate) struct Marking {
    /// It must have confirmed a row.
    pub(crate) slot: String,
    pub(crate) tables: Vec<TableName>,
    /// Which rows are not marked yet.
    pub(crate) selection: Selection,
    /// Assignments in SQL.
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
    /// Without a primary key that the publication carries, rows of the log cannot be found in the table.
    #[error("table {0} has no primary key in the publication")]
    Key(TableName),
}

impl From<walrelay_walsender::Error> for MarkError {
    fn from(error: walrelay_walsender::Error) -> Self {
        Self::Postgres(error.into())
    }
}

impl Marking {
    /// Marks all confirmed rows of all tables that are not marked, and gives their number.
    pub(crate) async fn run(&self, session: &mut Session) -> Result<u64, MarkError> {
        let mut total = 0;
        for table in &self.tables {
            let unsent = unsent_condition(session, table, &self.selection).await?;
            loop {
                let count = self.batch(session, table, &unsent).await?;
                total += count;
                // Locked rows are passed over: fewer are no sign of the end, none are.
                if count == 0 {
                    break;
                }
                sleep(PAUSE).await;
            }
        }
        Ok(total)
    }

    async fn batch(
        &self,
        session: &mut Session,
        table: &TableName,
        unsent: &str,
    ) -> Result<u64, ConfirmedError> {
        let name = quoted(table);
        // On lines of their own: a condition may end in a comment.
        let any = format!("SELECT FROM {name} WHERE (\n{unsent}\n)");
        let mark = format!(
            "WITH unsent AS (SELECT tableoid AS part, ctid AS place FROM {name} WHERE (\n{unsent}\n) \
             LIMIT {BATCH} FOR UPDATE SKIP LOCKED), \
             marked AS (UPDATE {name} AS rows SET {set}\n FROM unsent \
             WHERE rows.ctid = unsent.place AND rows.tableoid = unsent.part RETURNING 1) \
             SELECT count(*) AS rows FROM marked",
            set = self.set,
        );
        let change = ConfirmedChange {
            slots: std::slice::from_ref(&self.slot),
            lock_timeout: LOCK_TIMEOUT,
            any: &any,
            change: &mark,
        };
        change.run(session).await
    }

    /// Marks what is confirmed in a slot that nobody reads, and gives the number of rows.
    ///
    /// One transaction takes its snapshot, then the end of the log. What the log has between the slot's position and
    /// this end is not confirmed: the keys of these rows go into a table of the session, and all other rows that the
    /// snapshot sees are marked. The transaction is tried again if the relay that was stopped marked some of them
    /// meanwhile.
    pub(crate) async fn run_stopped(
        &self,
        session: &mut Session,
        original: &Original,
    ) -> Result<u64, MarkError> {
        let mut attempt = 1;
        loop {
            let error = match self.mark_confirmed(session, original).await {
                Ok(count) => return Ok(count),
                Err(error) => error,
            };
            session.query("ROLLBACK").await?;
            match &error {
                MarkError::Confirmed(error)
                    if error.is_of_another_change() && attempt < ATTEMPTS =>
                {
                    attempt += 1;
                }
                _ => return Err(error),
            }
        }
    }

    async fn mark_confirmed(
        &self,
        session: &mut Session,
        original: &Original,
    ) -> Result<u64, MarkError> {
        let mut rules = Vec::new();
        for table in &self.tables {
            rules.push(unsent_condition(session, table, &self.selection).await?);
        }
        let end = begin(session, LOCK_TIMEOUT).await?;
        // The log is read to there, and this session's transaction stays open.
        let mut other = Session::connect(&original.info, SessionKind::Sql, &[]).await?;
        flush(&mut other).await?;
        other.close().await;
        let mut excluded = Vec::new();
        for (number, table) in self.tables.iter().enumerate() {
            let key = primary_key(session, table).await?;
            if key.is_empty() {
                return Err(MarkError::Key(table.clone()));
            }
            let temporary = format!("walrelay_unconfirmed_{number}");
            let columns: Vec<String> = key.iter().map(|name| quote_ident(name)).collect();
            let create = format!(
                "CREATE TEMPORARY TABLE {temporary} ON COMMIT DROP AS SELECT {} FROM {} WHERE false",
                columns.join(", "),
                quoted(table)
            );
            session.query(&create).await?;
            let relations = relations(session, table).await?;
            excluded.push(Unconfirmed {
                table,
                temporary,
                key,
                relations,
            });
        }
        unconfirmed(session, original.clone(), end, &excluded).await?;
        let mut total = 0;
        for (rule, of) in rules.iter().zip(&excluded) {
            let same: Vec<String> = of
                .key
                .iter()
                .map(|name| {
                    let name = quote_ident(name);
                    format!("gone.{name} = rows.{name}")
                })
                .collect();
            let mark = format!(
                "WITH marked AS (UPDATE {name} AS rows SET {set}\n WHERE (\n{rule}\n) AND NOT EXISTS \
                 (SELECT FROM {temporary} AS gone WHERE {same}) RETURNING 1) \
                 SELECT count(*) AS rows FROM marked",
                name = quoted(of.table),
                set = self.set,
                temporary = of.temporary,
                same = same.join(" AND "),
            );
            total += number(session, &mark).await.map_err(ConfirmedError::from)?;
        }
        session.query("COMMIT").await?;
        Ok(total)
    }

    /// Waits until the slot has confirmed what is committed now.
    pub(crate) async fn wait_confirmed(&self, session: &mut Session) -> Result<(), ConfirmedError> {
        // A new slot has confirmed the end of an idle log already: first move it.
        flush(session).await?;
        let position = begin(session, LOCK_TIMEOUT).await?;
        session.query("COMMIT").await?;
        flush(session).await?;
        confirmed(session, std::slice::from_ref(&self.slot), position).await
    }

    /// The texts of a column of the rows that are not marked.
    pub(crate) async fn unmarked_ids(
        &self,
        session: &mut Session,
        column: &str,
    ) -> Result<HashSet<String>, PostgresError> {
        let mut ids = HashSet::new();
        for table in &self.tables {
            let unsent = unsent_condition(session, table, &self.selection).await?;
            let sql = format!(
                "SELECT {column}::text FROM {} WHERE (\n{unsent}\n)",
                quoted(table)
            );
            let rows = session.query(&sql).await.map_err(PostgresError::of_rows)?;
            ids.extend(rows.iter().filter_map(|row| row.get(0).map(str::to_owned)));
        }
        Ok(ids)
    }

    /// How many rows are not marked.
    pub(crate) async fn unmarked(&self, session: &mut Session) -> Result<u64, PostgresError> {
        let mut total = 0;
        for table in &self.tables {
            let unsent = unsent_condition(session, table, &self.selection).await?;
            let sql = format!(
                "SELECT count(*) AS rows FROM {} WHERE (\n{unsent}\n)",
                quoted(table)
            );
            total += number(session, &sql)
                .await
                .map_err(PostgresError::of_rows)?;
        }
        Ok(total)
    }
}

/// A table, and the one with the keys of its rows that are not confirmed.
struct Unconfirmed<'a> {
    table: &'a TableName,
    temporary: String,
    key: Vec<String>,
    /// The table and its partitions, each of which may be published under its own name.
    relations: Vec<RelationId>,
}

/// A table with all that inherit from it.
async fn relations(session: &mut Session, table: &TableName) -> Result<Vec<RelationId>, MarkError> {
    let sql = format!(
        "WITH RECURSIVE tree AS (SELECT {}::pg_catalog.regclass::pg_catalog.oid AS oid UNION \
         SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree t ON i.inhparent = t.oid) \
         SELECT oid::int8 FROM tree",
        quote_literal(&quoted(table))
    );
    let rows = session.query(&sql).await?;
    let oids = rows.iter().filter_map(|row| row.get(0)?.parse().ok());
    Ok(oids.map(RelationId::new).collect())
}

/// Names of the columns of a table's primary key.
async fn primary_key(session: &mut Session, table: &TableName) -> Result<Vec<String>, MarkError> {
    let sql = format!(
        "SELECT a.attname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a \
         ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) \
         WHERE i.indisprimary AND i.indrelid = {}::pg_catalog.regclass ORDER BY a.attnum",
        quote_literal(&quoted(table))
    );
    let rows = session.query(&sql).await?;
    let names = rows.iter().filter_map(|row| row.get(0).map(str::to_owned));
    Ok(names.collect())
}

/// How many keys one INSERT carries.
const KEYS: usize = 500;

/// Reads a copy of the slot up to `end`, and keeps the keys of the rows.
async fn unconfirmed(
    session: &mut Session,
    original: Original,
    end: Lsn,
    tables: &[Unconfirmed<'_>],
) -> Result<(), MarkError> {
    let name = format!("walrelay_rollback_{:08x}", fastrand::u32(..));
    let mut stream = CopySource::new(original, &name).open(None).await?.stream;
    // By relation: which table that is, and where the columns of its key are.
    let mut places: HashMap<RelationId, (usize, Vec<usize>)> = HashMap::new();
    let mut keys: Vec<Vec<String>> = vec![Vec::new(); tables.len()];
    'log: loop {
        while let Some(frame) = stream.peek()? {
            match frame {
                Frame::Keepalive { wal_end, .. } if wal_end >= end => break 'log,
                Frame::Keepalive { .. } => {}
                Frame::XLogData { body, .. } => match decode(body)? {
                    Message::Begin(begin) if begin.final_lsn >= end => break 'log,
                    Message::Relation(relation) => {
                        let of = tables
                            .iter()
                            .position(|of| of.relations.contains(&relation.id));
                        if let Some(of) = of {
                            let table = &tables[of];
                            let columns = relation.columns();
                            let names: Vec<&str> = columns.map(|column| column.name).collect();
                            let find = |key: &String| names.iter().position(|name| name == key);
                            let place: Option<Vec<usize>> = table.key.iter().map(find).collect();
                            let place = place.ok_or_else(|| MarkError::Key(table.table.clone()))?;
                            places.insert(relation.id, (of, place));
                        }
                    }
                    Message::Insert(insert) => {
                        if let Some((of, place)) = places.get(&insert.relation) {
                            let values: Vec<Value<'_>> = insert.tuple.values().collect();
                            let key = place.iter().map(|place| match values.get(*place) {
                                Some(Value::Text(text)) => {
                                    quote_literal(&String::from_utf8_lossy(text))
                                }
                                _ => "NULL".to_owned(),
                            });
                            let key: Vec<String> = key.collect();
                            keys[*of].push(format!("({})", key.join(", ")));
                        }
                    }
                    _ => {}
                },
            }
            stream.consume();
        }
        for (table, keys) in tables.iter().zip(&mut keys) {
            if keys.len() >= KEYS {
                insert(session, &table.temporary, keys).await?;
            }
        }
        stream.read().await?;
    }
    for (table, keys) in tables.iter().zip(&mut keys) {
        insert(session, &table.temporary, keys).await?;
    }
    Ok(())
}

async fn insert(
    session: &mut Session,
    table: &str,
    keys: &mut Vec<String>,
) -> Result<(), MarkError> {
    for chunk in keys.chunks(KEYS) {
        let sql = format!("INSERT INTO {table} VALUES {}", chunk.join(", "));
        session.query(&sql).await?;
    }
    keys.clear();
    Ok(())
}
