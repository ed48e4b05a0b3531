//! `walrelay check`: the doctor. Checks everything that can be seen before a relay runs, or beside
//! one.
//!
//! - [`item`]: the items, and the result of a check. `docs/CHECK.md` lists the items.
//! - `configuration`, `postgres`, `registry`: the checks; the sink brings those of its servers.
//!   [`report`]: formats them.
//!
//! # Invariants
//! - The checks change nothing in the database, in the sink's servers or in the registry.
//! - All problems are reported, not only the first one. The exit code is that of the first failure.
//! - If the relay's role may not see something, a warning names the missing privilege.

mod configuration;
mod item;
mod postgres;
mod registry;
mod report;

use std::io::{self, IsTerminal};

use crate::commands::assembly::{block_on, route};
use crate::commands::{Env, load, print_bytes, write_failed};
use walrelay_observe::colours;
use walrelay_sink::check::CheckInput;

use crate::cli::{CheckArgs, Exit, Failure, Output};
use item::{Check, Checks, Item};

/// `walrelay check`. The exit code is that of the first failure.
pub(crate) fn check(args: &CheckArgs, env: Env<'_>) -> Result<Exit, Vec<Failure>> {
    let checks = run_checks(args, env)?;
    let mut out = Vec::new();
    let written = match args.output {
        Output::Table => {
            let colours = colours(io::stdout().is_terminal(), env);
            report::table(&checks, colours, &mut out)
        }
        Output::Json => report::json(&checks, &mut out),
    };
    written.map_err(write_failed)?;
    print_bytes(&out)?;
    Ok(item::exit(&checks))
}

fn run_checks(args: &CheckArgs, env: Env<'_>) -> Result<Checks, Failure> {
    let config = match load(&args.config, env) {
        Ok(config) => config.pipeline,
        Err(failures) => {
            let problems = failures.into_iter().map(Check::failed);
            return Ok(problems.map(|check| (Item::File, check)).collect());
        }
    };
    let mut checks = Checks::new();
    let usable = configuration::check(&config, env, &mut checks);
    if args.offline {
        return Ok(checks);
    }
    let (mut topics, mut largest) = (Vec::new(), Ok(None));
    if let Some(info) = usable.info {
        let check = postgres::check(&info, &config, usable.router, usable.known);
        let database = block_on(Box::pin(check))?;
        checks.extend(database.checks);
        (topics, largest) = (database.topics, database.largest);
    }
    if let Some(sink) = usable.sink {
        let constant = route(&config.router).constant_topic();
        topics.extend(constant.filter(|topic| !topics.contains(topic)));
        let poison = &config.poison;
        let of_servers = sink.check(CheckInput {
            topics,
            dead_letters: poison.writes_dead_letters().then_some(&poison.topic),
            largest_row: largest,
        });
        let kind = sink.name();
        let of_servers = of_servers.into_iter();
        checks.extend(
            of_servers.map(|(name, check)| (Item::SinkServers { kind, name }, check.with_class())),
        );
    }
    if let Some(registry) = usable.registry {
        checks.extend(registry::check(&registry, &config));
    }
    Ok(checks)
}

impl From<Failure> for Vec<Failure> {
    fn from(failure: Failure) -> Self {
        vec![failure]
    }
}
