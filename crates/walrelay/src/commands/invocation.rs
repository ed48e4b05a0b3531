//! The parts that each command has: its configuration, the environment, its log, and its result.

use tracing::Level;
use walrelay_failure::Failure;
use walrelay_observe::log_to_stderr;

use crate::cli::ConfigArgs;
#[cfg(test)]
use crate::config::PipelineConfig;
use crate::config::{Config, Log};

/// The result of a command: success, or the failures to print.
pub(crate) type CommandResult = Result<(), Vec<Failure>>;
/// Looks up an environment variable by its name.
pub(crate) type EnvVars<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads the configuration that the arguments name.
pub(super) fn load(args: &ConfigArgs, env: EnvVars<'_>) -> Result<Config, Vec<Failure>> {
    Config::load(&args.config, &args.set, env).map_err(crate::cli::from_config)
}

/// Returns a configuration of one outbox table and of Kafka; everything else has its default.
#[cfg(test)]
pub(super) fn test_config() -> PipelineConfig {
    let text = "[source]\nurl = \"postgres://db/app\"\ntables = [\"public.outbox\"]\n\
                [sink.kafka]\n\"bootstrap.servers\" = \"b:9092\"\n";
    Config::parse(text, "walrelay.toml", &[], &|_| None)
        .unwrap()
        .pipeline
}

/// Logs at the configured level, but warnings in place of `info`: the command prints its own
/// progress.
pub(super) fn log_warnings(log: Log, slot: Option<&str>, env: EnvVars<'_>) {
    let level = match log.level {
        Level::INFO => Level::WARN,
        level => level,
    };
    log_to_stderr(Log { level, ..log }, slot.as_slice(), env);
}
