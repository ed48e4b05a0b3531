use std::sync::Mutex;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use prometheus_client::metrics::histogram::Histogram as Buckets;

use super::report::Quantiles;
use crate::sync::lock;

/// For how long a quantile looks back, in two halves.
const HALF_WINDOW: Duration = Duration::from_secs(30);

/// Latencies from commit to acknowledgement, by the clocks of the database and of this machine.
#[derive(Debug)]
pub(crate) struct Latencies {
    micros: Histogram<u64>,
}

impl Latencies {
    /// Up to an hour, with two digits.
    pub(crate) fn new() -> Self {
        let hour = Duration::from_secs(3600).as_micros() as u64;
        let micros = Histogram::new_with_bounds(1, hour, 2)
            .unwrap_or_else(|_| unreachable!("bounds and digits are within the crate's limits"));
        Self { micros }
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.micros.saturating_record(micros.max(1));
    }

    /// Milliseconds at a quantile, `None` without a sample.
    pub(crate) fn millis(&self, quantile: f64) -> Option<f64> {
        let any = !self.micros.is_empty();
        any.then(|| self.micros.value_at_quantile(quantile) as f64 / 1000.0)
    }

    /// Median and 99th percentile.
    pub(crate) fn quantiles(&self) -> Quantiles {
        Quantiles {
            p50_ms: self.millis(0.5),
            p99_ms: self.millis(0.99),
            samples: self.samples(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.micros.reset();
    }

    /// Those of both.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let mut micros = self.micros.clone();
        // Both have the same bounds.
        let _ = micros.add(&other.micros);
        Self { micros }
    }

    pub(crate) fn samples(&self) -> u64 {
        self.micros.len()
    }
}

/// Buckets of the latencies in seconds: doubled from 0.5 ms to 65 s.
fn buckets() -> impl Iterator<Item = f64> {
    (0..18).map(|n| 0.0005 * f64::from(1 << n))
}

/// A latency: its histogram for metrics, and quantiles of the last second and the last minute.
#[derive(Debug)]
pub(crate) struct Latency {
    pub(crate) histogram: Buckets,
    windows: Mutex<Windows>,
}

#[derive(Debug)]
struct Windows {
    second: Latencies,
    half: Latencies,
    last_half: Latencies,
    half_since: Instant,
}

impl Latency {
    pub(super) fn new() -> Self {
        Self {
            histogram: Buckets::new(buckets()),
            windows: Mutex::new(Windows {
                second: Latencies::new(),
                half: Latencies::new(),
                last_half: Latencies::new(),
                half_since: Instant::now(),
            }),
        }
    }

    pub(crate) fn record(&self, latency: Duration) {
        self.histogram.observe(latency.as_secs_f64());
        let mut windows = lock(&self.windows);
        windows.second.record(latency);
        windows.half.record(latency);
    }

    /// Of the last second; begins the next one.
    pub(super) fn end_second(&self) -> Quantiles {
        let mut windows = lock(&self.windows);
        if windows.half_since.elapsed() >= HALF_WINDOW {
            windows.last_half = std::mem::replace(&mut windows.half, Latencies::new());
            windows.half_since = Instant::now();
        }
        let quantiles = windows.second.quantiles();
        windows.second.clear();
        quantiles
    }

    /// Of the last minute.
    pub(super) fn last_minute(&self) -> Quantiles {
        let windows = lock(&self.windows);
        windows.half.plus(&windows.last_half).quantiles()
    }
}
