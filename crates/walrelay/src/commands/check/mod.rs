//! `walrelay check`: the doctor. Looks at everything that can be seen before a relay runs, and beside one.
//!
//! - [`item`]: what is looked at, and a finding with its remedy. `docs/CHECK.md` lists the items.
//! - `configuration`, `postgres`, `kafka`, `registry`: the checks. [`report`]: how they are shown.
//!
//! # Invariants
//! - Nothing is changed: neither in the database, nor in Kafka, nor in the registry.
//! - All that is wrong is reported, not only the first thing; the exit code is that of the first failure.
//! - What the relay's role may not see is a warning that names the missing right.

mod configuration;
mod item;
mod kafka;
mod postgres;
mod registry;
mod report;

use std::io::{self, IsTerminal};

use super::connect::{block_on, route, wanted};
use super::{Env, load};
use crate::cli::{CheckArgs, Exit, Failure, Output, colours};
use crate::config::SinkConfig;
use item::Check;

/// `walrelay check`. The exit code is that of the first failure.
pub(crate) fn check(args: &CheckArgs, env: Env<'_>) -> Result<Exit, Vec<Failure>> {
    let checks = look(args, env)?;
    let mut out = Vec::new();
    let written = match args.output {
        Output::Table => {
            let colours = colours(io::stdout().is_terminal(), env);
            report::table(&checks, colours, &mut out)
        }
        Output::Json => report::json(&checks, &mut out),
    };
    written
        .and_then(|()| io::Write::write_all(&mut io::stdout(), &out))
        .map_err(super::output)?;
    Ok(item::exit(&checks))
}

fn look(args: &CheckArgs, env: Env<'_>) -> Result<Vec<Check>, Failure> {
    let config = match load(&args.config, env) {
        Ok(config) => config,
        Err(failures) => return Ok(configuration::refused(&failures)),
    };
    let mut checks = Vec::new();
    let usable = configuration::look(&config, env, &mut checks);
    if args.offline {
        return Ok(checks);
    }
    let mut database = postgres::Database::default();
    if let Some(info) = usable.info {
        let wanted = wanted(&config);
        let (router, known) = (usable.router, usable.known);
        let look = postgres::look(&info, &wanted, &config, router, known);
        database = block_on(Box::pin(look))?;
        checks.append(&mut database.checks);
    }
    if let (Some(kafka), SinkConfig::Kafka(sink)) = (usable.kafka, &config.sink) {
        let mut topics = database.topics;
        let constant = route(&config.router).constant_topic();
        topics.extend(constant.filter(|topic| !topics.contains(topic)));
        checks.extend(kafka::look(
            &config,
            sink,
            &kafka,
            topics,
            &database.largest,
        ));
    }
    if let Some(registry) = usable.registry {
        checks.extend(registry::look(&registry, &config));
    }
    Ok(checks)
}

impl From<Failure> for Vec<Failure> {
    fn from(failure: Failure) -> Self {
        vec![failure]
    }
}
