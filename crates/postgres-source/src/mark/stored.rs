//! Marks a page of the rows whose keys are stored in `walrelay_state.unmarked`.

use walrelay_relay::{KeyedTable, TableName};
use walrelay_walsender::Session;

use crate::dead_rows;
use crate::mark_error::MarkError;
use crate::sent_keys::{MarkByKey, Marked, RowKey};
use crate::unmarked::{self, StoredKey};

/// Stored keys whose rows one transaction marks, at most.
pub(super) const PAGE: usize = 2_000;

/// The result of marking stored rows.
pub(super) struct Worked {
    pub(super) rows: u64,
    pub(super) changed: u64,
    /// The number of rows that stay.
    pub(super) left: u64,
    /// Why some rows of these tables cannot be marked, although they are neither locked nor invisible.
    pub(super) failed: Vec<(TableName, MarkError)>,
    /// Why no row of these tables was marked, perhaps by the fault of one row.
    pub(super) undone: Vec<(TableName, MarkError)>,
}

impl Worked {
    /// Returns why rows of a table cannot be marked.
    pub(super) fn first_failure(self) -> Option<MarkError> {
        let all = self.undone.into_iter().chain(self.failed);
        all.map(|(_, error)| error).next()
    }
}

/// Marks stored rows, and deletes the keys of those that need no mark any more. A table whose rows cannot be marked
/// stops no other.
///
/// # Errors
/// If the session cannot be used any more.
pub(super) async fn work_off_page(
    session: &mut Session,
    slot: &str,
    by_key: &MarkByKey<'_>,
    page: &[StoredKey],
) -> Result<Worked, MarkError> {
    let mut by_table: Vec<(&KeyedTable, Vec<u64>, Vec<RowKey>)> = Vec::new();
    for stored in page {
        let known = by_table
            .iter()
            .position(|(table, ..)| **table == stored.table);
        let at = known.unwrap_or_else(|| {
            by_table.push((&stored.table, Vec::new(), Vec::new()));
            by_table.len() - 1
        });
        if let Some((_, ids, keys)) = by_table.get_mut(at) {
            ids.push(stored.id);
            keys.push(stored.key.clone());
        }
    }
    let mut worked = Worked {
        rows: 0,
        changed: 0,
        left: 0,
        failed: Vec::new(),
        undone: Vec::new(),
    };
    for (table, ids, keys) in by_table {
        let marked = match mark_keys(session, slot, by_key, table, &keys).await {
            Ok(marked) => marked,
            Err(error) if error.may_pass() => return Err(error),
            Err(error) => {
                worked.undone.push((table.table.clone(), error));
                worked.left += keys.len() as u64;
                continue;
            }
        };
        let failed = marked.failed.map(|error| (table.table.clone(), error));
        worked.failed.extend(failed);
        worked.rows += marked.rows;
        worked.changed += marked.changed.len() as u64;
        worked.left += marked.later.len() as u64;
        let done = ids.iter().enumerate();
        let done = done
            .filter(|(at, _)| !marked.later.contains(at))
            .map(|(_, id)| *id);
        let done: Vec<u64> = done.collect();
        unmarked::delete(session, &done).await?;
    }
    Ok(worked)
}

/// Marks the rows of these keys, also those that `mark_dead` has changed although their events were delivered since.
pub(super) async fn mark_keys(
    session: &mut Session,
    slot: &str,
    by_key: &MarkByKey<'_>,
    table: &KeyedTable,
    keys: &[RowKey],
) -> Result<Marked, MarkError> {
    let mut marked = by_key.mark(session, table, keys).await?;
    dead_rows::mark_delivered(session, slot, by_key, table, keys, &mut marked).await?;
    Ok(marked)
}
