//! The command line: arguments and printed failures.
//!
//! # Contents
//! - [`Cli`], [`Command`] and the arguments of each command, in a file of its name. [`completions`].
//! - [`report`] prints the failures that end a command, [`log`] logs them.
//!
//! # Invariants
//! - Control characters in texts of servers and files are not printed.

/// The arguments of a command line: those of this variant of [`Command`], and of a variant of its
/// subcommands where one is named.
#[cfg(test)]
macro_rules! parsed {
    ($line:expr, $command:path) => {
        match $crate::cli::parse($line).unwrap() {
            $command(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    };
    ($line:expr, $command:path, $subcommand:path) => {
        match *parsed!($line, $command) {
            $subcommand(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    };
}

mod alerts;
mod args;
mod bench;
mod bookmark;
mod check;
mod common;
mod cutover;
mod demo;
mod dlq;
mod failure;
mod hints;
mod import_debezium;
mod init;
mod moves;
mod new;
mod prune;
mod replay;
mod resend;
mod route;
mod run;
mod slots;
mod status;
mod stuck;
mod tail;
mod until;
mod verify_topic;
mod whereabouts;

pub use alerts::AlertsArgs;
pub use args::{Cli, Command, completions, man};
pub use bench::{BenchArgs, BenchPart};
pub use bookmark::{
    AdvanceBookmarkArgs, BookmarkCommand, CreateBookmarkArgs, DropBookmarkArgs, ListBookmarksArgs,
};
pub use check::CheckArgs;
pub use common::{AskArgs, ChangeArgs, ConfigArgs, ListSlotsArgs, Output, ParentArgs, RecordPlace};
pub use cutover::{
    CutoverCommand, PlanCutoverArgs, RollbackCutoverArgs, ShadowCutoverArgs, SwitchCutoverArgs,
    VerifyCutoverArgs,
};
pub use demo::{DemoArgs, DemoSink};
pub use dlq::{
    CloseArgs, DlqCommand, DlqTopicArgs, DropArgs, FilterArgs, ListArgs, RedriveArgs, ShowArgs,
};
pub(crate) use failure::{from_config, paint};
pub use failure::{log, report};
pub use import_debezium::ImportArgs;
pub use init::InitArgs;
pub use moves::{
    AbortMoveArgs, AdminArgs, DrainMoveArgs, MoveCommand, PlanMoveArgs, PrepareMoveArgs,
    SwitchMoveArgs, VerifyMoveArgs,
};
pub use new::{EventPart, NewArgs, PartColumn};
pub use prune::PruneArgs;
pub use replay::{ReplayArgs, ReplayFrom, ReplayTo};
pub use resend::ResendArgs;
pub use route::{Form, RouteArgs};
pub use run::RunArgs;
pub use slots::{AdvanceSlotArgs, AdvanceTo, CreateSlotArgs, DropSlotArgs, SlotsCommand};
pub use status::StatusArgs;
pub use stuck::StuckArgs;
pub use tail::{TailArgs, TailFrom};
pub use until::Until;
pub use verify_topic::{VerifySince, VerifyTopicArgs};
pub use whereabouts::WhereArgs;

/// Parses a command line without the program's name. A word with blanks is in double quotes.
#[cfg(test)]
pub(crate) fn parse(line: &str) -> Result<Command, clap::Error> {
    use clap::Parser as _;

    let mut words = vec!["walrelay"];
    for (at, part) in line.split('"').enumerate() {
        if at.is_multiple_of(2) {
            words.extend(part.split_whitespace());
        } else {
            words.push(part);
        }
    }
    Cli::try_parse_from(words).map(|cli| cli.command)
}
