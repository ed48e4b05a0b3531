//! Marks the row of one dead letter.

use tracing::warn;
use walrelay_relay::TableName;
use walrelay_walsender::{Session, quote_literal};

use super::table::{StoredRow, TABLE, delete};
use crate::catalog::row::parsed;
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
            event = %dead.event.published_lsn(),
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
         RETURNING (\n{condition}\n) AS unsent, {hash} AS hash) \
         SELECT count(*) AS rows, count(*) FILTER (WHERE unsent) AS unsent, min(hash) AS hash FROM changed",
    );
    session.query("BEGIN").await?;
    let changed = session.query(&change).await?;
    let count = |name| {
        let row = changed.first();
        row.and_then(|row| parsed::<u64>(&row, name)).unwrap_or(0)
    };
    if count("rows") > 0 {
        if count("unsent") < count("rows") {
            let table: TableName = target.table.clone();
            return Err(MarkError::DeadCountsAsSent(table));
        }
        let hash = changed
            .first()
            .and_then(|row| row.get("hash").map(quote_literal));
        let noted = format!(
            "UPDATE {TABLE} SET marked = true, marked_hash = {} WHERE id = {}",
            hash.unwrap_or_else(|| "NULL".to_owned()),
            dead.id
        );
        session.query(&noted).await?;
        session.query("COMMIT").await?;
        return Ok(Marked::Now);
    }
    session.query("ROLLBACK").await?;
    let locked = format!("SELECT FROM {from}, {same} AND (\n{condition}\n) AND {is_sent}");
    let is_locked = !session.query(&locked).await?.is_empty();
    Ok(if is_locked {
        Marked::Later
    } else {
        Marked::Gone
    })
}
