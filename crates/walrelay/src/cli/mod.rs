//! The command line: arguments, printed failures, exit codes.
//!
//! # Contents
//! - [`Cli`], [`Command`] and the arguments of each command; [`completions`].
//! - [`Failure`]: why a command ends without success, printed by [`report`].
//! - [`Exit`]: the exit codes.
//!
//! # Invariants
//! - Exit codes are an interface: `docs/CONFIGURATION.md` and `--help` list them from [`Exit::ALL`].
//! - Texts of servers and files are printed without their control characters.

mod args;
mod bench;
mod bookmark;
mod common;
mod cutover;
mod dlq;
mod exit;
mod failure;
mod import;
mod prune;
mod replay;
mod resend;
mod route;
mod slots;

pub use args::{CheckArgs, Cli, Command, DemoArgs, InitArgs, RunArgs, StatusArgs, completions};
pub use bench::{BenchArgs, BenchPart};
pub use bookmark::{
    AdvanceBookmarkArgs, BookmarkArgs, BookmarkCommand, CreateBookmarkArgs, DropBookmarkArgs,
    ListBookmarksArgs,
};
pub use common::{AskArgs, ChangeArgs, ConfigArgs, ListSlotsArgs, Output};
pub use cutover::{
    CutoverArgs, CutoverCommand, CutoverId, RollbackCutoverArgs, ShadowCutoverArgs,
    SwitchCutoverArgs, VerifyCutoverArgs,
};
pub use dlq::{
    CloseArgs, DlqArgs, DlqCommand, DlqTopicArgs, DropArgs, FilterArgs, ListArgs, RedriveArgs,
    ShowArgs,
};
pub use exit::Exit;
pub(crate) use failure::printable;
pub use failure::{Failure, colours, report};
pub use import::ImportArgs;
pub use prune::PruneArgs;
pub use replay::{ReplayArgs, ReplayFrom, ReplaySink, ReplayTo};
pub use resend::ResendArgs;
pub use route::{Form, RouteArgs};
pub use slots::{
    AdvanceSlotArgs, AdvanceTo, CreateSlotArgs, DropSlotArgs, SlotsArgs, SlotsCommand,
};
