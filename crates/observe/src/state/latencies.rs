use std::sync::Mutex;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::report::Quantiles;
use walrelay_sink::lock;

/// Half of the window of [`Latency::last_minute`].
const HALF_WINDOW: Duration = Duration::from_secs(30);

/// A histogram of latencies in microseconds.
#[derive(Debug)]
pub struct Latencies {
    micros: Histogram<u64>,
}

impl Default for Latencies {
    /// Creates an empty histogram: one microsecond to one hour, with two significant digits.
    fn default() -> Self {
        let hour = Duration::from_secs(3600).as_micros() as u64;
        let micros = Histogram::new_with_bounds(1, hour, 2)
            .unwrap_or_else(|_| unreachable!("bounds and digits are within the crate's limits"));
        Self { micros }
    }
}

impl Latencies {
    /// Adds a latency.
    pub fn record(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.micros.saturating_record(micros.max(1));
    }

    /// Returns the latency at a quantile in milliseconds; `None` without a sample.
    pub fn millis(&self, quantile: f64) -> Option<f64> {
        let any = !self.micros.is_empty();
        any.then(|| self.micros.value_at_quantile(quantile) as f64 / 1000.0)
    }

    /// Returns the median, 99th percentile and number of samples.
    pub fn quantiles(&self) -> Quantiles {
        Quantiles {
            p50_ms: self.millis(0.5),
            p99_ms: self.millis(0.99),
            samples: self.samples(),
        }
    }

    /// Returns the median and 99th percentile in milliseconds; `None` without a sample.
    pub fn p50_p99_ms(&self) -> Option<(f64, f64)> {
        self.millis(0.5).zip(self.millis(0.99))
    }

    /// Returns a histogram with the samples of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut micros = self.micros.clone();
        // Adding fails only if the bounds differ.
        let _ = micros.add(&other.micros);
        Self { micros }
    }

    /// Returns the number of latencies.
    pub fn samples(&self) -> u64 {
        self.micros.len()
    }
}

/// A latency of the running relay: the histogram of its metric, and quantiles of the last second
/// and the last minute. It is taken by the clocks of the server and of this machine.
#[derive(Debug)]
pub struct Latency {
    windows: Mutex<Windows>,
}

/// The histogram of a latency's metric.
#[derive(Debug, Clone)]
pub(crate) struct Buckets {
    /// Sum of all samples in seconds.
    pub(crate) sum: f64,
    /// Upper bounds in seconds: doubled from 0.5 ms to 65 s, then infinity. Each has the number of
    /// samples between the bound before it and this bound.
    pub(crate) counts: Vec<(f64, u64)>,
}

impl Buckets {
    pub(crate) fn samples(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }
}

#[derive(Debug)]
struct Windows {
    /// All samples.
    buckets: Buckets,
    /// Samples of the current second.
    second: Latencies,
    /// Samples of the current half of a minute.
    half: Latencies,
    /// Samples of the half of a minute before.
    last_half: Latencies,
    /// Beginning of `half`.
    half_since: Instant,
}

impl Latency {
    pub(crate) fn new() -> Self {
        let bounds = (0..18).map(|doubled| 0.0005 * f64::from(1_u32 << doubled));
        let bounds = bounds.chain([f64::INFINITY]);
        let counts = bounds.map(|bound| (bound, 0)).collect();
        Self {
            windows: Mutex::new(Windows {
                buckets: Buckets { sum: 0.0, counts },
                second: Latencies::default(),
                half: Latencies::default(),
                last_half: Latencies::default(),
                half_since: Instant::now(),
            }),
        }
    }

    pub fn record(&self, latency: Duration) {
        let mut windows = lock(&self.windows);
        let seconds = latency.as_secs_f64();
        windows.buckets.sum += seconds;
        let mut counts = windows.buckets.counts.iter_mut();
        if let Some((_, count)) = counts.find(|(bound, _)| *bound >= seconds) {
            *count += 1;
        }
        windows.second.record(latency);
        windows.half.record(latency);
    }

    pub(crate) fn buckets(&self) -> Buckets {
        lock(&self.windows).buckets.clone()
    }

    /// Returns the quantiles of the second that ends now, and begins the next one.
    pub(crate) fn end_second(&self) -> Quantiles {
        let mut windows = lock(&self.windows);
        if windows.half_since.elapsed() >= HALF_WINDOW {
            windows.last_half = std::mem::take(&mut windows.half);
            windows.half_since = Instant::now();
        }
        std::mem::take(&mut windows.second).quantiles()
    }

    /// Returns the quantiles of the last 30 to 60 seconds.
    pub(crate) fn last_minute(&self) -> Quantiles {
        let windows = lock(&self.windows);
        windows.half.plus(&windows.last_half).quantiles()
    }
}
