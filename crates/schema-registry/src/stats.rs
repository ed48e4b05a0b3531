//! [`RegistryStats`]: figures for metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use walrelay_relay::SchemaFailure;

/// Number of requests to a schema registry, by outcome.
#[derive(Debug, Default)]
pub struct RegistryStats {
    found: AtomicU64,
    refused: AtomicU64,
    unavailable: AtomicU64,
}

impl RegistryStats {
    /// Counts a request that got a schema, or failed.
    pub(crate) fn count(&self, failure: Option<SchemaFailure>) {
        let counter = match failure {
            None => &self.found,
            Some(SchemaFailure::Unavailable) => &self.unavailable,
            Some(_) => &self.refused,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Returns the outcomes as metrics name them, each with its number of requests.
    pub fn requests(&self) -> [(&'static str, u64); 3] {
        [
            ("found", &self.found),
            ("refused", &self.refused),
            ("unavailable", &self.unavailable),
        ]
        .map(|(outcome, count)| (outcome, count.load(Relaxed)))
    }
}
