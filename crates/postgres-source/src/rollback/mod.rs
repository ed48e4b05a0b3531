//! Finds the events of a slot that would be lost with it: those that no row of an outbox table holds, for example
//! because the row is deleted, its table was exchanged, or the event is a logical message. A polling relay would never
//! send them.

mod keys;

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;
use walrelay_event_router::{BatchEvent, PlanError, Router};
use walrelay_lsn::{Lsn, RelationId};
use walrelay_pgoutput::{DecodeError, Insert, Message, Relation, decode};
use walrelay_relay::{Source as _, TableName, TablePlace, WalStream as _};
use walrelay_walsender::{Error, Frame, Session, StatusUpdate};

use self::keys::{KEYS_PER_INSERT, UnconfirmedKeys};
use crate::catalog;
use crate::confirmation::{flush_wal, insert_position};
use crate::error::PostgresError;
use crate::mark::Marking;
use crate::source::{CopySource, Original};

/// The longest interval of answers to the walsender.
const ANSWER_INTERVAL: Duration = Duration::from_secs(1);

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
