//! Marks the rows of dead letters (`[source] mark_dead`), and marks those as sent whose dead letters were redriven
//! (docs/adr/0067-a-row-says-that-it-is-a-dead-letter.md).
//!
//! The key of such a row comes as that of a sent row does: the destination acknowledged the dead letter. It is
//! stored before the position is confirmed, and stays until the dead letter is resolved. The topic of dead letters
//! tells how it was resolved.
//!
//! A row whose mark fails holds up no other: `failing` keeps a delay for each.

mod condition;
mod elsewhere;
mod failing;
mod resolved;
mod row;
mod table;

use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::warn;
use walrelay_relay::{Chain, KeyedTable};
use walrelay_sink::EventPosition;
use walrelay_sink_kind::dead_letters::Outcome;
use walrelay_walsender::{Session, quote_literal};

use super::dead_letters::DeadLetters;
use super::kept;
use super::mark_error::MarkError;
use super::position_note;
use super::sent_keys::{self, MarkByKey, RowKey};
pub(crate) use condition::rows_of_open;
pub use condition::{LostKeys, lost_keys};
pub use elsewhere::{KeysElsewhere, keys_elsewhere};
use failing::FailingRows;
pub(crate) use resolved::ResolvedKeys;
use row::{Marked, mark, mark_sent};
use table::{
    NAME, StoredRow, TABLE, delete, exists, insert_sql, marked_with, may_resolve, page, pass_over,
};
pub use table::{create_sql, missing_columns};

/// Keys that one statement stores, at most.
const KEYS_OF_STATEMENT: usize = 500;
/// Interval between two reads of the resolutions.
const RESOLVED_INTERVAL: Duration = Duration::from_secs(3);
/// The time for which one round waits for the resolutions: rows of sent events wait for it, too.
const READ_WAIT: Duration = Duration::from_millis(200);
/// The time after which a round ends with the row that it is at. The next one goes on from there.
const PASS: Duration = Duration::from_secs(3);
/// Rows whose marks failed before that one round attempts again, at most: each attempt leaves a dead row.
const RETRIES: usize = 20;
/// Keys that are kept in memory while they cannot be stored, at most, and the interval of attempts to store them.
const MOST_WAITING: usize = 10_000;
const WAITING_INTERVAL: Duration = Duration::from_secs(10);

/// Reasons for which the row of a dead letter is marked as sent, for the log.
const REDRIVEN: &str = "its dead letter was redriven";
const DELIVERED: &str = "its event was delivered";

/// The key of a row whose event became a dead letter.
pub(super) struct DeadKey {
    pub(super) event: EventPosition,
    /// The cluster that the event was read from, as its dead letter names it.
    pub(super) system: Arc<str>,
    pub(super) key: RowKey,
    pub(super) reason: String,
}

// Not derived: keys are values of rows.
impl fmt::Debug for DeadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadKey").finish_non_exhaustive()
    }
}

/// A pass over the stored keys that is not at its end.
#[derive(Debug, Clone, Copy)]
struct Scan {
    /// The key that was looked at last.
    after: u64,
    /// Only rows that are not marked are looked at: no dead letter was resolved since the last scan.
    unmarked_only: bool,
}

/// Marks the rows of dead letters.
#[derive(Debug)]
pub struct DeadMarking {
    /// The SQL assignments of `mark_dead`.
    set: String,
    dead_letters: DeadLetters,
    /// Tells the attempts of this process from those of others.
    run: String,
    /// Keys are stored, as far as is known.
    has_rows: bool,
    /// Rows were stored, or are locked, since the last scan started.
    is_due: bool,
    scan: Option<Scan>,
    /// The end of the last complete read of the resolutions, and those that the last scan knew.
    resolved_at: Option<Instant>,
    resolved: Option<u64>,
    failing: FailingRows,
    /// Keys that could not be stored.
    waiting: Vec<(Arc<KeyedTable>, DeadKey)>,
    waiting_until: Instant,
    /// The reason why they could not.
    not_stored: String,
    /// Keys that there was no memory for.
    dropped: u64,
}

