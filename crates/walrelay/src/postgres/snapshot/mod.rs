//! The rows of a consistent moment as a stream, as if one transaction had inserted them at this moment.
//!
//! An [`Anchor`] is a session whose transaction exports the snapshot. As long as it lives, rows can be read from
//! the same moment again. [`RowStream`] reads them over a second session; `query` says which rows and in which
//! order, `frames` makes messages of pgoutput of them.
//!
//! Progress is not stored: docs/adr/0028-a-slot-after-the-snapshot.md.

mod anchor;
mod frames;
mod query;
mod stream;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tokio::sync::Notify;

pub(crate) use anchor::{Anchor, Plan, expected_rows, settings};
pub(crate) use frames::RowError;
pub(crate) use query::unsent_condition;
pub(crate) use stream::RowStream;

/// Which rows, and in which order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Selection {
    /// Only those that no relay has sent, by a column of the table; `filter` instead of that where it is given.
    pub(crate) unsent: bool,
    /// A condition in SQL.
    pub(crate) filter: Option<String>,
    /// Columns; empty: the time of the event, or the primary key.
    pub(crate) order: Vec<String>,
    /// The column of the event's time, where the route names one.
    pub(crate) time: Option<String>,
}

/// How far a snapshot has come. Shared between the stream and whoever shows it.
#[derive(Debug, Default)]
pub(crate) struct SnapshotProgress {
    running: AtomicBool,
    /// Of all attempts.
    rows: AtomicU64,
    /// Of this attempt.
    of_attempt: AtomicU64,
    /// What the server expects; 0 where nothing was expected yet.
    expected: AtomicU64,
    acknowledged: AtomicBool,
    notify: Notify,
}

impl SnapshotProgress {
    fn begin(&self, expected: u64) {
        self.running.store(true, Relaxed);
        self.acknowledged.store(false, Relaxed);
        self.of_attempt.store(0, Relaxed);
        self.expected.store(expected, Relaxed);
    }

    fn row(&self) {
        self.rows.fetch_add(1, Relaxed);
        self.of_attempt.fetch_add(1, Relaxed);
    }

    /// Everything is acknowledged by the sink.
    fn acknowledge(&self) {
        self.acknowledged.store(true, Relaxed);
        self.notify.notify_one();
    }

    /// Waits until everything is acknowledged. For one task.
    pub(crate) async fn acknowledged(&self) {
        while !self.is_acknowledged() {
            self.notify.notified().await;
        }
    }

    /// The stream goes on from the slot.
    pub(crate) fn end(&self) {
        self.running.store(false, Relaxed);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Relaxed)
    }

    pub(crate) fn is_acknowledged(&self) -> bool {
        self.acknowledged.load(Relaxed)
    }

    /// Rows read in all attempts.
    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    /// Rows read in this attempt.
    pub(crate) fn of_attempt(&self) -> u64 {
        self.of_attempt.load(Relaxed)
    }

    /// How many rows the server expects, by its statistics; `None` before the first attempt.
    pub(crate) fn expected(&self) -> Option<u64> {
        let expected = self.expected.load(Relaxed);
        (self.rows() > 0 || expected > 0).then_some(expected)
    }
}
