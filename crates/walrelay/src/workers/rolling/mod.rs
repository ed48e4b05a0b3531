//! The rolling bookmark: a slot that follows the relay's slot at a distance, so that recent events
//! can be replayed.
//!
//! [`start`] keeps it on a thread and a connection of its own, beside the pipeline. [`policy`]
//! decides where it is moved. [`notes`] keeps what it has to know after a restart.
//!
//! # Invariants
//! - Only the process whose walsender reads the relay's slot changes the bookmark; a standby relay
//!   does not.
//! - The bookmark is never beyond the relay's slot.
//! - A bookmark that cannot be kept is logged, and does not stop the relay.

mod notes;
mod policy;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use tokio::time::interval;
use tracing::{debug, info, warn};
use walrelay_lsn::Lsn;
use walrelay_relay::Chain;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use notes::Notes;
pub(crate) use policy::Keep;
use policy::{Positions, Slots, Target};
use walrelay_observe::{Background, BookmarkReport, Telemetry, millis_now};
use walrelay_postgres_source::{SlotRow, advance_slot, copy_slot, script, slots};

/// The longest and shortest interval between two rounds.
const LONGEST_INTERVAL: Duration = Duration::from_secs(5);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of the log lines about a problem that persists.
const REMINDER: Duration = Duration::from_secs(600);

/// The bookmark to keep, and the slot that it follows.
#[derive(Debug)]
pub(crate) struct Keeping {
    pub(crate) info: ConnInfo,
    /// The slot that the relay reads.
    pub(crate) slot: String,
    /// The bookmark's slot.
    pub(crate) bookmark: String,
    pub(crate) keep: Keep,
    /// The relay's state file. Beside it is noted where the relay was when; without one, in the
    /// database.
    pub(crate) state_file: Option<PathBuf>,
    /// PID of this process' walsender; 0 before the first stream.
    pub(crate) walsender: Arc<AtomicI32>,
    pub(crate) telemetry: Option<Arc<Telemetry>>,
}

/// Keeps the rolling bookmark until the thread is dropped. The bookmark's slot is not dropped.
pub(crate) fn start(keeping: Keeping) -> io::Result<Background> {
    Background::start("retention", move || Keeper::new(keeping).run())
}

struct Keeper {
    keeping: Keeping,
    positions: Positions,
    notes: Notes,
    /// The walsender when the notes were read last, and the server's system identifier.
    noted: (i32, String),
    /// Why and when the bookmark last lost events before their time to keep was over.
    cut: Option<(&'static str, Instant)>,
    /// The bookmark existed, so its absence is worth a warning.
    seen: bool,
    /// The problem that was logged last, and when.
    problem: Option<(String, Instant)>,
}

impl Keeper {
    fn new(keeping: Keeping) -> Self {
        Self {
            positions: Positions::new(keeping.keep),
            notes: Notes::open(&keeping.slot, keeping.state_file.as_deref()),
            noted: (0, String::new()),
            keeping,
            cut: None,
            seen: false,
            problem: None,
        }
    }

