//! The rows of a snapshot as a stream, as if one transaction had inserted them at this moment.
//!
//! An [`Anchor`] is a session whose transaction exports the snapshot. As long as the session lives,
//! the rows of this moment can be read again. [`RowStream`] reads them over a second session.
//! `query` selects and orders the rows, `frames` encodes them as pgoutput messages. Before the rows
//! are sent, [`SnapshotLock`] shows that no other relay reads them, from its own thread.
//!
//! Progress is not stored: docs/adr/0028-a-slot-after-the-snapshot.md.

mod anchor;
mod frames;
mod hold;
mod lock;
mod query;
pub mod record;
mod stream;
mod unread;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tokio::sync::Notify;

pub(crate) use anchor::Anchor;
pub use anchor::{Plan, expected_rows};
pub(crate) use lock::{LockThread, LockWatch, Proof, SnapshotLock};
pub(crate) use query::unsent_condition;
pub(crate) use stream::RowStream;
pub use unread::{Unread, unread};

/// Progress of a snapshot, shared by the stream, the source and the metrics.
#[derive(Debug, Default)]
pub struct SnapshotProgress {
    running: AtomicBool,
    /// Rows read in all attempts.
    rows: AtomicU64,
    /// Rows read in this attempt.
    in_attempt: AtomicU64,
    /// Rows that the planner expects; 0 before the first attempt.
    expected: AtomicU64,
    acknowledged: AtomicBool,
    notify: Notify,
}

impl SnapshotProgress {
    fn begin(&self, expected: u64) {
        self.running.store(true, Relaxed);
        self.acknowledged.store(false, Relaxed);
        self.in_attempt.store(0, Relaxed);
        self.expected.store(expected, Relaxed);
    }

    fn row(&self) {
        self.rows.fetch_add(1, Relaxed);
        self.in_attempt.fetch_add(1, Relaxed);
    }

    /// Records that the sink has acknowledged every row.
    fn acknowledge(&self) {
        self.acknowledged.store(true, Relaxed);
        self.notify.notify_one();
    }

    /// Waits until every row is acknowledged. Only one task may wait.
    pub async fn acknowledged(&self) {
        while !self.is_acknowledged() {
            self.notify.notified().await;
        }
    }

    /// Records that the snapshot is complete: the stream continues from the slot.
    pub fn end(&self) {
        self.running.store(false, Relaxed);
    }

    /// Returns true while rows are read.
    pub fn is_running(&self) -> bool {
        self.running.load(Relaxed)
    }

    /// Returns true once all rows are acknowledged.
    pub fn is_acknowledged(&self) -> bool {
        self.acknowledged.load(Relaxed)
    }

    /// Returns the number of rows read in all attempts.
    pub fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    /// Returns the number of rows read in this attempt.
    pub fn rows_in_attempt(&self) -> u64 {
        self.in_attempt.load(Relaxed)
    }

    /// Returns the number of rows that the planner expects; `None` before the first attempt.
    pub fn expected(&self) -> Option<u64> {
        let expected = self.expected.load(Relaxed);
        (self.rows() > 0 || expected > 0).then_some(expected)
    }
}
