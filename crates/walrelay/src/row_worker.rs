//! What the running relay does to confirmed rows, on a connection and a thread of its own: it deletes them and drops
//! confirmed partitions, if `[prune] keep` is set, and marks rows as sent, if `[source] mark_sent` is.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};
use walrelay_relay::Chain;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use crate::background::Background;
use crate::postgres::{Change, MarkError, Marking, PruneError, Pruning, slots};
use crate::telemetry::Telemetry;

/// How often rows to delete are looked for, at most and at least.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// What is done to confirmed rows.
#[derive(Debug)]
pub(crate) enum Work {
    Prune(Pruning),
    Mark(Marking),
}

/// Work on confirmed rows, and for which relay.
#[derive(Debug)]
pub(crate) struct RowWorker {
    pub(crate) info: ConnInfo,
    /// The slot that the relay reads.
    pub(crate) slot: String,
    pub(crate) work: Work,
    /// The walsender that reads the slot for this process: a relay on standby changes nothing. 0 before there is one.
    pub(crate) walsender: Arc<AtomicI32>,
    pub(crate) telemetry: Option<Arc<Telemetry>>,
}

#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error(transparent)]
    Prune(#[from] PruneError),
    #[error(transparent)]
    Mark(#[from] MarkError),
    #[error(transparent)]
    Sql(#[from] Error),
}

fn logged(change: Change) {
    match change {
        Change::Created(part) => info!(partition = %part, "created a partition"),
        Change::Dropped(part) => info!(partition = %part, "dropped a confirmed partition"),
    }
}

impl RowWorker {
    /// Works until the thread is dropped.
    pub(crate) fn start(self) -> io::Result<Background> {
        let name = match self.work {
            Work::Prune(_) => "prune",
            Work::Mark(_) => "mark-sent",
        };
        Background::start(name, move || self.run())
    }

    async fn run(self) {
        let often = match &self.work {
            Work::Prune(pruning) => pruning.keep / 10,
            Work::Mark(_) => SHORTEST_INTERVAL,
        };
        let (done, failed) = match self.work {
            Work::Prune(_) => (
                "deleted confirmed rows",
                "confirmed rows cannot be pruned at the moment; the relay goes on",
            ),
            Work::Mark(_) => (
                "marked confirmed rows as sent",
                "confirmed rows cannot be marked as sent at the moment; the relay goes on",
            ),
        };
        // The first round comes with the stream, as the current partition may be missing.
        while self.walsender.load(Ordering::Relaxed) == 0 {
            sleep(SHORTEST_INTERVAL).await;
        }
        let mut ticks = interval(often.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut problem = String::new();
        loop {
            ticks.tick().await;
            match self.round().await {
                Ok(0) => {}
                Ok(rows) => {
                    match self.work {
                        Work::Prune(_) => info!(rows, "{done}"),
                        // Each second, as long as rows come.
                        Work::Mark(_) => tracing::debug!(rows, "{done}"),
                    }
                    problem.clear();
                }
                Err(error) => {
                    let why = Chain(&error).to_string();
                    // Once for each reason in turn.
                    if why != problem {
                        warn!(error = why, "{failed}");
                    }
                    problem = why;
                }
            }
        }
    }

    async fn round(&self) -> Result<u64, WorkError> {
        let walsender = self.walsender.load(Ordering::Relaxed);
        if walsender == 0 {
            return Ok(0);
        }
        let mut session = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
        let rows = slots(&mut session).await?;
        let ours = rows
            .iter()
            .any(|row| row.name == self.slot && row.active_pid == Some(i64::from(walsender)));
        let changed = match &self.work {
            _ if !ours => 0,
            Work::Prune(pruning) => {
                let deleted = |rows| {
                    if let Some(telemetry) = &self.telemetry {
                        telemetry.pruned(rows);
                    }
                };
                let partitions = pruning.change_partitions(&mut session, logged).await;
                let deleted = pruning.run(&mut session, deleted).await?;
                partitions?;
                deleted
            }
            Work::Mark(marking) => marking.run(&mut session).await?,
        };
        session.close().await;
        Ok(changed)
    }
}
