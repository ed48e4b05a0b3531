//! Inspections of the catalogs alongside a stream. They run in a task and over a connection of their
//! own, so that no query delays the stream, however slow the server's answers are.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::warn;
use walrelay_lsn::RelationId;
use walrelay_relay::{Chain, SlotCheck, SlotOwner, TablePlace};
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use super::one_task::OneTask;
use crate::bookmarks::drop_large_kept;
use crate::catalog::{Facts, Wanted, inspect, is_synchronous, place};
use crate::deadline::bounded_by;
use crate::error::PostgresError;
use crate::publication_note::{self, LastLook};

/// Timeout of one inspection, including a new connection.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// Timeout of the answer over the last inspection's connection. The rest of [`DEADLINE`] is for a
/// new connection: a device in between may have dropped the old one silently.
const KEPT_DEADLINE: Duration = Duration::from_secs(2);
/// Interval of the looks at bookmarks that commands have kept.
const BOOKMARKS_INTERVAL: Duration = Duration::from_secs(60);
/// `statement_timeout`, because a backend that waits for a lock does not notice that its client is
/// gone.
const SETTINGS: &[(&str, &str)] = &[("statement_timeout", "10s"), publication_note::SETTINGS[0]];

/// The result of an inspection.
#[derive(Debug)]
pub(super) struct Inspection {
    /// The time when the inspection was started.
    pub(super) asked_at: Instant,
    /// The catalogs' answer, or why there is none.
    pub(super) facts: Result<Facts, PostgresError>,
    /// The table whose place was asked for, and its place.
    pub(super) place: Option<(RelationId, TablePlace)>,
    /// The relay is a synchronous standby. `None`: that was not asked.
    pub(super) is_synchronous: Option<bool>,
}

/// Checks of a slot or snapshot that no other process can read. Each is answered at once, without a
/// query.
#[derive(Debug, Default)]
pub(super) struct OwnSlotChecks {
    /// The time when the slot check was requested that is not answered yet.
    asked_at: Option<Instant>,
}

impl OwnSlotChecks {
    pub(super) fn request(&mut self) {
        self.asked_at.get_or_insert_with(Instant::now);
    }

    /// Answers the requested check; pending if none was requested.
    pub(super) async fn answer(&mut self) -> SlotCheck {
        match self.asked_at.take() {
            Some(asked_at) => Self::ours(asked_at, None),
            None => pending().await,
        }
    }

    /// Returns the answer: this process has the slot. `place`: of the table that was asked for.
    pub(super) fn ours(asked_at: Instant, place: Option<(RelationId, TablePlace)>) -> SlotCheck {
        SlotCheck::Answered {
            asked_at,
            owner: SlotOwner::Ours,
            timeline: None,
            place,
        }
    }
}

/// The running inspection (at most one), or the connection for the next.
#[derive(Debug, Default)]
pub(super) struct Inspections {
    /// The connection for the next inspection, or a query before it. `None` while one runs.
    pub(super) session: Option<Session>,
    /// The time of the last look at bookmarks that commands have kept.
    bookmarks_at: Option<Instant>,
    running: OneTask<(Option<Session>, Inspection)>,
}

impl Inspections {
    /// Creates the state in which no inspection runs; the next one uses this connection.
    pub(super) fn over(session: Session) -> Self {
        Self {
            session: Some(session),
            ..Self::default()
        }
    }

    /// Starts an inspection, unless one is running. `last`: the former contents of the publication. `unresolved`: a
    /// table whose place is asked for.
    pub(super) fn start(
        &mut self,
        info: &ConnInfo,
        wanted: &Wanted,
        last: Option<&LastLook>,
        unresolved: Option<RelationId>,
    ) {
        if !self.running.is_started() {
            let looked = self.bookmarks_at;
            let bookmarks = looked.is_none_or(|at| at.elapsed() >= BOOKMARKS_INTERVAL);
            if bookmarks {
                self.bookmarks_at = Some(Instant::now());
            }
            let run = run(
                info.clone(),
                wanted.clone(),
                last.cloned(),
                (unresolved, bookmarks),
                self.session.take(),
            );
            self.running.start(run);
        }
    }

    /// Waits for the running inspection and returns its result; pending if none runs. Cancel-safe.
    pub(super) async fn ended(&mut self) -> Inspection {
        let (session, inspection) = self.running.ended().await;
        self.session = session;
        inspection
    }
}

async fn run(
    info: ConnInfo,
    wanted: Wanted,
    last: Option<LastLook>,
    (unresolved, bookmarks): (Option<RelationId>, bool),
    kept: Option<Session>,
) -> (Option<Session>, Inspection) {
    let asked_at = Instant::now();
    let name = info.shown_application_name();
    let inspection = async {
        if let Some(mut session) = kept {
            // If the idle connection was closed meanwhile, a new one is made below.
            let queries = queries(&mut session, &wanted, last.as_ref(), &name, unresolved);
            let found = timeout(KEPT_DEADLINE, queries).await;
            if let Ok(Ok(found)) = found {
                return Ok((session, found));
            }
        }
        let mut session = Session::connect(&info, SessionKind::Sql, SETTINGS).await?;
        let found = queries(&mut session, &wanted, last.as_ref(), &name, unresolved).await?;
        Ok::<_, Error>((session, found))
    };
    let mut done = bounded_by(DEADLINE, "a look at the catalogs", inspection).await;
    if let (true, Ok((session, _))) = (bookmarks, &mut done) {
        bound_bookmarks(session, &wanted).await;
    }
    let (session, facts, place, is_synchronous) = match done {
        Ok((session, (facts, place, is_synchronous))) => {
            (Some(session), Ok(facts), place, is_synchronous)
        }
        Err(error) => (None, Err(error), None, None),
    };
    let inspection = Inspection {
        asked_at,
        facts,
        place,
        is_synchronous,
    };
    (session, inspection)
}

/// Drops bookmarks that commands have kept, for which the server keeps too much WAL.
async fn bound_bookmarks(session: &mut Session, wanted: &Wanted) {
    let dropping = drop_large_kept(session, &wanted.slot, wanted.kept_wal);
    match timeout(DEADLINE, dropping).await {
        Ok(Ok(dropped)) if dropped.is_empty() => {}
        Ok(Ok(dropped)) => warn!(
            bookmarks = dropped.join(", "),
            max_wal = wanted.kept_wal,
            "dropped bookmarks that a command had kept of the slot: Postgres kept more WAL for \
             them than max_wal of [retention], so their events can no longer be replayed"
        ),
        Ok(Err(error)) => warn!(
            error = %Chain(&error),
            "bookmarks that a command had kept of the slot cannot be looked at; the relay goes on"
        ),
        // The session is of no use, and the next inspection finds out.
        Err(_) => {}
    }
}

async fn queries(
    session: &mut Session,
    wanted: &Wanted,
    last: Option<&LastLook>,
    name: &str,
    unresolved: Option<RelationId>,
) -> Result<(Facts, Option<(RelationId, TablePlace)>, Option<bool>), Error> {
    let facts = inspect(session, wanted).await?;
    let place = match unresolved {
        Some(id) => Some((id, place(session, &wanted.tables, id).await?)),
        None => None,
    };
    let is_synchronous = is_synchronous(session, name).await?;
    if let Some(last) = last {
        last.note_change(session, wanted, &facts).await;
    }
    Ok((facts, place, Some(is_synchronous)))
}
