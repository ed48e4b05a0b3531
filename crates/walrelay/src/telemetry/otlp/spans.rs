//! A span for each batch: the records that one confirmed position covers.

use std::collections::VecDeque;
use std::sync::Mutex;

use serde_json::{Value, json};
use walrelay_pgoutput::PgTimestamp;
use walrelay_relay::Progress;

use super::attributes;
use crate::sync::lock;
use crate::telemetry::wall_clock;

/// Spans kept until the next request; older ones are dropped. A batch ends every 50 ms at most.
const MOST_SPANS: usize = 2_048;
/// `SPAN_KIND_PRODUCER`.
const PRODUCER: u8 = 4;

/// The batches that ended since the last request; `None` if no exporter takes them.
#[derive(Debug, Default)]
pub(crate) struct Spans(Option<Mutex<Batches>>);

#[derive(Debug, Default)]
struct Batches {
    ended: VecDeque<Batch>,
    /// The last progress and when it was reported.
    last: Option<(Progress, PgTimestamp)>,
}

#[derive(Debug)]
struct Batch {
    began: PgTimestamp,
    ended: PgTimestamp,
    confirmed: String,
    records: u64,
    transactions: u64,
}

impl Spans {
    /// Collects batches if `collects`.
    pub(crate) fn new(collects: bool) -> Self {
        Self(collects.then(Mutex::default))
    }

    /// Ends a batch if the confirmed position has moved.
    pub(crate) fn progress(&self, progress: &Progress) {
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
        if batches.ended.len() == MOST_SPANS {
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

    /// Takes the spans of OTLP's `ScopeSpans`; each is a trace of its own.
    pub(super) fn take(&self) -> Vec<Value> {
        let Some(batches) = &self.0 else {
            return Vec::new();
        };
        let mut batches = lock(batches);
        let ended = std::mem::take(&mut batches.ended);
        ended.iter().map(Batch::span).collect()
    }
}

impl Batch {
    fn span(&self) -> Value {
        let nanos = |time: PgTimestamp| {
            (i128::from(time.unix_micros().unwrap_or_default()) * 1000).to_string()
        };
        json!({
            // The specification forbids ids of zero.
            "traceId": format!("{:032x}", fastrand::u128(1..)),
            "spanId": format!("{:016x}", fastrand::u64(1..)),
            "name": "walrelay batch",
            "kind": PRODUCER,
            "startTimeUnixNano": nanos(self.began),
            "endTimeUnixNano": nanos(self.ended),
            "attributes": attributes([
                ("messaging.system", "kafka"),
                ("messaging.batch.message_count", &*self.records.to_string()),
                ("walrelay.transactions", &*self.transactions.to_string()),
                ("walrelay.confirmed_lsn", &*self.confirmed),
            ]),
            "status": {},
        })
    }
}
