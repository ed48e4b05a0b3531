//! Marks the row of one dead letter.

use tracing::warn;
use walrelay_walsender::Session;

use super::table::{StoredRow, TABLE, delete};
use crate::confirmation::{count_rows, counted_sql, is_undone};
use crate::mark_error::MarkError;
use crate::script;
use crate::sections::{ATTEMPTS, ERROR};
use crate::sent_keys::{FoundTable, MarkByKey, in_progress};

/// The outcome of marking a row.
pub(super) enum Marked {
    Now,
    /// It is locked, or not visible yet.
    Later,
    /// It is gone, or was changed since: it is another event.
    Gone,
}

/// Marks a row as sent, and deletes its key. `why`: the reason, for the log.
pub(super) async fn mark_sent(
    session: &mut Session,
    sent: &MarkByKey<'_>,
    dead: &StoredRow,
    why: &str,
) -> Result<Marked, MarkError> {
    let keys = std::slice::from_ref(&dead.key);
    let marked = sent.mark(session, &dead.table, keys).await?;
    if let Some(error) = marked.failed {
        return Err(error);
    }
    if !marked.later.is_empty() {
        return Ok(Marked::Later);
    }
    if !marked.changed.is_empty() {
        warn!(
            table = %dead.table.table,
            event = %dead.origin.event.published_lsn(),
            why,
            "the row of a dead letter is not marked as sent: it was changed since it was marked"
        );
    }
    delete(session, dead.id).await?;
    Ok(if marked.rows > 0 {
        Marked::Now
    } else {
        Marked::Gone
    })
}

/// Marks a row as a dead letter. It counts as not sent after that, too.
pub(super) async fn mark(
    session: &mut Session,
    by_key: &MarkByKey<'_>,
    dead: &StoredRow,
    set: &str,
) -> Result<Marked, MarkError> {
    let target = match by_key.target(session, &dead.table).await? {
        FoundTable::Target(target) => target,
        FoundTable::Dropped => return Ok(Marked::Gone),
        FoundTable::NoKey { .. } => return Err(MarkError::NoKey(dead.table.table.clone())),
    };
    if in_progress(session).await?.contains(dead.key.xid) {
        return Ok(Marked::Later);
    }
    let same = target.same_keys(std::slice::from_ref(&dead.key), &[0]);
    let name = script::table(target.table);
    let (condition, from, is_sent) = (target.condition, &target.from, &target.is_sent);
    // The values are read from the stored row, so no text of them is a part of the statement.
    let value = |column: &str| {
        format!(
            "(SELECT walrelay_dead.{column} FROM {TABLE} AS walrelay_dead WHERE walrelay_dead.id = {})",
            dead.id
        )
    };
    let set = set
        .replace(ATTEMPTS, &value("attempts"))
        .replace(ERROR, &value("error"));
    let hash = target.hash.as_deref().unwrap_or("NULL::text");
    // The condition and the assignments are on lines of their own, because they may end in a comment.
    let change = format!(
        "WITH batch AS (SELECT {name}.tableoid AS walrelay_part, {name}.ctid AS walrelay_place \
         FROM {from}, {same} AND (\n{condition}\n) AND {is_sent} FOR UPDATE SKIP LOCKED), \
         changed AS (UPDATE {from} SET {set}\n FROM batch \
         WHERE {name}.ctid = batch.walrelay_place AND {name}.tableoid = batch.walrelay_part \
         RETURNING (\n{condition}\n) AS unsent, {hash} AS hash), \
         noted AS (UPDATE {TABLE} SET marked = true, marked_hash = (SELECT min(hash) FROM changed) \
         WHERE id = {id} AND EXISTS (SELECT FROM changed)) {counted}",
        id = dead.id,
        counted = counted_sql("unsent IS NOT TRUE"),
    );
    match count_rows(session, &change).await {
        Err(error) if is_undone(&error) => {
            return Err(MarkError::DeadCountsAsSent(target.table.clone()));
        }
        changed => {
            if changed? > 0 {
                return Ok(Marked::Now);
            }
        }
    }
    let locked = format!("SELECT FROM {from}, {same} AND (\n{condition}\n) AND {is_sent}");
    let is_locked = !session.query(&locked).await?.is_empty();
    Ok(if is_locked {
        Marked::Later
    } else {
        Marked::Gone
    })
}
