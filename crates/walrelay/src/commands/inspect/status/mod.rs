//! `walrelay status`: shows the state of a running relay, or of its slot if no relay answers.

mod query;
mod screen;

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use walrelay_failure::{Exit, Failure};
use walrelay_observe::{
    FormerRunReport, LossReport, MoveReport, SlotReport, StatusReport, colours, printable_json,
};
use walrelay_postgres_source::last_error::LastError;
use walrelay_postgres_source::moves::MoveState;
use walrelay_relay::Danger;

use crate::cli::{Output, StatusArgs};
use crate::commands::inspect::endpoint::SILENT_REMEDY;
use crate::commands::terminal::wrap::columns;
use crate::commands::{CommandResult, EnvVars, load, print_part, print_text, write_failed};
use query::query_status;
use screen::{lines, screen};

pub(crate) use screen::status_lines;

/// Interval of `--watch`.
const INTERVAL: Duration = Duration::from_secs(2);
/// Moves to the upper left corner and clears the screen (ECMA-48).
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

const MISSING_SLOT: &str = "if a relay has run before, its slot was dropped: docs/operate/troubleshooting.md, \"The slot is gone or was \
     moved\"; otherwise run walrelay init, or walrelay run, which makes it";
const LOST_SLOT: &str = "docs/operate/troubleshooting.md, \"The slot is lost\"; walrelay check has the range of the log that is gone";
const NEAR_LIMIT: &str = "docs/operate/alerts.md, \"WalrelaySlotWalNearLimit\": raise \
                          max_slot_wal_keep_size now, or remove the obstacle to delivery";
const SILENT: &str = "a process has the address of [http] listen, and does not answer";
const UNREAD_SLOT: &str = "start walrelay run, or see why it stops: walrelay check; if the slot is \
                           no longer needed, walrelay slots drop, because Postgres keeps its log";

/// The document of `--output json`.
#[derive(Serialize)]
struct Status {
    /// The document of the endpoint; `null` if the endpoint did not answer.
    relay: Option<StatusReport>,
    /// Why the endpoint did not answer.
    relay_error: Option<String>,
    /// True if something listens at the address of the endpoint, and gave no answer in time.
    #[serde(skip)]
    is_silent: bool,
    /// True if the configuration has an endpoint.
    #[serde(skip)]
    has_endpoint: bool,
    /// The slot, read from Postgres if the endpoint did not answer.
    slot: Option<SlotReport>,
    /// The error with which the last run ended, if the endpoint did not answer and the slot is not beyond it.
    last_error: Option<LastError>,
    /// The last run, if the endpoint did not answer.
    last_run: Option<FormerRunReport>,
    /// The move of the outbox that has not ended on this server, if the endpoint did not answer.
    moved: Option<MoveReport>,
    /// The noted losses of the destination, if the endpoint did not answer.
    losses: Vec<LossReport>,
}

impl Status {
    /// Returns true if the slot may be missing or not read, because of a move: only the switch needs it again.
    fn is_drained(&self) -> bool {
        let moved = self.moved.as_ref();
        moved.is_some_and(|moved| moved.state != MoveState::Fenced.name())
    }
}

/// Runs `walrelay status`.
pub(crate) fn status(args: &StatusArgs, env: EnvVars<'_>) -> CommandResult {
    let config = load(&args.config, env)?;
    loop {
        let status = query_status(&config, env)?;
        let mut text = match args.output {
            Output::Json => {
                let json = serde_json::to_string(&status);
                let json = json.map_err(|error| write_failed(error.into()))?;
                printable_json(&json).into_owned() + "\n"
            }
            Output::Table => {
                let lines = lines(&config.pipeline.source.slot, &status);
                screen(
                    &lines,
                    colours(io::stdout().is_terminal(), env),
                    columns(env),
                )
            }
        };
        if !args.watch {
            print_text(&text)?;
            let failure =
                not_well(&config.pipeline.source.slot, &status).filter(|_| args.exit_code);
            return failure.map_or(Ok(()), |failure| Err(vec![failure]));
        }
        if args.output == Output::Table && io::stdout().is_terminal() {
            text.insert_str(0, CLEAR);
        }
        if print_part(text.as_bytes())?.is_break() {
            return Ok(());
        }
        thread::sleep(INTERVAL);
    }
}

/// Returns why a relay or its slot needs attention, as the failure of `--exit-code`; `None` if it does not.
fn not_well(slot: &str, status: &Status) -> Option<Failure> {
    let failure = |exit, what: String| Failure::new("not-ready", exit, what);
    let Some(relay) = &status.relay else {
        let moved = status.moved.as_ref().filter(|_| status.is_drained());
        if let Some(moved) = moved {
            return Some(failure(Exit::Unavailable, moved.text.clone()).remedy(&*moved.remedy));
        }
        return match &status.slot {
            None => Some(
                failure(Exit::Unavailable, format!("slot {slot} does not exist"))
                    .remedy(MISSING_SLOT),
            ),
            Some(_) if status.is_silent => {
                Some(failure(Exit::Unavailable, SILENT.to_owned()).remedy(SILENT_REMEDY))
            }
            Some(found) => slot_problem(found).map(|(what, remedy)| {
                let failure = failure(Exit::Unavailable, format!("slot {slot} {what}"));
                match status.last_error.as_ref().filter(|_| !found.active) {
                    Some(error) => with_last_error(failure, error),
                    None => failure.remedy(remedy),
                }
            }),
        };
    };
    let reason = relay.not_ready.as_ref()?;
    let failure = failure(Exit::Temporary, format!("the relay is not ready: {reason}"));
    Some(match &relay.pipeline.remedy {
        Some(remedy) => failure.remedy(remedy),
        None => failure.remedy("see in the relay's log since when, and why"),
    })
}

/// Adds the error with which the last run ended to the failure that its slot is not read.
fn with_last_error(mut failure: Failure, error: &LastError) -> Failure {
    failure.what = format!("{}: the last run {}", failure.what, error.text());
    failure.remedy(error.remedy.as_deref().unwrap_or(UNREAD_SLOT))
}

/// Returns the problem of a slot that the server was asked for, and the remedy.
fn slot_problem(slot: &SlotReport) -> Option<(String, &'static str)> {
    if let Some(reason) = &slot.invalidation_reason {
        return Some((format!("is LOST: {reason}"), LOST_SLOT));
    }
    if !slot.active {
        return Some(("is not read".to_owned(), UNREAD_SLOT));
    }
    match slot.danger(0) {
        Danger::None | Danger::Much => None,
        Danger::Half | Danger::Imminent => Some(("may lose WAL it needs".to_owned(), NEAR_LIMIT)),
    }
}

#[cfg(test)]
mod tests;
