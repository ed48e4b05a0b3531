//! The task around the state machine: connect, stream, reconnect, drain, close.

mod attempts;
mod connection;
pub(crate) mod continuity;
pub(crate) mod error;
mod lease;
mod log_throttle;
pub mod measurement;
mod recovery;
mod schema_fetcher;
mod session;
mod settings;
mod shutdown;
mod streaming;

use std::collections::BTreeSet;
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::warn;
use walrelay_event_router::Router;
use walrelay_lsn::Lsn;
use walrelay_sink::{Disposition, SinkFactory};

pub use attempts::Backoff;
pub use settings::{OnUpdate, Outcome, Settings};

use crate::interface::observer::{Counts, Observer, PipelineState};
use crate::interface::source::{Resume, Source, SourceError};
use crate::poison::{PoisonDecisions, RetryPolicy};
use crate::table::TableName;
use attempts::FailedAttempts;
use error::{Chain, PipelineError, PipelineResult};
use lease::Lease;
use schema_fetcher::SchemaFetcher;
use session::poll_while::poll_while;
use session::sessions::Sessions;
use shutdown::Shutdown;

/// The longest delay between attempts while the slot is busy, so that a relay on standby takes over
/// within a second.
const BUSY_DELAY: Duration = Duration::from_millis(250);

/// A pipeline from one slot to one sink.
#[derive(Debug)]
pub struct Pipeline<S, F: SinkFactory, W> {
    source: S,
    observer: W,
    settings: Settings,
    sessions: Sessions<F>,
    resume: Option<Resume>,
    /// The lease of the last connection.
    lease: Option<Lease>,
    failed_attempts: FailedAttempts,
    retry_policy: RetryPolicy,
    schema_fetcher: SchemaFetcher,
    /// The tables that were logged as passed over.
    passed_over: BTreeSet<TableName>,
    /// The last error of an attempt, with its causes.
    failure: Option<String>,
    /// The transaction in the middle of which the server failed last, by the start of its commit
    /// record.
    failed_inside: Option<Lsn>,
    /// The last attempt found another reader at the slot: until one opens the stream or fails
    /// otherwise, the pipeline waits for the slot, also while it connects.
    waits_for_slot: bool,
    /// The slot was free during a delay: another relay may have read it and ended unseen.
    was_free: bool,
}

impl<S: Source, F: SinkFactory, W: Observer> Pipeline<S, F, W> {
    /// Creates a pipeline that has not connected to anything yet.
    pub fn new(source: S, router: Router, factory: F, observer: W, settings: Settings) -> Self {
        let backoff = Backoff::new(settings.backoff_initial, settings.backoff_max);
        let decisions = PoisonDecisions::new(settings.poison.clone());
        let schemas = settings.schemas.clone();
        Self {
            source,
            observer,
            sessions: Sessions::new(
                factory,
                router,
                decisions,
                settings.sent_rows.clone(),
                settings.account.clone(),
            ),
            resume: None,
            lease: None,
            schema_fetcher: SchemaFetcher::new(schemas, settings.poison.retry_for, backoff.clone()),
            failed_attempts: FailedAttempts::new(backoff),
            retry_policy: RetryPolicy::default(),
            passed_over: BTreeSet::new(),
            settings,
            failure: None,
            failed_inside: None,
            waits_for_slot: false,
            was_free: false,
        }
    }

    /// Returns the figures of the run so far.
    pub fn counts(&self) -> Counts {
        self.sessions.counts()
    }

    /// Returns the observer that the pipeline was created with.
    pub fn observer(&self) -> &W {
        &self.observer
    }

    /// Relays until `shutdown` resolves, then drains; or until an error that is not retryable.
    ///
    /// # Errors
    /// Those whose disposition is not [`Disposition::Retryable`]. What was acknowledged before the
    /// error is confirmed if there still is a connection.
    pub async fn run(
        &mut self,
        shutdown: impl Future<Output = ()>,
    ) -> PipelineResult<Outcome, S, F> {
        let shutdown = pin!(shutdown);
        let result = self.relay(&mut Shutdown::new(shutdown)).await;
        self.report_dead_letters();
        result
    }

    /// Reports the dead letters whose acknowledgements arrived while no stream collected them.
    fn report_dead_letters(&mut self) {
        let classes = self.sessions.take_dead_letters();
        if !classes.is_empty() {
            self.observer.dead_letters(&classes);
        }
    }

    async fn relay(
        &mut self,
        shutdown: &mut Shutdown<'_, impl Future<Output = ()>>,
    ) -> PipelineResult<Outcome, S, F> {
        loop {
            self.report_dead_letters();
            let error = match self.attempt(shutdown).await {
                Ok(outcome) => {
                    self.sessions.discard().await;
                    return Ok(self.correct_outcome(outcome));
                }
                Err(PipelineError::Source(error)) if error.is_followed() => continue,
                Err(error) => error,
            };
            let stopping = shutdown.is_asked().await;
            let (error, may_be_admitted) = self.judge_login(error);
            let Some(error) = self.recover(error, may_be_admitted, stopping).await else {
                continue;
            };
            let retryable =
                may_be_admitted || error.disposition(F::disposition) == Disposition::Retryable;
            let why = Chain(&error).to_string();
            self.failure = Some(why.clone());
            if stopping && (retryable || matches!(error, PipelineError::Delivery { .. })) {
                return Ok(self.stopped_without_connection().await);
            }
            if !retryable {
                self.observer.state(PipelineState::Halted { why });
                return Err(error);
            }
            let delay = self.delay(&error);
            self.report(&error, why, delay);
            let (is_taken, displaced) = match &error {
                PipelineError::Source(error) => (error.is_slot_taken(), error.is_displaced()),
                _ => (false, false),
            };
            self.discard_if_displaced(displaced).await;
            if is_taken {
                // The other process reads these events from the slot and relays them.
                self.sessions.unconfirmed.forget();
            }
            tokio::select! {
                biased;
                () = shutdown.asked() => return Ok(self.stopped_without_connection().await),
                _ = poll_while(&mut self.sessions.current, self.lease, sleep(delay)) => {}
            }
            if self.sessions.current.is_none() {
                // An orderly end of the stream frees the slot at once. If a standby has sent some of the
                // events again and died meanwhile, the slot does not show it.
                self.sessions.forget_acknowledged();
                self.was_free = true;
            }
        }
    }

