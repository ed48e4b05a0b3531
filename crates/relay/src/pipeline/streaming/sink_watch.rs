use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};
use walrelay_sink::{Disposition, Obstacle, Retrying, Sink};

use crate::interface::observer::PipelineState;
use crate::pipeline::log_throttle::LogThrottle;
use crate::pipeline::session::sink_session::{BatchResult, SinkSession};

/// The time without progress of the sink after which it is asked what it waits for.
const ASK_SINK: Duration = Duration::from_secs(1);
/// The time without progress of the sink after which that is logged, if it takes no record or knows
/// what it waits for.
const BLOCKED_NOTICE: Duration = Duration::from_secs(1);
/// The time after which missing acknowledgements are logged, if the sink takes records and does not
/// know what it waits for.
const UNANSWERED_NOTICE: Duration = Duration::from_secs(5);

const TAKES_NOTHING: &str =
    "the sink accepts nothing more: waiting for it, the slot keeps later events";
const ACKNOWLEDGES_NOTHING: &str =
    "the sink acknowledges nothing: waiting for it, nothing is confirmed meanwhile";
/// The text instead of that where the sink knows which keys wait, and others go on.
const KEYS_WAIT: &str = "keys wait until the sink accepts one of their events: nothing behind it is confirmed meanwhile";

const DRAIN_TIMEOUT: &str = "not acknowledged within delivery.drain_timeout";

/// Watches whether the sink makes progress, and what it waits for if not.
#[derive(Debug, Default)]
pub(super) struct SinkWatch {
    /// The time since which the sink makes no progress while records wait for it.
    since: Option<Instant>,
    /// The lowest sequence number in flight, at the last turn.
    lowest: u64,
    /// The obstacle that the sink waits for, if it was asked and knows.
    obstacle: Option<Obstacle>,
    /// The keys that the sink holds back, and when it was asked for them.
    retrying: Option<Retrying>,
    retrying_asked: Option<Instant>,
    /// The state that was reported last, while the sink makes no progress.
    reported: Option<PipelineState>,
    throttle: LogThrottle,
}

impl SinkWatch {
    /// Observes the sink after a batch. Logs that the sink is stuck, at growing intervals, and that
    /// it makes progress again. Returns the state of the pipeline if it changed.
    pub(super) fn observe<K: Sink>(
        &mut self,
        session: &mut SinkSession<K>,
        batch: &BatchResult,
        draining: bool,
        now: Instant,
    ) -> Option<PipelineState> {
        if batch.awaits_answer {
            // The sink is not the cause, and the wait for an answer is logged elsewhere.
            let was_blocked = self.reported.is_some() && !draining;
            *self = Self::default();
            return was_blocked.then_some(PipelineState::Streaming);
        }
        self.update_since(session, batch, now);
        let stuck_for = self.since.map_or(Duration::ZERO, |since| now - since);
        let asks = self.since.is_some() && stuck_for >= ASK_SINK;
        self.obstacle = asks.then(|| session.sink.waiting_for()).flatten();
        self.ask_for_keys(session, asks, now);
        let notice = if batch.blocked || self.obstacle.is_some() {
            BLOCKED_NOTICE
        } else {
            UNANSWERED_NOTICE
        };
        if self.since.is_some() && stuck_for >= notice {
            let what = if batch.blocked {
                TAKES_NOTHING
            } else if self.retrying.is_some() && session.core.has_acknowledged_behind() {
                KEYS_WAIT
            } else {
                ACKNOWLEDGES_NOTHING
            };
            self.log_stuck(session, what, stuck_for, now);
            if draining {
                return None;
            }
            let state = self.blocked(what);
            let new = self.reported.as_ref() != Some(&state);
            self.reported = Some(state.clone());
            return new.then_some(state);
        }
        if stuck_for.is_zero()
            && !draining
            && let Some(lasted) = self.throttle.over(now)
        {
            self.reported = None;
            info!(
                lasted_s = lasted.as_secs(),
                "the sink accepts records again"
            );
            return Some(PipelineState::Streaming);
        }
        None
    }

    /// Asks which keys the sink holds back, once a second.
    fn ask_for_keys<K: Sink>(&mut self, session: &SinkSession<K>, asks: bool, now: Instant) {
        if !asks {
            (self.retrying, self.retrying_asked) = (None, None);
        } else if self
            .retrying_asked
            .is_none_or(|asked| now >= asked + ASK_SINK)
        {
            self.retrying = session.sink.retrying();
            self.retrying_asked = Some(now);
        }
    }

    /// Returns the keys that the sink holds back.
    pub(super) fn retrying(&self) -> Option<&Retrying> {
        self.retrying.as_ref()
    }

    fn update_since<K: Sink>(
        &mut self,
        session: &SinkSession<K>,
        batch: &BatchResult,
        now: Instant,
    ) {
        let lowest = session.core.lowest_in_flight();
        let waits = batch.blocked || session.core.in_flight() > 0;
        let moved = batch.frames > 0 && batch.blocked || lowest > self.lowest;
        self.lowest = lowest;
        self.since = match self.since {
            _ if !waits => None,
            Some(since) if !moved => Some(since),
            _ => Some(now),
        };
    }

    /// Returns the state of the pipeline: the obstacle if the sink knows it, otherwise `what`.
    fn blocked(&self, what: &str) -> PipelineState {
        match &self.obstacle {
            Some(obstacle) => PipelineState::Blocked {
                why: obstacle.what.clone(),
                remedy: obstacle.remedy,
            },
            None => PipelineState::Blocked {
                why: what.to_owned(),
                remedy: None,
            },
        }
    }

    fn log_stuck<K: Sink>(
        &mut self,
        session: &SinkSession<K>,
        what: &str,
        stuck_for: Duration,
        now: Instant,
    ) {
        let waiting_for = self.obstacle.as_ref().map(|obstacle| &*obstacle.what);
        let about = format!("{what} {}", waiting_for.unwrap_or_default());
        if self.throttle.about(&about, now).is_some() {
            warn!(
                waiting_for,
                remedy = self.obstacle.as_ref().and_then(|obstacle| obstacle.remedy),
                retrying_keys = self.retrying.as_ref().map(|retrying| retrying.keys),
                event_id = self.retrying.as_ref().and_then(|retrying| retrying.event_id.as_deref()),
                in_flight = session.core.in_flight(),
                confirmed = %session.core.acknowledged_position(),
                lasts_s = stuck_for.as_secs(),
                "{what}"
            );
        }
    }

    /// Returns the time when to ask the sink first what it waits for; `None` if that time has
    /// passed, or no record waits for the sink.
    pub(super) fn asks_at(&self, now: Instant) -> Option<Instant> {
        self.since
            .map(|since| since + ASK_SINK)
            .filter(|at| *at > now)
    }

    /// Returns the reason to end a drain before all records are acknowledged, if there is one: the
    /// drain timeout passed, or what the sink waits for needs a change of the configuration.
    pub(super) fn why_give_up(&self, time_is_over: bool) -> Option<String> {
        match &self.obstacle {
            Some(obstacle) if obstacle.disposition == Disposition::Configuration => {
                Some(obstacle.what.clone())
            }
            Some(obstacle) if time_is_over => Some(format!("{DRAIN_TIMEOUT}: {}", obstacle.what)),
            None if time_is_over => Some(DRAIN_TIMEOUT.to_owned()),
            _ => None,
        }
    }
}
