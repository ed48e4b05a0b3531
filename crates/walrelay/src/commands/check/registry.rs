//! The checks of the schema registry. Nothing is registered.

use super::item::{Check, Item};
use crate::config::Config;
use crate::failures;
use crate::registry::{Known, Registry};

/// Requests the schemas that the configuration names.
pub(super) fn look(registry: &Registry, config: &Config) -> Vec<Check> {
    if let Err(error) = registry.ping() {
        return vec![Check::failed(
            Item::RegistryServer,
            &failures::schema(error),
        )];
    }
    let mut checks = vec![Check::pass(Item::RegistryServer, "it answers")];
    let registers = config
        .registry
        .as_ref()
        .is_some_and(|config| config.register);
    for (subject, known) in registry.known() {
        checks.push(match known {
            Ok(Known::As(id)) => {
                Check::pass(Item::Schema, format!("of {subject}: known, its id is {id}"))
            }
            Ok(Known::No) if registers => Check::pass(
                Item::Schema,
                format!("of {subject}: not known, run registers it"),
            ),
            Ok(Known::No) => Check::failed(Item::Schema, &failures::unregistered(subject)),
            Err(error) => Check::failed(Item::Schema, &failures::schema(error)),
        });
    }
    checks
}
