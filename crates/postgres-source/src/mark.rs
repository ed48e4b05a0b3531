//! Marks confirmed rows as sent, in the column that a polling relay uses (`[source] mark_sent`).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_lsn::{Lsn, RelationId};
use walrelay_pgoutput::{DecodeError, Insert, Message, Relation, Value, decode};
use walrelay_relay::{SentRows, Source as _, TableName, WalStream as _};
use walrelay_walsender::{Error, Frame, Session, SessionKind, quote_ident, quote_literal};

use super::carried::{Carried, CarriedError, Carrier};
use super::catalog;
use super::catalog::Selection;
use super::confirmed::{
    Change, ConfirmedError, ConfirmedRows, begin_snapshot, count_changed, count_rows, flush_wal,
    retry, wait_confirmed,
};
use super::dead_letters::{DeadLetters, DeadLettersError};
use super::error::PostgresError;
use super::script;
use super::sent_keys::MarkByKey;
use super::snapshot::unsent_condition;
use super::source::{CopySource, Original};

/// Memory of the ids of all rows that are not marked: some millions of them.
const UNMARKED_BYTES: usize = 1 << 30;
/// Rows marked by one transaction, at most.
const BATCH: u32 = 2_000;
/// Delay between two transactions.
const PAUSE: Duration = Duration::from_millis(20);
/// `lock_timeout` while the relay runs.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// `lock_timeout` once the relay has stopped. The server works off the last statement of a relay that
/// was killed, and nothing else waits for these rows.
const LOCK_TIMEOUT_STOPPED: Duration = Duration::from_secs(60);
/// Keys inserted by one statement, at most.
const KEYS_PER_INSERT: usize = 500;
/// Keys of rows that are looked for again, at most.
const LOOKED_FOR: usize = 1_000;
/// The time that a commit may take from its record to its end, and the interval of the queries.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);
const COMMIT_INTERVAL: Duration = Duration::from_millis(50);

/// The rows that are marked as sent, and the way in which they are marked.
#[derive(Debug)]
pub struct Marking {
    /// A row is marked only if its slot has confirmed it.
    pub carrier: Carrier,
    /// Their rows are not marked.
    pub dead_letters: DeadLetters,
    /// The outbox tables.
    pub tables: Vec<TableName>,
    /// Selects the rows that are not marked yet.
    pub selection: Selection,
    /// The SQL assignments of `UPDATE … SET` that mark a row.
    pub set: String,
    /// The prefix of logical messages that are events.
    pub messages: Option<String>,
    /// Tables whose rows cannot be marked. They are left alone for the life of this process: each
    /// attempt would leave dead rows.
    pub in_vain: RefCell<BTreeSet<TableName>>,
    /// The keys of rows that the relay saw acknowledged. `None`: there is no relay.
    pub sent: Option<Arc<SentRows>>,
    /// While rows are marked that were not noted: the transaction number that was next when they were
    /// known not to be noted.
    pub catching_up: Cell<Option<u64>>,
}

/// The rows of [`Marking::run_stopped`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marked {
    /// Rows that were marked.
    pub rows: u64,
    /// Confirmed rows that stay unmarked, because they have an open dead letter.
    pub dead_letters: u64,
}

/// Unconfirmed events that no row holds: the row is deleted, or the event is a logical message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{events} events that are not confirmed have no row: they commit from {} to {}", from.unwrap_or(Lsn::ZERO), to)]
pub struct EventsWithoutRow {
    pub events: u64,
    /// The first and the last commit of a transaction with an unconfirmed event.
    pub from: Option<Lsn>,
    pub to: Lsn,
}

