//! `walrelay check`: the doctor. Checks everything that can be seen before a relay runs, or beside
//! one.
//!
//! - [`item`]: the items, and the result of a check. `docs/operate/check.md` lists the items.
//! - `configuration`, `file_mode`, `postgres`, `registry`, `relay`: the checks; the sink brings those of its servers.
//!   [`report`]: formats them.
//!
//! # Invariants
//! - The checks change nothing in the database, in the sink's servers or in the registry.
//! - All problems are reported, not only the first one. The exit code is that of the first failure.
//! - If the relay's role may not see something, a warning names the missing privilege.

mod configuration;
mod file_mode;
mod item;
mod postgres;
mod registry;
mod relay;
mod report;

use std::io::{self, IsTerminal};

use crate::commands::assembly::{block_on, route};
use crate::commands::terminal::wait_line::waiting_for;
use crate::commands::terminal::wrap::columns;
use crate::commands::{EnvVars, load, print_bytes, write_failed};
use crate::config::Config;
use walrelay_failure::{Exit, Failure};
use walrelay_observe::colours;
use walrelay_sink_kind::check::CheckInput;

use crate::cli::{CheckArgs, Output};
use item::{Check, Checks, Item};

/// Runs `walrelay check`. The exit code is that of the first failure.
pub(crate) fn check(args: &CheckArgs, env: EnvVars<'_>) -> Result<Exit, Vec<Failure>> {
    let checks = run_checks(args, env)?;
    let mut out = Vec::new();
    let written = match args.output {
        Output::Table => {
            let colours = colours(io::stdout().is_terminal(), env);
            report::table(&checks, colours, columns(env), &mut out)
        }
        Output::Json => report::json(&checks, &mut out),
    };
    written.map_err(write_failed)?;
    print_bytes(&out)?;
    Ok(item::exit(&checks))
}

fn run_checks(args: &CheckArgs, env: EnvVars<'_>) -> Result<Checks, Failure> {
    let config = match load(&args.config, env) {
        Ok(config) => config,
        Err(failures) => {
            let problems = failures.into_iter().map(Check::failed);
            return Ok(problems.map(|check| (Item::File, check)).collect());
        }
    };
    let Config {
        pipeline: config,
        process,
    } = config;
    let mut checks = Checks::new();
    let usable = configuration::check(&config, env, &mut checks);
    checks.extend(file_mode::check(&args.config.config).map(|check| (Item::File, check)));
    if args.offline {
        return Ok(checks);
    }
    let (mut addresses, mut largest, mut reader) = (Vec::new(), Ok(None), None);
    if let Some(info) = usable.info {
        let check = postgres::check(&info, &config, usable.router, usable.known.as_ref());
        let what = format!("Postgres, {}", info.redacted());
        let database = waiting_for(&what, || block_on(Box::pin(check)))?;
        checks.extend(database.checks);
        (addresses, largest, reader) = (database.addresses, database.largest, database.reader);
    }
    let relay = process.http.as_ref().map(|http| {
        let what = format!("the relay, {}", http.listen);
        waiting_for(&what, || {
            relay::check(http, &config.source.slot, reader.as_deref())
        })
    });
    if let Some(sink) = usable.sink {
        let mut topics: Vec<String> = Vec::new();
        for (topic, _) in &addresses {
            if !topics.contains(topic) {
                topics.push(topic.clone());
            }
        }
        let of_relay = relay.iter().flat_map(|relay| relay.topics.iter());
        for topic in of_relay {
            if !topics.contains(topic) {
                topics.push(topic.clone());
            }
        }
        // The address of a sink replaces the topic of the route.
        let address = config
            .address
            .as_ref()
            .and_then(|address| address.topic.as_ref());
        let constant = match address {
            Some(part) => part.template.constant(),
            None => route(&config.router).constant_topic(),
        };
        topics.extend(constant.filter(|topic| !topics.contains(topic)));
        let poison = &config.poison;
        let input = CheckInput {
            topics,
            addresses,
            dead_letters: poison.writes_dead_letters().then_some(&poison.topic),
            largest_row: largest,
        };
        let servers = sink.servers().unwrap_or_default();
        let what = format!("{}, {servers}", sink.description().title);
        let of_servers = waiting_for(&what, || sink.check(input));
        let kind = sink.name();
        let of_servers = of_servers.into_iter();
        checks.extend(of_servers.map(|(name, check)| (Item::SinkServers { kind, name }, check)));
    }
    if let Some(registry) = usable.registry {
        let check = || registry::check(&registry, &config);
        checks.extend(waiting_for("the schema registry", check));
    }
    checks.extend(relay.into_iter().flat_map(|relay| relay.checks));
    Ok(checks)
}
