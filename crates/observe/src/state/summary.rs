//! The summary that the relay logs once a minute under load.

use std::time::{Duration, Instant};

use walrelay_relay::Progress;

use crate::Latencies;

/// Shortest time between two summaries.
const INTERVAL: Duration = Duration::from_secs(60);

/// Totals since the last summary.
#[derive(Debug, PartialEq)]
pub(crate) struct Summary {
    /// Records that the sink has acknowledged.
    pub records: u64,
    pub transactions: u64,
    /// Commit to acknowledgement in milliseconds, p50 and p99; `None` without a sample.
    pub commit_to_ack_ms: Option<(f64, f64)>,
}

/// Counts and latencies since the last summary.
#[derive(Debug, Default)]
pub(crate) struct Summaries {
    /// Beginning of the current minute; `None` while nothing was relayed.
    since: Option<Instant>,
    /// Records and transactions at the last call. They begin at zero with each sink.
    last: (u64, u64),
    records: u64,
    transactions: u64,
    latencies: Latencies,
}

impl Summaries {
    /// Adds the latency of a sampled transaction.
    pub(crate) fn acknowledged(&mut self, latency: Duration) {
        self.latencies.record(latency);
    }

    /// Takes the progress with the present sink at `now`. Returns a summary if one is due; there is none for an
    /// idle minute.
    pub(crate) fn due(&mut self, progress: &Progress, now: Instant) -> Option<Summary> {
        let (mut records, mut transactions) = self.last;
        let now_is = (progress.acknowledged(), progress.counts.transactions);
        if now_is.0 < records || now_is.1 < transactions {
            // The counts begin at zero with a new sink.
            (records, transactions) = (0, 0);
        }
        self.records += now_is.0 - records;
        self.transactions += now_is.1 - transactions;
        self.last = now_is;
        if self.records == 0 {
            // The minute begins with the first record after an idle time.
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < INTERVAL {
            return None;
        }
        let latencies = std::mem::take(&mut self.latencies);
        self.since = Some(now);
        Some(Summary {
            records: std::mem::take(&mut self.records),
            transactions: std::mem::take(&mut self.transactions),
            commit_to_ack_ms: latencies.p50_p99_ms(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_lsn::{CommitEnd, Lsn};
    use walrelay_relay::Counts;

    /// Returns counts of so many records acknowledged, and 3 more in flight.
    fn counts(records: u64, transactions: u64) -> Progress {
        Progress {
            counts: Counts {
                records: records + 3,
                transactions,
                ..Counts::default()
            },
            received: Lsn::ZERO,
            confirmed: CommitEnd::from_slot(Lsn::ZERO),
            in_flight: 3,
            first: None,
            oldest: None,
        }
    }

    #[test]
    fn there_is_a_summary_a_minute_while_there_is_load_and_none_when_idle() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut summaries = Summaries::default();
        for second in 0..600 {
            assert_eq!(summaries.due(&counts(0, 0), at(second)), None, "idle");
        }
        let mut logged = Vec::new();
        summaries.acknowledged(Duration::from_millis(2));
        for second in 0..150 {
            let counts = counts(10 * (second + 1), second + 1);
            logged.extend(summaries.due(&counts, at(600 + second)));
        }
        let [first, second] = &logged[..] else {
            panic!("{logged:?}");
        };
        assert_eq!((first.records, first.transactions), (610, 61));
        assert_eq!((second.records, second.transactions), (600, 60));
        let (p50, _) = first.commit_to_ack_ms.unwrap();
        assert!((1.9..2.1).contains(&p50), "{p50}");
        assert_eq!(second.commit_to_ack_ms, None);
        // The rest of the last minute, once; then nothing.
        let idle = (750..2_000).filter_map(|second| summaries.due(&counts(1_500, 150), at(second)));
        let rest: Vec<u64> = idle.map(|summary| summary.records).collect();
        assert_eq!(rest, [290]);
    }

    #[test]
    fn the_figures_of_a_new_sink_begin_at_zero() {
        let start = Instant::now();
        let mut summaries = Summaries::default();
        assert_eq!(summaries.due(&counts(100, 10), start), None);
        assert_eq!(summaries.due(&counts(5, 1), start), None);
        let summary = summaries.due(&counts(7, 2), start + INTERVAL).unwrap();
        assert_eq!((summary.records, summary.transactions), (107, 12));
    }
}
