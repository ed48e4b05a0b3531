//! The state of a running relay, as the pipeline and the server report it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use walrelay_lsn::Lsn;
use walrelay_relay::{Class, Counts, Progress, State};
use walrelay_sink::Poison;

use super::report::{BookmarkReport, SlotReport};
use super::{millis_now, wall_clock};

/// A pipeline reports once a second. One that has not for so long stands still.
const SILENT_PIPELINE: Duration = Duration::from_secs(10);
/// A server that is idle answers each status update, so that the confirmed position follows its log within a
/// second or two. A position that is not reached for longer is lag.
const USUAL_DISTANCE: Duration = Duration::from_secs(10);

/// What changes.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) state: State,
    pub(super) state_since_ms: u64,
    /// When the pipeline streamed last.
    pub(super) streaming_at: Instant,
    pub(super) progress: Option<Progress>,
    pub(super) progress_at: Instant,
    /// Of the sinks before the present one.
    pub(super) earlier: Counts,
    pub(super) reconnects: BTreeMap<String, u64>,
    pub(super) feedback_sent: u64,
    pub(super) blocked: Duration,
    pub(super) dead_letters: BTreeMap<String, u64>,
    pub(super) skipped: BTreeMap<String, u64>,
    pub(super) slot: Option<SlotReport>,
    pub(super) slot_error: Option<String>,
    pub(super) bookmark: Option<BookmarkReport>,
    pub(super) pruned: u64,
    pub(super) server_end: Option<Lsn>,
    /// The first end of the log, as the server said, that is not confirmed yet, and when it said so.
    pub(super) unreached: Option<(Lsn, Instant)>,
}

impl Live {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            state: State::Connecting,
            state_since_ms: millis_now(),
            streaming_at: now,
            progress: None,
            progress_at: now,
            earlier: Counts::default(),
            reconnects: BTreeMap::new(),
            feedback_sent: 0,
            blocked: Duration::ZERO,
            dead_letters: classes(),
            skipped: classes(),
            slot: None,
            slot_error: None,
            bookmark: None,
            pruned: 0,
            server_end: None,
            unreached: None,
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let present = self.progress.map(|progress| progress.counts);
        self.earlier.plus(present.unwrap_or_default())
    }

    /// Takes in a new end of the server's log.
    pub(super) fn note_end(&mut self) {
        let confirmed = self.progress.map(|progress| progress.confirmed.lsn());
        let behind = |lsn: Lsn| confirmed.is_none_or(|confirmed| lsn > confirmed);
        if self.unreached.is_some_and(|(lsn, _)| behind(lsn)) {
            return;
        }
        self.unreached = self
            .server_end
            .filter(|end| behind(*end))
            .map(|end| (end, Instant::now()));
    }

    /// How old the oldest commit is that is not acknowledged.
    pub(super) fn lag(&self) -> Duration {
        let oldest = self.progress.and_then(|progress| progress.oldest);
        // The clocks of two machines may disagree by more than the lag.
        let sent = oldest.map_or(Duration::ZERO, |committed| {
            let micros = wall_clock().get().saturating_sub(committed.get());
            Duration::from_micros(micros.try_into().unwrap_or(0))
        });
        let confirmed = self.progress.map(|progress| progress.confirmed.lsn());
        let unreached = self
            .unreached
            .filter(|(lsn, _)| confirmed.is_none_or(|confirmed| *lsn > confirmed));
        let unread = unreached.map_or(Duration::ZERO, |(_, since)| since.elapsed());
        let away = match self.state {
            State::Snapshot
            | State::Streaming
            | State::Blocked
            | State::WaitingForSchema { .. }
            | State::Draining => self.progress_at.elapsed(),
            // The relay that reads the slot has a lag, not the one that waits for it.
            State::WaitingForSlot { .. } => return Duration::ZERO,
            _ => self.streaming_at.elapsed(),
        };
        let noticed = |duration: Duration, usual: Duration| {
            if duration > usual {
                duration
            } else {
                Duration::ZERO
            }
        };
        sent.max(noticed(unread, USUAL_DISTANCE))
            .max(noticed(away, Duration::from_secs(2)))
    }

    pub(super) fn not_ready(&self) -> Option<String> {
        let silent = self.progress_at.elapsed();
        match &self.state {
            State::Streaming if silent > SILENT_PIPELINE => Some(format!(
                "the pipeline has not reported for {} s",
                silent.as_secs()
            )),
            State::Streaming => None,
            state => Some(state.to_string()),
        }
    }
}

/// All classes, so that a first event is an increase of a counter that was there before.
fn classes() -> BTreeMap<String, u64> {
    let classes = Poison::ALL
        .map(Class::Poison)
        .into_iter()
        .chain([Class::Parked]);
    classes.map(|class| (class.to_string(), 0)).collect()
}

/// A state's name of [`STATES`](super::report::STATES) and its reason.
pub(super) fn describe(state: &State) -> (&'static str, Option<&str>) {
    match state {
        State::Connecting => ("connecting", None),
        State::Snapshot => ("snapshot", None),
        State::Streaming => ("streaming", None),
        State::Blocked => ("blocked", None),
        State::WaitingForSchema { why } => ("waiting-for-schema", Some(why)),
        State::WaitingForSlot { why } => ("waiting-for-slot", Some(why)),
        State::Waiting { why, .. } => ("retrying", Some(why)),
        State::Draining => ("draining", None),
        State::Halted { why } => ("halted", Some(why)),
    }
}
