//! Arguments of `walrelay check`.

use clap::Args;

use super::common::{ConfigArgs, Output};

/// Arguments of `check`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct CheckArgs {
    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// Check the file alone and connect to nothing.
    #[arg(long)]
    pub offline: bool,

    /// For people, or for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}
