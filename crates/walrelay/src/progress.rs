//! What a run that is well says in the log: the first event, and a summary a minute while there is load.

use std::time::{Duration, Instant};

use walrelay_relay::Counts;

use crate::telemetry::Latencies;

/// Least time between two summaries.
const INTERVAL: Duration = Duration::from_secs(60);

/// What was relayed since the summary before.
#[derive(Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) records: u64,
    pub(crate) transactions: u64,
    /// From commit to acknowledgement in milliseconds, p50 and p99; `None` without a sample.
    pub(crate) commit_to_ack_ms: Option<(f64, f64)>,
}

/// Counts and latencies since the last summary.
#[derive(Debug)]
pub(crate) struct Progress {
    since: Option<Instant>,
    /// As they were given last. They begin at zero with each sink.
    seen: (u64, u64),
    records: u64,
    transactions: u64,
    latencies: Latencies,
}

impl Progress {
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

    /// The figures of the sink at `now`. A summary, where one is due: nothing is said of an idle minute.
    pub(crate) fn at(&mut self, counts: &Counts, now: Instant) -> Option<Summary> {
        let (records, transactions) = self.seen;
        let afresh = counts.records < records || counts.transactions < transactions;
        let (records, transactions) = if afresh { (0, 0) } else { self.seen };
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
        let mut progress = Progress::new();
        for second in 0..600 {
            assert_eq!(progress.at(&counts(0, 0), at(second)), None, "idle");
        }
        let mut said = Vec::new();
        progress.acknowledged(Duration::from_millis(2));
        for second in 0..150 {
            let counts = counts(10 * (second + 1), second + 1);
            said.extend(progress.at(&counts, at(600 + second)));
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
        let idle = (750..2_000).filter_map(|second| progress.at(&counts(1_500, 150), at(second)));
        let rest: Vec<u64> = idle.map(|summary| summary.records).collect();
        assert_eq!(rest, [290]);
    }

    #[test]
    fn the_figures_of_a_new_sink_begin_at_zero() {
        let start = Instant::now();
        let mut progress = Progress::new();
        assert_eq!(progress.at(&counts(100, 10), start), None);
        assert_eq!(progress.at(&counts(5, 1), start), None);
        let summary = progress.at(&counts(7, 2), start + INTERVAL).unwrap();
        assert_eq!((summary.records, summary.transactions), (107, 12));
    }
}
