//! [`RowWorker`]: changes confirmed rows while the relay runs, on a connection and a thread of its
//! own.
//!
//! If `[prune] keep` is set, it deletes rows and drops partitions. If `[source] mark_sent` is set,
//! it marks rows as sent.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{debug, info, warn};
use walrelay_lsn::Lsn;
use walrelay_relay::Chain;
use walrelay_walsender::{ConnInfo, Session, SessionKind};

use walrelay_observe::{Background, Telemetry};
use walrelay_postgres_source::{Change, Marking, Pruning, slots};

/// The longest and shortest interval between two rounds.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// The change of confirmed rows.
#[derive(Debug)]
pub(crate) enum Work {
    Prune(Pruning),
    Mark(Marking),
}

/// Changes confirmed rows for a relay.
#[derive(Debug)]
pub(crate) struct RowWorker {
    pub(crate) info: ConnInfo,
    /// The slot that the relay reads.
    pub(crate) slot: String,
    pub(crate) work: Work,
    /// PID of this process' walsender; 0 before the first stream. Only the process that reads the
    /// slot changes rows.
    pub(crate) walsender: Arc<AtomicI32>,
    pub(crate) telemetry: Option<Arc<Telemetry>>,
}

fn log_change(change: Change) {
    match change {
        Change::Created(part) => info!(partition = %part, "created a partition"),
        Change::Dropped(part) => info!(partition = %part, "dropped a confirmed partition"),
        Change::Kept(_) => {}
    }
}

impl RowWorker {
    /// Starts the thread, which works until it is dropped.
    pub(crate) fn start(self) -> io::Result<Background> {
        let name = match self.work {
            Work::Prune(_) => "prune",
            Work::Mark(_) => "mark-sent",
        };
        Background::start(name, move || self.run())
    }

    async fn run(self) {
        let (work, period, failed) = match &self.work {
            Work::Prune(pruning) => (
                "prune",
                pruning.keep / 10,
                "confirmed rows cannot be pruned at the moment; the relay goes on",
            ),
            Work::Mark(_) => (
                "mark_sent",
                SHORTEST_INTERVAL,
                "confirmed rows cannot be marked as sent at the moment; the relay goes on",
            ),
        };
        // The first round starts with the stream, because the current partition may be missing.
        while self.walsender.load(Ordering::Relaxed) == 0 {
            sleep(SHORTEST_INTERVAL).await;
        }
        let mut ticks = interval(period.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut problem = String::new();
        loop {
            ticks.tick().await;
            let round = self.round().await;
            if let Some(telemetry) = &self.telemetry {
                let obstacle = round.as_ref().err();
                telemetry.row_changes(work, obstacle.map(|error| Chain(&**error).to_string()));
            }
            match round {
                Ok(0) => {}
                Ok(rows) => {
                    match self.work {
                        Work::Prune(_) => info!(rows, "deleted confirmed rows"),
                        // At debug level: this happens every second while there are rows.
                        Work::Mark(_) => debug!(rows, "marked confirmed rows as sent"),
                    }
                    problem.clear();
                }
                Err(error) => {
                    let error = Chain(&*error).to_string();
                    // An error that repeats is logged once.
                    if error != problem {
                        warn!(error, "{failed}");
                    }
                    problem = error;
                }
            }
        }
    }

    /// Makes one round over all tables. Returns the number of changed rows.
    async fn round(&self) -> Result<u64, Box<dyn Error>> {
        let walsender = self.walsender.load(Ordering::Relaxed);
        if walsender == 0 {
            return Ok(0);
        }
        // A locked sequence of `walrelay_state` must not keep the marks by key from going on.
        let settings = [("lock_timeout", "1s")];
        let mut session = Session::connect(&self.info, SessionKind::Sql, &settings).await?;
        let rows = slots(&mut session).await?;
        let ours = rows
            .iter()
            .find(|row| row.name == self.slot && row.active_pid == Some(i64::from(walsender)));
        let changed = match &self.work {
            _ if ours.is_none() => 0,
            Work::Prune(pruning) => {
                let deleted = |rows| {
                    if let Some(telemetry) = &self.telemetry {
                        telemetry.pruned(rows);
                    }
                };
                let partitions = pruning.change_partitions(&mut session, log_change).await;
                let deleted = pruning.run(&mut session, deleted).await?;
                partitions?;
                deleted
            }
            Work::Mark(marking) => {
                let confirmed = ours.and_then(|slot| slot.confirmed);
                marking
                    .run(&mut session, confirmed.unwrap_or(Lsn::ZERO))
                    .await?
            }
        };
        session.close().await;
        Ok(changed)
    }
}
