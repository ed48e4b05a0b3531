//! `--until` of `walrelay run`: finds the position behind everything that was committed before the wanted end,
//! and ends the run once it may be confirmed. What was acknowledged is confirmed by the drain that follows.

use std::future::pending;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;
use walrelay_postgres_source::end_of_commits;
use walrelay_relay::Chain;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use crate::cli::Until;

/// Delay before the position is queried again after a failure. The relay itself waits for the server, too.
const RETRY: Duration = Duration::from_secs(1);
/// The longest time that the server may take to tell the end of its log.
const QUERY_LIMIT: Duration = Duration::from_secs(10);
/// The interval at which the end of the log is queried again while it is not reached.
const AGAIN: Duration = Duration::from_secs(60);
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
        let mut position = match until {
            Until::Lsn(lsn) => lsn,
            Until::Time(time) => {
                while let Ok(left) = Duration::try_from(time - OffsetDateTime::now_utc()) {
                    sleep(left.min(LONGEST_SLEEP)).await;
                }
                self.end_of_log().await
            }
            Until::CaughtUp => self.end_of_log().await,
        };
        info!(%position, "everything that was committed before this position is to be delivered");
        let mut confirmed = self.confirmed.clone();
        loop {
            let reached = confirmed.wait_for(|confirmed| *confirmed >= position);
            match timeout(AGAIN, reached).await {
                Ok(Ok(_)) => break,
                // The pipeline has ended.
                Ok(Err(_)) => return pending().await,
                // A standby that was promoted may have less of the log than the server that was asked.
                Err(_) if !matches!(until, Until::Lsn(_)) => {
                    let end = self.end_of_log().await;
                    if end < position {
                        warn!(from = %position, to = %end, "the log ends before the position of --until: going on to its end");
                        position = end;
                    }
                }
                Err(_) => {}
            }
        }
        info!(%position, "everything is delivered up to the end of --until");
        self.reached.send_replace(true);
    }

    /// Returns the position behind everything that was committed by now.
    async fn end_of_log(&self) -> Lsn {
        let mut problem = String::new();
        loop {
            let query = timeout(QUERY_LIMIT, self.query()).await;
            let error = match query {
                Ok(Ok(Some(position))) => return position,
                Ok(Ok(None)) => "the server does not tell the end of its log".to_owned(),
                Ok(Err(error)) => Chain(&error).to_string(),
                Err(_) => format!("no answer within {} s", QUERY_LIMIT.as_secs()),
            };
            // An error that repeats is logged once.
            if error != problem {
                warn!(error, "the end of the log is not known yet");
            }
            problem = error;
            sleep(RETRY).await;
        }
    }

    /// Queries the end of the log; `None`: the server does not tell it, or is a standby next to its primary.
    async fn query(&self) -> Result<Option<Lsn>, Error> {
        let mut session = Session::connect(&self.info, SessionKind::Sql, &[]).await?;
        let position = end_of_commits(&mut session, self.info.hosts.len() > 1).await?;
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
            .remedy("start it again: delivered events are confirmed, and the rest follows"))
    }
}
