//! Collects the batches for OpenTelemetry's spans: the records that one confirmed position covers.

use std::collections::VecDeque;
use std::sync::Mutex;

use walrelay_pgoutput::PgTimestamp;
use walrelay_relay::Progress;

use super::wall_clock;
use walrelay_sink::lock;

/// Batches kept until the next request; older ones are dropped. A batch ends every 50 ms at most.
const MOST_BATCHES: usize = 2_048;

/// The batches that ended since the last request; `None` if no exporter takes them.
#[derive(Debug, Default)]
pub(super) struct Batches(Option<Mutex<Collected>>);

#[derive(Debug, Default)]
struct Collected {
    ended: VecDeque<Batch>,
    /// The last progress and when it was reported.
    last: Option<(Progress, PgTimestamp)>,
}

#[derive(Debug)]
pub(super) struct Batch {
    pub(super) began: PgTimestamp,
    pub(super) ended: PgTimestamp,
    pub(super) confirmed: String,
    pub(super) records: u64,
    pub(super) transactions: u64,
}

impl Batches {
    /// Collects batches if `collects`.
    pub(super) fn new(collects: bool) -> Self {
        Self(collects.then(Mutex::default))
    }

    /// Ends a batch if the confirmed position has moved.
    pub(super) fn progress(&self, progress: &Progress) {
        let Some(batches) = &self.0 else {
            return;
        };
        let now = wall_clock();
        let mut batches = lock(batches);
        let before = batches.last.replace((*progress, now));
        let Some((before, at)) = before else {
            return;
        };
        // The counts begin at zero with a new sink.
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let records = since(progress.counts.records, before.counts.records);
        if progress.confirmed == before.confirmed || records == 0 && before.in_flight == 0 {
            return;
        }
        if batches.ended.len() == MOST_BATCHES {
            batches.ended.pop_front();
        }
        batches.ended.push_back(Batch {
            // The server's clock may be ahead of this machine's.
            began: before.oldest.unwrap_or(at).min(now),
            ended: now,
            confirmed: progress.confirmed.to_string(),
            records,
            transactions: since(progress.counts.transactions, before.counts.transactions),
        });
    }

    /// Takes the batches that ended since the last call.
    pub(super) fn take(&self) -> VecDeque<Batch> {
        let batches = self.0.as_ref();
        batches.map_or_else(VecDeque::new, |batches| {
            std::mem::take(&mut lock(batches).ended)
        })
    }
}
