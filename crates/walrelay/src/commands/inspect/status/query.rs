//! Reads the state of a relay from its endpoint, or that of its slot from Postgres.

use std::time::Duration;

use walrelay_failure::Failure;
use walrelay_observe::{LossReport, MoveReport, SlotReport};
use walrelay_postgres_source::epoch::find_epoch;
use walrelay_postgres_source::last_error::{self, LastError};
use walrelay_postgres_source::moves::find_unfinished_move;
use walrelay_postgres_source::run_note::{self, RunNote};
use walrelay_postgres_source::slot_standing;

use super::Status;
use crate::commands::EnvVars;
use crate::commands::assembly::server::failure;
use crate::commands::assembly::{block_on, conn_info, sql_session};
use crate::commands::inspect::endpoint::fetch_status;
use crate::config::{Config, PipelineConfig};
use crate::workers::{former_run_report, move_report, slot_report};

/// Timeout of an answer of Postgres.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the endpoint of the relay, and Postgres if it does not answer.
pub(super) fn query_status(config: &Config, env: EnvVars<'_>) -> Result<Status, Failure> {
    let relay = match &config.process.http {
        Some(http) => fetch_status(http),
        None => Err("[http] listen is not configured".to_owned().into()),
    };
    let state = match &relay {
        Ok(_) => Found::default(),
        Err(_) => query_slot(&config.pipeline, env)?,
    };
    let losses = state.run.iter().flat_map(|run| &run.losses);
    let no_document = relay.as_ref().err();
    Ok(Status {
        relay_error: no_document.map(ToString::to_string),
        is_silent: no_document.is_some_and(|reason| reason.is_silent),
        has_endpoint: config.process.http.is_some(),
        relay: relay.ok(),
        slot: state.slot,
        last_error: state.last_error,
        moved: state.moved,
        losses: losses
            .map(|loss| LossReport::new(loss, state.epoch))
            .collect(),
        last_run: state.run.as_ref().map(former_run_report),
    })
}

/// The state of a relay that does not answer, as Postgres has it.
#[derive(Default)]
struct Found {
    slot: Option<SlotReport>,
    last_error: Option<LastError>,
    run: Option<RunNote>,
    epoch: u8,
    moved: Option<MoveReport>,
}

/// Reads the state of the slot from Postgres, the error with which its last run ended, and the note of that run.
fn query_slot(config: &PipelineConfig, env: EnvVars<'_>) -> Result<Found, Failure> {
    let info = conn_info(&config.source, env)?;
    let state_file = config.source.state_file.as_deref();
    let (standing, error, run, epoch, moved) = block_on(async {
        let mut session = sql_session(&info).await?;
        session.limit_answers(ANSWER_TIMEOUT);
        let standing = slot_standing(&mut session, &config.source.slot).await;
        let standing = standing.map_err(failure)?;
        let error = last_error::find(&mut session, &config.source.slot, state_file).await;
        let run = run_note::find(&mut session, &config.source.slot, state_file).await;
        let epoch = find_epoch(&mut session, &config.source.slot).await;
        let moved = find_unfinished_move(&mut session, &config.source.slot).await;
        session.close().await;
        let (error, run) = (error.map_err(failure)?, run.map_err(failure)?);
        let (epoch, moved) = (epoch.map_err(failure)?.number, moved.map_err(failure)?);
        Ok::<_, Failure>((standing, error, run, epoch, moved))
    })??;
    let confirmed = standing.slot.as_ref().and_then(|slot| slot.confirmed);
    Ok(Found {
        last_error: error.filter(|error| !error.is_passed(confirmed)),
        slot: slot_report(standing),
        run,
        epoch,
        moved: moved.as_ref().map(move_report),
    })
}
