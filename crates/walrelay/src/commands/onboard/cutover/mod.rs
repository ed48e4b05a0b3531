//! `walrelay cutover`: the way from a polling relay to walrelay, in steps that can be inspected,
//! and back.
//!
//! - [`plan`]: shows the present state, the steps and the obstacles. [`switch`]: stops the polling
//!   relay, publishes its unsent rows, and creates the slot. [`rollback`]: the way back.
//! - [`shadow`] and [`verify`] compare walrelay's records with those in the topics: [`compare`]
//!   finds differences.
//!
//! # Invariants
//! - Each step prints what it does and what can go wrong, and asks before it changes something.
//! - The slot begins where the snapshot of the rows that the polling relay has not marked ends. So
//!   no event is missing, and only rows that it published and did not mark are repeated.
//! - A row is marked only if walrelay has read its insert and its event was acknowledged, or on the user's word.

mod compare;
mod plan;
mod rollback;
mod shadow;
mod switch;
mod verify;

use std::process::Command;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use walrelay_failure::{Exit, Failure};
use walrelay_sink_kind::topics::SinkTopics;
use walrelay_sink_kind::{Ability, SinkKind};
use walrelay_walsender::Session;

use crate::cli::CutoverCommand;
use crate::commands::assembly::marking;
use crate::commands::assembly::server::Server;
use crate::commands::assembly::sink::refused;
use crate::commands::terminal::confirm::confirm;
use crate::commands::{CommandResult, EnvVars, log_warnings, print_notice};
use crate::config::{PipelineConfig, SnapshotMode};

/// The header with the id of the shadow run that sent a record.
const HEADER: &str = "walrelay-cutover";
/// Interval of queries and checks while a step waits.
const INTERVAL: Duration = Duration::from_millis(200);

/// Runs `walrelay cutover`.
pub(crate) fn cutover(command: &CutoverCommand, env: EnvVars<'_>) -> CommandResult {
    let config = match command {
        CutoverCommand::Plan(args) => &args.config,
        CutoverCommand::Shadow(args) => &args.change.config,
        CutoverCommand::Switch(args) => &args.ask.change.config,
        CutoverCommand::Verify(args) => &args.config,
        CutoverCommand::Rollback(args) => &args.ask.change.config,
    };
    let server = Server::load(config, env)?;
    log_warnings(server.process.log, Some(server.slot()), env);
    if server.config.source.tables.is_empty() {
        let what = "a cutover is one of tables: none is configured";
        let failure = Failure::new("cutover-tables", Exit::Config, what);
        return Err(vec![failure.remedy("name the outbox in [source] tables")]);
    }
    Ok(match command {
        CutoverCommand::Plan(args) => plan::plan(args, &server),
        CutoverCommand::Shadow(args) => shadow::shadow(args, &server),
        CutoverCommand::Switch(args) => switch::switch(args, &server, env),
        CutoverCommand::Verify(args) => verify::verify(args, &server),
        CutoverCommand::Rollback(args) => rollback::rollback(args, &server),
    }?)
}

/// Returns the topics of the sink, in which records are compared.
fn topics_of(sink: &dyn SinkKind) -> Result<&dyn SinkTopics, Failure> {
    sink.topics().ok_or_else(|| {
        refused("cutover-sink", sink, Ability::Topics)
            .remedy("set sink.kind to that of the topics that the polling relay writes")
    })
}

/// Returns the failure that there is no slot to compare or mark by.
fn no_slot(server: &Server) -> Failure {
    let what = format!(
        "there is no slot {}: a rollback drops it, and only a switch makes it",
        server.slot()
    );
    Failure::new("cutover-no-slot", Exit::Config, what).remedy(format!(
        "if the cutover was rolled back, or never made, the polling relay sends: start it, or begin with walrelay \
         cutover plan. If the slot was dropped by hand, compare the outbox with {} first",
        server.sink_title()
    ))
}

/// Fails unless the snapshot reads the rows that the polling relay has not sent.
fn check_snapshot_mode(config: &PipelineConfig) -> Result<(), Failure> {
    if config.source.snapshot == SnapshotMode::Unsent {
        return Ok(());
    }
    let what = "[source] snapshot is not \"unsent\": rows that the polling relay has not published would be lost";
    Err(Failure::new("cutover-snapshot", Exit::Config, what).remedy(
        "set snapshot = \"unsent\" in [source], and snapshot_where to the rows that are not sent if they are not \
         those whose dispatched_at or sent_at is NULL",
    ))
}

/// Runs the command that stops a relay, or asks the operator to stop it.
fn stop(relay: &str, command: Option<&str>, yes: bool) -> Result<(), Failure> {
    let Some(command) = command else {
        if yes {
            return Ok(());
        }
        let question = format!("Stop {relay} now, then press Enter (n to give up): ");
        let refused = Failure::new("cutover-not-agreed", Exit::Usage, "nothing was changed").remedy(
            "look with --dry-run; name the command that stops it, or say --yes when it is stopped",
        );
        return confirm(
            &question,
            |answer| !answer.eq_ignore_ascii_case("n"),
            refused,
        );
    };
    print_notice(&format!("stopping {relay}: {command}"));
    let status = Command::new("sh").args(["-c", command]).status();
    let why = match status {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    Err(Failure::new(
        "cutover-command",
        Exit::Temporary,
        format!("the command that stops {relay} failed: nothing was changed"),
    )
    .caused_by(why)
    .remedy("correct the command and start again"))
}

/// Waits until a query returns no rows. The first column of each row describes what is waited for.
async fn wait_until_gone(
    session: &mut Session,
    sql: &str,
    patience: Duration,
    work: &str,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut reported = false;
    loop {
        let rows = session.query(sql).await?;
        if rows.is_empty() {
            return Ok(());
        }
        let left: Vec<&str> = rows.iter().filter_map(|row| row.get(0)).collect();
        let left = left.join("; ");
        if !reported {
            print_notice(&format!("waiting for {work}: {left}"));
            reported = true;
        }
        if begun.elapsed() > patience {
            let text = format!("{work} did not end within {} s: {left}", patience.as_secs());
            return Err(Failure::new("cutover-busy", Exit::Temporary, text).remedy(
                "look at these sessions, end them (pg_terminate_backend), and start again: nothing \
                 was changed",
            ));
        }
        sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_without_topics_is_refused_by_name() {
        use crate::commands::assembly::sink::recording::Recording;
        let failure = topics_of(&Recording::default())
            .err()
            .expect("it has no topics");
        assert_eq!(failure.id, "cutover-sink");
        assert_eq!(
            failure.what,
            "the sink recording cannot read and create topics"
        );
    }
}
