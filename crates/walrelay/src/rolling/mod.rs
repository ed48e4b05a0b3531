//! The rolling bookmark: a slot that follows the relay's at a distance, so that the last hours can be replayed.
//!
//! [`start`] keeps it on a thread and a connection of its own, beside the pipeline. [`policy`] says where it
//! is to be.
//!
//! # Invariants
//! - Only the process whose walsender reads the relay's slot touches the bookmark: a relay on standby does not.
//! - The bookmark is never beyond the relay's slot, and holds up nothing: if it cannot be kept, that is logged.

mod policy;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use tokio::time::interval;
use tracing::{debug, info, warn};
use walrelay_lsn::Lsn;
use walrelay_relay::Chain;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use crate::background::Background;
use crate::postgres::{SlotRow, advance_slot, copy_slot, script, slots};
use crate::telemetry::{BookmarkReport, Telemetry, millis_now};
pub(crate) use policy::Keep;
use policy::{Positions, Slots, Target};

/// How often the slots are looked at, at most and at least.
const LONGEST_INTERVAL: Duration = Duration::from_secs(5);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);
/// A problem that lasts is logged so often.
const REMINDER: Duration = Duration::from_secs(600);

/// What is kept, and for which slot.
#[derive(Debug)]
pub(crate) struct Keeping {
    pub(crate) info: ConnInfo,
    /// The slot that the relay reads.
    pub(crate) slot: String,
    /// The slot of the bookmark.
    pub(crate) bookmark: String,
    pub(crate) keep: Keep,
    /// The walsender that reads the relay's slot for this process; 0 before there is one.
    pub(crate) walsender: Arc<AtomicI32>,
    pub(crate) telemetry: Option<Arc<Telemetry>>,
}

/// Keeps the rolling bookmark until the thread is dropped. The slot stays.
pub(crate) fn start(keeping: Keeping) -> io::Result<Background> {
    Background::start("retention", move || Keeper::new(keeping).run())
}

/// Why less than the time to keep can be replayed, as metrics name it.
pub(crate) const CUTS: [&str; 3] = [BY_SIZE, LOST, DROPPED];
const BY_SIZE: &str = "max_wal";
const LOST: &str = "lost";
const DROPPED: &str = "dropped";

struct Keeper {
    keeping: Keeping,
    positions: Positions,
    /// What was given up last before its time, and when.
    cut: Option<(&'static str, Instant)>,
    /// It was there, so that its absence is worth a warning.
    seen: bool,
    problem: Option<(String, Instant)>,
}

impl Keeper {
    fn new(keeping: Keeping) -> Self {
        Self {
            positions: Positions::new(keeping.keep),
            keeping,
            cut: None,
            seen: false,
            problem: None,
        }
    }

    /// Never ends.
    async fn run(mut self) {
        let often = self.keeping.keep.time / 10;
        let mut ticks = interval(often.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut session = None;
        loop {
            ticks.tick().await;
            let walsender = self.keeping.walsender.load(Ordering::Relaxed);
            if walsender == 0 {
                continue;
            }
            let kept = self.look(&mut session, walsender).await;
            let report = match kept {
                Ok(report) => {
                    self.problem = None;
                    report
                }
                Err(error) => {
                    session = None;
                    self.warn(&Chain(&error).to_string());
                    continue;
                }
            };
            if let Some(telemetry) = &self.keeping.telemetry {
                telemetry.bookmark(report);
            }
        }
    }

    fn warn(&mut self, why: &str) {
        let now = Instant::now();
        if let Some((known, logged)) = &self.problem
            && known == why
            && now < *logged + REMINDER
        {
            return;
        }
        warn!(
            error = why,
            "the rolling bookmark cannot be kept at the moment; the relay goes on"
        );
        self.problem = Some((why.to_owned(), now));
    }

    /// Looks at the slots, and makes, moves or remakes the bookmark. `None`: this process does not keep it.
    async fn look(
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
        let now = Instant::now();
        self.positions.see(now, confirmed);
        let Some(bookmark) = named(&self.keeping.bookmark) else {
            self.make(session).await?;
            return Ok(None);
        };
        self.seen = true;
        let (false, Some(at), Some(from)) =
            (bookmark.is_lost(), bookmark.confirmed, bookmark.restart)
        else {
            warn!(
                slot = self.keeping.bookmark,
                reason = bookmark
                    .invalidated
                    .as_deref()
                    .unwrap_or("its log was removed"),
                "the rolling bookmark is lost, and made anew: nothing from before can be replayed from it"
            );
            session
                .query(&script::drop_slot(&self.keeping.bookmark))
                .await?;
            self.seen = false;
            self.make(session).await?;
            self.cut = Some((LOST, now));
            return Ok(None);
        };
        let mut slots = Slots {
            relay: (confirmed, restart),
            bookmark: (at, from),
        };
        // Somebody who moves it by hand is not disturbed.
        if bookmark.active_pid.is_none()
            && let Some(Target { to, by_size }) = self.positions.target(now, slots)
        {
            let sql = advance_slot(&self.keeping.bookmark, to);
            session.query(&sql).await?;
            debug!(slot = self.keeping.bookmark, %to, by_size, "the rolling bookmark has moved");
            if by_size {
                self.cut = Some((BY_SIZE, now));
            }
            slots.bookmark = (
                to,
                from.max(restart_after(session, &self.keeping.bookmark).await?),
            );
        }
        Ok(Some(self.report(now, slots)))
    }

    async fn make(&mut self, session: &mut Session) -> Result<(), Error> {
        let Keeping { slot, bookmark, .. } = &self.keeping;
        session.query(&copy_slot(slot, bookmark, false)).await?;
        if self.seen {
            self.cut = Some((DROPPED, Instant::now()));
            warn!(
                slot = bookmark,
                "the rolling bookmark was dropped by somebody, and is made anew: nothing from before can be \
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
            position: slots.bookmark.0.to_string(),
            retained_bytes: slots.retained(),
            max_wal_bytes: max_wal,
            reachable_seconds: self
                .positions
                .reachable(now, slots.bookmark.0)
                .as_secs_f64(),
            keep_seconds: time.as_secs_f64(),
            // Whatever was given up, so long after it all of the time can be replayed again.
            cut_short: self
                .cut
                .filter(|(_, at)| now.duration_since(*at) < time)
                .map(|(why, _)| why.to_owned()),
            seen_ms: millis_now(),
        }
    }
}

/// From where on the server keeps WAL for the slot now.
async fn restart_after(session: &mut Session, name: &str) -> Result<Lsn, Error> {
    let rows = slots(session).await?;
    let row = rows.into_iter().find(|row| row.name == name);
    Ok(row.and_then(|row| row.restart).unwrap_or(Lsn::ZERO))
}
