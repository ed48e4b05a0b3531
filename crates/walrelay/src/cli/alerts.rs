//! Arguments of `walrelay alerts`.

use clap::Args;

use super::common::ConfigArgs;

/// Arguments of `alerts`.
#[derive(Debug, Clone, Args)]
pub struct AlertsArgs {
    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,
}
