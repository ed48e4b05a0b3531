//! Arguments of `walrelay prune`.

use std::time::Duration;

use clap::Args;

use super::args::ConfigArgs;

/// Arguments of `prune`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct PruneArgs {
    /// Rows younger than this stay, as `168h`, `90m` or `30s`; without it, `[prune] keep`.
    #[arg(long, value_name = "TIME", value_parser = crate::config::duration)]
    pub keep: Option<Duration>,

    /// Say how many rows are old enough and which partitions would come and go, and change nothing.
    #[arg(long)]
    pub dry_run: bool,

    /// Do not ask.
    #[arg(long)]
    pub yes: bool,

    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
}
