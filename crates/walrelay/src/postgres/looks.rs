//! Looks at the catalogs beside a stream: in a task of their own and over a connection of their own,
//! so that no look delays the stream, however far away the server is.

use std::future::pending;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use super::source::bounded_by;
use super::{Facts, PostgresError, Wanted, inspect};

/// The longest time that a look may take, a new connection included.
const LOOK_DEADLINE: Duration = Duration::from_secs(10);
/// The longest time that a connection from before may take to answer. The rest is for a new one:
/// something in between may have dropped the old one without a word.
const KEPT_DEADLINE: Duration = Duration::from_secs(2);
/// A backend that waits for a lock does not notice that its client is gone.
const SETTINGS: &[(&str, &str)] = &[("statement_timeout", "10s")];

/// What a look came to.
#[derive(Debug)]
pub(super) struct CatalogLook {
    /// When it was started.
    pub(super) asked_at: Instant,
    /// What the catalogs say, or why that is not known.
    pub(super) facts: Result<Facts, PostgresError>,
}

/// At most one look at a time, and the connection for the next.
#[derive(Debug, Default)]
pub(super) struct CatalogLooks {
    session: Option<Session>,
    running: JoinSet<(Option<Session>, CatalogLook)>,
}

impl CatalogLooks {
    /// Looks of another stream, over this connection. A look under way is abandoned.
    pub(super) fn over(session: Option<Session>) -> Self {
        Self {
            session,
            running: JoinSet::new(),
        }
    }

    /// Starts a look unless one is under way.
    pub(super) fn start(&mut self, info: &ConnInfo, wanted: &Wanted) {
        if self.running.is_empty() {
            let look = look(info.clone(), wanted.clone(), self.session.take());
            self.running.spawn(look);
        }
    }

    /// The end of the look under way; pending for ever if there is none. Cancel-safe.
    pub(super) async fn ended(&mut self) -> CatalogLook {
        match self.running.join_next().await {
            Some(Ok((session, look))) => {
                self.session = session;
                look
            }
            // The task panicked, which ends the process where panics abort.
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            None => pending().await,
        }
    }

    /// The connection, for a question between looks. `None` while a look uses it.
    pub(super) fn take_session(&mut self) -> Option<Session> {
        self.session.take()
    }

    /// Keeps a connection for the next look.
    pub(super) fn keep_session(&mut self, session: Session) {
        self.session = Some(session);
    }
}

async fn look(
    info: ConnInfo,
    wanted: Wanted,
    kept: Option<Session>,
) -> (Option<Session>, CatalogLook) {
    let asked_at = Instant::now();
    let look = async {
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
    let looked = bounded_by(LOOK_DEADLINE, "a look at the catalogs", look).await;
    let (session, facts) = match looked {
        Ok((session, facts)) => (Some(session), Ok(facts)),
        Err(error) => (None, Err(error)),
    };
    (session, CatalogLook { asked_at, facts })
}
