//! The running relay deletes confirmed rows, if `[prune] keep` is set, on a connection of its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};
use walrelay_relay::Chain;
use walrelay_walsender::{ConnInfo, Session, SessionKind};

use crate::background::Background;
use crate::postgres::{PruneError, Pruning, slots};
use crate::telemetry::Telemetry;

/// How often rows are looked for, at most and at least.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// What is deleted, and for which relay.
#[derive(Debug)]
pub(crate) struct Pruner {
    pub(crate) info: ConnInfo,
    /// The slot that the relay reads.
    pub(crate) slot: String,
    pub(crate) pruning: Pruning,
    /// The walsender that reads the slot for this process: a relay on standby deletes nothing. 0 before there is one.
    pub(crate) walsender: Arc<AtomicI32>,
    pub(crate) telemetry: Option<Arc<Telemetry>>,
}

impl Pruner {
    /// Deletes until the thread is dropped.
    pub(crate) fn start(self) -> io::Result<Background> {
        Background::start("prune", move || self.run())
    }

    async fn run(self) {
        let often = self.pruning.keep / 10;
        let mut ticks = interval(often.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut problem = String::new();
        loop {
            ticks.tick().await;
            match self.round().await {
                Ok(0) => {}
                Ok(rows) => {
                    info!(rows, "deleted confirmed rows");
                    problem.clear();
                }
                Err(error) => {
                    let why = Chain(&error).to_string();
                    // Once for each reason in turn.
                    if why != problem {
                        warn!(
                            error = why,
                            "confirmed rows cannot be deleted at the moment; the relay goes on"
                        );
                    }
                    problem = why;
                }
            }
        }
    }

    async fn round(&self) -> Result<u64, PruneError> {
        let walsender = self.walsender.load(Ordering::Relaxed);
        if walsender == 0 {
            return Ok(0);
        }
        let mut session = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
        let rows = slots(&mut session).await?;
        let ours = rows
            .iter()
            .any(|row| row.name == self.slot && row.active_pid == Some(i64::from(walsender)));
        let deleted = if ours {
            let deleted = |rows| {
                if let Some(telemetry) = &self.telemetry {
                    telemetry.pruned(rows);
                }
            };
            self.pruning.run(&mut session, deleted).await?
        } else {
            0
        };
        session.close().await;
        Ok(deleted)
    }
}
