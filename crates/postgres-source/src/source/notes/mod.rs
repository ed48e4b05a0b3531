//! [`Notes`]: notes each position in the database before it is confirmed, over its own connection.
//!
//! The slot is therefore never beyond the note, unless something else than a relay moved it, or
//! recreated it: then rows were passed over that no relay sent. The opening of a stream compares the two
//! before the first note.
//!
//! A note never keeps the stream from going on. If it fails for [`PATIENCE`], positions are confirmed
//! without it. Until notes work again the slot is beyond the note, so no row is marked or deleted
//! on account of its position, and a relay that starts meanwhile stops.

mod attempt;
mod cluster;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::{info, warn};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{Chain, Counted, Opened, SentAccount};
use walrelay_walsender::{ConnInfo, Host, Session};

pub(super) use cluster::ClusterNote;

use super::one_task::OneTask;
use crate::catalog::Wanted;
use crate::error::PostgresError;
use crate::position_note::MOST_UNCONFIRMED;
use attempt::{Done, Note, Server, Step, attempt, is_lasting, shuts_down};

/// The time for which a position may stay unconfirmed because it cannot be noted.
const PATIENCE: Duration = Duration::from_secs(10);

/// Timeout of a connection to one address of the host.
const CONNECT: Duration = Duration::from_secs(2);

/// The time for which the opening of a stream waits for the first note. Later it is made alongside the stream.
const OPENING: Duration = Duration::from_secs(1);

/// After events, or much WAL, a little more WAL is confirmed as well for this time: a command that
/// waits for a position writes WAL, then reads the position.
const EAGER: Duration = Duration::from_secs(10);

/// The smallest segment of WAL. A server that switches to its next segment, such as after
/// `archive_timeout`, moves its position to the beginning of one.
const SEGMENT: u64 = 1 << 20;

/// The most WAL that a command which waits for a position leaves behind the last note, with its own.
const FLUSH: u64 = 4 * MOST_UNCONFIRMED;

/// The interval of notes of a position at the beginning of a segment: a note would be WAL for which an
/// idle server switches again.
const SEGMENT_INTERVAL: Duration = Duration::from_secs(3600);

/// The interval of notes of WAL without events.
const INTERVAL: Duration = Duration::from_secs(1);

/// Delay after an attempt that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Delay after an attempt that fails until an operator changes the database.
const RETRY_LASTING: Duration = Duration::from_secs(10);

/// The notes of a slot.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent")]
pub(super) struct Notes {
    wanted: Wanted,
    /// The sums of acknowledged rows.
    pub(super) account: Option<Arc<SentAccount>>,
    /// The opening of the account by this stream.
    pub(super) opening: String,
    /// The cluster of the sink.
    pub(super) cluster: ClusterNote,
    server: Option<Server>,
    session: Option<Session>,
    running: OneTask<(Option<Session>, Result<Done, PostgresError>)>,
    /// The highest position that may be confirmed: it is noted, or was confirmed at the opening.
    noted: Lsn,
    /// The highest position that was returned, noted or not.
    returned: Lsn,
    /// Commits wait for the confirmation of their positions.
    is_synchronous: bool,
    /// The first note of this stream is not made yet.
    is_first: bool,
    /// The attempt writes sums.
    counts: bool,
    /// The highest position at which this process found the slot, and to which it had not relayed
    /// itself, as long as that is not compared with the note.
    unproved: Option<Lsn>,
    /// When the first attempt since the last success failed.
    failing_since: Option<Instant>,
    /// Attempts fail until an operator changes the database.
    lasting: bool,
    retry_at: Option<Instant>,
    /// When a note was due last because of events, or of much WAL.
    active_at: Option<Instant>,
    /// When the last attempt started.
    began_at: Option<Instant>,
}