    /// Notes whether the server has accepted the login. Returns true if it refuses one that it accepted before,
    /// and may accept it again.
    fn judge_login(
        &mut self,
        error: PipelineError<S::Error, F::Error>,
    ) -> (PipelineError<S::Error, F::Error>, bool) {
        if is_busy(&error) {
            self.failed_attempts.admitted();
        }
        match error {
            PipelineError::Source(source) if source.refuses_login() => {
                match self.failed_attempts.refused(Instant::now()) {
                    Some(true) => (PipelineError::Source(source), true),
                    Some(false) => (PipelineError::StillRefused(source), false),
                    None => (PipelineError::Source(source), false),
                }
            }
            error => (error, false),
        }
    }

    /// Drops the sink if another process reads the slot (`displaced`), or may read it by now.
    /// Otherwise records of this process could be delivered after newer records of the other one.
    async fn discard_if_displaced(&mut self, displaced: bool) {
        let expired = self.lease.and_then(|lease| lease.expired(Instant::now()));
        if !displaced && expired.is_none() {
            return;
        }
        if let Some(session) = &self.sessions.current {
            warn!(
                in_flight = session.core.in_flight(),
                unproven_s = expired.map(|age| age.as_secs()),
                "{}: records in flight are given up, and sent again from where the slot stands",
                if displaced {
                    "another process reads the slot, or may make it"
                } else {
                    "no connection for longer than wal_sender_timeout, so another relay may read the slot"
                }
            );
            self.sessions.discard().await;
        }
        self.sessions.forget_acknowledged();
    }

    /// Draws the delay after a failure. It is short while the slot is busy: the server does not
    /// notify us when the slot becomes free, and the relay on standby must take over soon.
    fn delay(&mut self, error: &PipelineError<S::Error, F::Error>) -> Duration {
        let delay = self.failed_attempts.backoff.next_delay();
        if is_busy(error) {
            delay.min(BUSY_DELAY)
        } else {
            delay
        }
    }

    /// Logs a failed attempt, and reports the state to the observer.
    fn report(&mut self, error: &PipelineError<S::Error, F::Error>, why: String, delay: Duration) {
        // A relay on standby is no problem, so nothing is logged.
        self.waits_for_slot = is_busy(error);
        if let PipelineError::Source(error) = error
            && self.waits_for_slot
        {
            let holder = error.slot_holder();
            // The reader alone: the server's refusal says nothing more.
            let why = error.to_string();
            self.observer
                .state(PipelineState::WaitingForSlot { why, holder });
            return;
        }
        let explanation = match error {
            PipelineError::Source(error) => (self.settings.explain)(error),
            _ => None,
        };
        let throttle = &mut self.failed_attempts.throttle;
        if let Some(warning) = throttle.about(&why, Instant::now()) {
            warn!(
                error = why,
                retry_in_ms = delay.as_millis() as u64,
                lasts_s = warning.lasts.as_secs(),
                suppressed = warning.suppressed,
                id = explanation.as_ref().map(|explanation| explanation.id),
                remedy = explanation.as_ref().map(|explanation| &*explanation.remedy),
                "trying again"
            );
        }
        self.observer.state(PipelineState::Waiting {
            cause: error.cause(),
            why: match &explanation {
                Some(explanation) => format!("{why} [{}]", explanation.id),
                None => why,
            },
            explanation,
        });
    }

    /// Ends the run by a stop while there is no connection to drain over, and returns the outcome.
    async fn stopped_without_connection(&mut self) -> Outcome {
        self.source.undo_open().await;
        let had_sink = self.sessions.current.is_some();
        self.sessions.discard().await;
        let records = self.sessions.unconfirmed.count();
        if !had_sink && records == 0 {
            return Outcome::Unused;
        }
        let reason = self.failure.clone();
        Outcome::Incomplete {
            records,
            confirmed: self.resume.as_ref().map(|resume| resume.confirmed),
            reason: reason.unwrap_or_else(|| "there is no connection to Postgres".to_owned()),
        }
    }

    /// Corrects the outcome of a stop with a connection. If events that an earlier sink did not
    /// deliver were not read again before the stop, the outcome is `Incomplete`.
    fn correct_outcome(&self, mut outcome: Outcome) -> Outcome {
        let unconfirmed = self.sessions.unconfirmed.count();
        match &mut outcome {
            Outcome::Drained { confirmed } if unconfirmed > 0 => Outcome::Incomplete {
                records: unconfirmed,
                confirmed: Some(*confirmed),
                reason: self.failure.clone().unwrap_or_default(),
            },
            Outcome::Incomplete { records, .. } => {
                *records = unconfirmed.max(*records);
                outcome
            }
            Outcome::Drained { .. } | Outcome::Unused => outcome,
        }
    }
}

fn is_busy<S: SourceError, K: Error>(error: &PipelineError<S, K>) -> bool {
    matches!(error, PipelineError::Source(error) if error.is_slot_busy())
}
