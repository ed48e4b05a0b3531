//! [`SentMarker`]: marks the rows of acknowledged records while the relay runs, and stores the keys of those that
//! cannot be marked yet.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};
use walrelay_relay::{Chain, KeyedTable, SentKeys, SentRows, TableName};
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use super::cursor::KeyCursor;
use super::failing::{Attempted, FailingTables, Failure};
use super::marking::Marking;
use super::stored::{PAGE, mark_keys, work_off_page};
use crate::confirmation::ConfirmedError;
use crate::dead_rows::{DeadKey, DeadMarking};
use crate::mark_error::MarkError;
use crate::sent_keys::{MarkByKey, RowKey};
use crate::unmarked;

/// Bytes of keys by which one transaction marks rows: some 1,500 rows.
const BATCH: usize = 128 << 10;

/// Transactions of one pass over the stored keys that may fail.
const FAILURES: u32 = 40;

/// The time after which a pass over the stored keys ends, with the page that it is at.
const PASS: Duration = Duration::from_secs(3);

/// The reason why keys of a table are dropped.
const PARTIAL: &str =
    "the publication carries a part of the table's primary key, or only partitions have one";

/// Settings of the session while the relay runs. A mark is durable before it counts, and waits for no
/// standby, which may be this relay.
const SETTINGS: &[(&str, &str)] = &[
    ("statement_timeout", "8s"),
    ("lock_timeout", "1s"),
    ("synchronous_commit", "local"),
    // The server takes a table for small beside many keys.
    ("enable_seqscan", "off"),
    ("idle_session_timeout", "0"),
];

/// Keys of each table's rows.
type KeysByTable = Vec<(Arc<KeyedTable>, Vec<RowKey>)>;

/// Keys of each table's rows whose events became dead letters.
type DeadByTable = Vec<(Arc<KeyedTable>, Vec<DeadKey>)>;

/// Marks the rows of [`SentRows`] while the relay runs.
#[derive(Debug)]
pub struct SentMarker {
    marking: Marking,
    sent: Arc<SentRows>,
    /// Tables whose rows could not be marked: their keys are stored without an attempt.
    failing: FailingTables,
    /// Keys are stored, as far as is known.
    has_stored: bool,
    /// The place up to which stored keys were worked off or left.
    cursor: KeyCursor,
    /// The number of stored keys that the next transaction takes: fewer after a failure.
    page: usize,
    /// Marks the rows of dead letters, if that is configured.
    dead: Option<DeadMarking>,
    /// Rows that were changed since they were sent, so that they are not marked.
    changed: u64,
    /// Rows that stay unmarked although they were sent.
    dropped: u64,
}

impl SentMarker {
    /// Creates a marker, which works off the keys that earlier processes have stored, too.
    pub fn new(marking: Marking, sent: Arc<SentRows>) -> Self {
        Self {
            marking,
            sent,
            failing: FailingTables::default(),
            has_stored: true,
            cursor: KeyCursor::default(),
            page: PAGE,
            dead: None,
            changed: 0,
            dropped: 0,
        }
    }

    /// Sets how the rows of dead letters are marked.
    #[must_use]
    pub fn marking_dead(mut self, dead: Option<DeadMarking>) -> Self {
        self.dead = dead;
        self
    }

    /// Connects a session for the marks.
    pub async fn connect(info: &ConnInfo) -> Result<Session, Error> {
        Session::connect(info, SessionKind::Sql, SETTINGS).await
    }

    /// Returns true if rows are stored that are not marked, as far as is known.
    pub fn has_stored(&self) -> bool {
        self.has_stored || self.dead.as_ref().is_some_and(DeadMarking::has_rows)
    }

    /// Returns true if at least one batch of keys waits, so that a pause brings nothing.
    pub fn has_batch(&self) -> bool {
        self.sent.bytes() >= BATCH
    }

