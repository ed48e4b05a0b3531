//! Arguments of `walrelay prune`.

use std::time::Duration;

use clap::Args;

use super::common::{AskArgs, Output};

/// Arguments of `prune`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct PruneArgs {
    /// Rows younger than this stay, as `7d`, `90m` or `30s`; without it, `[prune] keep`.
    #[arg(long, value_name = "TIME", value_parser = walrelay_settings::parse_duration)]
    pub keep: Option<Duration>,

    /// Deletes nothing: old rows that are not accounted as sent count as sent from now on, because you
    /// have sent them, or they may go. It first prints how many rows of which time these are.
    #[arg(long)]
    pub accept: bool,

    /// The configuration, `--dry-run` and `--yes`. A dry run prints the number of rows that are old
    /// enough, and the partitions that would be created or dropped.
    #[command(flatten)]
    pub ask: AskArgs,

    /// For people, or for programs: an object with the rows and partitions that were changed, or
    /// that would be.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}
