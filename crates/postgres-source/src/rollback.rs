//! Finds the events of a slot that would be lost with it: those that no row of an outbox table holds, for example
//! because the row is deleted, its table was exchanged, or the event is a logical message. A polling relay would never
//! send them.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_event_router::{BatchEvent, PlanError, Router};
use walrelay_lsn::{Lsn, RelationId};
use walrelay_pgoutput::{DecodeError, Insert, Message, Relation, Value, decode};
use walrelay_relay::{Source as _, TableName, TablePlace, WalStream as _, row_hash};
use walrelay_walsender::{Error, Frame, Session, StatusUpdate, quote_ident, quote_literal};

use super::catalog;
use super::confirmation::{count_rows, flush_wal, insert_position};
use super::error::PostgresError;
use super::mark::Marking;
use super::script;
use super::sent_keys;
use super::source::{CopySource, Original};

/// Keys inserted by one statement, at most.
const KEYS_PER_INSERT: usize = 500;
/// The longest interval of answers to the walsender.
const ANSWER_INTERVAL: Duration = Duration::from_secs(1);
/// The time that a commit may take from its record to its end, and the interval of the queries.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);
const COMMIT_INTERVAL: Duration = Duration::from_millis(50);

/// Unconfirmed events that no row of an outbox table holds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct EventsWithoutRow {
    /// The number of events.
    pub events: u64,
    /// The first and the last commit of a transaction with an unconfirmed event.
    pub from: Option<Lsn>,
    /// See [`from`](Self::from).
    pub to: Lsn,
    /// The name in the log of a table that is no outbox now, and has rows that may be such events.
    pub other_table: Option<TableName>,
}

impl fmt::Display for EventsWithoutRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.from.unwrap_or(Lsn::ZERO);
        write!(
            f,
            "{} events that are not confirmed have no row, or their row was changed: they commit from {from} to {}",
            self.events, self.to
        )?;
        match &self.other_table {
            Some(table) => write!(
                f,
                ". The log names table {table}, which was exchanged, detached, renamed or dropped since"
            ),
            None => Ok(()),
        }
    }
}

/// The rows that are events in the log, and the rows that a polling relay sends.
#[derive(Debug)]
pub struct EventRows<'a> {
    /// The outbox tables, their unsent rows, and the messages that are events.
    pub marking: &'a Marking,
    /// The columns that `mark_sent` and `mark_dead` set: they do not make a row another event.
    pub marked_columns: Vec<String>,
    /// Other names of outbox tables in the log.
    pub former_tables: &'a [TableName],
    /// Tables whose rows are no events.
    pub pass_over: &'a [TableName],
    /// Tells which other tables may have been an outbox.
    pub router: Router,
}

impl EventRows<'_> {
    /// Returns true if rows of a relation, which is no outbox table now, may be events. It decides as the relay does.
    fn may_have_events(&mut self, relation: &Relation<'_>, place: &TablePlace) -> bool {
        let name = TableName::new(relation.namespace, relation.name);
        if self.marking.tables.contains(&name) || self.former_tables.contains(&name) {
            return true;
        }
        if self.pass_over.contains(&name) {
            return false;
        }
        let plan = self.router.relation(relation);
        *place != TablePlace::Other || !matches!(plan, Err(PlanError::MissingColumn { .. }))
    }
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

/// The keys of the rows of unconfirmed events, in temporary tables of a session.
#[derive(Debug)]
pub struct UnconfirmedRows {
    tables: Vec<UnconfirmedKeys>,
}

impl UnconfirmedRows {
    /// Returns the temporary table of an outbox table, and the names of its key's columns.
    pub(super) fn keys_of(&self, table: &TableName) -> Option<(&str, &[String])> {
        let mut tables = self.tables.iter();
        let keys = tables.find(|keys| keys.table == *table)?;
        Some((&keys.temporary, &keys.key))
    }
}

/// Reads the log of a copy of the slot to its present end.
///
/// # Errors
/// [`RollbackError::WithoutRow`] if it holds events that no row holds.
pub async fn check_events_have_rows(
    session: &mut Session,
    original: &Original,
    rows: &mut EventRows<'_>,
) -> Result<UnconfirmedRows, RollbackError> {
    // The hashes cover texts of the time zone that the walsender has, too.
    session.query("RESET TimeZone").await?;
    // A walsender sends only flushed WAL.
    flush_wal(session).await?;
    let end = insert_position(session).await?;
    let mut tables = Vec::new();
    let conditions = rows.marking.conditions(session).await?;
    for (number, (table, unsent)) in conditions.into_iter().enumerate() {
        let skipped = &rows.marked_columns;
        tables.push(UnconfirmedKeys::create(session, number, table, unsent, skipped).await?);
    }
    let mut unconfirmed = Unconfirmed {
        rows,
        tables,
        others: HashMap::new(),
        found: EventsWithoutRow {
            events: 0,
            from: None,
            to: Lsn::ZERO,
            other_table: None,
        },
    };
    unconfirmed.collect(session, original.clone(), end).await?;
    let Unconfirmed {
        tables, mut found, ..
    } = unconfirmed;
    for keys in &tables {
        found.events += keys.count_without_row(session).await?;
    }
    if found.events > 0 {
        return Err(found.into());
    }
    Ok(UnconfirmedRows { tables })
}

