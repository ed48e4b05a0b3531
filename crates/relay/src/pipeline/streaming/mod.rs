//! The loop of one connection: send what was read, collect acknowledgements, send feedback, wait.
//!
//! # One turn
//! Before it waits, a turn does what is due, in this order:
//! - end the connection if the lease has expired;
//! - park the ring, so that an acknowledgement from here on ends the wait;
//! - send the batch of the last read to the sink, and collect acknowledgements;
//! - end a drain whose records are all acknowledged, or that takes too long;
//! - send a status update, give up a silent connection, start a slot check.
//!
//! Then it waits for the first of these, checked in this order:
//! 1. the request to stop, which begins the drain;
//! 2. the answer of a slot check: before the read, because under load there are always bytes to
//!    read;
//! 3. bytes from Postgres, in a [`Phase`] that reads;
//! 4. a delivery report, or room in the sink;
//! 5. a schema;
//! 6. the time at which the next step is due.

mod connection;
mod ending;
mod event_log;
mod ownership;
mod phase;
mod sink_watch;
mod slot_checks;
mod status;

use std::future::Future;
use std::ops::ControlFlow;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use walrelay_sink::{BatchingMode, Retrying, Sink, SinkFactory};

use super::schema_fetcher::FetchOutcome;
use super::session::sink_session::BatchResult;
use super::settings::Outcome;
use super::shutdown::Shutdown;
use crate::core::CoreError;
use crate::interface::observer::{Failpoint, Observer, PipelineState};
use crate::interface::schemas::SchemaFailure;
use crate::interface::source::{Source, WalStream};
use crate::pacing::Pace;
use crate::pipeline::error::{PipelineError, PipelineResult};
pub(super) use connection::Streaming;
use event_log::EventLog;
use phase::Phase;
use sink_watch::SinkWatch;
use slot_checks::SlotChecks;
use status::Feedback;

/// Interval of the attempts to send while the keys that are parked are not known, or while too many rows
/// wait for their marks.
const BLOCKED_INTERVAL: Duration = Duration::from_millis(20);

/// The phase of the loop, and the parts that it keeps from turn to turn.
struct LoopState {
    phase: Phase,
    slot_checks: SlotChecks,
    feedback: Feedback,
    watch: SinkWatch,
    /// What was reported last of the keys that the sink holds back.
    retrying: Option<Retrying>,
    log: EventLog,
    pace: Pace,
    /// The time when bytes were received last, or the batch was blocked.
    received_at: Instant,
}

/// Delays the next read, so that messages gather in the socket. Blocks the thread: tokio's timers
/// round up to whole milliseconds, and the cost of a message to the server depends on whether the
/// delay is a third of a millisecond or two (docs/adr/0013-producer-modes.md). The pipeline has its
/// own thread, so only its own work is delayed.
fn delay_read(delay: Duration) {
    std::thread::sleep(delay);
}

