//! The checks of the configuration file that need no server.

use walrelay_event_router::Router;
use walrelay_failure::Failure;
use walrelay_postgres_source::{Position, PostgresError, check_state_file, read_state_file};
use walrelay_schema_registry::Registry;
use walrelay_sink_kind::SinkKind;
use walrelay_walsender::ConnInfo;

use super::item::{Check, Checks, Item};
use crate::commands::EnvVars;
use crate::commands::assembly::sink::check_abilities;
use crate::commands::assembly::{PLAIN_TEXT, conn_info, registry, router};
use crate::config::{PipelineConfig, SnapshotMode};

const PLAIN_REMEDY: &str =
    "set sslmode=verify-full in [source] url, and sslrootcert if its authority is your own";

/// The parts of the configuration that the other checks use; `None` for those that cannot be used.
pub(super) struct Usable {
    pub(super) info: Option<ConnInfo>,
    pub(super) router: Option<Router>,
    pub(super) sink: Option<Box<dyn SinkKind>>,
    pub(super) registry: Option<Registry>,
    /// The content of the state file.
    pub(super) known: Option<Position>,
}

/// Checks a file that was loaded, and makes the parts that the other checks use.
pub(super) fn check(config: &PipelineConfig, env: EnvVars<'_>, checks: &mut Checks) -> Usable {
    let finding = "every key is known, every value possible";
    checks.push((Item::File, Check::pass(finding)));
    let info = add_check(checks, Item::Url, conn_info(&config.source, env), |info| {
        info.redacted()
    });
    if let Some(info) = &info
        && info.may_be_plain()
    {
        checks.push((Item::Url, Check::warn(PLAIN_TEXT, PLAIN_REMEDY)));
    }
    let router = add_check(checks, Item::Routes, router(config), |_| {
        "they can be compiled".to_owned()
    });
    let sink = check_sink(config, checks);
    let registry = config.registry.as_ref().and_then(|_| {
        add_check(checks, Item::RegistryAuthority, registry(config), |_| {
            "it can be used".to_owned()
        })
    });
    let known = config.source.state_file.as_ref().and_then(|path| {
        let read = read_state_file(path).and_then(|found| {
            if let Some(found) = &found {
                found.check_owner(path, &config.source.slot, None)?;
            }
            check_state_file(path)?;
            Ok(found)
        });
        let read = read.map_err(|error| Failure::from(PostgresError::from(error)));
        let position = add_check(checks, Item::StateFile, read, |found| match found {
            Some(found) => format!("its position is {}", found.confirmed),
            None => "there is none yet: run makes it".to_owned(),
        });
        position?
    });
    // The server does not show whether a slot was dropped or never created (ADR 28).
    if config.source.snapshot != SnapshotMode::Never && config.source.state_file.is_none() {
        let finding = "without state_file a slot that is dropped later looks like an interrupted \
                       snapshot: all rows are read again, and deleted rows are missing unnoticed";
        let remedy = "set source.state_file; or, once the slot is there, remove source.snapshot";
        checks.push((Item::StateFile, Check::warn(finding, remedy)));
    }
    if config
        .poison
        .value
        .as_ref()
        .is_some_and(|shape| !shape.has_value())
    {
        let finding = "[poison] value has no {value}: walrelay dlq can neither redrive nor show the events of these \
                       dead letters";
        let remedy = "add {value} to the template; otherwise insert the row of each dead letter again, and drop the letter";
        checks.push((Item::DeadLetterValue, Check::warn(finding, remedy)));
    }
    Usable {
        info,
        router: router.map(|(router, _)| router),
        sink,
        registry: registry.flatten(),
        known,
    }
}

/// Checks the settings of the sink, and that it can do what the configuration asks for. Returns the
/// sink.
fn check_sink(config: &PipelineConfig, checks: &mut Checks) -> Option<Box<dyn SinkKind>> {
    let settings_item = config.sink.description().settings_item;
    let item = settings_item.map_or(Item::Sink, Item::SinkSettings);
    let sink = match config.sink.make(&config.delivery, &config.poison) {
        Ok(sink) => sink,
        Err(failure) => {
            checks.push((item, Check::failed(failure)));
            return None;
        }
    };
    checks.extend(sink.servers().map(|servers| (item, Check::pass(servers))));
    let warnings = sink.warnings().into_iter();
    checks.extend(warnings.map(|warning| (item, warning)));
    if let Err(failure) = check_abilities(config, &*sink) {
        checks.push((Item::Sink, Check::failed(failure)));
    }
    Some(sink)
}

/// Adds a check for the result, with `finding` for a success. Returns the value.
fn add_check<T>(
    checks: &mut Checks,
    item: Item,
    result: Result<T, Failure>,
    finding: impl FnOnce(&T) -> String,
) -> Option<T> {
    let (check, value) = match result {
        Ok(value) => (Check::pass(finding(&value)), Some(value)),
        Err(failure) => (Check::failed(failure), None),
    };
    checks.push((item, check));
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::assembly::sink::recording::Recording;

    #[test]
    fn a_kind_without_settings_is_checked_by_its_abilities() {
        let mut config = Recording::default().config();
        let mut checks = Checks::default();
        assert!(check_sink(&config, &mut checks).is_some());
        assert!(checks.is_empty(), "nothing is wrong");
        config.poison.park_key = true;
        assert!(check_sink(&config, &mut checks).is_some());
        let [(Item::Sink, check)] = &checks[..] else {
            panic!("{} checks", checks.len())
        };
        assert!(check.finding.contains("the sink recording cannot park"));
    }
}