impl Notes {
    pub(super) fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            account: None,
            opening: String::new(),
            cluster: ClusterNote::default(),
            server: None,
            session: None,
            running: OneTask::default(),
            noted: Lsn::ZERO,
            returned: Lsn::ZERO,
            is_synchronous: false,
            is_first: true,
            counts: false,
            unproved: None,
            failing_since: None,
            lasting: false,
            retry_at: None,
            active_at: None,
            began_at: None,
        }
    }

    /// Begins the notes of a stream that was opened on this host, before anything is confirmed on it.
    /// `is_proved`: everything before the slot's position was relayed, as far as the opening could
    /// see. `is_synchronous`: the relay is a synchronous standby.
    pub(super) async fn open<S>(
        &mut self,
        info: &ConnInfo,
        host: &Host,
        opened: &Opened<S>,
        is_synchronous: bool,
        is_proved: bool,
    ) {
        let confirmed = opened.confirmed.lsn();
        if !is_proved {
            self.unproved = self.unproved.max(Some(confirmed));
        }
        let info = ConnInfo {
            hosts: vec![host.clone()],
            connect_timeout: info.connect_timeout.min(CONNECT),
            ..info.clone()
        };
        let start = opened.server_start.clone();
        if self.server.as_ref().is_some_and(|last| last.start != start) {
            self.failing_since = None;
        }
        self.server = Some(Server {
            info,
            start,
            system: opened.system_id.clone(),
        });
        self.close();
        // The server may be a standby that was promoted, without the note.
        self.cluster.noted = None;
        self.noted = confirmed;
        self.returned = confirmed;
        self.is_synchronous = is_synchronous;
        self.is_first = true;
        self.lasting = false;
        self.retry_at = None;
        self.start(confirmed);
        // So that rows of the last relay can be marked at once.
        if let Ok((session, result)) = timeout(OPENING, self.running.ended()).await {
            self.ended(session, result);
        }
    }

    /// Takes no notes of the next stream: its role may not, or its server is a standby.
    pub(super) fn stop(&mut self) {
        self.close();
        self.server = None;
    }

    /// Notes whether the relay is a synchronous standby: the setting may change while it streams.
    pub(super) fn set_synchronous(&mut self, is_synchronous: bool) {
        self.is_synchronous = is_synchronous;
    }

    /// Ends the connection, and the attempt that runs.
    pub(super) fn close(&mut self) {
        self.session = None;
        self.running = OneTask::default();
    }

    /// Starts to note `position`, if a note is due. Returns the position that may be confirmed by now,
    /// at most `position`. What is acknowledged up to `soon` is to be confirmed soon; on an idle server
    /// the rest waits for [`MOST_UNCONFIRMED`].
    ///
    /// # Errors
    /// If the server shuts down: it waits until all WAL is confirmed, or this client is gone, and
    /// accepts no notes any more.
    pub(super) fn persist_position(
        &mut self,
        position: CommitEnd,
        soon: CommitEnd,
    ) -> Result<CommitEnd, PostgresError> {
        if self.server.is_none() {
            return Ok(position);
        }
        if let Some((session, result)) = self.running.ended_already()
            && let Some(shutdown) = self.ended(session, result)
        {
            return Err(shutdown);
        }
        let reached = CommitEnd::from_slot(self.noted);
        let now = Instant::now();
        let lasts = |since: Option<Instant>, limit| {
            since.is_some_and(|since| now.duration_since(since) < limit)
        };
        let unconfirmed = position.lsn().bytes_since(self.noted);
        let has_events = unconfirmed > 0 && soon > reached;
        let is_switch = unconfirmed > FLUSH
            && position.lsn().get() % SEGMENT < MOST_UNCONFIRMED
            && lasts(self.began_at, SEGMENT_INTERVAL);
        if has_events || unconfirmed >= MOST_UNCONFIRMED && !is_switch {
            self.active_at = Some(now);
        }
        let is_active = lasts(self.active_at, EAGER) || self.is_synchronous;
        let is_due = self.is_first
            || has_events
            || self.failing_since.is_some()
            || self.returned > self.noted
            || unconfirmed > 0 && is_active && !lasts(self.began_at, INTERVAL);
        if is_due && self.retry_at.is_none_or(|at| at <= now) {
            // The slot is nowhere behind what it had confirmed at the opening.
            self.start(position.lsn().max(self.noted));
        }
        let goes_on =
            self.lasting || self.failing_since.is_some() && !lasts(self.failing_since, PATIENCE);
        let confirmed = if goes_on {
            position
        } else {
            position.min(reached)
        };
        self.returned = self.returned.max(confirmed.lsn());
        Ok(confirmed)
    }

    /// Starts an attempt, unless one runs.
    fn start(&mut self, position: Lsn) {
        let Some(server) = self.server.clone().filter(|_| !self.running.is_started()) else {
            return;
        };
        self.began_at = Some(Instant::now());
        let step = if self.is_first {
            Step::Begin {
                unproved: self.unproved,
                // Sums are written with later notes, and none must be confirmed before it is written.
                at: match self.account {
                    Some(_) => self.noted,
                    None => position,
                },
            }
        } else {
            let account = self.account.as_ref();
            let counted = account.and_then(|account| account.take());
            self.counts = counted.is_some();
            Step::Raise {
                position: raised(position, self.noted, counted.as_ref()),
                counted,
                opening: self.opening.clone(),
            }
        };
        let kept = self.session.take();
        let note = Note {
            step,
            cluster: self.cluster.due(),
        };
        let attempt = attempt(self.wanted.clone(), server, kept, note);
        self.running.start(attempt);
    }

    /// Takes the result of an attempt. Returns the error if the server shuts down.
    fn ended(
        &mut self,
        session: Option<Session>,
        result: Result<Done, PostgresError>,
    ) -> Option<PostgresError> {
        self.session = session;
        let slot = &self.wanted.slot;
        match result {
            Ok(done) => {
                if let Some(now) = self.cluster.ended(done.cluster) {
                    return Some(PostgresError::OtherCluster {
                        now,
                        confirmed: self.noted,
                    });
                }
                let Done {
                    noted, is_counted, ..
                } = done;
                if self.retry_at.take().is_some() {
                    info!(slot, "the positions of the slot are noted again");
                }
                if let Some(account) = self.account.as_ref().filter(|_| self.counts) {
                    if is_counted {
                        account.written();
                    } else {
                        // Nothing tells which rows are counted. The next stream begins where the database is.
                        account.begin(None);
                        warn!(
                            slot,
                            "something else than this relay changed the account of sent rows in walrelay_state: events \
                             go on, and rows that are sent until the next connection are not deleted"
                        );
                    }
                }
                self.noted = self.noted.max(noted);
                self.is_first = false;
                self.unproved = None;
                self.failing_since = None;
                self.lasting = false;
                None
            }
            Err(PostgresError::Wal(error)) if shuts_down(&error) => Some(error.into()),
            Err(error @ PostgresError::ShutsDown(_)) => Some(error),
            Err(error) => {
                self.lasting = is_lasting(&error);
                self.failing_since.get_or_insert_with(Instant::now);
                if self.retry_at.is_none() {
                    warn!(
                        slot,
                        error = %Chain(&error),
                        "the slot's position cannot be noted in walrelay_state: events go on. Until it can be, no row \
                         is deleted, or marked that this relay did not send, and a relay that starts stops. A role that may \
                         create nothing there needs walrelay init --role ROLE of this version"
                    );
                }
                let delay = if self.lasting { RETRY_LASTING } else { RETRY };
                self.retry_at = Some(Instant::now() + delay);
                None
            }
        }
    }
}

/// Returns the position to be noted: `position`, or the position up to which the sums count. After a failed
/// attempt these are the same ones, and later rows are in none yet: they are due once these are written.
fn raised(position: Lsn, noted: Lsn, counted: Option<&Counted>) -> Lsn {
    let upto = counted.map_or(position, |counted| position.min(counted.to));
    upto.max(noted)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn no_position_is_noted_beyond_the_sums_that_are_written_with_it() {
        for (to, expected) in [(None, 30), (Some(20), 20), (Some(40), 30), (Some(5), 10)] {
            let counted = to.map(|to| Counted {
                from: Lsn::new(1),
                to: Lsn::new(to),
                sums: HashMap::new(),
            });
            let position = raised(Lsn::new(30), Lsn::new(10), counted.as_ref());
            assert_eq!(position, Lsn::new(expected), "{to:?}");
        }
    }
}
