//! `walrelay cutover`: from a polling relay to walrelay, in steps that can be looked at, and back.
//!
//! - [`plan`]: what is there and what is in the way. [`switch`]: the polling relay stops, walrelay begins.
//!   [`rollback`]: the way back.
//! - [`shadow`] and [`verify`] hold walrelay's records against those in the topics: [`compare`] says what differs,
//!   [`reading`] reads topics.
//!
//! # Invariants
//! - Each step says what it does and what can go wrong, and asks before it changes something.
//! - The slot is made by the snapshot that publishes the rows which the polling relay has not marked: there is neither
//!   a gap nor an overlap but for rows that it published and did not mark.
//! - A row is marked only if its commit is confirmed in the slot.

mod compare;
mod plan;
mod reading;
mod rollback;
mod shadow;
mod switch;
mod verify;

use std::io::{self, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use walrelay_walsender::Session;

use super::confirm::confirm;
use super::connect::marking;
use super::server::{Server, failure};
use super::slots::warn;
use super::{Ended, Env, log_warnings, output};
use crate::cli::{CutoverArgs, CutoverCommand, Exit, Failure};
use crate::config::{Config, KafkaSink, SinkConfig, SnapshotMode};

/// The header that says which comparison a record belongs to.
const HEADER: &str = "walrelay-cutover";
const INTERVAL: Duration = Duration::from_millis(200);

/// `walrelay cutover`.
pub(crate) fn cutover(args: &CutoverArgs, env: Env<'_>) -> Ended {
    let config = match &args.command {
        CutoverCommand::Plan(args) => &args.config,
        CutoverCommand::Shadow(args) => &args.change.config,
        CutoverCommand::Switch(args) => &args.ask.change.config,
        CutoverCommand::Verify(args) => &args.config,
        CutoverCommand::Rollback(args) => &args.ask.change.config,
    };
    let server = Server::of(config, env)?;
    log_warnings(&server.config, Some(server.slot()), env);
    if server.config.source.tables.is_empty() {
        let what = "a cutover is one of tables: none is configured";
        let failure = Failure::new("cutover-tables", Exit::Config, what);
        return Err(vec![failure.remedy("name the outbox in [source] tables")]);
    }
    Ok(match &args.command {
        CutoverCommand::Plan(_) => plan::plan(&server),
        CutoverCommand::Shadow(args) => shadow::shadow(args, &server),
        CutoverCommand::Switch(args) => switch::switch(args, &server, env),
        CutoverCommand::Verify(args) => verify::verify(args, &server),
        CutoverCommand::Rollback(args) => rollback::rollback(args, &server),
    }?)
}

fn say(text: &str) -> Result<(), Failure> {
    io::stdout().write_all(text.as_bytes()).map_err(output)
}

/// Where records are compared.
fn kafka_of(config: &Config) -> Result<&KafkaSink, Failure> {
    match &config.sink {
        SinkConfig::Kafka(kafka) => Ok(kafka),
        SinkConfig::Stdout { .. } => Err(Failure::new(
            "cutover-sink",
            Exit::Config,
            "there is no Kafka in the configuration",
        )
        .remedy("set sink.kind to kafka")),
    }
}

fn needs_unsent(config: &Config) -> Result<(), Failure> {
    if config.source.snapshot == SnapshotMode::Unsent {
        return Ok(());
    }
    let what = "[source] snapshot is not \"unsent\": rows that the polling relay has not published would be lost";
    Err(Failure::new("cutover-snapshot", Exit::Config, what).remedy(
        "set snapshot = \"unsent\" in [source], and snapshot_where to the rows that are not sent if they are not \
         those whose dispatched_at or sent_at is NULL",
    ))
}

/// Runs the command that stops something, or asks somebody to do so.
fn stop(what: &str, command: Option<&str>, yes: bool) -> Result<(), Failure> {
    let Some(command) = command else {
        if yes {
            return Ok(());
        }
        let question = format!("Stop {what} now, then press Enter (n to give up): ");
        return confirm(&question, |answer| !answer.eq_ignore_ascii_case("n")).map_err(|why| {
            let what = format!("nothing was changed: {why}");
            Failure::new("cutover-not-agreed", Exit::Usage, what)
                .remedy("look with --dry-run; name the command that stops it, or say --yes when it is stopped")
        });
    };
    warn(&format!("stopping {what}: {command}"));
    let status = Command::new("sh").args(["-c", command]).status();
    let why = match status {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    Err(Failure::new(
        "cutover-command",
        Exit::Temporary,
        format!("the command that stops {what} failed: nothing was changed"),
    )
    .caused_by(why)
    .remedy("correct the command and begin again"))
}

/// Waits until a query gives no rows. Each row is one line that says who is in the way.
async fn gone(
    session: &mut Session,
    sql: &str,
    patience: Duration,
    what: &str,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut said = false;
    loop {
        let rows = session.query(sql).await.map_err(failure)?;
        if rows.is_empty() {
            return Ok(());
        }
        let lines = rows.iter().filter_map(|row| row.get(0).map(str::to_owned));
        let lines: Vec<String> = lines.collect();
        if !said {
            warn(&format!("waiting for {what}: {}", lines.join("; ")));
            said = true;
        }
        if begun.elapsed() > patience {
            let text = format!(
                "{what} did not end within {} s: {}",
                patience.as_secs(),
                lines.join("; ")
            );
            return Err(Failure::new("cutover-busy", Exit::Temporary, text).remedy(
                "see what these sessions do, end them (pg_terminate_backend), and begin again: nothing was changed",
            ));
        }
        sleep(INTERVAL).await;
    }
}
