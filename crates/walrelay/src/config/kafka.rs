//! `[sink.kafka]`: each property held against what librdkafka takes and what the relay promises.

use walrelay_kafka_sink::{KafkaConfig, KafkaConfigError};

use super::document::Value;
use super::keys::PASS_THROUGH;
use super::reader::Reader;
use super::types::KafkaProperties;

/// The names of the property without which there is no broker to ask.
const BROKERS: [&str; 2] = ["bootstrap.servers", "metadata.broker.list"];

/// Notes what is wrong with single properties, where they stand.
pub(super) fn check(reader: &mut Reader<'_>, properties: &KafkaProperties) {
    let mut named = BROKERS.iter().any(|name| reader.has(&path_of(name)));
    for (property, error) in KafkaConfig::problems(&properties.0) {
        let path = path_of(&property);
        let file = format!("{path}_file");
        let in_file = reader.entry_of(&path).is_none();
        let Some(entry) = reader.entry_of(if in_file { &file } else { &path }) else {
            continue;
        };
        // librdkafka's words hold the value, which may come from a file or from the environment.
        let shown = match &entry.value {
            Value::Text(text) => !in_file && reader.is_as_written(&entry.origin, text),
            _ => true,
        };
        let what = match &error {
            KafkaConfigError::Invalid { .. } if !shown => {
                format!("{property}: librdkafka does not accept the value")
            }
            error => error.to_string(),
        };
        if let KafkaConfigError::Unknown {
            nearest: Some(meant),
            ..
        } = &error
        {
            named |= BROKERS.contains(&&**meant);
        }
        let help = Some(error.remedy());
        reader.note(&entry.origin, None, "kafka-property", what, help);
    }
    if !named {
        reader.missing(&path_of(BROKERS[0]), "\"localhost:9092\"");
    }
}

fn path_of(property: &str) -> String {
    format!("{PASS_THROUGH}.{property}")
}