/// The reason why rows are not marked.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    /// The stream that rows are compared with cannot be read.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// Confirmed rows are not changed.
    #[error(transparent)]
    Confirmed(#[from] ConfirmedError),
    /// A message of the stream cannot be decoded.
    #[error("the log cannot be decoded")]
    Decode(#[from] DecodeError),
    /// The publication carries no primary key, so the table's rows cannot be matched with rows of
    /// the stream.
    #[error("table {0} has no primary key in the publication")]
    Key(TableName),
    /// Events have no row that could be marked.
    #[error(transparent)]
    WithoutRow(#[from] EventsWithoutRow),
}

impl From<DeadLettersError> for MarkError {
    fn from(error: DeadLettersError) -> Self {
        Self::Confirmed(error.into())
    }
}

impl From<Error> for MarkError {
    fn from(error: Error) -> Self {
        Self::Postgres(error.into())
    }
}

impl Marking {
    /// Marks rows that a slot at `confirmed` has confirmed, and returns their number: those that the
    /// relay saw acknowledged, by their keys. Where there are others, such as those of an earlier
    /// process, also the confirmed rows that the slot carried, until none is left.
    pub async fn run(&self, session: &mut Session, confirmed: Lsn) -> Result<u64, MarkError> {
        let mut tables = Vec::new();
        for table in &self.tables {
            if !self.in_vain.borrow().contains(table) {
                let unsent = unsent_condition(session, table, &self.selection).await?;
                tables.push((table.clone(), unsent));
            }
        }
        let mut total = 0;
        if let Some(sent) = &self.sent {
            let by_key = MarkByKey {
                sent,
                tables: &tables,
                set: &self.set,
                lock_timeout: LOCK_TIMEOUT,
            };
            total += self.note_in_vain(by_key.run(session, confirmed).await)?;
            if sent.take_incomplete() {
                self.catching_up.set(Some(new_transaction(session).await?));
            }
        }
        let mut begun = 0;
        if self.catching_up.get().is_some() {
            begun = oldest_in_progress(session).await?;
        }
        let mut complete = true;
        for (table, unsent) in &tables {
            let (rows, all) = self.catch_up(session, table, unsent).await?;
            total += rows;
            complete &= all;
        }
        // A transaction that was acknowledged before may have been invisible until it ended.
        if complete && self.catching_up.get().is_some_and(|since| begun >= since) {
            self.catching_up.set(None);
        }
        Ok(total)
    }

    /// Marks the table's confirmed rows that the slot carried, if some were not noted. Returns their
    /// number, and whether none is left.
    async fn catch_up(
        &self,
        session: &mut Session,
        table: &TableName,
        unsent: &str,
    ) -> Result<(u64, bool), MarkError> {
        if self.sent.is_some() && self.catching_up.get().is_none() {
            // So that a partition that is new, and a publication that is changed back, are noticed.
            let carried = self.carrier.carried(session, table).await;
            if let Err(CarriedError::Not(_)) = &carried {
                self.catching_up.set(Some(0));
            }
            carried.map_err(ConfirmedError::from)?;
            return Ok((0, true));
        }
        let rows = ConfirmedRows {
            carrier: &self.carrier,
            dead_letters: &self.dead_letters,
            table,
            condition: unsent,
            order: "",
            change: Change::Update(&self.set),
            batch: BATCH,
            pause: PAUSE,
            lock_timeout: LOCK_TIMEOUT,
        };
        let (rows, all) = self.note_in_vain(rows.change_all(session, |_| {}).await)?;
        // The row of a dead letter is marked once that is resolved.
        Ok((rows, all && self.dead_letters.open() == 0))
    }

    /// Notes a table whose rows cannot be marked.
    fn note_in_vain<T>(&self, result: Result<T, ConfirmedError>) -> Result<T, ConfirmedError> {
        if let Err(ConfirmedError::InVain(table)) = &result {
            self.in_vain.borrow_mut().insert(table.clone());
        }
        result
    }

    /// Marks the rows that are confirmed in a slot that no relay reads.
    ///
    /// One transaction takes its snapshot, then reads the end of the WAL. Rows that the WAL holds
    /// between the slot's position and this end are not confirmed: their keys are written into
    /// temporary tables, and all other rows that the snapshot sees are marked. The transaction is
    /// retried if the relay that was stopped marked some of these rows meanwhile.
    pub async fn run_stopped(
        &self,
        session: &mut Session,
        original: &Original,
    ) -> Result<Marked, MarkError> {
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
    ) -> Result<Marked, MarkError> {
        let mut conditions = Vec::new();
        for table in &self.tables {
            conditions.push(unsent_condition(session, table, &self.selection).await?);
        }
        let end = begin_snapshot(session, LOCK_TIMEOUT_STOPPED).await?;
        let mut carried = Vec::new();
        for table in &self.tables {
            let of_table = self.carrier.carried(session, table).await;
            carried.push(of_table.map_err(ConfirmedError::from)?);
        }
        // A walsender sends only flushed WAL. This session cannot flush it, because its transaction
        // stays open.
        let mut other = Session::connect(&original.info, SessionKind::Sql, &[]).await?;
        flush_wal(&mut other).await?;
        let mut unconfirmed = Vec::new();
        for (number, table) in self.tables.iter().enumerate() {
            unconfirmed.push(UnconfirmedKeys::create(session, number, table).await?);
        }
        let messages = self.messages.as_deref();
        let mut gone =
            collect_unconfirmed(session, original.clone(), end, messages, &mut unconfirmed).await?;
        for (keys, carried) in unconfirmed.iter().zip(&carried) {
            gone.events += keys.count_without_row(session, &mut other, carried).await?;
        }
        other.close().await;
        if gone.events > 0 {
            return Err(gone.into());
        }
        self.dead_letters.read().await?;
        let mut marked = Marked {
            rows: 0,
            dead_letters: 0,
        };
        for ((condition, keys), carried) in conditions.iter().zip(&unconfirmed).zip(&carried) {
            if let Some(rows) = self.dead_letters.rows(keys.table)? {
                let left = keys.count_others(condition, carried, &rows);
                marked.dead_letters += count_rows(session, &left).await?;
            }
            let others = self.dead_letters.others(keys.table)?;
            let mark = keys.mark_others(condition, &self.set, carried, &others);
            marked.rows += count_changed(session, &mark, keys.table).await?;
        }
        session.query("COMMIT").await?;
        Ok(marked)
    }

    /// Waits until the slot has confirmed everything that is committed now.
    pub async fn wait_confirmed(&self, session: &mut Session) -> Result<(), ConfirmedError> {
        // A new slot has already confirmed the end of an idle WAL, so write to the WAL first.
        flush_wal(session).await?;
        let position = begin_snapshot(session, LOCK_TIMEOUT).await?;
        session.query("COMMIT").await?;
        flush_wal(session).await?;
        wait_confirmed(session, &self.carrier.slots, position).await
    }

    /// Queries the values of `column`, quoted SQL, in the rows that are not marked.
    pub async fn unmarked_ids(
        &self,
        session: &mut Session,
        column: &str,
    ) -> Result<HashSet<String>, PostgresError> {
        let column = format!("{column}::text");
        let mut ids = HashSet::new();
        for sql in self.unmarked_rows(session, &column).await? {
            let rows = session.query_within(&sql, UNMARKED_BYTES).await;
            let rows = rows.map_err(PostgresError::from_rows)?;
            ids.extend(rows.iter().filter_map(|row| row.get(0).map(str::to_owned)));
        }
        Ok(ids)
    }

    /// Counts the rows that are not marked.
    pub async fn unmarked(&self, session: &mut Session) -> Result<u64, PostgresError> {
        let mut total = 0;
        for sql in self.unmarked_rows(session, "count(*) AS rows").await? {
            let count = count_rows(session, &sql).await;
            total += count.map_err(PostgresError::from_rows)?;
        }
        Ok(total)
    }

    /// Queries each table: `what` of the rows that are not marked.
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

/// Returns the first transaction that may be invisible now.
async fn oldest_in_progress(session: &mut Session) -> Result<u64, Error> {
    let sql = "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text AS rows";
    count_rows(session, sql).await
}

/// Returns a transaction that begins now. A snapshot's `xmax` is not later than the first transaction
/// whose commit waits for a standby, if all later ones wait, too.
async fn new_transaction(session: &mut Session) -> Result<u64, Error> {
    count_rows(
        session,
        "SELECT pg_catalog.pg_current_xact_id()::text AS rows",
    )
    .await
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

    /// Writes `WHERE …`: the rows that are carried, fulfil `condition` and are not among these
    /// keys.
    fn others(&self, condition: &str, carried: &Carried) -> String {
        format!(
            "WHERE (\n{condition}\n){parts} AND NOT EXISTS (SELECT FROM {temporary} AS unconfirmed WHERE {same_key})",
            parts = carried.condition(),
            temporary = self.temporary,
            same_key = self.same_key(),
        )
    }

    /// Writes a query for the number of these rows that are among `rows`, a condition.
    fn count_others(&self, condition: &str, carried: &Carried, rows: &str) -> String {
        let others = self.others(condition, carried);
        format!(
            "SELECT count(*) AS rows FROM {} {others} AND {rows}",
            carried.from
        )
    }

    /// Writes a statement that marks these rows, if `and` holds for them. Returns their number as
    /// `rows`, and of those that fulfil `condition` still as `unchanged`.
    fn mark_others(&self, condition: &str, set: &str, carried: &Carried, and: &str) -> String {
        format!(
            "WITH marked AS (UPDATE {from} SET {set}\n {others}{and} RETURNING (\n{condition}\n) AS unchanged) \
             SELECT count(*) AS rows, count(*) FILTER (WHERE unchanged) AS unchanged FROM marked",
            from = carried.from,
            others = self.others(condition, carried),
        )
    }

    /// Counts these keys without a row.
    ///
    /// A transaction is invisible to the snapshot from its commit record until its commit is
    /// complete, which takes as long as a flush, or an answer of a synchronous standby. So `other`,
    /// a session without a transaction, looks for rows that the snapshot does not see.
    async fn count_without_row(
        &self,
        session: &mut Session,
        other: &mut Session,
        carried: &Carried,
    ) -> Result<u64, Error> {
        let names: Vec<String> = self.key.iter().map(|name| quote_ident(name)).collect();
        let texts: Vec<String> = names
            .iter()
            .map(|name| format!("unconfirmed.{name}::text"))
            .collect();
        let missing = format!(
            "SELECT DISTINCT {} FROM {} AS unconfirmed WHERE NOT EXISTS (SELECT FROM {} WHERE {}) LIMIT {}",
            texts.join(", "),
            self.temporary,
            carried.from,
            self.same_key(),
            LOOKED_FOR + 1
        );
        let missing: Vec<String> = session
            .query(&missing)
            .await?
            .iter()
            .map(|row| {
                let key = (0..names.len()).map(|at| quote_literal(row.get(at).unwrap_or_default()));
                format!("({})", key.collect::<Vec<_>>().join(", "))
            })
            .collect();
        let count = missing.len() as u64;
        if missing.is_empty() || missing.len() > LOOKED_FOR {
            return Ok(count);
        }
        let found = format!(
            "SELECT count(*) AS rows FROM {} WHERE ({}) IN ({})",
            carried.from,
            names.join(", "),
            missing.join(", ")
        );
        let begun = Instant::now();
        loop {
            let absent = count.saturating_sub(count_rows(other, &found).await?);
            if absent == 0 || begun.elapsed() > COMMIT_TIMEOUT {
                return Ok(absent);
            }
            sleep(COMMIT_INTERVAL).await;
        }
    }

    /// Writes a condition for the table's row of an unconfirmed key. Without an alias of the table:
    /// a condition beside it may name the table.
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
async fn relations(session: &mut Session, table: &TableName) -> Result<Vec<RelationId>, MarkError> {
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
) -> Result<EventsWithoutRow, MarkError> {
    let name = format!("walrelay_rollback_{:08x}", fastrand::u32(..));
    let mut stream = CopySource::new(original, &name).open(None).await?.stream;
    let mut found = EventsWithoutRow {
        events: 0,
        from: None,
        to: Lsn::ZERO,
    };
    let mut commit = Lsn::ZERO;
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
                            let is_event =
                                message.transactional && Some(message.prefix) == messages;
                            found.events += u64::from(is_event);
                            is_event
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
        stream.read().await?;
    }
    for keys in tables {
        keys.store(session, 1).await?;
    }
    Ok(found)
}
