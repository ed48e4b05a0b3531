//! Arguments of `walrelay resend`.

use std::time::Duration;

use clap::Args;

use super::common::{AskArgs, ParentArgs};

/// Arguments of `resend`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(group(clap::ArgGroup::new("rows").required(true).args(["id", "where"])))]
pub struct ResendArgs {
    /// The event with this id; may be repeated.
    #[arg(long, value_name = "ID")]
    pub id: Vec<String>,

    /// The rows for which this condition in SQL holds.
    #[arg(long, value_name = "SQL")]
    pub r#where: Option<String>,

    /// Give the server so long to find the rows of `--id`, at most.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        conflicts_with = "where",
        value_parser = walrelay_settings::parse_duration
    )]
    pub timeout: Duration,

    /// The configuration, `--dry-run` and `--yes`; a dry run prints the number of rows and,
    /// for up to 1,000, the topics of their records.
    #[command(flatten)]
    pub ask: AskArgs,

    /// Whether the command ends with its parent.
    #[command(flatten)]
    pub parent: ParentArgs,
}

#[cfg(test)]
mod tests {
    use crate::cli::{Command, parse};

    #[test]
    fn either_ids_or_a_condition_are_read() {
        let ids = parsed!("resend --id 1 --id 2 --yes", Command::Resend);
        assert_eq!(ids.id, ["1", "2"]);
        assert!(ids.ask.yes && !ids.ask.change.dry_run);
        let rows = parsed!("resend --where \"id < 3\" --dry-run", Command::Resend);
        assert_eq!(rows.r#where.as_deref(), Some("id < 3"));
        let limited = parsed!("resend --id 1 --timeout 10s", Command::Resend);
        assert_eq!(limited.timeout.as_secs(), 10);
        for wrong in [
            "resend",
            "resend --id 1 --where true",
            "resend --where true --timeout 10s",
        ] {
            assert!(parse(wrong).is_err());
        }
    }
}
