//! Arguments of `walrelay move`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use secrecy::SecretString;

use super::common::{AskArgs, ChangeArgs, ConfigArgs, Output, secret};

/// The steps that move an outbox to another server.
#[derive(Debug, Clone, Subcommand)]
pub enum MoveCommand {
    /// Show the state of a move on this server, and what is in the way of its next step. Changes nothing.
    #[command(after_help = "Examples:
  walrelay move plan
  walrelay move plan -c new.toml --output json | jq .obstacles")]
    Plan(PlanMoveArgs),

    /// On a new server that gets the rows by logical replication: refuse inserts until the switch.
    ///
    /// Replicated rows still arrive. Run it before your services may reach the new server.
    #[command(after_help = "Examples:
  walrelay move prepare -c new.toml --dry-run
  walrelay move prepare -c new.toml --admin-url postgres://admin@green/app")]
    Prepare(PrepareMoveArgs),

    /// On the old server: refuse inserts, and wait until every event is delivered and confirmed.
    ///
    /// The relay keeps running. If it does not get there in time, the fence is lifted again and your
    /// services go on.
    #[command(after_help = "Examples:
  walrelay move drain --dry-run
  walrelay move drain --patience 2m --yes
  walrelay move drain --admin-url postgres://admin@blue/app --yes")]
    Drain(DrainMoveArgs),

    /// On the new server: create the slot, go on where the old server ended, and let inserts in.
    ///
    /// The new server's database is a copy that was made after the drain (`pg_upgrade`, dump, promoted
    /// standby), or gets the rows by a subscription: then name the old server's configuration.
    #[command(after_help = "Examples:
  walrelay move switch -c new.toml
  walrelay move switch -c new.toml --from old.toml --yes
  walrelay move switch -c new.toml --from old.toml --rows-arrived")]
    Switch(SwitchMoveArgs),

    /// Check on the new server that the switch is complete, and on the old one that nothing was written
    /// after the drain. Exit code 1 if something is wrong.
    #[command(after_help = "Examples:
  walrelay move verify -c new.toml
  walrelay move verify -c new.toml --from old.toml")]
    Verify(VerifyMoveArgs),

    /// Give the move up on this server: let inserts in again.
    #[command(after_help = "Examples:
  walrelay move abort
  walrelay move abort -c new.toml --yes")]
    Abort(AbortMoveArgs),
}

/// The administrator's connection.
#[derive(Debug, Clone, Args)]
pub struct AdminArgs {
    /// Connect by this URL of a role that owns the outbox tables. Without it, the relay's own URL is
    /// used. Put the password into ~/.pgpass: command lines are public.
    #[arg(long, value_name = "URL", value_parser = secret)]
    pub admin_url: Option<SecretString>,
}

/// Arguments of `move plan`.
#[derive(Debug, Clone, Args)]
pub struct PlanMoveArgs {
    /// The configuration of the server to look at, and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// The administrator's connection.
    #[command(flatten)]
    pub admin: AdminArgs,

    /// For people, or for programs: an object with the state and the obstacles.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `move prepare`.
#[derive(Debug, Clone, Args)]
pub struct PrepareMoveArgs {
    /// How long transactions that write the outbox are waited for.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = walrelay_settings::parse_duration)]
    pub patience: Duration,

    /// No service writes messages until the switch: needed with `[source.messages]` if `outbox.emit` or
    /// `outbox.emit_all` of the database is of a former version or for another prefix, which no fence refuses.
    #[arg(long)]
    pub emitters_stopped: bool,

    /// The configuration of the new server, and `--dry-run`.
    #[command(flatten)]
    pub change: ChangeArgs,

    /// The administrator's connection.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Arguments of `move drain`.
#[derive(Debug, Clone, Args)]
pub struct DrainMoveArgs {
    /// How long the relay may take to deliver what was committed, with the transactions that write the
    /// outbox now.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = walrelay_settings::parse_duration)]
    pub patience: Duration,

    /// No service writes messages until the switch: needed with `[source.messages]` if `outbox.emit` or
    /// `outbox.emit_all` of the database is of a former version or for another prefix, which no fence refuses.
    #[arg(long)]
    pub emitters_stopped: bool,

    /// The configuration of the old server, `--dry-run` and `--yes`.
    #[command(flatten)]
    pub ask: AskArgs,

    /// The administrator's connection.
    #[command(flatten)]
    pub admin: AdminArgs,

    /// For people, or for programs: an object with the barrier.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `move switch`.
#[derive(Debug, Clone, Args)]
pub struct SwitchMoveArgs {
    /// The configuration of the old server, if the new one gets the rows by logical replication.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,

    /// With `--from`: no subscription is waited for, and no rows are compared, because every row from before the
    /// drain has arrived here, or none will.
    #[arg(long, requires = "from")]
    pub rows_arrived: bool,

    /// The configuration of the new server, `--dry-run` and `--yes`.
    #[command(flatten)]
    pub ask: AskArgs,

    /// The administrator's connection, to the new server.
    #[command(flatten)]
    pub admin: AdminArgs,

    /// For people, or for programs: an object with the slot and its position.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `move verify`.
#[derive(Debug, Clone, Args)]
pub struct VerifyMoveArgs {
    /// The configuration of the old server, if it still runs.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,

    /// The configuration of the new server, and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// For people, or for programs: an object with each finding.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `move abort`.
#[derive(Debug, Clone, Args)]
pub struct AbortMoveArgs {
    /// The configuration of the server, `--dry-run` and `--yes`.
    #[command(flatten)]
    pub ask: AskArgs,

    /// The administrator's connection.
    #[command(flatten)]
    pub admin: AdminArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};

    #[test]
    fn each_step_is_parsed() {
        let line = "move drain --patience 2m --yes --emitters-stopped";
        let drain = parsed!(line, Command::Move, MoveCommand::Drain);
        assert_eq!(drain.patience, Duration::from_secs(120));
        assert!(drain.ask.yes && drain.emitters_stopped && drain.admin.admin_url.is_none());
        let line = "move switch -c new.toml --from old.toml --dry-run";
        let switch = parsed!(line, Command::Move, MoveCommand::Switch);
        assert_eq!(switch.from, Some(PathBuf::from("old.toml")));
        assert!(switch.ask.change.dry_run && !switch.ask.yes);
        assert!(parse("move").is_err());
    }
}
