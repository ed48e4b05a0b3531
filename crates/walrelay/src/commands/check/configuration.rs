//! The checks of the file: what can be said of it without a server.

use walrelay_event_router::Router;
use walrelay_kafka_sink::KafkaConfig;
use walrelay_walsender::ConnInfo;

use super::item::{Check, Item};
use crate::cli::Failure;
use crate::commands::Env;
use crate::commands::connect::{conn_info, kafka, registry, router};
use crate::config::{Config, SinkConfig, SnapshotMode};
use crate::failures;
use crate::postgres::read_state_file;
use crate::registry::Registry;

/// What the file comes to, as far as it can be used.
pub(super) struct Usable {
    pub(super) info: Option<ConnInfo>,
    pub(super) router: Option<Router>,
    pub(super) kafka: Option<KafkaConfig>,
    pub(super) registry: Option<Registry>,
    /// The position in the state file.
    pub(super) known: Option<walrelay_lsn::Lsn>,
}

/// Everything that is wrong with a file that cannot be used.
pub(super) fn refused(failures: &[Failure]) -> Vec<Check> {
    let checks = failures.iter();
    checks
        .map(|failure| Check::failed(Item::File, failure))
        .collect()
}

/// Makes of the file what the other checks need.
pub(super) fn look(config: &Config, env: Env<'_>, checks: &mut Vec<Check>) -> Usable {
    let fine = "every key is known, every value possible";
    checks.push(Check::pass(Item::File, fine));
    let info = noted(checks, Item::Url, conn_info(&config.source, env), |info| {
        info.redacted()
    });
    let router = noted(checks, Item::Routes, router(config), |_| {
        "they can be compiled".to_owned()
    });
    let kafka = match &config.sink {
        SinkConfig::Kafka(sink) => {
            let item = Item::KafkaProperties;
            let kafka = noted(checks, item, kafka(sink, &config.delivery), |kafka| {
                kafka.bootstrap_servers().to_owned()
            });
            let warnings = kafka.iter().flat_map(KafkaConfig::warnings);
            checks.extend(warnings.map(|warning| {
                let remedy = "remove the property from [sink.kafka], or set SASL_SSL";
                Check::warn(item, warning, remedy)
            }));
            kafka
        }
        SinkConfig::Stdout { .. } => None,
    };
    let registry = config.registry.as_ref().and_then(|_| {
        noted(checks, Item::RegistryAuthority, registry(config), |_| {
            "it can be used".to_owned()
        })
    });
    let known = config.source.state_file.as_ref().and_then(|path| {
        let read = read_state_file(path).map_err(|error| failures::postgres(error.into()));
        let position = noted(checks, Item::StateFile, read, |found| match found {
            Some(found) => format!("its position is {}", found.confirmed),
            None => "there is none yet: run makes it".to_owned(),
        });
        Some(position??.confirmed)
    });
    // Nothing on the server tells a slot that was dropped from one that was never made (ADR 28).
    if config.source.snapshot != SnapshotMode::Never && config.source.state_file.is_none() {
        let finding = "without state_file a slot that is dropped later looks like an interrupted snapshot: \
                       all rows are read again, and what is in no table any more is missing unnoticed";
        let remedy = "set source.state_file; or, once the slot is there, remove source.snapshot";
        checks.push(Check::warn(Item::StateFile, finding, remedy));
    }
    Usable {
        info,
        router: router.map(|(router, _)| router),
        kafka,
        registry: registry.flatten(),
        known,
    }
}

/// The value. What is said of it, or why there is none, is added to the checks.
fn noted<T>(
    checks: &mut Vec<Check>,
    item: Item,
    result: Result<T, Failure>,
    said: impl FnOnce(&T) -> String,
) -> Option<T> {
    checks.push(match &result {
        Ok(value) => Check::pass(item, said(value)),
        Err(failure) => Check::failed(item, failure),
    });
    result.ok()
}
