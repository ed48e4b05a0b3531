//! Collects the batches for OpenTelemetry's spans: the records that one confirmed position covers.

use std::collections::VecDeque;
use std::sync::Mutex;

use walrelay_lsn::CommitEnd;
use walrelay_relay::{PgTimestamp, Progress};

use crate::wall_clock;
use walrelay_sink::lock;

/// Batches kept until a collector takes them; older ones are dropped. A batch ends every 50 ms at most.
const MOST_BATCHES: usize = 2_048;

/// The batches that no collector has taken; `None` if no exporter takes them.
#[derive(Debug)]
pub(crate) struct Batches(Option<Mutex<Collected>>);

#[derive(Debug)]
struct Collected {
    ended: VecDeque<Batch>,
    /// The position that the last report confirmed. `None`: there was no report.
    confirmed: Option<CommitEnd>,
    /// What the ended batches include, of this sink's counts.
    records: u64,
    transactions: u64,
    /// The commit time of the oldest transaction that a report since the last batch named.
    oldest: Option<PgTimestamp>,
    /// The time of the last report, or of the start.
    at: PgTimestamp,
}

#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) began: PgTimestamp,
    pub(crate) ended: PgTimestamp,
    pub(crate) confirmed: String,
    pub(crate) records: u64,
    pub(crate) transactions: u64,
}

impl Batches {
    /// Collects batches if `collects`.
    pub(crate) fn new(collects: bool) -> Self {
        Self(collects.then(|| {
            Mutex::new(Collected {
                ended: VecDeque::new(),
                confirmed: None,
                records: 0,
                transactions: 0,
                oldest: None,
                at: wall_clock(),
            })
        }))
    }

    /// Ends a batch if the confirmed position has moved and the broker has acknowledged records since
    /// the last batch. Both may be in one report, the first too, or in two.
    pub(crate) fn progress(&self, progress: &Progress) {
        let Some(batches) = &self.0 else {
            return;
        };
        let now = wall_clock();
        let mut batches = lock(batches);
        let oldest = batches.oldest;
        let at = std::mem::replace(&mut batches.at, now);
        batches.oldest = oldest.or(progress.oldest);
        if batches.confirmed.replace(progress.confirmed) == Some(progress.confirmed) {
            return;
        }
        batches.oldest = progress.oldest;
        // The counts begin at zero with a new sink.
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let acknowledged = progress.acknowledged();
        let records = since(acknowledged, batches.records);
        let transactions = since(progress.counts.transactions, batches.transactions);
        batches.records = acknowledged;
        batches.transactions = progress.counts.transactions;
        if records == 0 {
            return;
        }
        batches.ended.push_back(Batch {
            // The server's clock may be ahead of this machine's.
            began: oldest.unwrap_or(at).min(now),
            ended: now,
            confirmed: progress.confirmed.to_string(),
            records,
            transactions,
        });
        batches.drop_oldest();
    }

    /// Takes the batches that no collector has taken.
    pub(crate) fn take(&self) -> VecDeque<Batch> {
        let batches = self.0.as_ref();
        batches.map_or_else(VecDeque::new, |batches| {
            std::mem::take(&mut lock(batches).ended)
        })
    }

    /// Gives back what `take` returned and the collector did not take.
    pub(crate) fn give_back(&self, mut taken: VecDeque<Batch>) {
        if let Some(batches) = &self.0 {
            let mut batches = lock(batches);
            taken.append(&mut batches.ended);
            batches.ended = taken;
            batches.drop_oldest();
        }
    }
}

impl Collected {
    fn drop_oldest(&mut self) {
        let surplus = self.ended.len().saturating_sub(MOST_BATCHES);
        self.ended.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use walrelay_lsn::Lsn;
    use walrelay_relay::Counts;

    use super::*;

    fn report(batches: &Batches, records: u64, in_flight: u64, confirmed: u64) {
        batches.progress(&Progress {
            counts: Counts {
                records,
                transactions: records,
                ..Counts::default()
            },
            received: Lsn::new(1_000),
            confirmed: CommitEnd::from_slot(Lsn::new(confirmed)),
            in_flight,
            first: None,
            oldest: None,
        });
    }

    fn records(batches: &Batches) -> Vec<u64> {
        let taken = batches.take();
        taken.iter().map(|batch| batch.records).collect()
    }

    #[test]
    fn a_first_report_that_confirms_ends_a_batch() {
        let batches = Batches::new(true);
        report(&batches, 500, 0, 10);
        assert_eq!(records(&batches), [500]);
    }

    #[test]
    fn records_that_one_report_acknowledges_and_the_next_confirms_are_a_batch() {
        let batches = Batches::new(true);
        report(&batches, 0, 0, 10);
        report(&batches, 7, 3, 10);
        report(&batches, 7, 0, 10);
        report(&batches, 7, 0, 20);
        // A position without a record.
        report(&batches, 7, 0, 30);
        // A new sink.
        report(&batches, 2, 0, 40);
        assert_eq!(records(&batches), [7, 2]);
    }

    #[test]
    fn batches_that_a_collector_refuses_stay_the_first() {
        let batches = Batches::new(true);
        report(&batches, 1, 0, 10);
        let refused = batches.take();
        report(&batches, 3, 0, 20);
        batches.give_back(refused);
        assert_eq!(records(&batches), [1, 2]);
    }
}