    /// Marks the rows of one batch of keys, the first that wait, and stores the keys of those that cannot
    /// be marked now. Returns the number of marked rows. [`problem`](Self::problem) tells why others are not marked.
    ///
    /// It is one batch so that a call ends also while rows arrive faster than they are marked.
    ///
    /// # Errors
    /// If the keys could not be stored, or no session can be used. They stay.
    pub async fn mark_queued(&mut self, session: &mut Session) -> Result<u64, MarkError> {
        for table in self.sent.take_without_key() {
            warn!(
                %table,
                "rows of this table cannot be marked as sent: its publication carries no primary key, nor another key as \
                 replica identity"
            );
        }
        let taken = self.sent.take(BATCH);
        let (keys, dead) = self.by_table(&taken.keys);
        self.store_dead(session, dead).await?;
        let tables = self.conditions(session).await?;
        let (rows, left) = self.mark(session, &tables, keys).await?;
        self.store(session, &left).await?;
        self.sent.settle(&taken);
        Ok(rows)
    }

    /// Returns the tables whose unsent rows are known, each with the condition for them. Notes why those of others are
    /// not known: nothing shows which of their rows are unsent until the configuration or the table is corrected.
    async fn conditions(
        &mut self,
        session: &mut Session,
    ) -> Result<Vec<(TableName, String)>, MarkError> {
        let error = match self.marking.found_conditions(session).await {
            Ok((tables, missing)) => {
                for (table, error) in missing {
                    let reason = Chain(&error).to_string();
                    self.failing
                        .fail(&table, Attempted::Stored, Failure::Statement, reason);
                }
                return Ok(tables);
            }
            Err(error) => MarkError::from(error),
        };
        if error.may_pass() {
            return Err(error);
        }
        for table in &self.marking.tables {
            let reason = Chain(&error).to_string();
            self.failing
                .fail(table, Attempted::Stored, Failure::Statement, reason);
        }
        Ok(Vec::new())
    }

    /// Returns the keys of sent rows, and those of dead letters.
    fn by_table(&self, keys: &SentKeys) -> (KeysByTable, DeadByTable) {
        let mut numbers: Vec<u32> = Vec::new();
        let system: Arc<str> = self.sent.system().into();
        let (mut by_table, mut dead) = (KeysByTable::new(), DeadByTable::new());
        for key in keys.iter() {
            let known = numbers.iter().position(|number| *number == key.table);
            let at = known.or_else(|| {
                let table = self.sent.table(key.table)?;
                by_table.push((Arc::clone(&table), Vec::new()));
                dead.push((table, Vec::new()));
                numbers.push(key.table);
                Some(numbers.len() - 1)
            });
            let Some(at) = at else {
                continue;
            };
            match key.dead_reason() {
                None => {
                    if let Some((_, keys)) = by_table.get_mut(at) {
                        keys.push(RowKey::new(&key));
                    }
                }
                Some(reason) => {
                    if let Some((_, keys)) = dead.get_mut(at) {
                        keys.push(DeadKey {
                            event: key.event(),
                            system: Arc::clone(&system),
                            key: RowKey::new(&key),
                            reason: String::from_utf8_lossy(reason).into_owned(),
                        });
                    }
                }
            }
        }
        by_table.retain(|(_, keys)| !keys.is_empty());
        dead.retain(|(_, keys)| !keys.is_empty());
        (by_table, dead)
    }

    /// Stores the keys of dead letters, whose rows are marked by [`work_off`](Self::work_off). Keeps them in memory
    /// if that is not possible, because no position may be held up for ever.
    async fn store_dead(
        &mut self,
        session: &mut Session,
        dead: DeadByTable,
    ) -> Result<(), MarkError> {
        let Some(marking) = &mut self.dead else {
            return Ok(());
        };
        for (table, keys) in dead {
            let (slot, create) = (&self.marking.slot, self.marking.create);
            match marking.store(session, slot, create, &table, &keys).await {
                Ok(()) => {}
                Err(error) if error.may_store_later() => return Err(error),
                Err(error) => marking.keep(&table, keys, &Chain(&error).to_string()),
            }
        }
        Ok(())
    }