    /// Keeps the bookmark. Never ends.
    async fn run(mut self) {
        let period = self.keeping.keep.time / 10;
        let mut ticks = interval(period.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut session = None;
        loop {
            ticks.tick().await;
            let walsender = self.keeping.walsender.load(Ordering::Relaxed);
            if walsender == 0 {
                continue;
            }
            match self.round(&mut session, walsender).await {
                Ok(report) => {
                    self.problem = None;
                    if let Some(telemetry) = &self.keeping.telemetry {
                        telemetry.bookmark(report);
                    }
                }
                Err(error) => {
                    session = None;
                    self.warn(&Chain(&error).to_string());
                }
            }
        }
    }

    /// Logs a problem, unless the same was logged within [`REMINDER`].
    fn warn(&mut self, why: &str) {
        let now = Instant::now();
        let last = self.problem.as_ref();
        if last.is_some_and(|(known, logged)| known == why && now < *logged + REMINDER) {
            return;
        }
        warn!(
            error = why,
            "the rolling bookmark cannot be kept at the moment; the relay goes on"
        );
        self.problem = Some((why.to_owned(), now));
    }

    /// Queries the slots, and creates, moves or replaces the bookmark. `None`: there is nothing to
    /// report, because the bookmark is new, or another process keeps it.
    async fn round(
        &mut self,
        session: &mut Option<Session>,
        walsender: i32,
    ) -> Result<Option<BookmarkReport>, Error> {
        let session = match session {
            Some(session) => session,
            none => none.insert(Session::connect(&self.keeping.info, SessionKind::Sql, &[]).await?),
        };
        let rows = slots(session).await?;
        let named = |name: &str| rows.iter().find(|row| row.name == name);
        let relay = named(&self.keeping.slot);
        let ours = |row: &&SlotRow| row.active_pid == Some(i64::from(walsender));
        let Some(relay) = relay.filter(ours) else {
            return Ok(None);
        };
        let (Some(confirmed), Some(restart)) = (relay.confirmed, relay.restart) else {
            return Ok(None);
        };
        if self.noted.0 != walsender {
            self.read_notes(session, walsender, confirmed).await?;
        }
        let now = Instant::now();
        if self.positions.record(now, confirmed) {
            self.write_notes(session, now).await?;
        }
        let Some(bookmark) = named(&self.keeping.bookmark) else {
            self.create(session).await?;
            return Ok(None);
        };
        self.seen = true;
        let (false, Some(at), Some(from)) =
            (bookmark.is_lost(), bookmark.confirmed, bookmark.restart)
        else {
            self.replace_lost(session, bookmark, now).await?;
            return Ok(None);
        };
        let mut slots = Slots {
            relay: (confirmed, restart),
            bookmark: (at, from),
        };
        // Another session may be moving the bookmark by hand.
        if bookmark.active_pid.is_none()
            && let Some(Target { to, by_size }) = self.positions.target(now, slots)
        {
            let name = &self.keeping.bookmark;
            session.query(&advance_slot(name, to)).await?;
            debug!(slot = name, %to, by_size, "the rolling bookmark has moved");
            slots.bookmark = (to, from.max(restart_lsn(session, name).await?));
            if by_size {
                self.cut_by_size(now);
            }
        }
        Ok(Some(self.report(now, slots)))
    }

    /// Reads the notes at the begin of a stream: another relay with the same state file may have read
    /// the slot, and written them, since the last one.
    async fn read_notes(
        &mut self,
        session: &mut Session,
        walsender: i32,
        confirmed: Lsn,
    ) -> Result<(), Error> {
        let sql = "SELECT system_identifier FROM pg_catalog.pg_control_system()";
        let rows = session.query(sql).await?;
        let row = rows.first();
        let system_id = row.as_ref().and_then(|row| row.get(0)).unwrap_or_default();
        let samples = self.notes.read(session, system_id).await?;
        if !samples.is_empty() {
            self.positions.restore(Instant::now(), confirmed, samples);
        }
        system_id.clone_into(&mut self.noted.1);
        self.noted.0 = walsender;
        Ok(())
    }

    async fn write_notes(&mut self, session: &mut Session, now: Instant) -> Result<(), Error> {
        let samples = self.positions.samples(now);
        self.notes.write(session, &self.noted.1, samples).await
    }

    /// Logs that `max_wal` moves the bookmark, unless it has done so within the time to keep.
    fn cut_by_size(&mut self, now: Instant) {
        let Keep { time, max_wal } = self.keeping.keep;
        let known = self
            .cut
            .is_some_and(|(why, at)| why == BookmarkReport::BY_SIZE && now < at + time);
        if !known {
            warn!(
                slot = self.keeping.bookmark,
                max_wal,
                keep_s = time.as_secs(),
                "max_wal of [retention] moves the rolling bookmark early: not all events of the time to keep \
                 can be replayed from it"
            );
        }
        self.cut = Some((BookmarkReport::BY_SIZE, now));
    }

    /// Drops the lost bookmark and creates a new one.
    async fn replace_lost(
        &mut self,
        session: &mut Session,
        lost: &SlotRow,
        now: Instant,
    ) -> Result<(), Error> {
        warn!(
            slot = lost.name,
            reason = lost.invalidated.as_deref().unwrap_or("its log was removed"),
            "the rolling bookmark is lost, and recreated: nothing from before can be replayed from it"
        );
        session.query(&script::drop_slot(&lost.name)).await?;
        self.seen = false;
        self.create(session).await?;
        self.cut = Some((BookmarkReport::LOST, now));
        Ok(())
    }

    /// Creates the bookmark at the relay's position.
    async fn create(&mut self, session: &mut Session) -> Result<(), Error> {
        let Keeping { slot, bookmark, .. } = &self.keeping;
        session.query(&copy_slot(slot, bookmark, false)).await?;
        if self.seen {
            self.cut = Some((BookmarkReport::DROPPED, Instant::now()));
            warn!(
                slot = bookmark,
                "the rolling bookmark was dropped by another client, and is recreated: nothing from before can be \
                 replayed from it"
            );
        } else {
            info!(slot = bookmark, "the rolling bookmark is made");
        }
        self.seen = true;
        Ok(())
    }

    fn report(&self, now: Instant, slots: Slots) -> BookmarkReport {
        let Keep { time, max_wal } = self.keeping.keep;
        BookmarkReport {
            slot: self.keeping.bookmark.clone(),
            position: slots.bookmark.0,
            retained_bytes: slots.retained(),
            max_wal_bytes: max_wal,
            reachable_seconds: self
                .positions
                .reachable(now, slots.bookmark.0)
                .as_secs_f64(),
            keep_seconds: time.as_secs_f64(),
            // After the time to keep has passed, all of it can be replayed again.
            cut_short: self
                .cut
                .filter(|(_, at)| now.duration_since(*at) < time)
                .map(|(why, _)| why.to_owned()),
            seen_ms: millis_now(),
        }
    }
}

/// Queries the slot's current `restart_lsn`; zero if the slot does not exist.
async fn restart_lsn(session: &mut Session, name: &str) -> Result<Lsn, Error> {
    let rows = slots(session).await?;
    let row = rows.into_iter().find(|row| row.name == name);
    Ok(row.and_then(|row| row.restart).unwrap_or(Lsn::ZERO))
}
