//! [`PendingAccount`]: the rows of unacknowledged transactions.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use walrelay_lsn::{Lsn, RelationId};
use walrelay_pgoutput::{Relation, Tuple};
use walrelay_sink::{EventPosition, lock};

use super::rows::AccountedRows;
use super::sent::SentAccount;
use super::sums::{Bucket, BucketSum, RowSum};

/// A row that was offered to the sink.
#[derive(Debug)]
struct OfferedRow {
    position: EventPosition,
    /// The bucket and the row; `None`: it is not counted.
    row: Option<(Bucket, RowSum)>,
}

/// A row that is counted as sent, while its record is in flight: the sink may still refuse it.
#[derive(Debug)]
pub(super) struct CountedRow {
    position: EventPosition,
    relation: RelationId,
    /// The number of the bucket.
    number: i64,
    /// The halves of its hash.
    high: i64,
    low: i64,
}

/// The sum of some rows of a transaction.
#[derive(Debug)]
struct Entry {
    /// The start of the commit record.
    commit: u64,
    bucket: Bucket,
    sum: BucketSum,
}

/// The sums of transactions that are not acknowledged yet.
pub(crate) struct PendingAccount {
    shared: Arc<SentAccount>,
    generation: u64,
    rows: AccountedRows,
    /// In the order of the WAL.
    entries: VecDeque<Entry>,
    /// Commit records that begin before this position are counted.
    counted_before: u64,
    /// Events that became dead letters, until their transactions are confirmed.
    pub(super) diverted: BTreeSet<EventPosition>,
    /// In the order of the WAL. Empty if no event becomes a dead letter.
    pub(super) in_flight: VecDeque<CountedRow>,
    offered: Option<OfferedRow>,
}

impl PendingAccount {
    pub(crate) fn new(shared: Arc<SentAccount>) -> Self {
        Self {
            shared,
            generation: 0,
            rows: AccountedRows::new(),
            entries: VecDeque::new(),
            counted_before: 0,
            diverted: BTreeSet::new(),
            in_flight: VecDeque::new(),
            offered: None,
        }
    }

    /// Begins a connection, after [`SentAccount::begin`].
    pub(crate) fn connected(&mut self) {
        let (generation, upto) = {
            let state = lock(&self.shared.state);
            (state.generation, state.upto.get())
        };
        if self.generation != generation {
            self.generation = generation;
            self.forget();
        }
        self.counted_before = self.counted_before.max(upto);
    }

    /// Learns the columns of an outbox table.
    pub(crate) fn announce(&mut self, relation: &Relation<'_>) {
        self.rows.announce(relation, &self.shared.columns);
    }

    /// Forgets the announced tables: the server announces them again on each connection.
    pub(crate) fn clear_tables(&mut self) {
        self.rows.clear();
    }

    /// Reads a row that is offered to the sink, or passed over.
    pub(crate) fn offer(
        &mut self,
        position: EventPosition,
        relation: RelationId,
        tuple: &Tuple<'_>,
    ) {
        if self
            .offered
            .as_ref()
            .is_some_and(|row| row.position == position)
        {
            return;
        }
        let row = (position.lsn >= self.counted_before)
            .then(|| self.rows.read(relation, tuple))
            .flatten();
        self.offered = Some(OfferedRow { position, row });
    }

    /// Counts the row that was offered: the sink took its record, or it needs none. `diverted`: its
    /// record is a dead letter.
    pub(crate) fn keep_offered(&mut self, diverted: bool) {
        let Some(OfferedRow { position, row }) = self.offered.take() else {
            return;
        };
        // The transaction may be read again, and its row be sent this time.
        if diverted {
            self.diverted.insert(position);
        } else {
            self.diverted.remove(&position);
        }
        let Some((bucket, row)) = row else { return };
        let mut sum = BucketSum::default();
        if diverted {
            sum.diverted = row;
        } else {
            sum.sent = row;
            if self.shared.writes_dead_letters {
                self.in_flight.push_back(CountedRow {
                    position,
                    relation: bucket.relation,
                    number: bucket.number,
                    // Each is the sum of one number.
                    high: row.high as i64,
                    low: row.low as i64,
                });
            }
        }
        match self.entries.back_mut() {
            Some(last) if last.commit == position.lsn && last.bucket == bucket => last.sum.add(sum),
            _ => self.entries.push_back(Entry {
                commit: position.lsn,
                bucket,
                sum,
            }),
        }
    }

