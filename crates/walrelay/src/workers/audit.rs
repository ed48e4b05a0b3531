//! [`AuditWorker`]: looks for rows that the stream never carried while the relay runs, on a connection and a thread
//! of its own, if `[audit] every` is set.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;
use walrelay_observe::{Background, Telemetry};
use walrelay_postgres_source::{Audit, AuditError, slots};
use walrelay_relay::Chain;
use walrelay_walsender::{ConnInfo, Error};

/// The time before the first round, at most.
const FIRST: Duration = Duration::from_secs(60);
/// Interval in which the first stream is waited for.
const POLL: Duration = Duration::from_secs(1);

/// Audits the tables of a relay.
#[derive(Debug)]
pub(crate) struct AuditWorker {
    pub(crate) info: ConnInfo,
    /// The slot that the relay reads.
    pub(crate) slot: String,
    pub(crate) audit: Audit,
    /// The interval of the rounds.
    pub(crate) every: Duration,
    /// PID of this process' walsender; 0 before the first stream. Only the process that reads the slot audits.
    pub(crate) walsender: Arc<AtomicI32>,
    pub(crate) telemetry: Option<Arc<Telemetry>>,
}

#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("the session failed")]
    Session(#[from] Error),
    #[error(transparent)]
    Audit(#[from] AuditError),
}

impl AuditWorker {
    /// Starts the thread, which works until it is dropped.
    pub(crate) fn start(self) -> io::Result<Background> {
        Background::start("audit", move || self.run())
    }

    async fn run(mut self) {
        while self.walsender.load(Ordering::Relaxed) == 0 {
            sleep(POLL).await;
        }
        sleep(self.every.min(FIRST)).await;
        let (mut problem, mut reported) = (String::new(), 0);
        loop {
            let round = self.round().await;
            let error = round
                .err()
                .map_or_else(String::new, |error| Chain(&error).to_string());
            let found = self.audit.found();
            let rows: u64 = found.iter().map(|one| one.rows).sum();
            // An error that repeats is logged once.
            if error != problem && !error.is_empty() {
                warn!(
                    error,
                    "rows cannot be audited at the moment; the relay goes on"
                );
            }
            if rows > reported {
                warn!(
                    rows,
                    "rows have no evidence that they were sent, and the slot is past them: walrelay stuck lists them"
                );
            }
            if let Some(telemetry) = &self.telemetry {
                let found = found.into_iter();
                let found = found.map(|one| (one.table, one.rows, one.seen_percent));
                telemetry.audited(found, Some(error.clone()).filter(|error| !error.is_empty()));
            }
            (problem, reported) = (error, rows);
            sleep(self.every).await;
        }
    }

    /// Looks at the next part of each table, if this process reads the slot.
    async fn round(&mut self) -> Result<(), RoundError> {
        let walsender = self.walsender.load(Ordering::Relaxed);
        let mut session = Audit::connect(&self.info).await?;
        let rows = slots(&mut session).await?;
        let is_ours = rows
            .iter()
            .any(|row| row.name == self.slot && row.active_pid == Some(i64::from(walsender)));
        if is_ours {
            self.audit.round(&mut session).await?;
        }
        session.close().await;
        Ok(())
    }
}
