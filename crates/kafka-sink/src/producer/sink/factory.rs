//! [`KafkaSinkFactory`]: the sinks of one configuration.

use std::sync::Arc;

use walrelay_sink::{Deliveries, Disposition, SinkFactory, SinkStats, StreamStart};

use super::KafkaSink;
use crate::config::KafkaConfig;
use crate::error::KafkaError;

/// Creates [`KafkaSink`]s of one configuration.
#[derive(Debug)]
pub struct KafkaSinkFactory {
    config: KafkaConfig,
    two_modes: bool,
    stats: Arc<SinkStats>,
}

impl KafkaSinkFactory {
    /// Creates a factory of sinks with two producers, one for latency and one for throughput; with
    /// a single one if the configuration fixes a linger. Does not connect.
    pub fn new(config: KafkaConfig) -> Self {
        Self {
            config,
            two_modes: true,
            stats: Arc::default(),
        }
    }

    /// Makes sinks with a single producer, whatever the configuration.
    #[must_use]
    pub fn with_one_producer(self) -> Self {
        Self {
            two_modes: false,
            ..self
        }
    }

    /// Returns the figures of the factory's sinks.
    pub fn stats(&self) -> Arc<SinkStats> {
        Arc::clone(&self.stats)
    }

    /// Counts in `stats`, and enables librdkafka's statistics.
    #[must_use]
    pub fn with_stats(self, stats: Arc<SinkStats>) -> Self {
        Self {
            config: self.config.with_statistics(),
            stats,
            ..self
        }
    }
}

impl SinkFactory for KafkaSinkFactory {
    type Sink = KafkaSink;
    type Error = KafkaError;

    /// Reads certificates and starts the client's threads, which resolve and connect in the
    /// background.
    fn create(
        &mut self,
        _: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<KafkaSink, KafkaError> {
        let stats = Arc::clone(&self.stats);
        let linger = self.config.bulk_linger().filter(|_| self.two_modes);
        if linger.is_some() {
            return KafkaSink::gated(&self.config, linger, deliveries, stats);
        }
        // A single producer needs no gates: it has one request in flight, and fills the next
        // meanwhile.
        let client = self.config.client_config();
        KafkaSink::new(&self.config, &client, None, None, deliveries, stats)
    }

    fn disposition(error: &KafkaError) -> Disposition {
        error.disposition()
    }
}
