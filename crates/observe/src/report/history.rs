//! The samples of `/api/history`: one for each second, and one for each minute.

use serde::{Deserialize, Serialize};

/// One second: its end, records acknowledged in it, median and 99th percentile of commit to
/// acknowledgement in milliseconds, lag in seconds.
pub(crate) type Sample = (u64, f64, Option<f64>, Option<f64>, f64);

/// The document of `/api/history`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct History {
    pub interval_ms: u64,
    /// Samples, the oldest first.
    pub samples: Vec<Sample>,
    /// The last six hours, one sample for each minute, the oldest first: its end, the mean rate, the
    /// median of the medians, the greatest 99th percentile and the greatest lag. With
    /// `source.state_file` those of before the start, too.
    #[serde(default)]
    pub minutes: Vec<Sample>,
}
