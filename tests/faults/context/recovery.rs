//! The times from a fault until the relay has recovered.

use std::time::Duration;

use walrelay_lsn::Lsn;
use walrelay_testkit::{Delivered, LoggedRow, first_appended};

/// Begin and end of a fault, to measure the time of recovery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    /// End of the WAL when the fault began. Rows that are committed from here on are new.
    pub(super) begin: Lsn,
    /// When the fault ended, in milliseconds since 1970.
    pub(super) end: i64,
    /// End of the WAL when the fault ended; `None` if Postgres could not be asked.
    pub(super) wal_end: Option<Lsn>,
}

/// For each fault: the time from its end to the first record of a row that was committed after its
/// begin, and the time until all rows committed at its end were in Kafka.
pub(super) fn recoveries(
    faults: &[Fault],
    commits: &[LoggedRow],
    records: &[Delivered],
) -> (Vec<Duration>, Vec<Duration>) {
    let appended = first_appended(records);
    let since = |fault: &Fault, at: i64| Duration::from_millis((at - fault.end).max(0) as u64);
    let mut firsts = Vec::new();
    let mut all = Vec::new();
    for fault in faults {
        let new = commits.iter().filter(|row| row.commit >= fault.begin);
        let at = new.filter_map(|row| appended.get(&*row.id));
        if let Some(first) = at.filter(|at| **at >= fault.end).min() {
            firsts.push(since(fault, *first));
        }
        let Some(backlog) = fault.wal_end else {
            continue;
        };
        let old = commits.iter().filter(|row| row.commit < backlog);
        if let Some(last) = old.filter_map(|row| appended.get(&*row.id)).max() {
            all.push(since(fault, *last));
        }
    }
    (firsts, all)
}
