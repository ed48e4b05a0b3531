//! The changing state of a running relay, as the pipeline and the server report it.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use walrelay_lsn::Lsn;
use walrelay_relay::{
    Class, Counts, Explanation, HolderKind, PgTimestamp, PipelineState, Progress, SlotHolder,
};
use walrelay_sink::{EventPosition, Poison, Retrying};
use walrelay_sink_kind::check::Check;

use crate::report::{
    AuditReport, BookmarkReport, MoveReport, OutboxReport, RECONNECTS, ReplayReport, SlotReport,
    TableLockReport, is_of_sink, remedy_of_cause,
};
use crate::{millis_now, wall_clock};

/// A pipeline that has not reported for this long is not ready. Usually it reports each second.
const SILENT_PIPELINE: Duration = Duration::from_secs(10);
/// An end of the WAL that is not confirmed within this time counts as lag. An idle server answers
/// each status update, so the confirmed position usually follows within a second or two.
const USUAL_CONFIRM_DELAY: Duration = Duration::from_secs(10);
/// A pipeline that has not reported, or not streamed, for longer than this has lag.
const USUAL_SILENCE: Duration = Duration::from_secs(2);
/// The time in which attempts that failed count as one storm, as for the alert `WalrelayReconnects`.
const STORM: Duration = Duration::from_secs(600);

/// An attempt that failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// The kind, as metrics name it.
    pub(super) cause: &'static str,
    pub(super) why: String,
    pub(super) explanation: Option<Explanation>,
    /// The position that was confirmed when it failed.
    confirmed: Option<Lsn>,
    /// The records that were acknowledged until then.
    acknowledged: u64,
}

/// The changing state of a running relay.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) state: PipelineState,
    pub(super) state_since_ms: u64,
    state_since: Instant,
    /// The failure of the last attempt, until a later one succeeds.
    pub(super) last_failure: Option<Failure>,
    /// When the pipeline streamed last.
    pub(super) streaming_at: Instant,
    pub(super) progress: Option<Progress>,
    pub(super) progress_at: Instant,
    /// When the runtime of the pipeline said that it works.
    pub(super) beat_at: Instant,
    /// The commit time of the oldest record in flight, by topic, and when that was reported.
    pub(super) oldest_by_topic: (BTreeMap<String, PgTimestamp>, Instant),
    /// The event of the last acknowledged record, by topic, and when that was reported first, in milliseconds since 1970.
    pub(super) last_by_topic: BTreeMap<String, (EventPosition, u64)>,
    /// Totals of the sinks before the present one.
    pub(super) earlier: Counts,
    /// Records that those sinks have acknowledged.
    pub(super) acknowledged_earlier: u64,
    /// How far the server's clock is ahead of this machine's, in seconds, as far as it is known.
    pub(super) clock_offset: Option<f64>,
    pub(super) table_lock: Option<TableLockReport>,
    /// The outbox tables, and why the last query of them failed.
    pub(super) outboxes: (Vec<OutboxReport>, Option<String>),
    /// The last round of the audit.
    pub(super) audit: Option<AuditReport>,
    /// When a record was acknowledged last, or this relay began to relay.
    pub(super) event_at: Instant,
    /// The time at which a record was acknowledged last.
    pub(super) acknowledged_at_ms: Option<u64>,
    pub(super) reconnects: BTreeMap<String, u64>,
    /// When the last attempts failed, one more than [`RECONNECTS`] at most.
    pub(super) failed_at: VecDeque<Instant>,
    pub(super) feedback_sent: u64,
    pub(super) blocked: Duration,
    /// The keys that the sink holds back.
    pub(super) retrying: Option<Retrying>,
    pub(super) dead_letters: BTreeMap<String, u64>,
    pub(super) skipped: BTreeMap<String, u64>,
    /// Why no dead letter can be written.
    pub(super) dead_letter_obstacle: Option<String>,
    /// Why the OpenTelemetry collector does not accept the metrics.
    pub(super) otel_problem: Option<String>,
    /// The settings by which the servers of the sink may lose what they have acknowledged.
    pub(super) sink_risks: Vec<Check>,
    pub(super) passed_over: BTreeMap<String, u64>,
    pub(super) slot: Option<SlotReport>,
    pub(super) slot_error: Option<String>,
    pub(super) bookmark: Option<BookmarkReport>,
    /// The move that has not ended on this server.
    pub(super) moved: Option<MoveReport>,
    /// The replays that run in the database.
    pub(super) replays: Vec<ReplayReport>,
    pub(super) pruned: u64,
    /// Why rows are not changed, by the work.
    pub(super) row_changes: BTreeMap<String, Option<String>>,
    pub(super) server_end: Option<Lsn>,
    /// The first end of the WAL reported by the server that is not confirmed yet, and when the
    /// server reported it.
    pub(super) unconfirmed_end: Option<(Lsn, Instant)>,
}