    /// Marks rows. Returns their number, and the keys of those that cannot be marked now.
    ///
    /// # Errors
    /// If the session cannot be used any more.
    async fn mark(
        &mut self,
        session: &mut Session,
        tables: &[(TableName, String)],
        keys: KeysByTable,
    ) -> Result<(u64, KeysByTable), MarkError> {
        let (set, slot) = (self.marking.set.clone(), self.marking.slot.clone());
        let by_key = MarkByKey {
            tables,
            set: &set,
            waits: false,
        };
        let (mut rows, mut left) = (0, KeysByTable::new());
        for (table, keys) in keys {
            if self.failing.pauses(&table.table) {
                left.push((table, keys));
                continue;
            }
            let marked = match mark_keys(session, &slot, &by_key, &table, &keys).await {
                Ok(marked) => marked,
                Err(error) if error.may_pass() => return Err(error),
                Err(error) => {
                    self.fail(&table.table, Attempted::Queued, &error);
                    left.push((table, keys));
                    continue;
                }
            };
            if marked.is_partial {
                self.drop_keys(keys.len(), PARTIAL);
                continue;
            }
            match &marked.failed {
                Some(error) => self.fail_rows(&table.table, Attempted::Queued, error),
                None => self.failing.succeed(&table.table),
            }
            rows += marked.rows;
            self.note_changed(marked.changed.len() as u64);
            let later = marked.later.iter().filter_map(|at| keys.get(*at).cloned());
            let later: Vec<RowKey> = later.collect();
            if !later.is_empty() {
                left.push((table, later));
            }
        }
        Ok((rows, left))
    }

    /// Leaves a table alone of which no row could be marked: for the life of this process if each attempt would be in vain.
    fn fail(&mut self, table: &TableName, attempted: Attempted, error: &MarkError) -> Failure {
        let failure = match error {
            MarkError::Confirmed(ConfirmedError::InVain(_)) => Failure::InVain,
            _ => Failure::Statement,
        };
        self.failing
            .fail(table, attempted, failure, Chain(error).to_string());
        failure
    }

    /// Leaves the keys of a table alone, some of whose rows cannot be marked, if they are stored ones.
    fn fail_rows(&mut self, table: &TableName, attempted: Attempted, error: &MarkError) {
        self.failing
            .fail(table, attempted, Failure::Rows, Chain(error).to_string());
    }

    /// Stores keys; drops them if that is not possible, because no position may be held up for ever.
    async fn store(&mut self, session: &mut Session, keys: &KeysByTable) -> Result<(), MarkError> {
        for (table, keys) in keys {
            let (slot, create) = (&self.marking.slot, self.marking.create);
            match unmarked::store(session, slot, create, table, keys).await {
                Ok(()) => self.has_stored = true,
                Err(error) => {
                    let error = MarkError::from(ConfirmedError::from(error));
                    if error.may_store_later() {
                        return Err(error);
                    }
                    self.drop_keys(keys.len(), &Chain(&error).to_string());
                }
            }
        }
        Ok(())
    }

    /// Drops all keys that wait, but those of dead letters, as far as memory is allowed for them: no session works,
    /// and the position may not be held up for ever.
    pub fn give_up(&mut self, why: &str) {
        loop {
            let taken = self.sent.take(BATCH);
            let (sent, dead) = self.by_table(&taken.keys);
            self.sent.settle(&taken);
            if taken.keys.iter().next().is_none() {
                return;
            }
            let keys = sent.iter().map(|(_, keys)| keys.len()).sum();
            if keys > 0 {
                self.drop_keys(keys, why);
            }
            if let Some(marking) = &mut self.dead {
                for (table, keys) in dead {
                    marking.keep(&table, keys, why);
                }
            }
        }
    }

    /// Returns the reasons why rows of some tables are not marked. They hold up no other table.
    pub fn problem(&self) -> Option<String> {
        self.failing.problem()
    }

    /// Returns the reason why rows of dead letters are not marked. It holds up no other row.
    pub fn dead_problem(&self) -> Option<String> {
        self.dead.as_ref().and_then(DeadMarking::problem)
    }

