//! The configured sink, and the sinks of the binary itself: standard output, a wrapper that
//! counts, and one that discards.

mod counting;
mod null;
mod refusal;
mod stdout;

pub(crate) use counting::{Count, Counting};
pub(crate) use null::NullSinkFactory;
pub(crate) use refusal::{check_abilities, refused};
pub(crate) use stdout::{StdoutKind, record_line};

use walrelay_kafka_sink::{KafkaKind, KafkaOptions};
use walrelay_sink::{KindDescription, SinkFailure, SinkKind};

use crate::cli::Failure;
use crate::config::{Delivery, PipelineConfig, SinkConfig};

/// The kinds of sinks.
#[cfg(test)]
pub(crate) const KINDS: [&KindDescription; 2] = [&KafkaKind::DESCRIPTION, &StdoutKind::DESCRIPTION];

/// Returns the kind of a configuration's sink, and the sink, or why its section cannot be used.
pub(crate) fn described_sink(
    config: &PipelineConfig,
) -> (
    &'static KindDescription,
    Result<Box<dyn SinkKind>, SinkFailure>,
) {
    let delivery = &config.delivery;
    match &config.sink {
        SinkConfig::Kafka(section) => {
            let sink = KafkaKind::new(section, kafka_options(delivery));
            (&KafkaKind::DESCRIPTION, sink.map(boxed))
        }
        SinkConfig::Stdout { .. } => (
            &StdoutKind::DESCRIPTION,
            Ok(boxed(StdoutKind::new(delivery))),
        ),
    }
}

/// Makes the sink of a configuration.
///
/// # Errors
/// If its section cannot be used.
pub(crate) fn any_sink(config: &PipelineConfig) -> Result<Box<dyn SinkKind>, Failure> {
    Ok(described_sink(config).1?)
}

/// Makes the sink of a configuration that it can carry out.
///
/// # Errors
/// If its section cannot be used, or the configuration asks for what the sink cannot do.
pub(crate) fn configured_sink(config: &PipelineConfig) -> Result<Box<dyn SinkKind>, Failure> {
    let sink = any_sink(config)?;
    check_abilities(config, &*sink)?;
    Ok(sink)
}

fn boxed(sink: impl SinkKind + 'static) -> Box<dyn SinkKind> {
    Box::new(sink)
}

fn kafka_options(delivery: &Delivery) -> KafkaOptions {
    KafkaOptions {
        max_in_flight_records: u64::from(delivery.max_in_flight_records),
        max_in_flight_bytes: delivery.max_in_flight_bytes,
        bulk_linger: Some(delivery.bulk_linger),
        topics: None,
    }
}
