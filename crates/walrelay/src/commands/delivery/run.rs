//! `walrelay run`: the relays of a configuration, until a signal asks them to stop or `--until` is reached.

use walrelay_failure::{Exit, Failure};
use walrelay_observe::{RecentErrors, RunObserver, log_to_stderr};

use super::ended::ErrorKeeper;
use super::group::run_together;
use super::relay::{RelayRun, start_views};
use super::until::End;
use crate::cli::{self, RunArgs};
use crate::commands::assembly::stop_signal_or;
use crate::commands::{CommandResult, EnvVars, load};
use crate::config::{Config, LogFormat};

/// Runs `walrelay run`. Where the log has JSON lines, failures are lines of it; otherwise they are
/// returned.
pub(crate) fn run(args: &RunArgs, env: EnvVars<'_>) -> Result<Exit, Vec<Failure>> {
    let mut config = match load(&args.config, env) {
        Ok(config) => config,
        Err(failures) => {
            let log = Config::log_of_refused(&args.config.config, &args.config.set, env);
            log_to_stderr(log, &[], env);
            return failed(log.format, failures);
        }
    };
    let source = &mut config.pipeline.source;
    source.pass_over.extend(args.pass_over.iter().cloned());
    let errors = log_to_stderr(config.process.log, &[&source.slot], env);
    match relay(&config, args, errors, env) {
        Ok(()) => Ok(Exit::Ok),
        Err(failures) => failed(config.process.log.format, failures),
    }
}

/// Logs the failures where the log has JSON lines, otherwise returns them.
fn failed(format: LogFormat, failures: Vec<Failure>) -> Result<Exit, Vec<Failure>> {
    if format.is_json_on_stderr() {
        Ok(cli::log(&failures))
    } else {
        Err(failures)
    }
}

fn relay(config: &Config, args: &RunArgs, errors: RecentErrors, env: EnvVars<'_>) -> CommandResult {
    let relay = RelayRun {
        config: &config.pipeline,
        process: &config.process,
        env,
        args: Some(&args.config),
        accept_gap: args.accept_gap,
        accept_loss: args.accept_loss,
        switches: false,
        errors,
    };
    let relay = relay.prepare()?;
    let _views = start_views(&config.process, &[&relay])?;
    let keeper = ErrorKeeper::new(&relay);
    let (observer, confirmed) = RunObserver::new(env).with_confirmed();
    let (end, reached) = End::new(args.until, relay.info.clone(), confirmed);
    let relayed = run_together(vec![(relay, observer)], || stop_signal_or(end.reached()));
    for (keeper, result) in keeper.into_iter().zip(&relayed) {
        keeper.keep(result);
    }
    let relayed = relayed.into_iter();
    let failures: Vec<_> = relayed.filter_map(Result::err).collect();
    if failures.is_empty() {
        reached.check().map_err(Vec::from)
    } else {
        Err(failures)
    }
}