impl Live {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            state: PipelineState::Connecting,
            state_since_ms: millis_now(),
            state_since: now,
            last_failure: None,
            streaming_at: now,
            progress: None,
            progress_at: now,
            beat_at: now,
            oldest_by_topic: (BTreeMap::new(), now),
            last_by_topic: BTreeMap::new(),
            earlier: Counts::default(),
            acknowledged_earlier: 0,
            clock_offset: None,
            table_lock: None,
            outboxes: (Vec::new(), None),
            audit: None,
            event_at: now,
            acknowledged_at_ms: None,
            reconnects: BTreeMap::new(),
            failed_at: VecDeque::new(),
            feedback_sent: 0,
            blocked: Duration::ZERO,
            retrying: None,
            dead_letters: classes(),
            skipped: classes(),
            dead_letter_obstacle: None,
            otel_problem: None,
            sink_risks: Vec::new(),
            passed_over: BTreeMap::new(),
            slot: None,
            slot_error: None,
            bookmark: None,
            moved: None,
            replays: Vec::new(),
            pruned: 0,
            row_changes: BTreeMap::new(),
            server_end: None,
            unconfirmed_end: None,
        }
    }

    /// Totals of all sinks.
    pub(super) fn counts(&self) -> Counts {
        let present = self.progress.map(|progress| progress.counts);
        self.earlier.plus(present.unwrap_or_default())
    }

    /// Records that all sinks have acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        let present = self.progress.map_or(0, |progress| progress.acknowledged());
        self.acknowledged_earlier + present
    }

    /// Counts an attempt that failed by this cause.
    pub(super) fn attempt_failed(&mut self, cause: &str) {
        *self.reconnects.entry(cause.to_owned()).or_default() += 1;
        self.failed_at.push_back(Instant::now());
        if self.failed_at.len() as u64 > RECONNECTS + 1 {
            self.failed_at.pop_front();
        }
    }

    /// Enters a state.
    pub(super) fn enter(&mut self, state: &PipelineState) {
        if std::mem::discriminant(&self.state) != std::mem::discriminant(state) {
            self.state_since_ms = millis_now();
            self.state_since = Instant::now();
        }
        if let PipelineState::Waiting {
            cause,
            why,
            explanation,
        } = &self.state
        {
            self.last_failure = Some(Failure {
                cause,
                why: why.clone(),
                explanation: explanation.clone(),
                confirmed: self.progress.map(|progress| progress.confirmed.lsn()),
                acknowledged: self.acknowledged(),
            });
        }
        let streams = matches!(state, PipelineState::Streaming);
        self.last_failure
            .take_if(|failure| streams && !is_of_sink(failure.cause));
        self.state = state.clone();
        self.progress_at = Instant::now();
    }

    /// Notes that positions are reported.
    pub(super) fn progressed(&mut self, progress: &Progress) {
        let confirmed = Some(progress.confirmed.lsn());
        let failure = self.last_failure.as_ref();
        if failure.is_some_and(|failure| failure.confirmed < confirmed) {
            self.last_failure = None;
        }
    }

    /// Returns the failure of the last attempt while the present one may fail as it did: it connects, or
    /// streams to a sink that ended the last one, and nothing was confirmed since.
    pub(super) fn failure(&self) -> Option<&Failure> {
        let failure = self.last_failure.as_ref()?;
        let is_idle = self.progress.is_none_or(|progress| progress.in_flight == 0);
        let lasts = self.state_since.elapsed();
        match self.state {
            PipelineState::Connecting => true,
            PipelineState::Streaming => {
                // A long transaction confirms nothing while its records are acknowledged.
                let is_fine = is_idle || self.acknowledged() > failure.acknowledged;
                is_of_sink(failure.cause) && !(is_fine && lasts >= USUAL_CONFIRM_DELAY)
            }
            _ => false,
        }
        .then_some(failure)
    }

    /// Returns the number of attempts that failed lately, of those that are remembered.
    pub(super) fn recent_reconnects(&self) -> u64 {
        let recent = self.failed_at.iter();
        recent.filter(|at| at.elapsed() < STORM).count() as u64
    }

    /// Returns the other relay of this configuration that reads the slot, while this one stands by.
    pub(super) fn standing_by(&self) -> Option<&SlotHolder> {
        self.holder()
            .filter(|holder| holder.kind == HolderKind::Relay)
    }

    /// Returns the process that reads the slot, while the pipeline waits for it.
    pub(super) fn holder(&self) -> Option<&SlotHolder> {
        match &self.state {
            PipelineState::WaitingForSlot { holder, .. } => Some(holder),
            _ => None,
        }
    }

    /// Returns true if the runtime of the pipeline has worked within this time, and has reported while it
    /// streams.
    pub(super) fn is_alive(&self, silence: Duration) -> bool {
        let reports = !matches!(self.state, PipelineState::Streaming)
            || self.progress_at.elapsed() <= silence;
        reports && self.beat_at.elapsed() <= silence
    }

    /// Updates `unconfirmed_end` after a new `server_end`.
    pub(super) fn note_end(&mut self) {
        if self
            .unconfirmed_end
            .is_none_or(|(end, _)| self.is_confirmed(end))
        {
            let end = self.server_end.filter(|end| !self.is_confirmed(*end));
            self.unconfirmed_end = end.map(|end| (end, Instant::now()));
        }
    }

    fn is_confirmed(&self, lsn: Lsn) -> bool {
        let progress = self.progress.as_ref();
        progress.is_some_and(|progress| progress.confirmed.lsn() >= lsn)
    }

    /// Returns the age of the oldest commit that is not acknowledged.
    pub(super) fn lag(&self) -> Duration {
        // The relay that reads the slot has the lag, not one that stands by for it.
        if self.standing_by().is_some() {
            return Duration::ZERO;
        }
        let oldest = self.progress.and_then(|progress| progress.oldest);
        let unacknowledged = oldest.map_or(Duration::ZERO, age);
        let unconfirmed = match self.unconfirmed_end {
            Some((end, since)) if !self.is_confirmed(end) => since.elapsed(),
            _ => Duration::ZERO,
        };
        let silence = match self.state {
            PipelineState::Snapshot
            | PipelineState::Streaming
            | PipelineState::Blocked { .. }
            | PipelineState::WaitingForSchema { .. }
            | PipelineState::Draining => self.progress_at.elapsed(),
            _ => self.streaming_at.elapsed(),
        };
        let above = |duration: Duration, usual: Duration| {
            if duration > usual {
                duration
            } else {
                Duration::ZERO
            }
        };
        unacknowledged
            .max(above(unconfirmed, USUAL_CONFIRM_DELAY))
            .max(above(silence, USUAL_SILENCE))
    }

    /// Returns the age of the oldest record in flight of each topic that has one, at the time of the
    /// last report: while events flow, the records of that report are acknowledged soon after it. An
    /// age grows further while no report comes.
    pub(super) fn lag_by_topic(&self) -> BTreeMap<&str, Duration> {
        if self.standing_by().is_some() {
            return BTreeMap::new();
        }
        let (oldest, reported) = &self.oldest_by_topic;
        let since = Some(reported.elapsed()).filter(|since| *since <= USUAL_SILENCE);
        let since = since.unwrap_or_default();
        let lag = |at: &PgTimestamp| age(*at).saturating_sub(since);
        oldest
            .iter()
            .map(|(topic, at)| (&**topic, lag(at)))
            .collect()
    }

    /// Returns the reason why the relay is not ready; `None` if it is. A relay that stands by is ready
    /// to take over.
    pub(super) fn not_ready(&self) -> Option<String> {
        if self.standing_by().is_some() {
            return None;
        }
        let silent = self.progress_at.elapsed();
        match &self.state {
            PipelineState::Streaming if silent > SILENT_PIPELINE => Some(format!(
                "the pipeline has not reported for {} s",
                silent.as_secs()
            )),
            // The next event may end this attempt as the last one.
            PipelineState::Streaming => self
                .failure()
                .map(|failure| format!("the last attempt failed: {}", failure.why)),
            state => Some(state.to_string()),
        }
    }
}

