use std::time::Duration;

use walrelay_event_router::Event;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_pgoutput::{Begin, Commit, PgTimestamp};
use walrelay_sink::EventPosition;

use super::error::CoreError;

/// The transaction between a Begin and its Commit.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenTransaction {
    pub(super) begin: Begin,
    /// An earlier connection enqueued it whole.
    pub(super) passed_over: bool,
    records: u64,
    /// Rows sent or diverted.
    rows: u64,
}

impl OpenTransaction {
    /// The next row, as the router needs it.
    pub(super) fn next_event(&self) -> Event {
        Event {
            commit_lsn: self.begin.final_lsn,
            row: self.rows,
            commit_time: self.begin.commit_time,
        }
    }

    /// The next row's position.
    pub(super) fn next_position(&self) -> EventPosition {
        EventPosition {
            lsn: self.begin.final_lsn.get(),
            row: self.rows,
        }
    }
}

/// Which transaction the stream is inside, and which transactions it repeats.
#[derive(Debug, Default)]
pub(super) struct Transactions {
    pub(super) open: Option<OpenTransaction>,
    /// Transactions that commit before this were enqueued on an earlier connection, or confirmed.
    pub(super) enqueued_before: Option<CommitEnd>,
    /// The commit time of the transaction that began last.
    last_begun: Option<PgTimestamp>,
    /// The transaction that is followed to its acknowledgement, see `Environment::acknowledged`.
    sample: Option<(CommitEnd, PgTimestamp)>,
    /// The commit time of a sample that was just begun, see `Environment::received`.
    received: Option<PgTimestamp>,
}

impl Transactions {
    /// Opens a transaction. True: it is to be passed over.
    pub(super) fn begin(&mut self, lsn: Lsn, begin: Begin) -> Result<bool, CoreError> {
        if self.open.is_some() {
            return Err(CoreError::Sequence {
                what: "a begin inside a transaction",
                lsn,
            });
        }
        // `final_lsn` is where the commit record starts. Commit records do not overlap, so one that
        // starts before the end of a commit that was enqueued is that commit or an earlier one.
        let passed_over = self
            .enqueued_before
            .is_some_and(|end| begin.final_lsn < end.lsn());
        self.last_begun = Some(begin.commit_time);
        self.open = Some(OpenTransaction {
            begin,
            passed_over,
            records: 0,
            rows: 0,
        });
        Ok(passed_over)
    }

    /// Closes the open transaction. True: it was passed over.
    pub(super) fn commit(&mut self, lsn: Lsn, commit: &Commit) -> Result<bool, CoreError> {
        let open = self.open.take().ok_or(CoreError::Sequence {
            what: "a commit without a begin",
            lsn,
        })?;
        if open.records > 0 && self.sample.is_none() {
            self.sample = Some((commit.end, commit.commit_time));
            self.received = Some(commit.commit_time);
        }
        Ok(open.passed_over)
    }

    /// The sink took the record of the next row.
    pub(super) fn row_sent(&mut self) {
        if let Some(open) = &mut self.open {
            open.records += 1;
            open.rows += 1;
        }
    }

    /// The next row becomes no record.
    pub(super) fn row_skipped(&mut self) {
        if let Some(open) = &mut self.open {
            open.rows += 1;
        }
    }

    /// The sampled transaction, once it is confirmed.
    pub(super) fn take_sample(&mut self, confirmed: CommitEnd) -> Option<(CommitEnd, PgTimestamp)> {
        self.sample.take_if(|(end, _)| *end <= confirmed)
    }

    /// The commit time of a sample that was begun since the last call.
    pub(super) fn take_received(&mut self) -> Option<PgTimestamp> {
        self.received.take()
    }

    /// The commit time of the sample, or of the open transaction.
    pub(super) fn oldest(&self) -> Option<PgTimestamp> {
        let open = self.open.map(|open| open.begin.commit_time);
        self.sample.map(|(_, committed)| committed).or(open)
    }

    /// How much later than the commit of its transaction the server sent a message. `sent_at`: µs since
    /// 2000. Both are times of the server's clock.
    pub(super) fn lag(&self, sent_at: i64) -> Duration {
        let committed = self.last_begun.map_or(sent_at, PgTimestamp::get);
        Duration::from_micros(sent_at.saturating_sub(committed).try_into().unwrap_or(0))
    }
}
