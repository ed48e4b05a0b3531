//! [`MarkWorker`]: marks rows as sent while the relay runs, on a connection and a thread of its own, if
//! `[source] mark_sent` is set.
//!
//! A position is confirmed after the rows before it are marked, so this waits for keys, and lets no
//! row hold the position up for ever.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, warn};
use walrelay_observe::{Background, Telemetry};
use walrelay_postgres_source::{MarkError, SentMarker};
use walrelay_relay::{Chain, SentRows};
use walrelay_walsender::{ConnInfo, Error, Session, quote_literal};

/// Shortest time between two rounds, so that a batch has many rows where there are many.
const GAP: Duration = Duration::from_millis(250);
/// Time after which a round is given up, with its session.
const ROUND: Duration = Duration::from_secs(9);
/// The time for which rows that are not marked may hold up the position.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval of the rounds over rows that could not be marked, and the same after a round that could not work them off.
const STORED_INTERVAL: Duration = Duration::from_secs(1);
const FAILED_INTERVAL: Duration = Duration::from_secs(10);

/// Marks rows as sent for a relay.
#[derive(Debug)]
pub(crate) struct MarkWorker {
    pub(crate) info: ConnInfo,
    /// The slot that the relay reads.
    pub(crate) slot: String,
    pub(crate) sent: Arc<SentRows>,
    pub(crate) marker: SentMarker,
    /// PID of this process' walsender; 0 before the first stream, while a snapshot is read. Only the
    /// process that reads the slot marks rows.
    pub(crate) walsender: Arc<AtomicI32>,
    pub(crate) telemetry: Option<Arc<Telemetry>>,
}

/// The result of a round after which no key holds up a position.
#[derive(Default)]
struct Round {
    /// The number of rows that were marked.
    rows: u64,
    /// Why rows could not be marked.
    obstacle: Option<String>,
    /// The stored keys could not be worked off.
    is_stuck: bool,
}

/// The reason why a round failed: keys hold up a position.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    /// Rows cannot be marked, nor their keys be stored.
    #[error(transparent)]
    Mark(#[from] MarkError),
    /// No session can be used.
    #[error("the session failed")]
    Session(#[from] Error),
    /// The slot has another reader on this server.
    #[error("the slot is not read by this process on the server that was reached")]
    NotOurs,
    /// The server does not answer.
    #[error("no answer within {} s", ROUND.as_secs())]
    NoAnswer,
}

impl MarkWorker {
    /// Starts the thread, which works until it is dropped.
    pub(crate) fn start(self) -> io::Result<Background> {
        Background::start("mark-sent", move || self.run())
    }

    async fn run(mut self) {
        let mut session = None;
        let mut stored_at = Instant::now();
        let mut failing_since: Option<Instant> = None;
        let (mut problem, mut logged) = (String::new(), String::new());
        loop {
            tokio::select! {
                () = self.sent.queued() => {}
                () = sleep_until(stored_at) => {}
            }
            let is_due = stored_at <= Instant::now();
            if is_due {
                stored_at = Instant::now() + STORED_INTERVAL;
                let has_work =
                    self.sent.is_queued() || self.has_stream() && self.marker.has_stored();
                if !has_work {
                    continue;
                }
            }
            let began = Instant::now();
            let round = timeout(ROUND, self.round(&mut session, is_due)).await;
            if is_due {
                // Stored rows get half of the time at most.
                stored_at = Instant::now() + began.elapsed().max(STORED_INTERVAL);
            }
            let round = round.unwrap_or(Err(RoundError::NoAnswer));
            let is_failed = round.is_err();
            let (rows, error, is_stuck) = match &round {
                Ok(Some(round)) => (round.rows, round.obstacle.clone(), round.is_stuck),
                Ok(None) => (0, None, false),
                Err(error) => (0, Some(Chain(error).to_string()), true),
            };
            let goes_on = matches!(round, Ok(Some(_))) && self.marker.has_batch();
            if rows > 0 {
                // At debug level: this happens several times a second while there are rows.
                debug!(rows, "marked rows as sent");
            }
            if !matches!(round, Ok(_) | Err(RoundError::Mark(_))) {
                session = None;
            }
            // Rows that are stored because of an error are marked by a round that works them off.
            let is_complete = error.is_some() || is_due || !self.marker.has_stored();
            if let Some(telemetry) = self.telemetry.as_ref().filter(|_| is_complete) {
                let shown = error.clone().or_else(|| self.marker.dead_problem());
                telemetry.row_changes("mark_sent", shown);
            }
            let dead_problem = self.marker.dead_problem().unwrap_or_default();
            // An error that repeats is logged once.
            if dead_problem != logged && !dead_problem.is_empty() {
                warn!(
                    error = dead_problem,
                    "rows of dead letters cannot be marked at the moment; the relay goes on"
                );
            }
            logged = dead_problem;
            if is_due && is_stuck {
                stored_at = Instant::now() + FAILED_INTERVAL;
            }
            if !is_failed {
                failing_since = None;
            }
            match error {
                None => {
                    if is_complete {
                        problem.clear();
                    }
                }
                Some(error) => {
                    // An error that repeats is logged once.
                    if error != problem {
                        warn!(
                            error,
                            "rows cannot be marked as sent at the moment; the relay goes on"
                        );
                    }
                    // Only keys that no round can settle are given up.
                    if is_failed {
                        let since = *failing_since.get_or_insert_with(Instant::now);
                        if !self.sent.holds_up() {
                            failing_since = None;
                        } else if since.elapsed() >= PATIENCE {
                            self.marker.give_up(&error);
                        }
                        sleep(STORED_INTERVAL).await;
                    }
                    problem = error;
                }
            }
            if !goes_on {
                sleep(GAP).await;
            }
        }
    }

    /// Returns true if a stream was opened.
    fn has_stream(&self) -> bool {
        self.walsender.load(Ordering::Relaxed) != 0
    }

    /// Marks one batch of the rows that wait for it; `None` if this process does not read the slot. `works_off`:
    /// also those that could not be marked before.
    async fn round(
        &mut self,
        session: &mut Option<Session>,
        works_off: bool,
    ) -> Result<Option<Round>, RoundError> {
        let connected = match session.take() {
            Some(connected) => connected,
            None => SentMarker::connect(&self.info).await?,
        };
        let session = session.insert(connected);
        let walsender = self.walsender.load(Ordering::Relaxed);
        if walsender != 0 {
            let ours = format!(
                "SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {} AND active_pid = {walsender}",
                quote_literal(&self.slot)
            );
            if session.query(&ours).await?.is_empty() {
                // A relay that stands by has no rows to mark.
                return if self.sent.holds_up() {
                    Err(RoundError::NotOurs)
                } else {
                    Ok(None)
                };
            }
        }
        let mut round = Round {
            rows: self.marker.mark_queued(session).await?,
            ..Round::default()
        };
        if works_off && walsender != 0 {
            match self.marker.work_off(session).await {
                Ok(rows) => round.rows += rows,
                Err(error) => {
                    round.obstacle = Some(Chain(&error).to_string());
                    round.is_stuck = true;
                }
            }
        }
        round.obstacle = round.obstacle.or_else(|| self.marker.problem());
        Ok(Some(round))
    }
}
