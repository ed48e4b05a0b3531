use walrelay_event_router::Event;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_pgoutput::{Begin, Commit, PgTimestamp};
use walrelay_sink::{EventPosition, MAX_EVENT_LSN};

use super::error::CoreError;
use super::step::Step;

/// The reason why the rows of a transaction are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ignored {
    /// Postgres sends the transaction again after it was enqueued whole, or confirmed: the ledger
    /// knows it.
    Repeated,
    /// The sink had the transaction when it was created. The ledger gets a transaction without
    /// records, so its end is confirmed in the order of the log.
    InSink,
}

/// The transaction between a Begin and its Commit.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenTransaction {
    epoch: u8,
    pub(super) begin: Begin,
    /// The reason why the rows are ignored; `None`: they are not.
    pub(super) ignored: Option<Ignored>,
    /// The number of records enqueued.
    records: u64,
    /// The number of rows processed: sent, diverted, not selected or passed over.
    rows: u64,
}

impl OpenTransaction {
    /// Returns position and commit time of the next row, for the router.
    pub(super) fn next_event(&self) -> Event {
        Event {
            epoch: self.epoch,
            commit_lsn: self.begin.final_lsn,
            row: self.rows,
            commit_time: self.begin.commit_time,
        }
    }

    /// Returns the number of rows processed.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the position of the first row.
    pub(super) fn first_position(&self) -> EventPosition {
        EventPosition {
            epoch: self.epoch,
            lsn: self.begin.final_lsn.get(),
            row: 0,
        }
    }

    pub(super) fn next_position(&self) -> EventPosition {
        self.next_event().position()
    }
}

/// The open transaction, and which transactions are repeated after a reconnect.
#[derive(Debug, Default)]
pub(super) struct Transactions {
    /// The epoch of the server's log, which the positions of all its events have.
    pub(super) epoch: u8,
    pub(super) open: Option<OpenTransaction>,
    /// The position before which all transactions were enqueued on an earlier connection, or
    /// confirmed.
    pub(super) enqueued_before: Option<CommitEnd>,
    /// The position up to which the sink had everything when it was created, see
    /// `Sink::durable_before`.
    pub(super) durable_before: Option<Lsn>,
    /// The position after that of the last event that was sent, diverted, not selected or
    /// passed over.
    pub(super) processed: Option<EventPosition>,
    /// The commit time of the transaction that began last.
    pub(super) last_begun: Option<PgTimestamp>,
    /// The sampled transaction, until it is confirmed; see `Observer::acknowledged`.
    sample: Option<(CommitEnd, PgTimestamp)>,
    /// The commit time of a new sample that was not reported yet; see `Observer::received`.
    pub(super) received: Option<PgTimestamp>,
}

impl Transactions {
    /// Opens a transaction. Returns the reason why its rows are ignored.
    pub(super) fn begin(&mut self, lsn: Lsn, begin: Begin) -> Result<Option<Ignored>, CoreError> {
        if self.open.is_some() {
            return Err(CoreError::Sequence {
                what: "a begin inside a transaction",
                lsn,
            });
        }
        if begin.final_lsn > MAX_EVENT_LSN {
            return Err(CoreError::PositionTooHigh { lsn });
        }
        // `final_lsn` is the start of the commit record. Commit records do not overlap, so a record
        // that starts before the end of an enqueued commit is that commit or an earlier one.
        let ends_before = |position: Option<Lsn>| position.is_some_and(|at| begin.final_lsn < at);
        let ignored = if ends_before(self.enqueued_before.map(CommitEnd::lsn)) {
            Some(Ignored::Repeated)
        } else if ends_before(self.durable_before) {
            Some(Ignored::InSink)
        } else {
            None
        };
        self.last_begun = Some(begin.commit_time);
        self.open = Some(OpenTransaction {
            epoch: self.epoch,
            begin,
            ignored,
            records: 0,
            rows: 0,
        });
        Ok(ignored)
    }

    /// Closes the open transaction, and returns it.
    pub(super) fn commit(
        &mut self,
        lsn: Lsn,
        commit: &Commit,
    ) -> Result<OpenTransaction, CoreError> {
        let open = self.open.take().ok_or(CoreError::Sequence {
            what: "a commit without a begin",
            lsn,
        })?;
        if let Some(position) = self.durable_before
            && open.ignored == Some(Ignored::InSink)
            && position < commit.end.lsn()
        {
            let at = commit.end.lsn();
            return Err(CoreError::SinkPosition {
                position,
                at,
                cut: true,
            });
        }
        if open.records > 0 && self.sample.is_none() {
            self.sample = Some((commit.end, commit.commit_time));
            self.received = Some(commit.commit_time);
        }
        Ok(open)
    }

    /// Counts a row whose record the sink took.
    pub(super) fn row_sent(&mut self) {
        if let Some(open) = &mut self.open {
            open.records += 1;
        }
        self.row_processed();
    }

    /// Counts a row that becomes no record, or whose record is acknowledged already, and consumes its frame.
    // Not inlined, so that the case of a row that is sent stays short.
    #[inline(never)]
    pub(super) fn skip_row<'r, 'a>(&mut self) -> Step<'r, 'a> {
        self.row_processed();
        Step::Consumed
    }

    fn row_processed(&mut self) {
        if let Some(open) = &mut self.open {
            open.rows += 1;
            self.processed = Some(open.next_position());
        }
    }

    /// Takes the sampled transaction if it is confirmed.
    pub(super) fn take_sample(&mut self, confirmed: CommitEnd) -> Option<(CommitEnd, PgTimestamp)> {
        self.sample.take_if(|(end, _)| *end <= confirmed)
    }

    /// Returns the commit time of the sample, or of the open transaction.
    pub(super) fn oldest(&self) -> Option<PgTimestamp> {
        let open = self.open.map(|open| open.begin.commit_time);
        self.sample.map(|(_, committed)| committed).or(open)
    }
}