/// A temporary table with the primary keys of an outbox table's unconfirmed rows.
#[derive(Debug)]
struct UnconfirmedKeys {
    table: TableName,
    /// The SQL condition for its rows that are not marked.
    unsent: String,
    /// `ONLY "schema"."table"`, or without ONLY if it is partitioned: children by INHERITS are published
    /// under their own names.
    from: String,
    temporary: String,
    /// Names of the primary key's columns.
    key: Vec<String>,
    /// Names of the columns that are compared.
    compared: Vec<String>,
    /// The table and its partitions, each of which may be published under its own name.
    relations: Vec<RelationId>,
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
    async fn create(
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
    fn relation(&mut self, relation: &Relation<'_>) -> Result<(), RollbackError> {
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
    fn insert(&mut self, insert: &Insert<'_>) -> bool {
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
    async fn store(&mut self, session: &mut Session, at_least: usize) -> Result<(), RollbackError> {
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
    async fn count_without_row(&self, session: &mut Session) -> Result<u64, Error> {
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

/// The unconfirmed events of a slot.
struct Unconfirmed<'r, 'a> {
    rows: &'r mut EventRows<'a>,
    tables: Vec<UnconfirmedKeys>,
    /// Announced tables that are no outbox now, and whose rows may be events.
    others: HashMap<RelationId, TableName>,
    found: EventsWithoutRow,
}

impl Unconfirmed<'_, '_> {
    /// Notes whether the rows of a relation are events.
    async fn relation(
        &mut self,
        session: &mut Session,
        relation: &Relation<'_>,
    ) -> Result<(), RollbackError> {
        let id = relation.id;
        let mut tables = self.tables.iter_mut();
        if let Some(keys) = tables.find(|keys| keys.relations.contains(&id)) {
            return keys.relation(relation);
        }
        let name = TableName::new(relation.namespace, relation.name);
        if name.is_state() {
            return Ok(());
        }
        let place = catalog::place(session, &self.rows.marking.tables, id).await?;
        if let TablePlace::Outbox(table) = &place {
            // A partition that was attached meanwhile.
            let mut tables = self.tables.iter_mut();
            if let Some(keys) = tables.find(|keys| keys.table == *table) {
                keys.relations.push(id);
                return keys.relation(relation);
            }
        }
        if self.rows.may_have_events(relation, &place) {
            self.others.insert(id, name);
        } else {
            self.others.remove(&id);
        }
        Ok(())
    }

    /// Collects an inserted row. Returns true if it is an event.
    fn insert(&mut self, insert: &Insert<'_>) -> bool {
        let mut tables = self.tables.iter_mut();
        if tables.any(|keys| keys.insert(insert)) {
            return true;
        }
        let Some(table) = self.others.get(&insert.relation) else {
            return false;
        };
        self.found.events += 1;
        self.found.other_table.get_or_insert_with(|| table.clone());
        true
    }

    /// Reads a copy of the slot up to `end`, and stores the keys of the inserted rows in the temporary
    /// tables. Counts the events that are logical messages, or rows of tables that are no outbox now.
    async fn collect(
        &mut self,
        session: &mut Session,
        original: Original,
        end: Lsn,
    ) -> Result<(), RollbackError> {
        let interval = ANSWER_INTERVAL.min(original.wal_sender_timeout / 8);
        let name = format!("walrelay_rollback_{:08x}", fastrand::u32(..));
        let mut stream = CopySource::new(original, &name).open(None).await?.stream;
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
                                self.relation(session, &relation).await?;
                                false
                            }
                            Message::Insert(insert) => self.insert(&insert),
                            Message::Logical(message) => {
                                let prefix = self.rows.marking.messages.as_deref();
                                let is_prefix =
                                    message.transactional && Some(message.prefix) == prefix;
                                let events = match message.content {
                                    _ if !is_prefix => 0,
                                    batch if BatchEvent::are_in(batch) => BatchEvent::count(batch),
                                    _ => 1,
                                };
                                self.found.events += events;
                                events > 0
                            }
                            _ => false,
                        };
                        if is_event {
                            self.found.from.get_or_insert(commit);
                            self.found.to = commit;
                        }
                    }
                }
                stream.consume();
            }
            for keys in &mut self.tables {
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
        for keys in &mut self.tables {
            keys.store(session, 1).await?;
        }
        Ok(())
    }
}
