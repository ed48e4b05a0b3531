use std::time::Duration;

use hdrhistogram::Histogram;

use super::report::Quantiles;

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
