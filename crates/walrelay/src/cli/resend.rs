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

    /// Where; a dry run says how many rows that are.
    #[command(flatten)]
    pub ask: AskArgs,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::cli::{Cli, Command};

    #[test]
    fn either_ids_or_a_condition_are_read() {
        let parse = |args: &[&str]| {
            let all = [&["walrelay", "resend"], args].concat();
            Cli::try_parse_from(all).map(|cli| match cli.command {
                Command::Resend(args) => *args,
                other => panic!("{other:?}"),
            })
        };
        let ids = parse(&["--id", "1", "--id", "2", "--yes"]).unwrap();
        assert_eq!(ids.id, ["1", "2"]);
        assert!(ids.ask.yes && !ids.ask.change.dry_run);
        let rows = parse(&["--where", "id < 3", "--dry-run"]).unwrap();
        assert_eq!(rows.r#where.as_deref(), Some("id < 3"));
        for wrong in [&[][..], &["--id", "1", "--where", "true"]] {
            assert!(parse(wrong).is_err());
        }
    }
}
