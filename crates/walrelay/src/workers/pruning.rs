//! [`RowWorker`]: deletes confirmed rows and drops partitions while the relay runs, on a connection and
//! a thread of its own, if `[prune] keep` is set.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::{info, warn};
use walrelay_relay::Chain;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use walrelay_observe::{Background, Telemetry};
use walrelay_postgres_source::{Change, Pruning, slots};

/// The longest and shortest interval between two rounds.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
/// The longest interval while rounds fail, if they also create partitions.
const LONGEST_WITHOUT_PARTITION: Duration = Duration::from_secs(10);

/// Deletes confirmed rows for a relay.
#[derive(Debug)]
pub(crate) struct RowWorker {
    pub(crate) info: ConnInfo,
    /// The slot that the relay reads.
    pub(crate) slot: String,
    pub(crate) pruning: Pruning,
    /// PID of this process' walsender; 0 before the first stream. Only the process that reads the
    /// slot deletes rows.
    pub(crate) walsender: Arc<AtomicI32>,
    pub(crate) telemetry: Option<Arc<Telemetry>>,
}

/// Returns the pause before the next round: a quarter of the time for which rounds have failed, because
/// each costs the primary a connection and lines in its log. For example, a table that was locked for some
/// seconds is pruned as soon as before, and a publication that was changed costs a round each minute.
fn next_pause(period: Duration, failing: Duration, longest: Duration) -> Duration {
    (failing / 4).min(longest).max(period)
}

fn log_change(change: Change) {
    match change {
        Change::Created(part) => info!(partition = %part, "created a partition"),
        Change::Dropped(part) => info!(partition = %part, "dropped a confirmed partition"),
        Change::Kept(_) => {}
    }
}

/// The result of a round over all tables.
#[derive(Debug, Default)]
struct Round {
    /// The number of deleted rows.
    rows: u64,
    /// The reasons why rows or partitions stay.
    problems: Vec<String>,
}

impl RowWorker {
    /// Starts the thread, which works until it is dropped.
    pub(crate) fn start(self) -> io::Result<Background> {
        Background::start("prune", move || self.run())
    }

    async fn run(self) {
        let period = (self.pruning.keep / 10).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
        // The first round starts with the stream, because the current partition may be missing.
        while self.walsender.load(Ordering::Relaxed) == 0 {
            sleep(SHORTEST_INTERVAL).await;
        }
        // Services cannot insert while the current partition is missing.
        let longest = match self.pruning.partition {
            Some(_) => LONGEST_WITHOUT_PARTITION,
            None => LONGEST_INTERVAL,
        };
        let mut logged: Vec<String> = Vec::new();
        // The end of the first of the rounds that have failed.
        let mut failing = None;
        loop {
            let round = self.round().await;
            let Round { rows, problems } = round.unwrap_or_else(|error| Round {
                rows: 0,
                problems: vec![Chain(&error).to_string()],
            });
            if let Some(telemetry) = &self.telemetry {
                let obstacle = (!problems.is_empty()).then(|| problems.join("; "));
                telemetry.row_changes("prune", obstacle);
            }
            failing = match &*problems {
                [] => None,
                _ => failing.or_else(|| Some(Instant::now())),
            };
            if rows > 0 {
                info!(rows, "deleted confirmed rows");
            }
            // An error that repeats is logged once.
            for error in problems.iter().filter(|error| !logged.contains(error)) {
                warn!(
                    error,
                    "confirmed rows cannot be pruned at the moment; the relay goes on"
                );
            }
            if rows > 0 || !problems.is_empty() {
                logged = problems;
            }
            let failing = failing.map_or(Duration::ZERO, |since| since.elapsed());
            sleep(next_pause(period, failing, longest)).await;
        }
    }

    /// Makes one round over all tables.
    async fn round(&self) -> Result<Round, Error> {
        let mut round = Round::default();
        let walsender = self.walsender.load(Ordering::Relaxed);
        if walsender == 0 {
            return Ok(round);
        }
        let settings = [("lock_timeout", "1s")];
        let mut session = Session::connect(&self.info, SessionKind::Sql, &settings).await?;
        let slots = slots(&mut session).await?;
        let ours = slots
            .iter()
            .find(|row| row.name == self.slot && row.active_pid == Some(i64::from(walsender)));
        if ours.is_some() {
            let deleted = |rows| {
                round.rows += rows;
                if let Some(telemetry) = &self.telemetry {
                    telemetry.pruned(rows);
                }
            };
            let problems = self.pruning.run(&mut session, log_change, deleted).await;
            round.problems = problems.iter().map(|why| Chain(why).to_string()).collect();
        }
        session.close().await;
        Ok(round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_become_rare_while_they_fail() {
        let second = Duration::from_secs(1);
        let (mut failing, mut rounds) = (Duration::ZERO, 0);
        while failing < Duration::from_secs(600) {
            failing += next_pause(second, failing, LONGEST_INTERVAL);
            rounds += 1;
        }
        // Without longer pauses it would be 600.
        assert!((20..30).contains(&rounds), "{rounds}");
        assert_eq!(next_pause(second, 4 * second, LONGEST_INTERVAL), second);
        assert_eq!(next_pause(second, 600 * second, 10 * second), 10 * second);
        let longest = next_pause(LONGEST_INTERVAL, Duration::ZERO, 10 * second);
        assert_eq!(longest, LONGEST_INTERVAL);
    }
}