/// Returns the time since a commit; zero if the server's clock is ahead of this machine's.
fn age(committed: PgTimestamp) -> Duration {
    let micros = wall_clock().get().saturating_sub(committed.get());
    Duration::from_micros(micros.try_into().unwrap_or(0))
}

/// Returns a zero for each class, so that Prometheus sees the first event as an increase.
fn classes() -> BTreeMap<String, u64> {
    let classes = Poison::ALL
        .map(Class::Poison)
        .into_iter()
        .chain([Class::Parked]);
    classes.map(|class| (class.to_string(), 0)).collect()
}

/// Returns the name of a state in [`STATES`](crate::report::STATES), and its reason.
pub(super) fn describe(state: &PipelineState) -> (&'static str, Option<&str>) {
    match state {
        PipelineState::Connecting => ("connecting", None),
        PipelineState::Snapshot => ("snapshot", None),
        PipelineState::Streaming => ("streaming", None),
        PipelineState::Blocked { why, .. } => ("blocked", Some(why)),
        PipelineState::WaitingForSchema { why } => ("waiting-for-schema", Some(why)),
        PipelineState::WaitingForSlot { why, .. } => ("waiting-for-slot", Some(why)),
        PipelineState::Waiting { why, .. } => ("retrying", Some(why)),
        PipelineState::Draining => ("draining", None),
        PipelineState::Halted { why } => ("halted", Some(why)),
    }
}