impl DeadMarking {
    /// Creates it from `mark_dead` and the reader of the slot's dead letters.
    pub fn new(set: String, dead_letters: DeadLetters) -> Self {
        Self {
            set,
            dead_letters,
            // Two processes have the same number by chance only.
            run: format!("{:016x}", RandomState::new().build_hasher().finish()),
            has_rows: true,
            is_due: true,
            scan: None,
            resolved_at: None,
            resolved: None,
            failing: FailingRows::default(),
            waiting: Vec::new(),
            waiting_until: Instant::now(),
            not_stored: String::new(),
            dropped: 0,
        }
    }

    /// Returns true if there are keys whose rows may need a mark, as far as is known.
    pub(super) fn has_rows(&self) -> bool {
        self.has_rows || !self.waiting.is_empty()
    }

    /// Returns the reason why rows are not marked.
    pub(super) fn problem(&self) -> Option<String> {
        let rows = self.waiting.len();
        if rows > 0 {
            return Some(format!(
                "keys of {rows} dead letters wait to be stored in {TABLE}: {}",
                self.not_stored
            ));
        }
        self.failing.problem()
    }

    /// Keeps keys that cannot be stored now, as far as memory is allowed for them. They are lost with the process.
    pub(super) fn keep(&mut self, table: &Arc<KeyedTable>, keys: Vec<DeadKey>, why: &str) {
        let room = MOST_WAITING.saturating_sub(self.waiting.len());
        let dropped = keys.len().saturating_sub(room) as u64;
        if dropped > 0 && self.dropped == 0 {
            warn!(
                error = why,
                "rows of dead letters stay unmarked, because their keys cannot be stored in walrelay_state.dead"
            );
        }
        self.dropped += dropped;
        why.clone_into(&mut self.not_stored);
        let kept = keys.into_iter().take(room);
        self.waiting
            .extend(kept.map(|key| (Arc::clone(table), key)));
        self.waiting_until = Instant::now() + WAITING_INTERVAL;
    }