impl<S: Source, F: SinkFactory, W: Observer> Streaming<'_, S, F, W> {
    /// Streams until the connection fails, a delivery fails, or a stop was requested and the drain
    /// ended.
    pub(super) async fn run(
        mut self,
        shutdown: &mut Shutdown<'_, impl Future<Output = ()>>,
    ) -> PipelineResult<Outcome, S, F> {
        match self.relay(shutdown).await {
            Ok(not_drained) => Ok(self.drained(not_drained).await),
            // The connection still works: confirm what is acknowledged, so that the next attempt
            // repeats as little as possible.
            Err(error @ (PipelineError::Core(_) | PipelineError::Delivery { .. })) => {
                self.settle().await;
                self.end_stream().await;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    fn first_state(&self) -> LoopState {
        let now = Instant::now();
        let core = &self.session.core;
        LoopState {
            phase: Phase::Relaying,
            slot_checks: SlotChecks::new(now),
            feedback: self.first_feedback(),
            watch: SinkWatch::default(),
            retrying: None,
            log: EventLog::new(core.counts().updates, now),
            pace: Pace::new(self.stream.socket(), self.session.sink.has_modes(), now),
            received_at: now,
        }
    }

    /// Runs the loop. Returns `Ok(None)` after a complete drain, or the reason why not all records
    /// were acknowledged.
    async fn relay(
        &mut self,
        shutdown: &mut Shutdown<'_, impl Future<Output = ()>>,
    ) -> PipelineResult<Option<String>, S, F> {
        let mut state = self.first_state();
        // The sink may have delivered what waited on the last connection.
        self.observer.retrying(None);
        loop {
            self.check_lease(&mut state).await?;
            // Park before processing the batch, so that an acknowledgement that arrives meanwhile
            // still wakes this task.
            self.session.reports.ring().park();
            let batch = self.send_batch(&mut state)?;
            let now = Instant::now();
            if let ControlFlow::Break(reason) = self.observe(&mut state, &batch, now) {
                return Ok(reason);
            }
            let sent = self.send_feedback(&mut state.feedback, now).await;
            sent.map_err(PipelineError::Source)?;
            let silent_at = self.check_silence(&state)?;
            let check_at = self.start_slot_check(&mut state, now);
            let due = state
                .feedback
                .due(self.session.core.acknowledged_position());
            let until = [
                self.blocked_until(batch.blocked, now),
                check_at,
                state.phase.drain_until(),
                silent_at,
                state.watch.asks_at(now),
            ]
            .into_iter()
            .flatten()
            .fold(due, Instant::min);
            if state.phase.reads()
                && let Some(delay) = state.pace.before_read(Instant::now())
            {
                delay_read(delay);
            }
            tokio::select! {
                biased;
                // 1.
                () = shutdown.asked(), if !state.phase.is_draining() => self.start_drain(&mut state),
                // 2.
                check = self.source.slot_checked(batch.blocked) => self.slot_checked(&mut state, check)?,
                // 3.
                read = self.stream.read(), if state.phase.reads() => {
                    self.received(&mut state, read.map_err(PipelineError::Source)?)?;
                }
                // 4.
                () = self.session.reports.woken() => {}
                // 5.
                outcome = self.schema_fetcher.outcome() => self.fetched(outcome, state.phase.is_draining())?,
                // 6.
                () = sleep_until(until) => {}
            }
            self.session.reports.ring().unpark();
        }
    }

    /// Returns the time when to try a blocked batch again that may wait for the keys that are
    /// parked, or for marks of rows. No event announces either.
    fn blocked_until(&self, blocked: bool, now: Instant) -> Option<Instant> {
        let parking = self.settings.poison.parking.as_ref();
        let unknown = parking.is_some_and(|parking| !parking.is_ready());
        let sent_rows = self.settings.sent_rows.as_ref();
        let full = sent_rows.is_some_and(|rows| rows.is_full());
        (blocked && (unknown || full)).then(|| now + BLOCKED_INTERVAL)
    }

    /// Sends the batch of the last read to the sink, and collects acknowledgements.
    fn send_batch(&mut self, state: &mut LoopState) -> PipelineResult<BatchResult, S, F> {
        let confirmed = self.session.core.acknowledged_position();
        // Collect before the batch, too: if the ring seems full although all records are
        // acknowledged, the batch is blocked, and no acknowledgement is left to wake this task.
        self.collect();
        let records = self.session.core.counts().records;
        if let Some(mode) = state.pace.mode(state.received_at) {
            // A drain waits for the records in flight, so they are sent without waiting for full
            // requests.
            let draining = state.phase.is_draining();
            let mode = if draining {
                BatchingMode::Latency
            } else {
                mode
            };
            self.session.sink.set_mode(mode);
        }
        // While draining, send only to the end of the open transaction.
        let batch = self
            .session
            .send_batch(&mut self.stream, state.phase.is_draining());
        let diverted = self.session.core.take_diverted();
        state.log.diverted(&diverted);
        for event in &diverted {
            self.observer.diverted(event);
        }
        for (table, rows) in self.session.core.take_passed_over() {
            self.observer.passed_over(&table, rows);
        }
        if let Some(committed) = self.session.core.take_received() {
            self.observer.received(committed);
        }
        let batch = batch?;
        self.schema_fetcher
            .request(self.session.core.pending_schema());
        self.session.sink.poll();
        let enqueued = self.session.core.counts().records - records;
        if let Some(sent_at) = batch.sent_at {
            let lag = self.session.core.lag(sent_at);
            state.pace.enqueued(enqueued, lag, Instant::now());
        }
        if enqueued > 0 {
            self.observer.failpoint(Failpoint::AfterEnqueue);
        }
        if let Some(failure) = self.session.reports.failure() {
            return Err(PipelineError::Delivery {
                event: None,
                event_id: None,
                source: failure.error,
            });
        }
        self.collect();
        if self.session.core.acknowledged_position() > confirmed {
            self.observer.failpoint(Failpoint::AfterAck);
            self.failed_attempts.reset();
        }
        state.feedback.asked |= batch.reply;
        Ok(batch)
    }

    /// Reports whether the batch was blocked, and decides whether to read. `Break`: the drain is
    /// over, with the reason if not all records were acknowledged.
    fn observe(
        &mut self,
        state: &mut LoopState,
        batch: &BatchResult,
        now: Instant,
    ) -> ControlFlow<Option<String>> {
        if let Some(since) = state.phase.blocked_since() {
            self.observer.blocked(now - since);
        }
        let inside_transaction = self.session.core.is_inside_transaction();
        state.phase = state
            .phase
            .after_batch(batch.blocked, inside_transaction, now);
        // While the batch is blocked, the socket is not read: that is no silence of the server.
        if batch.blocked {
            state.received_at = now;
            state.pace.blocked(now);
        }
        let draining = state.phase.is_draining();
        if let Some(changed) = state.watch.observe(self.session, batch, draining, now) {
            self.report(changed);
        }
        if state.watch.retrying() != state.retrying.as_ref() {
            state.retrying = state.watch.retrying().cloned();
            self.observer.retrying(state.retrying.as_ref());
        }
        let Some(deadline) = state.phase.drain_until() else {
            return ControlFlow::Continue(());
        };
        if !inside_transaction && self.session.core.in_flight() == 0 {
            return ControlFlow::Break(None);
        }
        match state.watch.why_give_up(now >= deadline) {
            Some(reason) => ControlFlow::Break(Some(reason)),
            None => ControlFlow::Continue(()),
        }
    }

    /// Returns an error if the connection was silent for too long, or else the time at which it
    /// will have been.
    fn check_silence(&mut self, state: &LoopState) -> PipelineResult<Option<Instant>, S, F> {
        if !state.phase.reads() {
            return Ok(None);
        }
        let longest = self.longest_silence();
        let silent_for = state.received_at.elapsed();
        if silent_for >= longest {
            self.failed_attempts.silence.given_up();
            return Err(PipelineError::Silent { silent_for });
        }
        Ok(Some(state.received_at + longest))
    }

    /// Returns the limit of silence, after which the connection is given up. A server that decodes
    /// a large transaction of other tables sends a reply only once in each half of
    /// `wal_sender_timeout`. If the relay gave up earlier, the server would start the same
    /// transaction again on each connection.
    fn longest_silence(&self) -> Duration {
        let busy_server = self.server_timeout.unwrap_or_default();
        let usual = self
            .settings
            .receive_timeout
            .max(busy_server)
            .max(3 * self.interval());
        self.failed_attempts.silence.limit(usual)
    }

    fn start_drain(&mut self, state: &mut LoopState) {
        info!(in_flight = self.session.core.in_flight(), "draining");
        self.observer.state(PipelineState::Draining);
        self.observer.failpoint(Failpoint::Draining);
        state.phase = state
            .phase
            .stop(Instant::now() + self.settings.drain_timeout);
    }

    /// Records a read of this many bytes, and renews the lease.
    fn received(&mut self, state: &mut LoopState, bytes: usize) -> PipelineResult<(), S, F> {
        // Bytes end a silence, not whole frames: a large row may take long to arrive.
        let now = Instant::now();
        state.received_at = now;
        // Check the lease before renewing it: bytes that waited in the socket for longer prove
        // nothing.
        if let Some(unproven) = self.lease.expired(now) {
            return Err(PipelineError::Displaced { unproven });
        }
        if !self.stream.is_snapshot() {
            self.lease.renew(now);
        }
        state.pace.read(bytes, now);
        self.observer.failpoint(Failpoint::AfterRead);
        Ok(())
    }

    /// Passes the outcome of a request for a schema to the core.
    fn fetched(&mut self, outcome: FetchOutcome, draining: bool) -> Result<(), CoreError> {
        let state = match outcome {
            FetchOutcome::Schema(subject, schema) => {
                let lasted_s = self.schema_fetcher.over().map(|lasted| lasted.as_secs());
                info!(
                    subject,
                    id = schema.id(),
                    lasted_s,
                    "the schema of the subject is known"
                );
                self.session.core.learn(&subject, schema);
                lasted_s.map(|_| PipelineState::Streaming)
            }
            FetchOutcome::Later(error, warning) => {
                let why = error.to_string();
                if let Some(warning) = warning {
                    warn!(
                        error = why,
                        lasts_s = warning.lasts.as_secs(),
                        suppressed = warning.suppressed,
                        "waiting for a schema: nothing is sent meanwhile, the slot keeps later \
                         events"
                    );
                }
                Some(PipelineState::WaitingForSchema { why })
            }
            FetchOutcome::Nothing(subject, source) => {
                let halts = source.kind == SchemaFailure::Unauthenticated;
                if halts || !self.session.core.give_up_schema(&subject, &source.reason) {
                    return Err(CoreError::Schema { subject, source });
                }
                warn!(
                    subject,
                    error = %source,
                    "gave the schema up: events that need it are treated by the poison policy until \
                     the relay is restarted"
                );
                Some(PipelineState::Streaming)
            }
        };
        if let Some(state) = state.filter(|_| !draining) {
            self.report(state);
        }
        Ok(())
    }
}
