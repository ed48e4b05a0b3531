//! `--until` of `walrelay run`: finds the position behind everything that was committed before the wanted end,
//! and ends the run once it may be confirmed. What was acknowledged is confirmed by the drain that follows.

use std::future::pending;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};
use walrelay_lsn::Lsn;
use walrelay_postgres_source::end_of_commits;
use walrelay_relay::Chain;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use crate::cli::{Exit, Failure, Until};

/// Delay before the position is queried again after a failure. The relay itself waits for the server, too.
const RETRY: Duration = Duration::from_secs(1);
/// The longest sleep at a time: the clock of the machine may be set.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The end of a run, if there is one but a signal.
pub(super) struct End {
    until: Option<Until>,
    info: ConnInfo,
    /// The position that may be confirmed.
    confirmed: watch::Receiver<Lsn>,
    reached: watch::Sender<bool>,
}

/// Tells whether the end was reached.
pub(super) struct Reached(Option<watch::Receiver<bool>>);

impl End {
    pub(super) fn new(
        until: Option<Until>,
        info: ConnInfo,
        confirmed: watch::Receiver<Lsn>,
    ) -> (Self, Reached) {
        let (reached, receiver) = watch::channel(false);
        let end = Self {
            until,
            info,
            confirmed,
            reached,
        };
        (end, Reached(until.map(|_| receiver)))
    }

    /// Resolves when everything before the end may be confirmed; never without `--until`.
    pub(super) async fn reached(self) {
        let Some(until) = self.until else {
            return pending().await;
        };
        let position = self.position(until).await;
        info!(%position, "everything that was committed before this position is to be delivered");
        let mut confirmed = self.confirmed.clone();
        if confirmed
            .wait_for(|confirmed| *confirmed >= position)
            .await
            .is_err()
        {
            // The pipeline has ended.
            return pending().await;
        }
        info!(%position, "everything is delivered up to the end of --until");
        self.reached.send_replace(true);
    }

    /// Returns the position behind everything that was committed before the end.
    async fn position(&self, until: Until) -> Lsn {
        match until {
            Until::Lsn(lsn) => return lsn,
            Until::Time(time) => {
                while let Ok(left) = Duration::try_from(time - OffsetDateTime::now_utc()) {
                    sleep(left.min(LONGEST_SLEEP)).await;
                }
            }
            Until::CaughtUp => {}
        }
        loop {
            match self.query().await {
                Ok(position) => return position,
                Err(error) => warn!(error = %Chain(&error), "the end of the log is not known yet"),
            }
            sleep(RETRY).await;
        }
    }

    async fn query(&self) -> Result<Lsn, Error> {
        let mut session = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
        let position = end_of_commits(&mut session).await?;
        session.close().await;
        Ok(position)
    }
}

impl Reached {
    /// Returns a failure if the run ended before its end was reached.
    pub(super) fn check(self) -> Result<(), Failure> {
        if self.0.is_none_or(|reached| *reached.borrow()) {
            return Ok(());
        }
        let what = "the run was stopped before everything up to --until was delivered";
        Err(Failure::new("until-not-reached", Exit::Temporary, what)
            .remedy("start it again: what was delivered is confirmed, and the rest follows"))
    }
}