    /// Stores the keys that could not be stored before, if it is time for an attempt.
    async fn store_waiting(&mut self, session: &mut Session, slot: &str, create: bool) {
        if self.waiting.is_empty() || Instant::now() < self.waiting_until {
            return;
        }
        self.waiting_until = Instant::now() + WAITING_INTERVAL;
        while let Some((table, _)) = self.waiting.first() {
            let table = Arc::clone(table);
            let waiting = std::mem::take(&mut self.waiting);
            let (of_table, others): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|(of, _)| *of == table);
            self.waiting = others;
            let keys = of_table.into_iter().map(|(_, key)| key).collect();
            let stored = Storing {
                marking: self,
                table,
                keys,
            };
            if !stored.run(session, slot, create).await {
                return;
            }
        }
    }

    /// Stores keys. That of an event which this slot has stored before counts one attempt more, unless this
    /// process has stored it.
    pub(super) async fn store(
        &mut self,
        session: &mut Session,
        slot: &str,
        create: bool,
        table: &KeyedTable,
        keys: &[DeadKey],
    ) -> Result<(), MarkError> {
        if create && !exists(session).await? {
            if kept::is_published(session).await?
                || !position_note::may_create(session, NAME).await?
            {
                return Err(MarkError::NoDeadTable);
            }
            let sql = format!("{} {}", position_note::LOCK, create_sql(None));
            session.query(&sql).await?;
        }
        for keys in keys.chunks(KEYS_OF_STATEMENT) {
            let origin = (slot, self.dead_letters.store());
            session
                .query(&insert_sql(origin, &self.run, table, keys))
                .await?;
        }
        self.has_rows = true;
        self.is_due = true;
        Ok(())
    }

    /// Marks the stored rows that are not marked yet, and as sent those whose dead letters were redriven, within
    /// some seconds: the next call goes on from there. Returns their number.
    ///
    /// # Errors
    /// Not if the mark of one row fails: see [`problem`](Self::problem).
    pub(super) async fn work_off(
        &mut self,
        session: &mut Session,
        slot: &str,
        create: bool,
        sent: &MarkByKey<'_>,
    ) -> Result<u64, MarkError> {
        self.store_waiting(session, slot, create).await;
        if !exists(session).await? {
            self.has_rows = false;
            return Ok(0);
        }
        let until = Instant::now() + PASS;
        let read = self.read_resolved(session, slot).await;
        // Rows of a topic that was never read to its end may be resolved, so none is marked.
        if self.resolved_at.is_none() || !self.has_rows {
            return read.map(|()| 0);
        }
        let mut rows = 0;
        while let Some(Scan {
            after,
            unmarked_only,
        }) = self.scan
        {
            let unmarked = if unmarked_only { " AND NOT marked" } else { "" };
            let page = page(session, slot, &format!("id > {after}{unmarked}")).await?;
            if page.is_empty() {
                self.scan = None;
            }
            for dead in &page {
                if Instant::now() >= until {
                    return read.map(|()| rows);
                }
                // Before the attempt: one that is given up must not hold up the rows after it.
                self.scan = Some(Scan {
                    after: dead.id,
                    unmarked_only,
                });
                let outcome = self.dead_letters.outcome(&dead.origin);
                let is_done = outcome.is_none() && dead.marked;
                if !is_done && !self.failing.passes_over(dead.id, outcome) {
                    rows += self.attempt(session, sent, dead, outcome).await?;
                }
            }
        }
        let due = self.failing.due(RETRIES);
        if !due.is_empty() {
            let ids: Vec<String> = due.iter().map(u64::to_string).collect();
            let condition = format!("id = ANY ('{{{}}}')", ids.join(","));
            let page = page(session, slot, &condition).await?;
            let gone = |id: &&u64| !page.iter().any(|dead| dead.id == **id);
            for id in due.iter().filter(gone) {
                self.failing.end(*id);
            }
            for dead in &page {
                if Instant::now() >= until {
                    break;
                }
                let outcome = self.dead_letters.outcome(&dead.origin);
                rows += self.attempt(session, sent, dead, outcome).await?;
            }
        }
        read.map(|()| rows)
    }

    /// Reads how dead letters were resolved, if it is time for that, and begins a scan if that, or stored rows,
    /// make one necessary.
    async fn read_resolved(&mut self, session: &mut Session, slot: &str) -> Result<(), MarkError> {
        if self.scan.is_some() {
            return Ok(());
        }
        let mut read = Ok(());
        if self
            .resolved_at
            .is_none_or(|at| at.elapsed() >= RESOLVED_INTERVAL)
        {
            let any = format!(
                "SELECT FROM {TABLE} WHERE slot = {} LIMIT 1",
                quote_literal(slot)
            );
            if session.query(&any).await?.is_empty() {
                self.has_rows = false;
                return Ok(());
            }
            // A read that takes longer goes on, and a later round sees its end.
            if let Ok(ended) = timeout(READ_WAIT, self.dead_letters.read_on()).await {
                if ended.is_ok() {
                    self.resolved_at = Some(Instant::now());
                }
                read = ended.map_err(MarkError::from);
            }
        }
        let resolved = self.dead_letters.digest();
        let unmarked_only = self.resolved == Some(resolved);
        if self.resolved_at.is_some() && (self.is_due || !unmarked_only) {
            self.is_due = false;
            self.resolved = Some(resolved);
            self.scan = Some(Scan {
                after: 0,
                unmarked_only,
            });
        }
        read
    }

    /// Marks a row. Returns the number of rows that were marked.
    async fn attempt(
        &mut self,
        session: &mut Session,
        sent: &MarkByKey<'_>,
        dead: &StoredRow,
        outcome: Option<Outcome>,
    ) -> Result<u64, MarkError> {
        // An attempt that does not end counts as one that failed.
        self.failing.begin(dead.id, outcome);
        let worked = match outcome {
            Some(Outcome::Redriven) => mark_sent(session, sent, dead, REDRIVEN).await,
            // The row stays as mark_dead has left it.
            Some(Outcome::Dropped) => Ok(Marked::Gone),
            None if dead.marked => Ok(Marked::Later),
            None => mark(session, sent, dead, &self.set).await,
        };
        match worked {
            Err(error) => {
                if error.may_pass() {
                    self.failing.end(dead.id);
                    self.look_again(outcome);
                    return Err(error);
                }
                self.failing.fail(Chain(&error).to_string());
                return Ok(0);
            }
            Ok(marked) => {
                self.failing.end(dead.id);
                match marked {
                    Marked::Now => return Ok(1),
                    Marked::Later => {
                        if !dead.marked || outcome.is_some() {
                            self.look_again(outcome);
                        }
                    }
                    Marked::Gone if outcome.is_none() => pass_over(session, dead.id).await?,
                    Marked::Gone => delete(session, dead.id).await?,
                }
            }
        }
        Ok(0)
    }

    /// Makes the next round look at a row again. One whose dead letter was resolved has a mark, as most rows have, so
    /// only a look at all rows finds it.
    fn look_again(&mut self, outcome: Option<Outcome>) {
        self.is_due = true;
        if outcome.is_some() {
            self.resolved = None;
        }
    }
}

