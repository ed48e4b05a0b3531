//! One attempt to write a note: the session, the statements, and the meaning of their errors.

use std::time::Duration;

use tokio::time::timeout;
use tracing::warn;
use walrelay_lsn::Lsn;
use walrelay_relay::Counted;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use crate::catalog::{Wanted, row::text};
use crate::deadline::bounded_by;
use crate::error::PostgresError;
use crate::position_note::{self, ClusterStanding, SinkCluster};
use crate::sent_rows::account;

/// Timeout of one attempt, including a new connection.
const ATTEMPT: Duration = Duration::from_secs(6);

/// Timeout of the kept connection: a device in between may have dropped it silently.
const KEPT: Duration = Duration::from_millis(1_500);

/// Settings of the session. A note is durable before it counts. It waits for no standby: a session that
/// waits for one notices neither a timeout nor that its client is gone.
const SETTINGS: &[(&str, &str)] = &[
    ("statement_timeout", "3s"),
    ("lock_timeout", "2s"),
    ("synchronous_commit", "local"),
    ("default_transaction_read_only", "off"),
    ("idle_session_timeout", "0"),
];

/// The server shuts down (`cannot_connect_now`).
const CANNOT_CONNECT_NOW: &str = "57P03";

/// The server has ended the session (`admin_shutdown`, `crash_shutdown`).
const ENDED: [&str; 2] = ["57P01", "57P02"];

/// A sequence, table or schema is missing.
const MISSING: [&str; 2] = ["42P01", "3F000"];

/// The server of the stream.
#[derive(Debug, Clone)]
pub(super) struct Server {
    /// With the one host that the stream was opened on: another one has other positions.
    pub(super) info: ConnInfo,
    /// The server's start, as [`ServerFacts`](crate::catalog::ServerFacts) has it.
    pub(super) start: String,
    /// The system identifier of its cluster.
    pub(super) system: String,
}

/// The task of an attempt.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Notes the slot's position, whatever is noted, and the cluster. Before that, compares the note with
    /// the position at which this process found the slot, if the opening could not.
    Begin { unproved: Option<Lsn>, at: Lsn },
    /// Notes a position that is to be confirmed, and adds the sums of rows up to there to the account.
    Raise {
        position: Lsn,
        counted: Option<Counted>,
        /// The opening of the account whose sums these are.
        opening: String,
    },
}

/// The result of an attempt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    /// With [`ClusterStanding::Other`] nothing else was done.
    pub(super) cluster: ClusterStanding,
    /// The noted position.
    pub(super) noted: Lsn,
    /// The account has the sums of the attempt.
    pub(super) is_counted: bool,
}

/// Returns true if the attempt fails until an operator changes the database: a missing object or
/// privilege, or a server that is read-only.
pub(super) fn is_lasting(error: &PostgresError) -> bool {
    let PostgresError::Wal(error) = error else {
        return false;
    };
    let state = error.sqlstate().unwrap_or_default();
    state.starts_with("42") || state == "3F000" || state == "25006"
}

/// Returns true if the server accepts no connections, at one of its addresses.
pub(super) fn shuts_down(error: &Error) -> bool {
    match error {
        Error::NoServer { attempts } => attempts.iter().all(shuts_down),
        error => error.sqlstate() == Some(CANNOT_CONNECT_NOW),
    }
}

/// Returns true if the connection has ended, with or without the server's reason.
fn is_of_connection(error: &Error) -> bool {
    error
        .sqlstate()
        .is_none_or(|state| state.starts_with("57P"))
}

