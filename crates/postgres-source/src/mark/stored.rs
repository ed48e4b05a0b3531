//! Marks a page of the rows whose keys are stored in `walrelay_state.unmarked`.

use std::borrow::Borrow;

use walrelay_relay::KeyedTable;
use walrelay_walsender::Session;

use crate::dead_rows;
use crate::mark_error::MarkError;
use crate::sent_keys::{MarkByKey, RowKey};
use crate::unmarked::{self, StoredKey};

/// Stored keys whose rows one transaction marks, at most.
pub(super) const PAGE: usize = 2_000;

/// The result of marking stored rows.
pub(super) struct Worked {
    pub(super) rows: u64,
    pub(super) changed: u64,
    /// The number of rows that stay.
    pub(super) left: u64,
    /// Why one of these fails.
    pub(super) failed: Option<MarkError>,
}

/// Marks stored rows, and deletes the keys of those that need no mark any more.
pub(super) async fn work_off_page(
    session: &mut Session,
    slot: &str,
    by_key: &MarkByKey<'_>,
    page: &[impl Borrow<StoredKey>],
) -> Result<Worked, MarkError> {
    let mut by_table: Vec<(&KeyedTable, Vec<u64>, Vec<RowKey>)> = Vec::new();
    for stored in page.iter().map(Borrow::borrow) {
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
        failed: None,
    };
    for (table, ids, keys) in by_table {
        let mut marked = by_key.mark(session, table, &keys).await?;
        dead_rows::mark_delivered(session, slot, by_key, table, &keys, &mut marked).await?;
        worked.failed = worked.failed.or(marked.failed);
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