/// Marks as sent the rows that `mark_dead` has changed, although their events were delivered since: the relay that
/// made the dead letter was killed before it had confirmed the event. `keys`: of sent events; `marked`: the result of
/// marking them, which found these rows changed. A row that fails holds up no other: it stays among the later ones.
pub(super) async fn mark_delivered(
    session: &mut Session,
    slot: &str,
    sent: &MarkByKey<'_>,
    table: &KeyedTable,
    keys: &[RowKey],
    marked: &mut sent_keys::Marked,
) -> Result<(), MarkError> {
    if marked.changed.is_empty() || !may_resolve(session).await? {
        return Ok(());
    }
    let changed = std::mem::take(&mut marked.changed);
    for changed in changed.chunks(KEYS_OF_STATEMENT) {
        let stored = page(session, slot, &marked_with(keys, changed)).await?;
        for at in changed {
            let is_same =
                |dead: &&StoredRow| keys.get(*at).is_some_and(|key| dead.is_of(table, key));
            let outcome = match stored.iter().find(is_same) {
                Some(dead) => mark_sent(session, sent, dead, DELIVERED).await,
                None => Ok(Marked::Gone),
            };
            match outcome {
                Ok(Marked::Now) => marked.rows += 1,
                Ok(Marked::Later) => marked.later.push(*at),
                Ok(Marked::Gone) => marked.changed.push(*at),
                Err(error) if error.may_pass() => return Err(error),
                Err(error) => {
                    marked.later.push(*at);
                    marked.failed = Some(error);
                }
            }
        }
    }
    Ok(())
}

/// Keys that could not be stored, and are to be stored now. Dropping it keeps them, because the attempt may be given
/// up with its session.
struct Storing<'a> {
    marking: &'a mut DeadMarking,
    table: Arc<KeyedTable>,
    keys: Vec<DeadKey>,
}

impl Storing<'_> {
    /// Returns false if the keys cannot be stored.
    async fn run(mut self, session: &mut Session, slot: &str, create: bool) -> bool {
        let Self {
            marking,
            table,
            keys,
        } = &mut self;
        match marking.store(session, slot, create, table, keys).await {
            Ok(()) => {
                keys.clear();
                true
            }
            Err(error) => {
                marking.not_stored = Chain(&error).to_string();
                false
            }
        }
    }
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        let keys = std::mem::take(&mut self.keys).into_iter();
        let waiting = keys.map(|key| (Arc::clone(&self.table), key));
        self.marking.waiting.extend(waiting);
    }
}

/// Marks as sent the rows of redriven dead letters, of a slot that no relay reads, and waits for locked ones. Rows of
/// open dead letters stay as they are. Returns the number of marked rows.
///
/// # Errors
/// Also if not every such row that is still unsent is marked.
pub(super) async fn work_off_stopped(
    session: &mut Session,
    slot: &str,
    dead_letters: &DeadLetters,
    sent: &MarkByKey<'_>,
) -> Result<u64, MarkError> {
    if !exists(session).await? {
        return Ok(0);
    }
    let (mut after, mut rows, mut left) = (0, 0, 0);
    loop {
        let page = page(session, slot, &format!("id > {after}")).await?;
        let Some(last) = page.last() else {
            break;
        };
        after = last.id;
        for dead in &page {
            match dead_letters.outcome(&dead.origin) {
                Some(Outcome::Redriven) => match mark_sent(session, sent, dead, REDRIVEN).await? {
                    Marked::Now => rows += 1,
                    Marked::Later => left += 1,
                    Marked::Gone => {}
                },
                Some(Outcome::Dropped) => delete(session, dead.id).await?,
                None => {}
            }
        }
    }
    match left {
        0 => Ok(rows),
        left => Err(MarkError::Left(left)),
    }
}
