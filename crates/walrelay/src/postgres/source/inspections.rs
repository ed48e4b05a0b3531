//! Inspections of the catalogs beside a stream: in a task of their own and over a connection of their own,
//! so that no query delays the stream, however far away the server is.

use std::future::pending;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use walrelay_relay::{Looked, SlotOwner};
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use crate::postgres::catalog::{Facts, Wanted, inspect};
use crate::postgres::deadline::bounded_by;
use crate::postgres::error::PostgresError;

/// For an inspection, a new connection included.
const DEADLINE: Duration = Duration::from_secs(10);
/// For the answer over the connection of the last inspection. The rest is for a new connection: something
/// in between may have dropped the old one silently.
const KEPT_DEADLINE: Duration = Duration::from_secs(2);
/// A backend that waits for a lock does not notice that its client is gone.
const SETTINGS: &[(&str, &str)] = &[("statement_timeout", "10s")];

/// The result of an inspection.
#[derive(Debug)]
pub(super) struct Inspection {
    /// When it was started.
    pub(super) asked_at: Instant,
    /// What the catalogs say, or why that is not known.
    pub(super) facts: Result<Facts, PostgresError>,
}

/// Looks at what no other process can read: they are answered at once.
#[derive(Debug, Default)]
pub(super) struct OwnLooks {
    /// When the look was started that nobody has asked about yet.
    asked_at: Option<Instant>,
}

impl OwnLooks {
    pub(super) fn ask(&mut self) {
        self.asked_at.get_or_insert_with(Instant::now);
    }

    /// Resolves after a look was asked for.
    pub(super) async fn answer(&mut self) -> Looked {
        match self.asked_at.take() {
            Some(asked_at) => Self::answered(asked_at),
            None => pending().await,
        }
    }

    pub(super) fn answered(asked_at: Instant) -> Looked {
        Looked::Answered {
            asked_at,
            owner: SlotOwner::Ours,
            timeline: None,
        }
    }
}

/// At most one inspection at a time, and the connection for the next.
#[derive(Debug, Default)]
pub(super) struct Inspections {
    session: Option<Session>,
    running: JoinSet<(Option<Session>, Inspection)>,
}

impl Inspections {
    /// Inspections beside a new stream, over this connection.
    pub(super) fn over(session: Option<Session>) -> Self {
        Self {
            session,
            running: JoinSet::new(),
        }
    }

    /// Starts an inspection unless one is running.
    pub(super) fn start(&mut self, info: &ConnInfo, wanted: &Wanted) {
        if self.running.is_empty() {
            let run = run(info.clone(), wanted.clone(), self.session.take());
            self.running.spawn(run);
        }
    }

    /// The result of the running inspection; pending for ever if none runs. Cancel-safe.
    pub(super) async fn ended(&mut self) -> Inspection {
        match self.running.join_next().await {
            Some(Ok((session, inspection))) => {
                self.session = session;
                inspection
            }
            // The task panicked, which ends the process where panics abort.
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            None => pending().await,
        }
    }

    /// The connection, for a query between inspections. `None` while one runs.
    pub(super) fn take_session(&mut self) -> Option<Session> {
        self.session.take()
    }

    /// Keeps a connection for the next inspection.
    pub(super) fn keep_session(&mut self, session: Session) {
        self.session = Some(session);
    }
}

async fn run(
    info: ConnInfo,
    wanted: Wanted,
    kept: Option<Session>,
) -> (Option<Session>, Inspection) {
    let asked_at = Instant::now();
    let inspection = async {
        if let Some(mut session) = kept {
            // The connection may have been idle, and ended by something in between: a new one
            // answers as well.
            let found = timeout(KEPT_DEADLINE, inspect(&mut session, &wanted)).await;
            if let Ok(Ok(facts)) = found {
                return Ok((session, facts));
            }
        }
        let mut session = Session::connect(&info, SessionKind::Sql, SETTINGS).await?;
        let facts = inspect(&mut session, &wanted).await?;
        Ok::<_, Error>((session, facts))
    };
    let done = bounded_by(DEADLINE, "a look at the catalogs", inspection).await;
    let (session, facts) = match done {
        Ok((session, facts)) => (Some(session), Ok(facts)),
        Err(error) => (None, Err(error)),
    };
    (session, Inspection { asked_at, facts })
}