/// Makes one attempt, and returns what it has done. Uses the kept session if that still works.
pub(super) async fn attempt(
    wanted: Wanted,
    server: Server,
    mut kept: Option<Session>,
    note: Note,
) -> (Option<Session>, Result<Done, PostgresError>) {
    let attempt = async {
        let mut ended_by_server = false;
        if let Some(mut session) = kept.take() {
            match timeout(KEPT, note.carry_out(&mut session, &wanted, &server.system)).await {
                Ok(Err(error)) if is_of_connection(&error) => {
                    ended_by_server = error.sqlstate().is_some_and(|state| ENDED.contains(&state));
                }
                Ok(done) => return Ok((session, done)),
                Err(_) => {}
            }
        }
        let mut session = Session::connect(&server.info, SessionKind::Sql, SETTINGS)
            .await
            .map_err(|error| {
                // What distributes connections leaves out a server that shuts down.
                if ended_by_server && error.sqlstate().is_none() {
                    PostgresError::ShutsDown(error)
                } else {
                    error.into()
                }
            })?;
        let sql = "SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time()) AS start";
        let rows = session.query(sql).await?;
        if rows.first().map(|row| text(&row, "start")).as_ref() != Some(&server.start) {
            return Err(PostgresError::TwoServers(wanted.slot.clone()));
        }
        let done = note.carry_out(&mut session, &wanted, &server.system).await;
        Ok((session, done))
    };
    match bounded_by(ATTEMPT, "noting the slot's position", attempt).await {
        Ok((session, Ok(done))) => (Some(session), Ok(done)),
        Ok((session, Err(error))) => (Some(session), Err(error.into())),
        Err(error) => (None, Err(error)),
    }
}

/// The task of an attempt, with the cluster that it notes first.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) step: Step,
    pub(super) cluster: Option<SinkCluster>,
}

impl Note {
    async fn carry_out(
        &self,
        session: &mut Session,
        wanted: &Wanted,
        system: &str,
    ) -> Result<Done, Error> {
        let (slot, create) = (&wanted.slot, wanted.create);
        let cluster = match &self.cluster {
            Some(cluster) => {
                position_note::check_cluster(session, slot, create, system, cluster).await?
            }
            None => ClusterStanding::Same,
        };
        let mut done = Done {
            cluster,
            noted: Lsn::ZERO,
            is_counted: true,
        };
        if cluster == ClusterStanding::Other {
            return Ok(done);
        }
        match self.step.note(session, wanted, system).await {
            Err(error) if wanted.create && error.sqlstate().is_some_and(is_missing) => {
                let sql = position_note::create_sql(&wanted.slot, None);
                session
                    .query(&format!("{}\n{sql}", position_note::LOCK))
                    .await?;
                (done.noted, done.is_counted) = self.step.note(session, wanted, system).await?;
            }
            noted => (done.noted, done.is_counted) = noted?,
        }
        Ok(done)
    }
}

impl Step {
    /// Returns the noted position, and whether the account has the sums.
    async fn note(
        &self,
        session: &mut Session,
        wanted: &Wanted,
        system: &str,
    ) -> Result<(Lsn, bool), Error> {
        let slot = &wanted.slot;
        match self {
            Self::Raise {
                position,
                counted,
                opening,
            } => {
                let is_counted = match counted {
                    Some(counted) => {
                        let store = wanted.dead_letters();
                        account::add(session, slot, opening, store, counted).await?
                    }
                    None => true,
                };
                position_note::raise(session, slot, *position).await?;
                Ok((*position, is_counted))
            }
            &Self::Begin { unproved, at } => {
                loop {
                    let noted = position_note::read(session, slot).await?;
                    if let (Some(noted), Some(unproved)) = (noted, unproved)
                        && noted < unproved
                    {
                        warn!(
                            slot,
                            from = %noted,
                            to = %unproved,
                            "the slot has passed over events of this range that may not be sent"
                        );
                    }
                    // This process has the slot, so also a lower position is right. A process that had it
                    // before may be about to note one.
                    if position_note::replace(session, slot, noted, at).await? {
                        position_note::set_system(session, slot, system).await?;
                        return Ok((at, true));
                    }
                }
            }
        }
    }
}

fn is_missing(state: &str) -> bool {
    MISSING.contains(&state)
}
