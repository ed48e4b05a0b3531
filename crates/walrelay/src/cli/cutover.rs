//! Arguments of `walrelay cutover`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::common::{AskArgs, ChangeArgs, ConfigArgs, Output, RecordPlace};

/// The steps from a polling relay to walrelay, and back.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum CutoverCommand {
    /// Show the present state, the effect of each step, and the obstacles. Changes nothing.
    #[command(after_help = "Examples:
  walrelay cutover plan
  walrelay cutover plan --output json | jq .obstacles")]
    Plan(PlanCutoverArgs),

    /// Publish to shadow topics while the polling relay goes on, and compare with its topics.
    ///
    /// Reads a temporary slot: nothing is left when it ends. Compares ids, topics, keys, values,
    /// partitions and the order within each key. Ends with exit code 65 if something differed.
    #[command(after_help = "Examples:
  walrelay cutover shadow --for 10m
  walrelay cutover shadow --topic-prefix compare. --id header:event_id
  walrelay cutover shadow --id value:event_id --dry-run")]
    Shadow(ShadowCutoverArgs),

    /// Stop the polling relay, publish the rows that it has not marked, make the slot.
    ///
    /// Waits until the transactions that hold locks of the outbox are gone. When it ends, start
    /// `walrelay run`: it goes on from exactly there.
    #[command(after_help = "Examples:
  walrelay cutover switch --dry-run
  walrelay cutover switch --stop-poller 'kubectl scale deploy/poller --replicas 0'
  walrelay cutover switch --poller outbox-poller --yes")]
    Switch(SwitchCutoverArgs),

    /// Find each row of the outbox in its topic, and compare it with the record that walrelay makes of it.
    ///
    /// The relay must be running. Ends with exit code 65 if a row is missing or differs.
    #[command(after_help = "Examples:
  walrelay cutover verify
  walrelay cutover verify --since 24h
  walrelay cutover verify --where \"created_at >= '2026-03-01'\" --since 72h")]
    Verify(VerifyCutoverArgs),

    /// Stop walrelay, mark the rows that it published as sent, drop its slot.
    ///
    /// When it ends, start the polling relay: it sends the rows that are not marked. These are also
    /// the rows of open dead letters, unless `--mark-dead-letters`.
    #[command(after_help = "Examples:
  walrelay cutover rollback --dry-run
  walrelay cutover rollback --stop-relay 'systemctl stop walrelay'
  walrelay cutover rollback --yes --mark-dead-letters")]
    Rollback(RollbackCutoverArgs),
}

/// Arguments of `cutover plan`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct PlanCutoverArgs {
    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// For people, or for programs: an object with the
    /// state and the obstacles.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `cutover shadow`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ShadowCutoverArgs {
    /// What the names of the shadow topics begin with.
    #[arg(long, value_name = "PREFIX", default_value = "shadow.")]
    pub topic_prefix: String,

    /// Where both relays' records have the event's id: `header:NAME` or `value:MEMBER`. Without it,
    /// the header id, event_id or x-outbox-event-id.
    #[arg(long, value_name = "PLACE")]
    pub id: Option<RecordPlace>,

    /// End so long after the first event that both relays have published; without it, at Ctrl-C.
    #[arg(long = "for", value_name = "TIME", value_parser = walrelay_settings::parse_duration)]
    pub duration: Option<Duration>,

    /// How long one side may be behind the other.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = walrelay_settings::parse_duration)]
    pub patience: Duration,

    /// The configuration and `--dry-run`.
    #[command(flatten)]
    pub change: ChangeArgs,

    /// For people, or for programs: an object for each
    /// difference, and one with the totals.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `cutover switch`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct SwitchCutoverArgs {
    /// The command, for `sh -c`, that stops the polling relay. Without it, you are asked to stop
    /// it.
    #[arg(long, value_name = "COMMAND")]
    pub stop_poller: Option<String>,

    /// The application_name of the polling relay's sessions: they must be gone.
    #[arg(long, value_name = "NAME")]
    pub poller: Option<String>,

    /// How long sessions and locks of the polling relay are waited for.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = walrelay_settings::parse_duration)]
    pub patience: Duration,

    /// The configuration, `--dry-run` and `--yes`; with `--yes`, the polling relay is stopped
    /// already.
    #[command(flatten)]
    pub ask: AskArgs,

    /// For people, or for programs: an object with the
    /// slot, and for `--dry-run` the number of rows.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `cutover verify`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct VerifyCutoverArgs {
    /// How far back rows and records are looked at.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = walrelay_settings::parse_duration)]
    pub since: Duration,

    /// A condition in SQL on the rows, instead of their time.
    #[arg(long, value_name = "SQL")]
    pub r#where: Option<String>,

    /// Where records have the event's id, as of `shadow`.
    #[arg(long, value_name = "PLACE")]
    pub id: Option<RecordPlace>,

    /// The configuration file and its overrides.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// For people, or for programs: an object for each
    /// difference, and one with the totals.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `cutover rollback`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct RollbackCutoverArgs {
    /// The command, for `sh -c`, that stops `walrelay run`. Without it, you are asked to stop it.
    #[arg(long, value_name = "COMMAND")]
    pub stop_relay: Option<String>,

    /// How long the slot is waited for, until it has no reader.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = walrelay_settings::parse_duration)]
    pub patience: Duration,

    /// Mark also rows whose events are dead letters that are neither redriven nor dropped.
    #[arg(long)]
    pub mark_dead_letters: bool,

    /// Drop the slot without keeping a copy of it as a bookmark.
    #[arg(long)]
    pub no_bookmark: bool,

    /// The configuration, `--dry-run` and `--yes`; with `--yes`, the relay is stopped already.
    #[command(flatten)]
    pub ask: AskArgs,

    /// For people, or for programs: an object with the
    /// rows that were marked, and for `--dry-run` those that are not marked.
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};

    #[test]
    fn steps_are_read() {
        let line = "cutover shadow --for 10m --id value:event_id";
        let shadow = parsed!(line, Command::Cutover, CutoverCommand::Shadow);
        assert_eq!(shadow.duration, Some(Duration::from_secs(600)));
        assert_eq!(shadow.id, Some(RecordPlace::Value("event_id".to_owned())));
        assert_eq!(shadow.topic_prefix, "shadow.");
        let plan = parsed!(
            "cutover plan --output json",
            Command::Cutover,
            CutoverCommand::Plan
        );
        assert_eq!(plan.output, Output::Json);
        let line = "cutover switch --stop-poller \"kill 1\" --dry-run";
        let switch = parsed!(line, Command::Cutover, CutoverCommand::Switch);
        assert!(switch.ask.change.dry_run && !switch.ask.yes);
        for wrong in ["shadow --id event_id", "shadow --id header:", ""] {
            assert!(parse(&format!("cutover {wrong}")).is_err(), "{wrong}");
        }
    }
}
