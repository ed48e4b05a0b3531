//! The audit: looks for rows of the outbox tables that have no evidence that they were sent, while the relay runs.
//!
//! # Invariants
//! - Only reads, but for the message that makes an idle server's walsender go on. A statement reads the rows of some
//!   blocks, and is bounded by two seconds.
//! - A row is reported only if it has no mark in two looks, and between them the slot has confirmed a position behind
//!   the first one: a row that the stream carried is marked, or its key is stored, before its position is confirmed.
//! - A row with a dead letter, open or resolved, is not reported. The dead letters are read after that position is
//!   confirmed, so none of a row that the stream carried is missing.
//!   The ids, which may be a million, are compared here: no statement has them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use tokio::time::sleep;
use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind, quote_literal};

use crate::catalog::Selection;
use crate::catalog::row::parsed;
use crate::confirmation::{ConfirmedError, flush_wal, insert_position, wait_confirmed};
use crate::dead_letters::{Compared, DeadLetters};
use crate::script;
use crate::sections::AuditSettings;
use crate::unseen::{RowSpan, UnseenError, UnseenRow, UnseenTable};

const SETTINGS: [(&str, &str); 2] = [("statement_timeout", "2s"), ("lock_timeout", "100ms")];
/// Blocks that one statement reads, and after how long a pause the next one does.
const BLOCKS: u64 = 1_024;
const PAUSE: Duration = Duration::from_millis(100);
/// Rows that one statement returns, at most.
const MOST: usize = 10_000;

/// The tables, and how rows are distinguished from sent ones.
#[derive(Debug)]
pub struct AuditWatch {
    /// The relay's slot.
    pub slot: String,
    /// Its publication.
    pub publication: String,
    /// The outbox tables.
    pub tables: Vec<TableName>,
    /// The column with the event's id.
    pub id: String,
    /// Names of the age column, the preferred one first.
    pub ages: Vec<String>,
    /// The selection of unmarked rows.
    pub marks: Selection,
    /// The dead letters of the slot.
    pub dead_letters: DeadLetters,
}

/// The rows of a table without evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnseenRows {
    /// `schema.table`.
    pub table: String,
    /// Their number, by the last look at each part of the table.
    pub rows: u64,
    /// The part of the table that this pass has looked at, in percent; 100 after the first whole pass.
    pub seen_percent: u64,
}

