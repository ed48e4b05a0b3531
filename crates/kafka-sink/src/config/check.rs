//! Checks single properties.

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError as ClientError;
use walrelay_settings::nearest;

use super::error::KafkaConfigError;
use super::properties;
use super::rules::{ALIASES, OTHER_NAMES, RULES, SECRETS};

pub(super) fn check_property(property: &str, value: &str) -> Result<(), KafkaConfigError> {
    for rule in RULES {
        if rule.names().any(|name| name == property) && !(rule.allows)(value.trim()) {
            return Err(KafkaConfigError::Refused {
                property: property.to_owned(),
                reason: rule.reason,
                remedy: rule.remedy,
            });
        }
    }
    if properties::consumer().any(|known| known == property) {
        return Err(KafkaConfigError::ConsumerOnly {
            property: property.to_owned(),
        });
    }
    if let Some((_, meant)) = OTHER_NAMES.iter().find(|(other, _)| *other == property) {
        return Err(KafkaConfigError::Unknown {
            property: property.to_owned(),
            nearest: Some((*meant).to_owned()),
        });
    }
    if properties::producer().all(|known| known != property) {
        return Err(KafkaConfigError::Unknown {
            property: property.to_owned(),
            nearest: nearest(property, properties::producer()).map(str::to_owned),
        });
    }
    // librdkafka validates the value itself: setting it parses and stores it, nothing else.
    let mut config = ClientConfig::new();
    config.set(property, value);
    match config.create_native_config() {
        Ok(_) => Ok(()),
        Err(error) => Err(KafkaConfigError::Invalid {
            property: property.to_owned(),
            reason: match error {
                _ if is_secret(property) => "librdkafka does not accept the value".to_owned(),
                ClientError::ClientConfig(_, reason, ..) => as_given(property, reason),
                ClientError::Nul(_) => "the value contains a NUL".to_owned(),
                other => other.to_string(),
            },
        }),
    }
}

/// Returns librdkafka's message, with another name of the property replaced by the given one.
fn as_given(property: &str, reason: String) -> String {
    names_of(property).iter().fold(reason, |reason, name| {
        reason.replace(&format!("\"{name}\""), &format!("\"{property}\""))
    })
}

/// Returns all names of a property; empty if it has only one.
pub(super) fn names_of(property: &str) -> &'static [&'static str] {
    ALIASES
        .iter()
        .find(|names| names.contains(&property))
        .map_or(&[], |names| *names)
}

pub(super) fn is_secret(property: &str) -> bool {
    SECRETS.contains(&property)
}