    fn drop_keys(&mut self, keys: usize, why: &str) {
        self.dropped += keys as u64;
        // Each power of two is logged.
        if self.dropped.next_power_of_two() != (self.dropped - keys as u64).next_power_of_two() {
            warn!(
                rows = self.dropped,
                error = why,
                "rows that were sent stay unmarked, because their keys cannot be used or stored: a polling relay would \
                 send them again"
            );
        }
    }

    fn note_changed(&mut self, rows: u64) {
        if rows > 0 && self.changed == 0 {
            info!(
                rows,
                "rows were changed after they were sent: they count as other events, and are not marked"
            );
        }
        self.changed += rows;
    }

    /// Marks the rows whose keys are stored, as far as that is possible now, and within some seconds: the
    /// next call goes on from there. Returns their number. [`problem`](Self::problem) tells why others are not marked.
    ///
    /// # Errors
    /// If the session cannot be used any more, or too many rows fail.
    pub async fn work_off(&mut self, session: &mut Session) -> Result<u64, MarkError> {
        let tables = self.conditions(session).await?;
        let sent = self.work_off_sent(session, &tables).await;
        let Some(dead) = self.dead.as_mut().filter(|dead| dead.has_rows()) else {
            return sent;
        };
        // Rows of dead letters wait for no other row, and hold none up.
        let sent = match sent {
            Err(error) if error.may_pass() => return Err(error),
            sent => sent,
        };
        let by_key = MarkByKey {
            tables: &tables,
            set: &self.marking.set,
            waits: false,
        };
        let (slot, create) = (&self.marking.slot, self.marking.create);
        let marked = dead.work_off(session, slot, create, &by_key).await?;
        Ok(sent? + marked)
    }

    async fn work_off_sent(
        &mut self,
        session: &mut Session,
        tables: &[(TableName, String)],
    ) -> Result<u64, MarkError> {
        if !unmarked::exists(session).await? {
            self.has_stored = false;
            self.end_scan();
            return Ok(0);
        }
        let (set, slot) = (self.marking.set.clone(), self.marking.slot.clone());
        let by_key = MarkByKey {
            tables,
            set: &set,
            waits: false,
        };
        // Rows that were sent just now come first.
        let pass = if self.has_batch() { PASS / 10 } else { PASS };
        let until = Instant::now() + pass;
        if self.cursor.begin_pass(self.failing.paused()) {
            // The next row of such a table may fail, too.
            self.page = 1;
        }
        let (mut rows, mut failures) = (0, 0);
        let mut is_any = self.cursor.may_pass_over();
        while Instant::now() < until {
            let page = unmarked::page(session, &slot, &self.cursor.after(), self.page).await?;
            let Some(last) = page.last().map(|key| key.id) else {
                self.has_stored = is_any;
                self.end_scan();
                break;
            };
            is_any = true;
            // Also an attempt that is given up makes the next page smaller.
            let taken = std::mem::replace(&mut self.page, (page.len() / 8).max(1));
            let worked = work_off_page(session, &slot, &by_key, &page).await?;
            rows += worked.rows;
            self.note_changed(worked.changed);
            for (table, error) in worked.failed {
                self.fail_rows(&table, Attempted::Stored, &error);
            }
            let is_undone = !worked.undone.is_empty();
            for (table, error) in worked.undone {
                if self.fail(&table, Attempted::Stored, &error) == Failure::InVain {
                    self.cursor.leave_out(table);
                }
            }
            if !is_undone || page.len() == 1 {
                // A row that fails alone stays, and the others go on.
                self.cursor.advance(last);
            }
            if !is_undone {
                self.page = (taken * 4).min(PAGE);
                continue;
            }
            failures += 1;
            if failures > FAILURES {
                break;
            }
        }
        Ok(rows)
    }

    /// Begins with the first stored key again. A table stays a failing one until each of its rows was attempted in one
    /// scan, and none failed.
    fn end_scan(&mut self) {
        let cursor = &self.cursor;
        self.failing
            .forget_others(|table| cursor.has_left_out(table));
        self.cursor.end_scan();
    }
}
