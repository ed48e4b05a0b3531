//! Arguments of `walrelay prune`.

use std::time::Duration;

use clap::Args;

use super::common::AskArgs;

/// Arguments of `prune`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct PruneArgs {
    /// Rows younger than this stay, as `168h`, `90m` or `30s`; without it, `[prune] keep`.
    #[arg(long, value_name = "TIME", value_parser = crate::config::duration)]
    pub keep: Option<Duration>,

    /// Where; a dry run says how many rows are old enough, and which partitions would come and go.
    #[command(flatten)]
    pub ask: AskArgs,
}
