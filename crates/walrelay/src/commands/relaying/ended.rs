//! Keeps the error with which a run ends, for `status`, `check` and the next run. Neither the exit nor its code
//! depends on it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tracing::debug;
use walrelay_observe::millis_now;
use walrelay_postgres_source::last_error::{self, FoundError, LastError};
use walrelay_relay::Chain;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use super::relay::{CommitToAck, Relay};
use crate::cli::{Exit, Failure};
use crate::commands::assembly::block_on;

/// The time that writing may take: a server that does not answer delays the exit by no more.
const WRITE_LIMIT: Duration = Duration::from_secs(2);

/// The places that keep the error of a run.
pub(super) struct ErrorKeeper {
    info: ConnInfo,
    slot: String,
    /// A missing table may be created.
    create: bool,
    state_file: Option<PathBuf>,
    /// The error of the run before, which this run has found.
    found: Arc<FoundError>,
}

impl ErrorKeeper {
    /// Creates the keeper of a relay; `None` if the relay confirms nothing: it only prints.
    pub(super) fn new(relay: &Relay<'_>) -> Option<Self> {
        let config = relay.config;
        config.sink.confirms().then(|| Self {
            info: relay.info.clone(),
            slot: config.source.slot.clone(),
            create: config.source.create,
            state_file: config.source.state_file.clone(),
            found: Arc::clone(&relay.last_error),
        })
    }

    /// Keeps the error of a run, or removes that of the run before if this one has ended well.
    pub(super) fn keep(&self, result: &Result<CommitToAck, Failure>) {
        match result {
            // A stop that was too slow: the next start goes on by itself.
            Err(failure) if failure.exit == Exit::Temporary => {}
            Err(failure) => self.write(&mut last_error_of(failure)),
            Ok(_) if self.found.get().is_some() => self.clear(),
            Ok(_) => {}
        }
    }

    fn write(&self, error: &mut LastError) {
        let is_kept = self.within_limit(async {
            let mut session = self.connect().await?;
            last_error::write(&mut session, &self.slot, self.create, error).await
        });
        if !is_kept
            && let Some(state_file) = &self.state_file
            && let Err(error) = last_error::write_file(state_file, &self.slot, error)
        {
            debug!(%error, "the error cannot be kept alongside the state file");
        }
    }

    fn clear(&self) {
        self.within_limit(async {
            let mut session = self.connect().await?;
            last_error::clear(&mut session, &self.slot).await?;
            Ok(true)
        });
        if let Some(state_file) = &self.state_file
            && let Err(error) = last_error::remove_file(state_file)
        {
            debug!(%error, "the former error cannot be removed alongside the state file");
        }
    }

    async fn connect(&self) -> Result<Session, Error> {
        Session::connect(&self.info, SessionKind::Sql, &last_error::SETTINGS).await
    }

    /// Returns whether the work was done.
    fn within_limit(&self, work: impl Future<Output = Result<bool, Error>>) -> bool {
        let reason = match block_on(async { timeout(WRITE_LIMIT, work).await }) {
            Ok(Ok(Ok(true))) => return true,
            Ok(Ok(Ok(false))) => "this role may not".to_owned(),
            Ok(Ok(Err(error))) => Chain(&error).to_string(),
            Ok(Err(_)) => "no answer".to_owned(),
            Err(failure) => failure.to_string(),
        };
        debug!(
            slot = self.slot,
            reason, "the error of the run cannot be kept in walrelay_state"
        );
        false
    }
}

/// Returns the error as it is kept.
fn last_error_of(failure: &Failure) -> LastError {
    LastError {
        at_ms: millis_now(),
        id: failure.id.to_owned(),
        exit_code: failure.exit.code(),
        finding: failure.finding(),
        remedy: failure.remedy.clone(),
        position: None,
    }
}