/// The reason why a round did not look at everything that it was to look at. The next one continues there.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The table cannot be read.
    #[error(transparent)]
    Unseen(#[from] UnseenError),
    /// The slot has not reached the rows.
    #[error(transparent)]
    Confirmed(#[from] ConfirmedError),
}

impl From<Error> for AuditError {
    fn from(error: Error) -> Self {
        Self::Unseen(error.into())
    }
}

/// The audit of a relay's tables.
#[derive(Debug)]
pub struct Audit {
    watch: AuditWatch,
    settings: AuditSettings,
    walks: Vec<Walk>,
}

/// The walk through one table.
#[derive(Debug, Default)]
struct Walk {
    /// The block that is looked at next.
    next: u64,
    /// Blocks that a statement reads: fewer after one that took too long.
    step: u64,
    /// The first block of each range in which rows were found, and their number.
    found: BTreeMap<u64, u64>,
    blocks: u64,
    is_whole: bool,
}

impl Walk {
    /// Notes the rows that were found in a range of blocks.
    fn note(&mut self, from: u64, to: u64, rows: u64) {
        self.found.retain(|block, _| !(from..to).contains(block));
        if rows > 0 {
            self.found.insert(from, rows);
        }
        self.next = to;
    }

    /// Makes the next statements read fewer blocks.
    fn shrink(&mut self) {
        self.step = (self.step / 4).max(1);
    }

    /// Ends the pass: what was found in blocks that are gone is forgotten.
    fn wrap(&mut self) {
        let blocks = self.blocks;
        // What was too much for the server once may not be the next time.
        self.step = (self.step * 2).min(BLOCKS);
        self.found.retain(|block, _| *block < blocks);
        (self.next, self.is_whole) = (0, true);
    }
}

impl Audit {
    /// Creates an audit, which starts at the front of each table.
    pub fn new(watch: AuditWatch, settings: AuditSettings) -> Self {
        let walk = |_: &TableName| Walk {
            step: BLOCKS,
            ..Walk::default()
        };
        Self {
            walks: watch.tables.iter().map(walk).collect(),
            watch,
            settings,
        }
    }

    /// Connects a session for a round.
    pub async fn connect(info: &ConnInfo) -> Result<Session, Error> {
        Session::connect(info, SessionKind::Sql, &SETTINGS).await
    }

    /// Looks at the next part of each table.
    ///
    /// # Errors
    /// Also if a table cannot be read. The others are looked at.
    pub async fn round(&mut self, session: &mut Session) -> Result<(), AuditError> {
        let Self {
            watch,
            settings,
            walks,
        } = self;
        let mut failed = None;
        for (table, walk) in watch.tables.iter().zip(walks) {
            if let Err(error) = look(session, watch, settings, table, walk).await {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Returns the rows that were found, by table.
    pub fn found(&self) -> Vec<UnseenRows> {
        let tables = self.watch.tables.iter().zip(&self.walks);
        let found = tables.map(|(table, walk)| UnseenRows {
            table: table.to_string(),
            rows: walk.found.values().sum(),
            seen_percent: if walk.is_whole {
                100
            } else {
                (walk.next * 100).checked_div(walk.blocks).unwrap_or(0)
            },
        });
        found.collect()
    }
}

/// Looks at the next part of a table.
async fn look(
    session: &mut Session,
    watch: &AuditWatch,
    settings: &AuditSettings,
    table: &TableName,
    walk: &mut Walk,
) -> Result<(), AuditError> {
    let size = size(session, table).await?;
    walk.blocks = size.blocks;
    let mut left = (settings.bytes / size.block_bytes / size.parts).max(1);
    if walk.next >= walk.blocks {
        walk.wrap();
    }
    while left > 0 && walk.next < walk.blocks {
        let step = walk.step.min(left).max(1);
        let (from, to) = (walk.next, walk.next + step);
        match unseen(session, watch, settings, table, (from, to)).await {
            Ok(Some(rows)) => {
                walk.note(from, to, rows);
                left -= step;
            }
            // Rows of dead letters may hide others, so the next statement reads a smaller part.
            Ok(None) => walk.shrink(),
            Err(error) => {
                if is_timeout(&error) {
                    walk.shrink();
                }
                return Err(error);
            }
        }
        sleep(PAUSE).await;
    }
    if walk.next >= walk.blocks {
        walk.wrap();
    }
    Ok(())
}

fn is_timeout(error: &AuditError) -> bool {
    let (AuditError::Unseen(UnseenError::Postgres(crate::error::PostgresError::Wal(sql)))
    | AuditError::Confirmed(ConfirmedError::Sql(sql))) = error
    else {
        return false;
    };
    sql.sqlstate() == Some("57014")
}

/// Reads the rows of some blocks that have no mark now. Dead letters without an id are compared; the others are not.
async fn unmarked(
    session: &mut Session,
    watch: &AuditWatch,
    settings: &AuditSettings,
    table: &TableName,
    blocks: (u64, u64),
) -> Result<Vec<UnseenRow>, UnseenError> {
    let span = RowSpan {
        older_than: settings.older_than,
        since: None,
        limit: MOST,
    };
    let read = UnseenTable::read_with(
        session,
        table,
        &watch.publication,
        &watch.id,
        &watch.ages,
        (&watch.dead_letters, Compared::WithoutId),
    );
    let part = read.await?.within_blocks(blocks);
    part.unmarked(session, &watch.marks, &watch.slot, &span)
        .await
}

/// Counts the rows of some blocks that have no evidence, and are not in flight. `None`: the blocks have more rows
/// without a mark than are looked at, some of them of dead letters.
async fn unseen(
    session: &mut Session,
    watch: &AuditWatch,
    settings: &AuditSettings,
    table: &TableName,
    blocks: (u64, u64),
) -> Result<Option<u64>, AuditError> {
    let mut first = unmarked(session, watch, settings, table, blocks).await?;
    let (found, is_divisible) = (first.len(), blocks.1 - blocks.0 > 1);
    let is_cut = |rows: &[UnseenRow]| is_divisible && found >= MOST && rows.len() < found;
    // An open dead letter that was read before may be none any more.
    remove_dead(watch, table, &mut first, Remove::Resolved);
    if is_cut(&first) {
        return Ok(None);
    }
    if first.is_empty() {
        return Ok(Some(0));
    }
    // Behind the commits of all rows that the look has seen.
    let position = insert_position(session).await?;
    flush_wal(session).await?;
    wait_confirmed(session, std::slice::from_ref(&watch.slot), position).await?;
    watch
        .dead_letters
        .read()
        .await
        .map_err(UnseenError::DeadLetters)?;
    remove_dead(watch, table, &mut first, Remove::All);
    if is_cut(&first) {
        return Ok(None);
    }
    if first.is_empty() {
        return Ok(Some(0));
    }
    let second = unmarked(session, watch, settings, table, blocks).await?;
    let key = |row: &UnseenRow| (row.at_ms, row.id.clone());
    let first: BTreeSet<_> = first.iter().map(key).collect();
    let both = second.iter().filter(|row| {
        // The publication may leave rows out on purpose, which its row filter tells.
        row.is_published && !row.has_dead_letter && first.contains(&key(row))
    });
    Ok(Some(both.count() as u64))
}

/// The rows that are no findings.
#[derive(Clone, Copy, PartialEq)]
enum Remove {
    /// Those whose dead letters were redriven or dropped.
    Resolved,
    /// Those with any dead letter.
    All,
}

/// Removes rows with dead letters that were read, as far as their ids tell.
fn remove_dead(watch: &AuditWatch, table: &TableName, rows: &mut Vec<UnseenRow>, remove: Remove) {
    let ids = rows.iter().filter_map(|row| row.id.as_deref()).collect();
    let (open, mut removed) = watch.dead_letters.named(table, &ids);
    if remove == Remove::All {
        removed.extend(open);
    }
    let removed: HashSet<String> = removed.into_iter().map(str::to_owned).collect();
    rows.retain(|row| row.id.as_ref().is_none_or(|id| !removed.contains(id)));
}

/// The size of a table.
struct Size {
    /// Blocks of its largest part.
    blocks: u64,
    parts: u64,
    block_bytes: u64,
}

/// Queries the size of a table with its partitions.
async fn size(session: &mut Session, table: &TableName) -> Result<Size, Error> {
    let sql = format!(
        "SELECT pg_catalog.current_setting('block_size')::int8 AS block, count(*) AS parts, \
         coalesce(max(pg_catalog.pg_relation_size(c.oid)), 0)::int8 AS bytes FROM pg_catalog.pg_class c \
         WHERE c.relkind = 'r' AND (c.oid = pg_catalog.to_regclass({name}) \
         OR c.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass({name}))))",
        name = quote_literal(&script::table(table))
    );
    let rows = session.query(&sql).await?;
    let row = rows.first();
    let number = |name| row.as_ref().and_then(|row| parsed::<u64>(row, name));
    let block_bytes = number("block").unwrap_or(8_192).max(1);
    Ok(Size {
        blocks: number("bytes").unwrap_or(0).div_ceil(block_bytes),
        parts: number("parts").unwrap_or(1).max(1),
        block_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_counts_until_its_blocks_are_looked_at_again() {
        let mut walk = Walk {
            blocks: 30,
            ..Walk::default()
        };
        walk.note(0, 10, 3);
        walk.note(10, 20, 0);
        walk.note(20, 30, 2);
        walk.wrap();
        assert_eq!(walk.found.values().sum::<u64>(), 5);
        // A smaller range.
        walk.note(0, 5, 1);
        assert_eq!(walk.found.values().sum::<u64>(), 3);
        // The table was rewritten, and is smaller.
        walk.blocks = 15;
        walk.note(5, 20, 0);
        walk.wrap();
        assert_eq!(walk.found.into_iter().collect::<Vec<_>>(), [(0, 1)]);
    }
}
