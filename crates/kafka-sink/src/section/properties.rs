//! `[sink.kafka]`: properties of librdkafka, checked against librdkafka and the relay's guarantees.

use std::collections::BTreeMap;
use std::fmt;

use walrelay_settings::{Reader, Value, names_a_secret};

use crate::{KafkaConfig, KafkaConfigError};

/// The section whose keys are passed to librdkafka.
pub const PASS_THROUGH: &str = "sink.kafka";

/// The names of the property that lists the brokers.
const BROKERS: [&str; 2] = ["bootstrap.servers", "metadata.broker.list"];

/// Properties of librdkafka by name. `Debug` hides values of properties whose names are those of
/// secrets.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct KafkaProperties(pub BTreeMap<String, String>);

impl fmt::Debug for KafkaProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let properties = self.0.iter().map(|(name, value)| {
            let secret = names_a_secret(name);
            (name, if secret { "[REDACTED]" } else { value.as_str() })
        });
        f.debug_map().entries(properties).finish()
    }
}

/// Reads the section as strings. `<property>_file` names a file with the value.
pub(super) fn properties(reader: &mut Reader<'_>) -> KafkaProperties {
    let mut properties = BTreeMap::new();
    for (name, entry) in reader.below(PASS_THROUGH) {
        let path = path_of(&name);
        let (name, value) = match name.strip_suffix("_file") {
            Some(base) if reader.has(&path_of(base)) => {
                reader.both(&path_of(base), &path);
                continue;
            }
            Some(base) => (base, reader.content(&path, &entry)),
            None => (name.as_str(), reader.scalar(&path, &entry)),
        };
        if let Ok(value) = value {
            properties.insert(name.to_owned(), value);
        }
    }
    KafkaProperties(properties)
}

/// Notes the problems of properties, each at its place.
pub(super) fn check(reader: &mut Reader<'_>, properties: &KafkaProperties) {
    let mut named = BROKERS.iter().any(|name| reader.has(&path_of(name)));
    for (property, error) in KafkaConfig::problems(&properties.0) {
        let direct = reader.raw(&path_of(&property));
        let in_file = direct.is_none();
        let Some(entry) = direct.or_else(|| reader.raw(&path_of(&format!("{property}_file"))))
        else {
            continue;
        };
        // librdkafka's message contains the value, which may come from a file or an environment
        // variable.
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
        reader.note(&entry.origin, "kafka-property", what, help);
    }
    if !named {
        reader.missing(&path_of(BROKERS[0]), "\"localhost:9092\"");
    }
}

fn path_of(property: &str) -> String {
    format!("{PASS_THROUGH}.{property}")
}
