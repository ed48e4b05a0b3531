//! Arguments of `walrelay status`.

use clap::Args;

use super::common::{ConfigArgs, Output};

/// Arguments of `status`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct StatusArgs {
    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// Show it again every two seconds, until Ctrl-C.
    #[arg(long)]
    pub watch: bool,

    /// Exit with 75 if the relay is not ready, and with 69 if no relay is seen or its slot is lost.
    #[arg(long, conflicts_with = "watch")]
    pub exit_code: bool,

    /// As a table or as JSON.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}
