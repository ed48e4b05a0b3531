//! Arguments of `walrelay bookmark`.

use clap::{Args, Subcommand};
use walrelay_lsn::Lsn;

use super::common::{AskArgs, ChangeArgs, ListSlotsArgs};

/// Subcommands of `bookmark`.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum BookmarkCommand {
    /// Keep the relay's present position: what is committed from it on can be replayed.
    ///
    /// The bookmark is a copy of the relay's slot. Postgres keeps the log from there on until the
    /// bookmark is advanced or dropped.
    #[command(after_help = "Examples:
  walrelay bookmark create before_release
  walrelay bookmark create before_release --dry-run")]
    Create(CreateBookmarkArgs),

    /// List the bookmarks of the relay's slot, the oldest first, and the WAL that each keeps.
    #[command(after_help = "Examples:
  walrelay bookmark list
  walrelay bookmark list --times
  walrelay bookmark list --output json | jq -r .bookmark")]
    List(ListBookmarksArgs),

    /// Move a bookmark forward. What it passes over can no longer be replayed.
    #[command(after_help = "Examples:
  walrelay bookmark advance before_release
  walrelay bookmark advance before_release --to 0/16B3748 --dry-run")]
    Advance(AdvanceBookmarkArgs),

    /// Drop a bookmark. Postgres then need not keep the log for it.
    #[command(after_help = "Examples:
  walrelay bookmark drop before_release
  walrelay bookmark drop before_release --yes")]
    Drop(DropBookmarkArgs),
}

/// Arguments of `bookmark create`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct CreateBookmarkArgs {
    /// Its name: lower-case letters, digits and underscores.
    pub name: String,

    /// The configuration and `--dry-run`.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// Arguments of `bookmark list`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ListBookmarksArgs {
    /// The configuration and the output format.
    #[command(flatten)]
    pub list: ListSlotsArgs,

    /// Read from each bookmark when its first transaction was committed. Postgres decodes up to it.
    #[arg(long)]
    pub times: bool,
}

/// Arguments of `bookmark advance`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct AdvanceBookmarkArgs {
    /// The bookmark.
    pub name: String,

    /// The position to go to, such as 0/16B3748; without it, the relay's present position.
    #[arg(long, value_name = "LSN", value_parser = lsn)]
    pub to: Option<Lsn>,

    /// The configuration, `--dry-run` and `--yes`.
    #[command(flatten)]
    pub ask: AskArgs,
}

/// Arguments of `bookmark drop`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct DropBookmarkArgs {
    /// The bookmark.
    pub name: String,

    /// The configuration, `--dry-run` and `--yes`.
    #[command(flatten)]
    pub ask: AskArgs,
}

fn lsn(text: &str) -> Result<Lsn, String> {
    text.parse()
        .map_err(|_| "a position has the form 0/16B3748".to_owned())
}
