//! The configured sink, and the sinks of the binary itself: standard output, a wrapper that
//! counts, and one that discards.

mod counting;
mod kafka;
mod kind;
mod null;
mod stdout;

pub(crate) use counting::{Count, Counting};
use kafka::KafkaKind;
pub(crate) use kafka::kafka;
pub(crate) use kind::{DeadLetterStore, SinkKind};
pub(crate) use null::NullSinkFactory;
pub(crate) use stdout::{StdoutKind, record_line};

use crate::cli::Failure;
use crate::config::{Config, SinkConfig};

/// Makes the sink of a configuration.
///
/// # Errors
/// If its section cannot be used.
pub(crate) fn configured_sink(config: &Config) -> Result<Box<dyn SinkKind>, Failure> {
    Ok(match &config.sink {
        SinkConfig::Kafka(section) => Box::new(KafkaKind::new(section, &config.delivery)?),
        SinkConfig::Stdout { .. } => Box::new(StdoutKind::new(&config.delivery)),
    })
}