/// Returns the remedy for a state; `None` if nothing need be done.
pub(super) fn remedy(state: &PipelineState) -> Option<String> {
    match state {
        PipelineState::Blocked { remedy, .. } => {
            let remedy = remedy.unwrap_or("see the items of the sink in walrelay check");
            Some(format!(
                "{remedy}. Nothing is lost: Postgres keeps the log of waiting events"
            ))
        }
        PipelineState::WaitingForSchema { .. } => Some(
            "see whether the schema registry answers and has the subject: the relay asks again".to_owned(),
        ),
        PipelineState::WaitingForSlot { holder, .. } => match holder.kind {
            HolderKind::Relay => None,
            HolderKind::Unknown => Some(
                "wait until the server has ended the last connection of this relay, within wal_sender_timeout"
                    .to_owned(),
            ),
            HolderKind::Stranger => {
                let pid = holder.pid.map_or("PID".to_owned(), |pid| pid.to_string());
                Some(format!(
                    "find out what the process is for; if nothing needs it, stop its program or SELECT \
                     pg_terminate_backend({pid}). What it confirms is not relayed: \
                     docs/operate/alerts.md, \"WalrelaySlotTaken\""
                ))
            }
        },
        PipelineState::Waiting {
            explanation: Some(explanation),
            ..
        } => Some(explanation.remedy.clone()),
        PipelineState::Waiting { cause, .. } => remedy_of_cause(cause).map(str::to_owned),
        PipelineState::Halted { .. } => Some(
            "act on the reason, and start the relay again: the last error of the log has the remedy".to_owned(),
        ),
        PipelineState::Connecting | PipelineState::Snapshot | PipelineState::Streaming | PipelineState::Draining => None,
    }
}
