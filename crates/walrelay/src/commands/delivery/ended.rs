//! Keeps the end of a run, and the error with which it ends, for `status`, `check` and the next run. Neither the exit nor its code
//! depends on it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use tokio::time::timeout;
use tracing::debug;
use walrelay_failure::{Exit, Failure};
use walrelay_observe::millis_now;
use walrelay_postgres_source::last_error::{self, FoundError, LastError};
use walrelay_postgres_source::run_note::{self, RunNote};
use walrelay_relay::Chain;
use walrelay_sink::in_current_span;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use super::relay::{CommitToAck, Relay};
use crate::commands::assembly::block_on;
use crate::workers::{LAST_WORD, RunKeeper};

/// The time that writing may take.
const WRITE_LIMIT: Duration = Duration::from_secs(2);
/// The longest delay of the exit, also if a resolver or a disk does not answer.
const EXIT_LIMIT: Duration = LAST_WORD;

/// The places that keep the end of a run, and its error.
pub(super) struct ErrorKeeper {
    info: ConnInfo,
    slot: String,
    /// A missing table may be created.
    create: bool,
    state_file: Option<PathBuf>,
    /// The error of the run before, which this run has found.
    found: Arc<FoundError>,
    run: Arc<RunKeeper>,
}

/// The change of the error that is kept.
enum Change {
    Write(LastError),
    Clear,
    None,
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
            found: Arc::clone(&relay.findings.last_error),
            run: Arc::clone(&relay.run_keeper),
        })
    }

    /// Keeps the end of a run and its error, or removes that of the run before if this one has ended well. Works
    /// on a thread of its own, which the end of the process ends.
    pub(super) fn keep(self, result: &Result<CommitToAck, Failure>) {
        let failure = result.as_ref().err();
        let change = match failure {
            // A stop that was too slow: the next start goes on by itself.
            Some(failure) if failure.exit == Exit::Temporary => Change::None,
            Some(failure) => Change::Write(last_error_of(failure)),
            None if self.found.get().is_some() => Change::Clear,
            None => Change::None,
        };
        let note = self.run.end(failure.map(|failure| failure.id));
        if note.is_none() && matches!(change, Change::None) {
            return;
        }
        let (done, is_done) = channel();
        let work = move || {
            self.write(change, note.as_ref());
            // Nobody waits any more if it took too long.
            let _ = done.send(());
        };
        let thread = thread::Builder::new().name("last-error".to_owned());
        if thread.spawn(in_current_span(work)).is_err() || is_done.recv_timeout(EXIT_LIMIT).is_err()
        {
            debug!("the end of the run is not kept in time");
        }
    }

    fn write(&self, mut change: Change, note: Option<&RunNote>) {
        let (mut is_error_kept, mut is_note_kept) = (false, false);
        self.within_limit(async {
            let mut session = self.connect().await?;
            is_error_kept = match &mut change {
                Change::Write(error) => {
                    last_error::write(&mut session, &self.slot, self.create, error).await?
                }
                Change::Clear => {
                    last_error::clear(&mut session, &self.slot).await?;
                    true
                }
                Change::None => true,
            };
            is_note_kept = match note {
                Some(note) => {
                    let former = self.run.former.get();
                    let (slot, create) = (&self.slot, self.create);
                    run_note::write_end(&mut session, slot, create, note, former.as_deref()).await?
                }
                None => true,
            };
            Ok(is_error_kept && is_note_kept)
        });
        if let Some(note) = note.filter(|_| !is_note_kept) {
            self.run.note_in_file(note);
        }
        let Some(state_file) = &self.state_file else {
            return;
        };
        let in_file = match &change {
            Change::Write(error) if !is_error_kept => {
                last_error::write_file(state_file, &self.slot, error)
            }
            Change::Clear => last_error::remove_file(state_file),
            Change::Write(_) | Change::None => Ok(()),
        };
        if let Err(error) = in_file {
            debug!(%error, "the error cannot be kept alongside the state file, or removed there");
        }
    }

    async fn connect(&self) -> Result<Session, Error> {
        Session::connect(&self.info, SessionKind::Sql, &last_error::SETTINGS).await
    }

    /// Does the work, and logs why it is not done.
    fn within_limit(&self, work: impl Future<Output = Result<bool, Error>>) {
        let reason = match block_on(async { timeout(WRITE_LIMIT, work).await }) {
            Ok(Ok(Ok(true))) => return,
            Ok(Ok(Ok(false))) => "this role may not".to_owned(),
            Ok(Ok(Err(error))) => Chain(&error).to_string(),
            Ok(Err(_)) => "no answer".to_owned(),
            Err(failure) => failure.to_string(),
        };
        debug!(
            slot = self.slot,
            reason, "the end of the run cannot be kept in walrelay_state"
        );
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
