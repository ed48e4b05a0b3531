//! [`RunKeeper`]: notes the start of a run, what the destination's streams had and have lost, and the end of the
//! run, for the next run, `status` and `check`. Neither the relay nor its exit depends on it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::debug;
use walrelay_lsn::Lsn;
use walrelay_observe::millis_now;
use walrelay_postgres_source::last_error::SETTINGS;
use walrelay_postgres_source::run_note::{self, FormerRun, RunEnd, RunNote};
use walrelay_relay::Chain;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

/// Time between two looks whether the slot is read.
const UNTIL_READ: Duration = Duration::from_millis(500);
/// Time between two notes, if there is something new. A kill loses what is newer.
const INTERVAL: Duration = Duration::from_secs(5);
/// The same at most while it fails.
const LONGEST: Duration = Duration::from_secs(300);
/// The longest wait for one note.
const LIMIT: Duration = Duration::from_secs(5);

/// Notes what the next run is to know.
#[derive(Debug)]
pub(crate) struct RunKeeper {
    pub(crate) info: ConnInfo,
    pub(crate) slot: String,
    /// A missing table may be created.
    pub(crate) create: bool,
    pub(crate) state_file: Option<PathBuf>,
    pub(crate) former: Arc<FormerRun>,
    /// PID of this process' walsender; unset, or 0, before the first stream.
    pub(crate) walsender: OnceLock<Arc<AtomicI32>>,
}

impl RunKeeper {
    /// Returns the PID of the walsender; 0 before the first stream.
    fn walsender(&self) -> i32 {
        let walsender = self.walsender.get();
        walsender.map_or(0, |walsender| walsender.load(Ordering::Relaxed))
    }

    /// Notes what is new, until it is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        while self.walsender() == 0 {
            sleep(UNTIL_READ).await;
        }
        let mut noted = None;
        let mut pause = INTERVAL;
        loop {
            let before = (self.former.own(None), self.walsender());
            if noted.as_ref() != Some(&before) {
                match timeout(LIMIT, self.note()).await {
                    Ok(Ok(now)) => {
                        noted = Some(now);
                        pause = INTERVAL;
                    }
                    failed => {
                        let error = failed.ok().and_then(Result::err);
                        let error = error.map(|error| Chain(&error).to_string());
                        debug!(error, "the run cannot be noted at the moment");
                        // Each attempt costs the server a connection.
                        pause = (2 * pause).min(LONGEST);
                    }
                }
            }
            sleep(pause).await;
        }
    }

    /// Notes what this run has by now, and returns it. Nothing is written before the note of the run before is read.
    async fn note(&self) -> Result<(RunNote, i32), Error> {
        let mut session = Session::connect(&self.info, SessionKind::Sql, &SETTINGS).await?;
        if !self.former.is_read() {
            let state_file = self.state_file.as_deref();
            let former = run_note::find(&mut session, &self.slot, state_file).await?;
            self.former.found(former, Lsn::ZERO);
        }
        let (note, walsender) = (self.former.own(None), self.walsender());
        let written =
            run_note::write(&mut session, &self.slot, self.create, &note, walsender).await?;
        session.close().await;
        if !written {
            self.note_in_file(&note);
        }
        Ok((note, walsender))
    }

    /// Notes it alongside the state file, if there is one.
    pub(crate) fn note_in_file(&self, note: &RunNote) {
        if let Some(state_file) = &self.state_file
            && let Err(error) = run_note::write_file(state_file, &self.slot, note)
        {
            debug!(%error, "the run cannot be noted alongside the state file");
        }
    }

    /// Returns the note of the end of this run; `None` if it has never read the slot. `error`: the id of the
    /// error that ended it.
    pub(crate) fn end(&self, error: Option<&str>) -> Option<RunNote> {
        let at_ms = millis_now();
        let error = error.map(str::to_owned);
        let ended = RunEnd { at_ms, error };
        let may_note = self.walsender() != 0 && self.former.is_read();
        may_note.then(|| self.former.own(Some(ended)))
    }
}
