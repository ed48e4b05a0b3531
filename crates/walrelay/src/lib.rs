//! The program: command line, configuration, control SQL, wiring.
//!
//! # Contents
//! - [`run_command`]: what `main` calls.
//! - [`cli`]: arguments, failures as people read them, exit codes.
//! - [`config`]: the configuration file.
//! - `postgres`: catalogs, what is created in them, the replication connection.
//! - `commands`: one module per command, `run`, `init`, `check`, `status`, `slots`,
//!   `bookmark`, `replay`, `resend`, `prune`, `cutover`, `route`, `demo`, `bench`, `dlq`, `import-debezium`.
//! - `sinks`: standard output as a sink. Kafka is a crate of its own.
//! - `failures`: each error of the crates below, with what to do about it.
//! - `tokens`: where Kafka's OAUTHBEARER tokens come from.
//! - `rolling`: the bookmark that a running relay keeps; `row_worker`: the confirmed rows that it deletes or
//!   marks; `background`:
//!   their threads.
//! - `registry`: the schema registry, asked for the schemas of values.
//! - `telemetry`: logging, and what a run knows of itself: status, metrics, the figures it ends with.
//! - `http`: the endpoint that serves them, and the client of other servers.
//!
//! # Invariants
//! - Only this crate reads configuration, the environment and the wall clock.
//! - Standard output belongs to what a command was asked for; everything else goes to standard
//!   error.

#![forbid(unsafe_code)]

mod background;
pub mod cli;
mod commands;
pub mod config;
mod failures;
mod http;
mod json;
mod postgres;
mod registry;
mod rolling;
mod row_worker;
mod sinks;
mod sync;
mod telemetry;
mod tokens;

use std::ffi::OsString;

use cli::{Cli, Command, Exit, Failure};

/// Runs the command that `args` ask for (the first is the program's name), reports a failure on
/// standard error, and gives the exit code.
pub fn run_command<T: Into<OsString> + Clone>(args: impl IntoIterator<Item = T>) -> Exit {
    let cli = match Cli::from_args(args) {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    let env = |name: &str| std::env::var(name).ok();
    let result = match cli.command {
        Command::Run(args) => commands::run(&args, &env),
        Command::Init(args) => commands::init(&args, &env),
        Command::Check(args) => match commands::check(&args, &env) {
            Ok(exit) => return exit,
            Err(failures) => Err(failures),
        },
        Command::Status(args) => commands::status(&args, &env),
        Command::Slots(args) => commands::slots(&args, &env),
        Command::Bookmark(args) => commands::bookmark(&args, &env),
        Command::Replay(args) => commands::replay(&args, &env),
        Command::Prune(args) => commands::prune(&args, &env),
        Command::Resend(args) => commands::resend(&args, &env),
        Command::Cutover(args) => commands::cutover(&args, &env),
        Command::Route(args) => commands::route(&args, &env),
        Command::Demo(args) => commands::demo(&args, &env),
        Command::Bench(args) => commands::bench(&args, &env),
        Command::Dlq(args) => commands::dlq(&args, &env),
        Command::ImportDebezium(args) => commands::import_debezium(&args),
        Command::Completions { shell } => {
            cli::completions(shell, &mut std::io::stdout()).map_err(|error| {
                vec![Failure::new("output", Exit::Unavailable, "cannot write").caused_by(error)]
            })
        }
    };
    match result {
        Ok(()) => Exit::Ok,
        Err(failures) => cli::report(&failures, &env),
    }
}
