//! The checks of the schema registry. They register nothing.

use walrelay_schema_registry::Registry;

use super::item::{Check, Checks, Item};
use crate::config::PipelineConfig;
use crate::failures;

/// Checks that the registry answers, and that it has the schemas that the configuration names.
pub(super) fn check(registry: &Registry, config: &PipelineConfig) -> Checks {
    let mut checks = vec![match registry.ping() {
        Ok(()) => (Item::RegistryServer, Check::pass("it answers")),
        Err(error) => return vec![(Item::RegistryServer, Check::failed(failures::schema(error)))],
    }];
    let configured = config.registry.as_ref();
    let registers = configured.is_some_and(|config| config.register);
    for (subject, known) in registry.known() {
        let check = match known {
            Ok(Some(id)) => Check::pass(format!("of {subject}: known, its id is {id}")),
            Ok(None) if registers => {
                Check::pass(format!("of {subject}: not known, run registers it"))
            }
            Ok(None) => Check::failed(failures::unregistered(subject)),
            Err(error) => Check::failed(failures::schema(error)),
        };
        checks.push((Item::Schema, check));
    }
    checks
}
