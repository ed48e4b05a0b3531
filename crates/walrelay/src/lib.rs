//! The program `walrelay`: command line, configuration, wiring.
//!
//! # Contents
//! - [`run_command`]: the entry point that `main` calls.
//! - [`cli`]: arguments, failures as shown to users, exit codes.
//! - [`config`]: the configuration file.
//! - `commands`: one module per command, in groups. `completions` and `man` are in `cli`.
//! - `sinks`: the sink of standard output, and wrappers that count and discard. Other sinks are crates of
//!   their own, the table of kinds is in [`config`].
//! - `failures`: the errors of the crates below, with remedies.
//! - `workers`: the threads alongside a running relay. They mark, delete and audit rows, move the rolling bookmark, note
//!   the run, and ask the sink's servers whether dead letters can be written.
//! - `event_commands`: the commands about one event that the status page runs.
//!
//! # Invariants
//! - Only this crate reads the configuration, and the environment for it.
//! - Standard output has only the result of a command. Everything else is written to standard
//!   error.

#![forbid(unsafe_code)]

pub mod cli;
mod commands;
pub mod config;
mod event_commands;
mod failures;
mod json;
mod sinks;
mod workers;

use std::ffi::OsString;

use cli::{Cli, Command};
use walrelay_failure::{Exit, Failure};

/// Runs the command in `args`, whose first item is the program's name. Reports failures on standard
/// error and returns the exit code.
pub fn run_command<T: Into<OsString> + Clone>(args: impl IntoIterator<Item = T>) -> Exit {
    let cli = match Cli::from_args(args) {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    let env = |name: &str| std::env::var(name).ok();
    let result = match cli.command {
        Command::Run(args) => match commands::run(&args, &env) {
            Ok(exit) => return exit,
            Err(failures) => Err(failures),
        },
        Command::New(args) => commands::new(&args, &env),
        Command::Init(args) => commands::init(&args, &env),
        Command::Check(args) => match commands::check(&args, &env) {
            Ok(exit) => return exit,
            Err(failures) => Err(failures),
        },
        Command::Status(args) => commands::status(&args, &env),
        Command::Slots(command) => commands::slots(&command, &env),
        Command::Bookmark(command) => commands::bookmark(&command, &env),
        Command::Replay(args) => commands::replay(&args, &env),
        Command::Prune(args) => commands::prune(&args, &env),
        Command::Resend(args) => commands::resend(&args, &env),
        Command::Cutover(command) => commands::cutover(&command, &env),
        Command::Move(command) => match commands::move_outbox(&command, &env) {
            Ok(exit) => return exit,
            Err(failures) => Err(failures),
        },
        Command::Route(args) => commands::route(&args, &env),
        Command::Tail(args) => commands::tail(&args, &env),
        Command::VerifyTopic(args) => match commands::verify_topic(&args, &env) {
            Ok(exit) => return exit,
            Err(failures) => Err(failures),
        },
        Command::Where(args) => match commands::whereabouts(&args, &env) {
            Ok(exit) => return exit,
            Err(failures) => Err(failures),
        },
        Command::Stuck(args) => match commands::stuck(&args, &env) {
            Ok(exit) => return exit,
            Err(failures) => Err(failures),
        },
        Command::Demo(args) => commands::demo(&args, &env),
        Command::Bench(args) => commands::bench(&args, &env),
        Command::Dlq(command) => commands::dlq(&command, &env),
        Command::ImportDebezium(args) => commands::import_debezium(&args),
        Command::Alerts(args) => commands::alerts(&args, &env),
        Command::Schema => commands::schema(),
        Command::Man { folder } => cli::man(&folder).map_err(|error| {
            let what = format!("cannot write into {}", folder.display());
            let failure = Failure::new("output", Exit::Unavailable, what).caused_by(error);
            vec![failure.remedy("name a folder that exists, and that you may write to")]
        }),
        Command::Completions { shell } => {
            commands::print_bytes(&cli::completions(shell)).map_err(Into::into)
        }
    };
    match result {
        Ok(()) => Exit::Ok,
        Err(failures) => cli::report(&failures, &env),
    }
}
