//! Arguments of `walrelay stuck`.

use std::num::NonZeroUsize;
use std::time::Duration;

use clap::Args;

use super::common::{ConfigArgs, Output};

/// Arguments of `stuck`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct StuckArgs {
    /// Rows older than this, as `5m` or `30s`.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "5m",
        value_parser = walrelay_settings::parse_duration
    )]
    pub older_than: Duration,

    /// Only rows that are not older than this, as `24h`. Without it, all: where rows are accounted and not
    /// marked, each is compared.
    #[arg(long, value_name = "TIME", value_parser = walrelay_settings::parse_duration)]
    pub since: Option<Duration>,

    /// Print so many rows, at most: the oldest.
    #[arg(long, value_name = "N", default_value = "50")]
    pub limit: NonZeroUsize,

    /// Bound each query, and the reading of the log, by this time.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "60s",
        value_parser = walrelay_settings::parse_duration
    )]
    pub timeout: Duration,

    /// For people, or for programs.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,

    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};

    #[test]
    fn ages_and_a_limit_are_read() {
        let args = parsed!("stuck", Command::Stuck);
        assert_eq!((args.older_than.as_secs(), args.limit.get()), (300, 50));
        let args = parsed!(
            "stuck --older-than 30s --since 24h --limit 3",
            Command::Stuck
        );
        assert_eq!((args.older_than.as_secs(), args.limit.get()), (30, 3));
        assert_eq!(args.since, Some(Duration::from_secs(86_400)));
        assert!(parse("stuck --limit 0").is_err());
    }
}
