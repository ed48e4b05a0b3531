//! Finds the events of a slot that would be lost with it: those that no row holds, because the row is
//! deleted, or the event is a logical message. A polling relay would never send them.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_event_router::BatchEvent;
use walrelay_lsn::{Lsn, RelationId};
use walrelay_pgoutput::{DecodeError, Insert, Message, Relation, Value, decode};
use walrelay_relay::{Source as _, TableName, WalStream as _};
use walrelay_walsender::{Error, Frame, Session, StatusUpdate, quote_ident, quote_literal};

use super::catalog;
use super::confirmation::{count_rows, flush_wal, insert_position};
use super::error::PostgresError;
use super::script;
use super::source::{CopySource, Original};

/// Keys inserted by one statement, at most.
const KEYS_PER_INSERT: usize = 500;
/// The longest interval of answers to the walsender.
const ANSWER_INTERVAL: Duration = Duration::from_secs(1);
/// The time that a commit may take from its record to its end, and the interval of the queries.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);
const COMMIT_INTERVAL: Duration = Duration::from_millis(50);

/// Unconfirmed events that no row holds: the row is deleted, or the event is a logical message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{events} events that are not confirmed have no row: they commit from {} to {}", from.unwrap_or(Lsn::ZERO), to)]
pub struct EventsWithoutRow {
    /// The number of events.
    pub events: u64,
    /// The first and the last commit of a transaction with an unconfirmed event.
    pub from: Option<Lsn>,
    /// See [`from`](Self::from).
    pub to: Lsn,
}

