//! The summary that a run logs once a minute while there is load.

use std::time::{Duration, Instant};

use walrelay_relay::Counts;

use super::Latencies;

/// Least time between two summaries.
const INTERVAL: Duration = Duration::from_secs(60);

/// What was relayed since the last summary.
#[derive(Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) records: u64,
    pub(crate) transactions: u64,
    /// From commit to acknowledgement in milliseconds, p50 and p99; `None` without a sample.
    pub(crate) commit_to_ack_ms: Option<(f64, f64)>,
}

/// Counts and latencies since the last summary.
#[derive(Debug)]
pub(crate) struct Summaries {
    since: Option<Instant>,
    /// The last figures: records and transactions. They begin at zero with each sink.
    seen: (u64, u64),
    records: u64,
    transactions: u64,
    latencies: Latencies,
}

impl Summaries {
    pub(crate) fn new() -> Self {
        Self {
            since: None,
            seen: (0, 0),
            records: 0,
            transactions: 0,
            latencies: Latencies::new(),
        }
    }

    /// A sampled transaction was acknowledged.
    pub(crate) fn acknowledged(&mut self, latency: Duration) {
        self.latencies.record(latency);
    }

    /// Takes the figures of the sink at `now`. Returns a summary where one is due: none for an idle minute.
    pub(crate) fn due(&mut self, counts: &Counts, now: Instant) -> Option<Summary> {
        let (mut records, mut transactions) = self.seen;
        if counts.records < records || counts.transactions < transactions {
            // A new sink.
            (records, transactions) = (0, 0);
        }
        self.records += counts.records - records;
        self.transactions += counts.transactions - transactions;
        self.seen = (counts.records, counts.transactions);
        if self.records == 0 {
            // The minute begins with the first record after silence.
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < INTERVAL {
            return None;
        }
        let latencies = std::mem::replace(&mut self.latencies, Latencies::new());
        self.since = Some(now);
        Some(Summary {
            records: std::mem::take(&mut self.records),
            transactions: std::mem::take(&mut self.transactions),
            commit_to_ack_ms: latencies.millis(0.5).zip(latencies.millis(0.99)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(records: u64, transactions: u64) -> Counts {
        Counts {
            records,
            transactions,
            ..Counts::default()
        }
    }

    #[test]
    fn there_is_a_summary_a_minute_while_there_is_load_and_none_when_idle() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut summaries = Summaries::new();
        for second in 0..600 {
            assert_eq!(summaries.due(&counts(0, 0), at(second)), None, "idle");
        }
        let mut said = Vec::new();
        summaries.acknowledged(Duration::from_millis(2));
        for second in 0..150 {
            let counts = counts(10 * (second + 1), second + 1);
            said.extend(summaries.due(&counts, at(600 + second)));
        }
        let [first, second] = &said[..] else {
            panic!("{said:?}");
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
        let mut summaries = Summaries::new();
        assert_eq!(summaries.due(&counts(100, 10), start), None);
        assert_eq!(summaries.due(&counts(5, 1), start), None);
        let summary = summaries.due(&counts(7, 2), start + INTERVAL).unwrap();
        assert_eq!((summary.records, summary.transactions), (107, 12));
    }
}
