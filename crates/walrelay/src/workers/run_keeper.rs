//! [`RunKeeper`]: notes the start of a run, what the destination's streams had and have lost, and the end of the
//! run, for the next run, `status` and `check`. Neither the relay nor its exit depends on it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
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
/// The longest time in which a run that has given up the slot notes its end.
pub(crate) const LAST_WORD: Duration = Duration::from_secs(3);
/// The longest wait for one note.
const LIMIT: Duration = Duration::from_secs(5);

/// The outcome of an attempt to note a run in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoteOutcome {
    Written,
    /// The role may not write it. The note is alongside the state file, if there is one.
    Refused,
    Failed,
}

/// The pace of the attempts: each costs the server a connection.
#[derive(Debug, Default)]
struct Pace {
    /// The pause after the last attempt; zero: it has succeeded.
    pause: Duration,
    /// Not before.
    next: Option<Instant>,
    /// The role may not write the note.
    is_refused: bool,
}

impl Pace {
    /// Returns true if an attempt is due.
    fn connects(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Notes an attempt.
    fn tried(&mut self, outcome: NoteOutcome, now: Instant) {
        self.is_refused = outcome == NoteOutcome::Refused;
        self.pause = match outcome {
            NoteOutcome::Written => Duration::ZERO,
            NoteOutcome::Refused | NoteOutcome::Failed => {
                (2 * self.pause.max(INTERVAL)).min(LONGEST)
            }
        };
        self.next = Some(now + self.pause);
    }
}

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
        // This note replaces that of the run before, which may be ending.
        if self
            .former
            .get()
            .is_some_and(|former| former.ended.is_none())
        {
            sleep(LAST_WORD).await;
        }
        let mut noted = None;
        let mut pace = Pace::default();
        loop {
            let before = (self.former.own(None), self.walsender());
            if noted.as_ref() != Some(&before) {
                if pace.connects(Instant::now()) {
                    let outcome = match timeout(LIMIT, self.note(noted.is_none())).await {
                        Ok(Ok((now, outcome))) => {
                            noted = Some(now);
                            outcome
                        }
                        failed => {
                            let error = failed.ok().and_then(Result::err);
                            let error = error.map(|error| Chain(&error).to_string());
                            debug!(error, "the run cannot be noted at the moment");
                            NoteOutcome::Failed
                        }
                    };
                    pace.tried(outcome, Instant::now());
                } else if pace.is_refused {
                    self.note_in_file(&before.0);
                    noted = Some(before);
                }
            }
            sleep(INTERVAL).await;
        }
    }

    /// Notes what this run has by now, and returns it. Nothing is written before the note of the run before is read,
    /// and `first` reads it once more: its end may be there by now.
    async fn note(&self, first: bool) -> Result<((RunNote, i32), NoteOutcome), Error> {
        let mut session = Session::connect(&self.info, SessionKind::Sql, &SETTINGS).await?;
        if first || !self.former.is_read() {
            let state_file = self.state_file.as_deref();
            let former = run_note::find(&mut session, &self.slot, state_file).await?;
            self.former.found(former, Lsn::ZERO);
        }
        let (note, walsender) = (self.former.own(None), self.walsender());
        let written =
            run_note::write(&mut session, &self.slot, self.create, &note, walsender).await?;
        session.close().await;
        let outcome = if written {
            NoteOutcome::Written
        } else {
            self.note_in_file(&note);
            NoteOutcome::Refused
        };
        Ok(((note, walsender), outcome))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_that_may_not_write_is_asked_less_and_less_often() {
        let (start, mut now, mut pace) = (Instant::now(), Instant::now(), Pace::default());
        let mut asked = Vec::new();
        while now < start + 4 * LONGEST {
            if pace.connects(now) {
                asked.push((now - start).as_secs() / INTERVAL.as_secs());
                pace.tried(NoteOutcome::Refused, now);
            }
            assert!(
                pace.is_refused,
                "the file has the notes between two attempts"
            );
            now += INTERVAL;
        }
        assert_eq!(asked, [0, 2, 6, 14, 30, 62, 122, 182], "in intervals");
        // Once it may, each interval has its note.
        pace.tried(NoteOutcome::Written, now);
        assert!(pace.connects(now) && !pace.is_refused);
        pace.tried(NoteOutcome::Failed, now);
        assert!(!pace.connects(now + INTERVAL) && pace.connects(now + 2 * INTERVAL));
    }
}
