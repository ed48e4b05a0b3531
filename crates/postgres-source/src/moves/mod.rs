//! A move of the outbox to another server, as the databases of both servers record it: a fence at the outbox
//! tables, and a row of `walrelay_state.move`.
//!
//! The fence is a trigger which refuses each insert. Creating it waits for all transactions that have inserted
//! into the table, so once it exists, every event is committed before the end of the WAL, the barrier. When the
//! slot has confirmed the barrier under the fence, the destination has acknowledged every event of the server.
//! Fence and record are part of the database: `pg_upgrade`, a physical copy and a dump that is made later carry
//! them, so the copy itself shows that nothing was written in between
//! (docs/adr/0070-a-move-is-fenced-in-the-database.md).
//!
//! - `records`: what `walrelay_state.move` has, and what follows from it. `unfinished`: a move that has not ended.
//! - `fence`: the trigger at the outbox. `emitters`: the functions that write events as messages, and transactions that
//!   may have called them.
//! - `ending`: how a move ends: by a switch, given up, or with a drain that failed.
//! - `subscriptions`: what fills the new server. `rows`: rows that it lacks.

mod emitters;
mod ending;
mod fence;
mod records;
mod rows;
mod subscriptions;
mod unfinished;

use std::time::Duration;

use walrelay_walsender::{Error, Session, quote_literal};

pub use emitters::{Emitters, find_emitters, next_transaction, position_behind};
pub use ending::{abort_move, finish_move, undo_fence};
pub use fence::{all_relations, fence_sql, lift_sql, raise_fence, unfenced};
pub use records::{MoveRecord, MoveRecords, MoveServer, MoveState, find_move, record_drained};
pub use rows::{MissingRows, missing_rows, missing_rows_by_count};
pub use subscriptions::{Subscription, subscriptions};
pub use unfinished::{UnfinishedMove, find_unfinished_move};

/// SQLSTATE `lock_not_available`.
pub const LOCKED: &str = "55P03";
/// The table of the records.
const TABLE: &str = "walrelay_state.move";

/// Waits until no other step of a move of this slot works on the database, and locks others out until the session
/// ends. A step that was killed holds the lock until the server has ended its statement.
///
/// # Errors
/// [`LOCKED`] after this time.
pub async fn lock_move(session: &mut Session, slot: &str, patience: Duration) -> Result<(), Error> {
    let lock = format!(
        "SELECT pg_catalog.pg_advisory_lock(pg_catalog.hashtextextended({}, 0))",
        quote_literal(&format!("walrelay move {slot}"))
    );
    let limit = |limit: u128| format!("SET lock_timeout = {limit}");
    session.query(&limit(patience.as_millis().max(1))).await?;
    session.query(&lock).await?;
    session.query(&limit(0)).await?;
    Ok(())
}