    /// Counts an event as diverted that was counted as sent: a dead letter takes the place of its record.
    ///
    /// A topic that is given up may divert all events in flight, so no step here looks at each of them.
    pub(crate) fn divert(&mut self, event: EventPosition) {
        if !self.diverted.insert(event) {
            return;
        }
        let in_flight = &self.in_flight;
        let Ok(at) = in_flight.binary_search_by_key(&event, |row| row.position) else {
            return;
        };
        let Some(counted) = in_flight.get(at) else {
            return;
        };
        let row = RowSum {
            rows: 1,
            high: counted.high.into(),
            low: counted.low.into(),
        };
        let first = self
            .entries
            .partition_point(|entry| entry.commit < event.lsn);
        let entries = self.entries.range_mut(first..);
        let mut entries = entries.take_while(|entry| entry.commit == event.lsn);
        let entry = entries.find(|entry| {
            entry.bucket.relation == counted.relation && entry.bucket.number == counted.number
        });
        if let Some(entry) = entry {
            entry.sum.sent.subtract(row);
            entry.sum.diverted.add(row);
        }
    }

    /// Counts the row that was offered as before: its record was taken, or acknowledged.
    pub(crate) fn keep_acknowledged(&mut self) {
        let position = self.offered.as_ref().map(|row| row.position);
        let diverted = position.is_some_and(|position| self.diverted.contains(&position));
        self.keep_offered(diverted);
    }

    /// Counts the row that was offered, which the sink had before this process began. Whether it
    /// became a dead letter is unknown, so it is not counted if it may be one.
    pub(crate) fn keep_stored(&mut self) {
        if self.shared.writes_dead_letters {
            self.offered = None;
        } else {
            self.keep_offered(false);
        }
    }

    /// Notes that all rows of the transaction, whose commit record begins here, are counted.
    pub(crate) fn committed(&mut self, commit: Lsn) {
        self.counted_before = self.counted_before.max(commit.get() + 1);
    }

    /// Passes on the sums of the transactions before `confirmed`, which are acknowledged. `first`: the
    /// event of the first record in flight.
    pub(crate) fn release(&mut self, confirmed: Lsn, first: Option<EventPosition>) {
        match first {
            Some(first) => {
                let before = self.in_flight.partition_point(|row| row.position < first);
                self.in_flight.drain(..before);
            }
            None => self.in_flight.clear(),
        }
        let is_acknowledged = |entry: &Entry| entry.commit < confirmed.get();
        if !self.entries.front().is_some_and(is_acknowledged) {
            return;
        }
        let mut state = lock(&self.shared.state);
        // Otherwise the source began anew meanwhile: the sums are those of another stream.
        let is_same = state.counts && state.generation == self.generation;
        while self.entries.front().is_some_and(is_acknowledged)
            && let Some(entry) = self.entries.pop_front()
        {
            if is_same {
                state.sums.entry(entry.bucket).or_default().add(entry.sum);
            }
        }
        state.upto = state.upto.max(confirmed);
        self.diverted
            .retain(|position| position.lsn >= confirmed.get());
    }

    /// Forgets the sums of the transaction of this event and of later ones: they are read again.
    ///
    /// Dead letters stay known. After a lost connection one may be acknowledged before its transaction is
    /// read again, and the core of the next sink passes over its row.
    pub(crate) fn forget_from(&mut self, event: EventPosition) {
        self.offered = None;
        let is_later = |entry: &Entry| entry.commit >= event.lsn;
        while self.entries.back().is_some_and(is_later) {
            self.entries.pop_back();
        }
        self.counted_before = self.counted_before.min(event.lsn);
        let kept = self
            .in_flight
            .partition_point(|row| row.position.lsn < event.lsn);
        self.in_flight.truncate(kept);
    }

    /// Forgets all that is not acknowledged: it is read again.
    pub(crate) fn forget(&mut self) {
        self.offered = None;
        self.entries.clear();
        self.counted_before = 0;
        self.diverted.clear();
        self.in_flight.clear();
    }
}

// Not derived: sums are made of values of rows.
impl fmt::Debug for PendingAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingAccount")
            .field("entries", &self.entries.len())
            .finish_non_exhaustive()
    }
}