/// The reason why a slot is not dropped.
#[derive(Debug, thiserror::Error)]
pub enum RollbackError {
    /// The log cannot be read.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// A message of the log cannot be decoded.
    #[error("the log cannot be decoded")]
    Decode(#[from] DecodeError),
    /// The publication carries no primary key, so the table's rows cannot be matched with rows of
    /// the log.
    #[error("table {0} has no primary key in the publication")]
    Key(TableName),
    /// Events have no row.
    #[error(transparent)]
    WithoutRow(#[from] EventsWithoutRow),
}

impl From<Error> for RollbackError {
    fn from(error: Error) -> Self {
        Self::Postgres(error.into())
    }
}

/// Reads the log of a copy of the slot to its present end.
///
/// # Errors
/// [`RollbackError::WithoutRow`] if it holds events that no row holds.
pub async fn check_events_have_rows(
    session: &mut Session,
    original: &Original,
    tables: &[TableName],
    messages: Option<&str>,
) -> Result<(), RollbackError> {
    // A walsender sends only flushed WAL.
    flush_wal(session).await?;
    let end = insert_position(session).await?;
    let mut unconfirmed = Vec::new();
    for (number, table) in tables.iter().enumerate() {
        unconfirmed.push(UnconfirmedKeys::create(session, number, table).await?);
    }
    let mut found =
        collect_unconfirmed(session, original.clone(), end, messages, &mut unconfirmed).await?;
    for keys in &unconfirmed {
        found.events += keys.count_without_row(session).await?;
    }
    if found.events > 0 {
        return Err(found.into());
    }
    Ok(())
}

/// A temporary table with the primary keys of an outbox table's unconfirmed rows.
struct UnconfirmedKeys<'a> {
    table: &'a TableName,
    /// `ONLY "schema"."table"`, or without ONLY if it is partitioned: children by INHERITS are published
    /// under their own names.
    from: String,
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
    /// Creates the temporary table, empty.
    async fn create(
        session: &mut Session,
        number: usize,
        table: &'a TableName,
    ) -> Result<Self, RollbackError> {
        // Fails if the table does not exist.
        let relations = relations(session, table).await?;
        let facts = catalog::table(&session.query(&catalog::table_sql(table)).await?);
        let key = facts.map(|facts| facts.primary_key).unwrap_or_default();
        if key.is_empty() {
            return Err(RollbackError::Key(table.clone()));
        }
        let temporary = format!("walrelay_unconfirmed_{number}");
        let columns: Vec<String> = key.iter().map(|name| quote_ident(name)).collect();
        let create = format!(
            "DROP TABLE IF EXISTS pg_temp.{temporary}; CREATE TEMPORARY TABLE {temporary} AS SELECT {} FROM {} WHERE false",
            columns.join(", "),
            script::table(table)
        );
        session.query(&create).await?;
        let name = script::table(table);
        let only = format!(
            "SELECT FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass({}) AND relkind <> 'p'",
            quote_literal(&name)
        );
        let only = session.query(&only).await?;
        let only = if only.is_empty() { "" } else { "ONLY " };
        Ok(Self {
            table,
            from: format!("{only}{name}"),
            temporary,
            key,
            relations,
            positions: HashMap::new(),
            pending: Vec::new(),
        })
    }

    /// Finds the key's columns, if the relation is one of this table.
    fn relation(&mut self, relation: &Relation<'_>) -> Result<(), RollbackError> {
        if !self.relations.contains(&relation.id) {
            return Ok(());
        }
        let names: Vec<&str> = relation.columns().map(|column| column.name).collect();
        let find = |key: &String| names.iter().position(|name| name == key);
        let positions: Option<Vec<usize>> = self.key.iter().map(find).collect();
        let positions = positions.ok_or_else(|| RollbackError::Key(self.table.clone()))?;
        self.positions.insert(relation.id, positions);
        Ok(())
    }

    /// Collects the key of an inserted row, if it is one of this table. Returns whether it is.
    fn insert(&mut self, insert: &Insert<'_>) -> bool {
        let Some(positions) = self.positions.get(&insert.relation) else {
            return false;
        };
        let values: Vec<Value<'_>> = insert.tuple.values().collect();
        let key = positions.iter().map(|at| match values.get(*at) {
            Some(Value::Text(text)) => quote_literal(&String::from_utf8_lossy(text)),
            _ => "NULL".to_owned(),
        });
        let key: Vec<String> = key.collect();
        self.pending.push(format!("({})", key.join(", ")));
        true
    }

    /// Stores the collected keys if there are `at_least` so many.
    async fn store(&mut self, session: &mut Session, at_least: usize) -> Result<(), RollbackError> {
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

    /// Counts these keys without a row. A transaction is invisible from its commit record until its
    /// commit is complete, which takes as long as a flush, or an answer of a synchronous standby.
    async fn count_without_row(&self, session: &mut Session) -> Result<u64, Error> {
        let missing = format!(
            "SELECT count(*) AS rows FROM {} AS unconfirmed WHERE NOT EXISTS (SELECT FROM {} WHERE {})",
            self.temporary,
            self.from,
            self.same_key(),
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
        let table = script::table(self.table);
        let names = self.key.iter().map(|name| quote_ident(name));
        let same: Vec<String> = names
            .map(|name| format!("unconfirmed.{name} = {table}.{name}"))
            .collect();
        same.join(" AND ")
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

/// Reads a copy of the slot up to `end`, and stores the keys of the inserted rows in the temporary
/// tables. Returns the events that are logical messages.
async fn collect_unconfirmed(
    session: &mut Session,
    original: Original,
    end: Lsn,
    messages: Option<&str>,
    tables: &mut [UnconfirmedKeys<'_>],
) -> Result<EventsWithoutRow, RollbackError> {
    let interval = ANSWER_INTERVAL.min(original.wal_sender_timeout / 8);
    let name = format!("walrelay_rollback_{:08x}", fastrand::u32(..));
    let mut stream = CopySource::new(original, &name).open(None).await?.stream;
    let mut found = EventsWithoutRow {
        events: 0,
        from: None,
        to: Lsn::ZERO,
    };
    let mut commit = Lsn::ZERO;
    let mut answered = Instant::now();
    'stream: loop {
        while let Some(frame) = stream.peek()? {
            match frame {
                Frame::Keepalive { wal_end, .. } if wal_end >= end => break 'stream,
                Frame::Keepalive { .. } => {}
                Frame::XLogData { body, .. } => {
                    let is_event = match decode(body)? {
                        Message::Begin(begin) if begin.final_lsn >= end => break 'stream,
                        Message::Begin(begin) => {
                            commit = begin.final_lsn;
                            false
                        }
                        Message::Relation(relation) => {
                            for keys in &mut *tables {
                                keys.relation(&relation)?;
                            }
                            false
                        }
                        Message::Insert(insert) => {
                            let mut tables = tables.iter_mut();
                            tables.any(|keys| keys.insert(&insert))
                        }
                        Message::Logical(message) => {
                            let is_prefix =
                                message.transactional && Some(message.prefix) == messages;
                            let events = match message.content {
                                _ if !is_prefix => 0,
                                batch if BatchEvent::are_in(batch) => BatchEvent::count(batch),
                                _ => 1,
                            };
                            found.events += events;
                            events > 0
                        }
                        _ => false,
                    };
                    if is_event {
                        found.from.get_or_insert(commit);
                        found.to = commit;
                    }
                }
            }
            stream.consume();
        }
        for keys in &mut *tables {
            keys.store(session, KEYS_PER_INSERT).await?;
        }
        // Without an answer the server ends the stream after `wal_sender_timeout`, however much is read.
        if answered.elapsed() >= interval {
            stream.queue_status(StatusUpdate::NO_POSITION);
            stream.flush().await?;
            answered = Instant::now();
        }
        stream.read().await?;
    }
    for keys in tables {
        keys.store(session, 1).await?;
    }
    Ok(found)
}
