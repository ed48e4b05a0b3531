//! Arguments of `walrelay resend`.

use clap::Args;

use super::common::AskArgs;

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

    /// The configuration, `--dry-run` and `--yes`; a dry run prints the number of rows and,
    /// for up to 1,000, the topics of their records.
    #[command(flatten)]
    pub ask: AskArgs,
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
        for wrong in ["resend", "resend --id 1 --where true"] {
            assert!(parse(wrong).is_err());
        }
    }
}
