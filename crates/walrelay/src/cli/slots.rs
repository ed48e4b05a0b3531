//! Arguments of `walrelay slots`.

use std::str::FromStr;

use clap::{Args, Subcommand};
use walrelay_lsn::Lsn;

use super::common::{AskArgs, ChangeArgs, ListSlotsArgs};

/// Subcommands of `slots`.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum SlotsCommand {
    /// List all replication slots of the server, and the WAL that each keeps.
    #[command(after_help = "Examples:
  walrelay slots list
  walrelay slots list --output json | jq 'select(.active_pid == null)'")]
    List(ListSlotsArgs),

    /// Create a logical slot for pgoutput. What is committed from then on can be relayed.
    ///
    /// Postgres waits for all open transactions first.
    #[command(after_help = "Examples:
  walrelay slots create
  walrelay slots create outbox_2 --dry-run")]
    Create(CreateSlotArgs),

    /// Drop an unused slot. What it has not confirmed is never relayed.
    #[command(after_help = "Examples:
  walrelay slots drop outbox_2
  walrelay slots drop outbox_2 --dry-run
  walrelay slots drop outbox_2 --yes")]
    Drop(DropSlotArgs),

    /// Move an unused slot forward. What it passes over is never relayed.
    ///
    /// A relay with a state_file then stops with slot-moved: start it once with --accept-gap.
    #[command(after_help = "Examples:
  walrelay slots advance walrelay --to now --dry-run
  walrelay slots advance walrelay --to 0/16B3748 --yes")]
    Advance(AdvanceSlotArgs),
}

/// Arguments of `slots create`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct CreateSlotArgs {
    /// The slot, instead of the configured one.
    pub name: Option<String>,

    /// The configuration and `--dry-run`.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// Arguments of `slots drop`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct DropSlotArgs {
    /// The slot.
    pub name: String,

    /// Drop the relay's slot without keeping a copy of it as a bookmark.
    #[arg(long)]
    pub no_bookmark: bool,

    /// The configuration, `--dry-run` and `--yes`.
    #[command(flatten)]
    pub ask: AskArgs,
}

/// Arguments of `slots advance`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct AdvanceSlotArgs {
    /// The slot.
    pub name: String,

    /// The position to go to, such as 0/16B3748, or `now` for the end of the log.
    #[arg(long, value_name = "LSN|now")]
    pub to: AdvanceTo,

    /// Advance the relay's slot without keeping a copy of it as a bookmark.
    #[arg(long)]
    pub no_bookmark: bool,

    /// The configuration, `--dry-run` and `--yes`.
    #[command(flatten)]
    pub ask: AskArgs,
}

/// The position that a slot is advanced to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdvanceTo {
    /// The end of the WAL.
    Now,
    /// This position.
    Lsn(Lsn),
}

impl FromStr for AdvanceTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "now" {
            return Ok(Self::Now);
        }
        let lsn = text.parse();
        lsn.map(Self::Lsn)
            .map_err(|_| "a position has the form 0/16B3748, or is now".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};

    #[test]
    fn commands_are_read() {
        let line = "slots advance x --to 1/A --dry-run";
        let advance = parsed!(line, Command::Slots, SlotsCommand::Advance);
        assert_eq!(advance.to, AdvanceTo::Lsn(Lsn::new(0x1_0000_000A)));
        assert!(advance.ask.change.dry_run && !advance.ask.yes);
        let line = "slots advance x --to now --yes";
        let advance = parsed!(line, Command::Slots, SlotsCommand::Advance);
        assert_eq!(advance.to, AdvanceTo::Now);
        let create = parsed!("slots create", Command::Slots, SlotsCommand::Create);
        assert_eq!(create.name, None);
        for (line, about) in [
            ("advance x", "--to"),
            ("advance x --to tomorrow", "0/16B3748"),
            ("drop", "NAME"),
        ] {
            let error = parse(&format!("slots {line}")).unwrap_err().to_string();
            assert!(error.contains(about), "{error}");
        }
    }
}
