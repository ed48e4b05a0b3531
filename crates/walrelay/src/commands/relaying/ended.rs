//! Keeps the error with which a run ends, for `status`, `check` and the next run. Neither the exit nor its code
//! depends on it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use tokio::time::timeout;
use tracing::debug;
use walrelay_observe::millis_now;
use walrelay_postgres_source::last_error::{self, FoundError, LastError};
use walrelay_relay::Chain;
use walrelay_sink::in_current_span;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use super::relay::{CommitToAck, Relay};
use crate::cli::{Exit, Failure};
use crate::commands::assembly::block_on;

/// The time that writing may take.
const WRITE_LIMIT: Duration = Duration::from_secs(2);
/// The longest delay of the exit, also if a resolver or a disk does not answer.
const EXIT_LIMIT: Duration = Duration::from_secs(3);

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

    /// Keeps the error of a run, or removes that of the run before if this one has ended well. Works on a
    /// thread of its own, which the end of the process ends.
    pub(super) fn keep(self, result: &Result<CommitToAck, Failure>) {
        let mut error = match result {
            // A stop that was too slow: the next start goes on by itself.
            Err(failure) if failure.exit == Exit::Temporary => return,
            Err(failure) => Some(last_error_of(failure)),
            Ok(_) if self.found.get().is_some() => None,
            Ok(_) => return,
        };
        let (done, is_done) = channel();
        let work = move || {
            match &mut error {
                Some(error) => self.write(error),
                None => self.clear(),
            }
            // Nobody waits any more if it took too long.
            let _ = done.send(());
        };
        let thread = thread::Builder::new().name("last-error".to_owned());
        if thread.spawn(in_current_span(work)).is_err() || is_done.recv_timeout(EXIT_LIMIT).is_err()
        {
            debug!("the error of the run is not kept in time");
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
