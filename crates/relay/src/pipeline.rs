//! The task around the state machine.

use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tracing::{debug, info, warn};
use walrelay_checkpoint::{AckRing, Seq};
use walrelay_event_router::Router;
use walrelay_lsn::CommitEnd;
use walrelay_sink::{Disposition, Sink, SinkFactory};

use crate::decision::{Decision, Refusal, RetryPolicy};
use crate::deliveries::{Reports, gravity};
use crate::error::Chain;
use crate::lease::Lease;
use crate::log_throttle::LogThrottle;
use crate::machine::Core;
use crate::owed::Owed;
use crate::schemas::SchemaFetcher;
use crate::shutdown::Shutdown;
use crate::silence::Silence;
use crate::sink_session::SinkSession;
use crate::stream::Streaming;
use crate::{
    Backoff, Continuity, Counts, Environment, OnUpdate, Opened, Outcome, PipelineError,
    PoisonDecisions, Resume, Settings, Source, SourceError, State,
};

/// The longest pause while the slot is busy: a relay that takes over is to do so within a second.
const BUSY_DELAY: Duration = Duration::from_millis(250);

/// One slot, one sink.
#[derive(Debug)]
pub struct Pipeline<S, F: SinkFactory, W> {
    source: S,
    factory: F,
    environment: W,
    settings: Settings,
    /// At home here between generations, and what was decided about events with it.
    router: Option<(Router, PoisonDecisions)>,
    session: Option<SinkSession<F::Sink>>,
    resume: Option<Resume>,
    /// Of the last connection.
    lease: Option<Lease>,
    backoff: Backoff,
    retry_policy: RetryPolicy,
    throttle: LogThrottle,
    silence: Silence,
    schema_fetcher: SchemaFetcher,
    /// Of generations that ended.
    counts: Counts,
    owed: Owed,
    /// Why the last attempt failed.
    failure: Option<String>,
}

type PipelineResult<T, S, F> =
    Result<T, PipelineError<<S as Source>::Error, <F as SinkFactory>::Error>>;

impl<S: Source, F: SinkFactory, W: Environment> Pipeline<S, F, W> {
    /// A pipeline that has not connected to anything yet.
    pub fn new(source: S, router: Router, factory: F, environment: W, settings: Settings) -> Self {
        let backoff = Backoff::new(settings.backoff_initial, settings.backoff_max);
        let decisions = PoisonDecisions::new(settings.poison.clone());
        let schemas = settings.schemas.clone();
        let schema_fetcher =
            SchemaFetcher::new(schemas, settings.poison.retry_for, backoff.clone());
        Self {
            source,
            factory,
            environment,
            settings,
            router: Some((router, decisions)),
            session: None,
            resume: None,
            lease: None,
            backoff,
            retry_policy: RetryPolicy::default(),
            throttle: LogThrottle::default(),
            silence: Silence::default(),
            schema_fetcher,
            counts: Counts::default(),
            owed: Owed::default(),
            failure: None,
        }
    }

    /// The figures of the run so far.
    pub fn counts(&self) -> Counts {
        let running = self.session.as_ref().map(|running| running.core.counts());
        self.counts.plus(running.unwrap_or_default())
    }

    /// What the pipeline tells the world through.
    pub fn environment(&self) -> &W {
        &self.environment
    }

    /// Relays until `shutdown` resolves, then drains; or until an error that no retry can mend.
    ///
    /// # Errors
    /// Those whose disposition is not [`Disposition::Retryable`]. What was acknowledged before the
    /// error is confirmed where there still is a connection.
    pub async fn run(
        &mut self,
        shutdown: impl Future<Output = ()>,
    ) -> PipelineResult<Outcome, S, F> {
        let shutdown = pin!(shutdown);
        let mut shutdown = Shutdown::new(shutdown);
        loop {
            let error = match self.attempt(&mut shutdown).await {
                Ok(outcome) => {
                    self.discard(Duration::ZERO).await;
                    return Ok(self.settled(outcome));
                }
                Err(error) => error,
            };
            // From then on nothing is tried again, and so nothing decided.
            let stopping = shutdown.is_asked().await;
            let error = match self.after(error, stopping).await {
                After::Again => continue,
                After::Failed(error) => error,
            };
            let disposition = error.disposition(F::disposition);
            self.failure = Some(Chain(&error).to_string());
            let passes = disposition == Disposition::Retryable;
            if stopping && (passes || matches!(error, PipelineError::Delivery { .. })) {
                return Ok(self.stopped_without_connection().await);
            }
            if disposition != Disposition::Retryable {
                let why = Chain(&error).to_string();
                self.environment.state(State::Halted { why });
                return Err(error);
            }
            let delay = self.delay(&error);
            self.complain(&error, delay);
            self.discard_if_displaced(is_taken(&error)).await;
            if is_taken(&error) {
                // The other process reads them from the slot, and answers for them.
                self.owed.forget();
            }
            let expires_at = self.lease.and_then(|lease| lease.expires_at());
            tokio::select! {
                biased;
                () = shutdown.asked() => return Ok(self.stopped_without_connection().await),
                _ = meanwhile(&mut self.session, expires_at, tokio::time::sleep(delay)) => {}
            }
        }
    }

    /// Purges the producer if another process reads the slot, or may read it by now: records of this one
    /// that are delivered later would come after newer ones of the other.
    async fn discard_if_displaced(&mut self, taken: bool) {
        let Some(running) = &self.session else {
            return;
        };
        let expired = self.lease.and_then(|lease| lease.expired(Instant::now()));
        if !taken && expired.is_none() {
            return;
        }
        warn!(
            in_flight = running.core.in_flight(),
            unproven_s = expired.map(|age| age.as_secs()),
            "{}: records in flight are given up, and sent again from where the slot stands",
            if taken {
                "another process reads the slot"
            } else {
                "no connection for longer than wal_sender_timeout, so another relay may read the slot"
            }
        );
        self.discard(Duration::ZERO).await;
    }

    /// How long to wait after a failure. A slot that another relay reads becomes free without a
    /// word, and then seconds count.
    fn delay(&mut self, error: &PipelineError<S::Error, F::Error>) -> Duration {
        let delay = self.backoff.next_delay();
        if is_busy(error) {
            delay.min(BUSY_DELAY)
        } else {
            delay
        }
    }

    /// Says why nothing moves: once, and then at growing intervals.
    fn complain(&mut self, error: &PipelineError<S::Error, F::Error>, delay: Duration) {
        let why = Chain(error).to_string();
        // A relay that stands by is no trouble: `Environment` tells of that state.
        if !is_busy(error)
            && let Some(due) = self.throttle.about(&why, Instant::now())
        {
            warn!(
                error = why,
                retry_in_ms = delay.as_millis() as u64,
                lasts_s = due.lasts.as_secs(),
                not_said = due.unlogged(),
                "trying again"
            );
        }
        self.environment.state(if is_busy(error) {
            State::WaitingForSlot { why }
        } else {
            State::Waiting { why }
        });
    }

    /// Throws away the sink that an error spoiled, and judges the event that was refused. Only when
    /// the sink is closed are all reports in: the gravest of them is the error, as one spoiled
    /// record makes its neighbours fail for reasons that would be worth a retry.
    ///
    /// `stopping`: the event is not judged, because the log is not read again.
    async fn after(
        &mut self,
        mut error: PipelineError<S::Error, F::Error>,
        stopping: bool,
    ) -> After<S::Error, F::Error> {
        let spoiled = matches!(
            error,
            PipelineError::Delivery { .. } | PipelineError::OtherTimeline { .. }
        );
        if !spoiled && error.disposition(F::disposition) == Disposition::Retryable {
            return After::Failed(error);
        }
        let Some(running) = self.session.take() else {
            return After::Failed(error);
        };
        let reports = Arc::clone(&running.reports);
        let core = self.close(running, Duration::ZERO).await;
        let PipelineError::Delivery {
            source,
            event,
            event_id,
        } = &mut error
        else {
            self.keep(core);
            if let (PipelineError::OtherTimeline { .. }, Some((_, decisions))) =
                (&error, &mut self.router)
            {
                decisions.forget_events();
                self.owed.forget();
            }
            return After::Failed(error);
        };
        // An event that is known already was refused on the spot, by no answer to a request.
        let mut last = *event;
        let mut certain = event.is_some();
        if let Some(failure) = reports.failure()
            && (!certain || gravity(&failure.error) > gravity(source))
        {
            *source = failure.error;
            *event = core.event_of(Seq::new(failure.seq));
            *event_id = None;
            last = core.event_of(Seq::new(failure.last));
            certain = false;
        }
        let refusal = event.map(|event| (event, last.unwrap_or(event).id));
        self.keep(core);
        // One that was refused at once was never in flight.
        self.owed.add(event.map(|event| (event.id.lsn, 1)));
        if stopping {
            return After::Failed(error);
        }
        let (Some((event, last)), Some((_, decisions))) = (refusal, &mut self.router) else {
            return After::Failed(error);
        };
        let refusal = Refusal {
            event,
            last,
            certain,
            error: source,
        };
        match self.retry_policy.judge(&refusal, decisions, Instant::now()) {
            Decision::Again => After::Again,
            Decision::AsItIs | Decision::Later => After::Failed(error),
            Decision::GiveUp => {
                // A topic that was waited for long enough is for somebody to mend.
                source.disposition = Disposition::Configuration;
                After::Failed(error)
            }
        }
    }

    /// One connection, from opening to its end.
    async fn attempt(
        &mut self,
        shutdown: &mut Shutdown<'_, impl Future<Output = ()>>,
    ) -> PipelineResult<Outcome, S, F> {
        self.environment.state(State::Connecting);
        let opened = loop {
            self.discard_if_displaced(false).await;
            let expires_at = self.lease.and_then(|lease| lease.expires_at());
            let open = self.source.open(self.resume.as_ref());
            tokio::select! {
                biased;
                () = shutdown.asked() => return Ok(self.stopped_without_connection().await),
                opened = meanwhile(&mut self.session, expires_at, open) => {
                    if let Some(opened) = opened {
                        break opened.map_err(PipelineError::Source)?;
                    }
                }
            }
        };
        self.same_log(&opened)?;
        // Also where the slot has not moved: the other relay may have sent what it did not confirm.
        if opened.predecessor.is_some() {
            self.discard_if_displaced(true).await;
        }
        let Opened {
            stream,
            system_id,
            mut timeline,
            server_start,
            confirmed,
            server_timeout,
            tables,
            ..
        } = opened;
        let mut running = match self.session.take() {
            Some(running) => running,
            None => self.generate(confirmed)?,
        };
        running.core.connected(confirmed);
        running.core.describe(tables);
        info!(%confirmed, system_id, timeline, "streaming");
        self.environment.state(State::Streaming);
        let lease = self
            .lease
            .insert(Lease::new(Instant::now(), server_timeout));
        let result = Streaming {
            stream,
            server_timeout,
            lease,
            timeline: &mut timeline,
            running: &mut running,
            settings: &self.settings,
            environment: &mut self.environment,
            backoff: &mut self.backoff,
            throttle: &mut self.throttle,
            silence: &mut self.silence,
            schema_fetcher: &mut self.schema_fetcher,
        }
        .run(shutdown, &mut self.source)
        .await;
        running.core.disconnected();
        self.resume = Some(Resume {
            system_id,
            timeline,
            server_start: Some(server_start),
            confirmed: running.core.confirmed(),
            seen: running.core.seen(),
        });
        self.session = Some(running);
        result
    }

    /// Whether the stream continues the log that this process has read so far.
    fn same_log(&mut self, opened: &Opened<S::Stream>) -> PipelineResult<(), S, F> {
        let Some(resume) = &self.resume else {
            return Ok(());
        };
        match resume.continued_by(opened)? {
            Continuity::Same => Ok(()),
            Continuity::HandedOver { from, to, by } => {
                warn!(
                    %from, %to, %by,
                    "another relay has read the slot meanwhile: going on from where the slot stands"
                );
                Ok(())
            }
            Continuity::Promoted { parted } => {
                if parted < resume.seen.lsn() {
                    warn!(
                        from = %parted,
                        to = %resume.seen,
                        "the promoted server has not got all that was received from the old one: \
                         events of this range may be of transactions that it does not have"
                    );
                }
                let error = PipelineError::OtherTimeline {
                    before: resume.timeline,
                    now: opened.timeline,
                };
                // Start over from the slot: beyond it, positions of two timelines do not compare.
                self.resume = Some(Resume {
                    system_id: opened.system_id.clone(),
                    timeline: opened.timeline,
                    server_start: Some(opened.server_start.clone()),
                    confirmed: opened.confirmed,
                    seen: opened.confirmed,
                });
                Err(error)
            }
        }
    }

    fn generate(&mut self, confirmed: CommitEnd) -> PipelineResult<SinkSession<F::Sink>, S, F> {
        let ring = Arc::new(AckRing::new(self.settings.max_in_flight_records));
        let reports = Reports::new(Arc::clone(&ring));
        let deliveries = Arc::clone(&reports);
        let sink = self
            .factory
            .create(deliveries)
            .map_err(PipelineError::Sink)?;
        let (router, decisions) = self
            .router
            .take()
            .unwrap_or_else(|| unreachable!("the router comes home when a session is discarded"));
        let tables = Arc::clone(&self.settings.tables);
        let core = Core::with_verdicts(router, tables, ring, confirmed, decisions)
            .with_messages(self.settings.messages.clone())
            .stopping_at_updates(self.settings.on_update == OnUpdate::Stop);
        Ok(SinkSession {
            core,
            sink,
            reports,
        })
    }

    /// Throws sink and machine away. What is in flight after `grace` is given up: it is not
    /// confirmed, so it is sent again.
    async fn discard(&mut self, grace: Duration) {
        if let Some(running) = self.session.take() {
            let core = self.close(running, grace).await;
            self.keep(core);
        }
    }

    /// Closes the sink; the machine remembers which events its records stood for.
    async fn close(&mut self, running: SinkSession<F::Sink>, grace: Duration) -> Core {
        let SinkSession { core, sink, .. } = running;
        debug!(in_flight = core.in_flight(), "closing the sink");
        // Closing blocks. A panic in there leaves nothing to be done here.
        if let Err(error) = spawn_blocking(move || sink.close(grace)).await {
            warn!(%error, "closing the sink failed");
        }
        core
    }

    /// Takes from a machine what the next one starts with, and what it owes.
    fn keep(&mut self, mut core: Core) {
        core.advance();
        self.owed.add(core.unacknowledged());
        self.owed.forget_before(core.confirmed());
        self.counts = self.counts.plus(core.counts());
        self.router = Some(core.into_parts());
    }

    /// The outcome of a stop that has no connection to drain over, or may not try again.
    async fn stopped_without_connection(&mut self) -> Outcome {
        let had_sink = self.session.is_some();
        self.discard(Duration::ZERO).await;
        let records = self.owed.count();
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

    /// The outcome of a stop with a connection. What an earlier sink did not deliver may not have been
    /// read again before the stop: then it is not drained.
    fn settled(&mut self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Drained { confirmed } if self.owed.count() > 0 => Outcome::Incomplete {
                records: self.owed.count(),
                confirmed: Some(confirmed),
                reason: self.failure.clone().unwrap_or_default(),
            },
            Outcome::Incomplete {
                records,
                confirmed,
                reason,
            } => Outcome::Incomplete {
                records: self.owed.count().max(records),
                confirmed,
                reason,
            },
            outcome => outcome,
        }
    }
}

/// Waits for something that has nothing to do with the sink, which goes on handing over what it has
/// accepted: until `expires_at`. `None`: that has come, and the sink must be given up.
async fn meanwhile<K: Sink, T>(
    session: &mut Option<SinkSession<K>>,
    expires_at: Option<Instant>,
    wait: impl Future<Output = T>,
) -> Option<T> {
    let Some(running) = session else {
        return Some(wait.await);
    };
    let expired = async {
        match expires_at {
            // Beyond it: at this very instant the lease still holds.
            Some(at) => tokio::time::sleep_until(at + Duration::from_millis(1)).await,
            None => std::future::pending().await,
        }
    };
    let mut expired = pin!(expired);
    let mut wait = pin!(wait);
    loop {
        running.reports.ring().park();
        running.sink.poll();
        let done = tokio::select! {
            biased;
            done = &mut wait => Some(Some(done)),
            () = &mut expired => Some(None),
            () = running.reports.woken() => None,
        };
        running.reports.ring().unpark();
        if let Some(done) = done {
            return done;
        }
    }
}

/// What a failure comes to.
enum After<S: Error + 'static, K: Error + 'static> {
    /// Something was decided about the event: read the log again.
    Again,
    Failed(PipelineError<S, K>),
}

fn is_taken<S: SourceError, K: Error>(error: &PipelineError<S, K>) -> bool {
    matches!(error, PipelineError::Source(error) if error.is_slot_taken())
}

fn is_busy<S: SourceError, K: Error>(error: &PipelineError<S, K>) -> bool {
    matches!(error, PipelineError::Source(error) if error.is_slot_busy())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;
    use tokio::time::timeout;
    use walrelay_event_router::Options;
    use walrelay_sink::{Deliveries, Record, SendError};

    use super::*;

    /// Counts how often it is nudged.
    #[derive(Default)]
    struct Nudged {
        times: AtomicUsize,
        changed: Notify,
    }

    struct CountingSink(Arc<Nudged>);

    impl Sink for CountingSink {
        fn try_send(&mut self, _: &Record<'_>, _: u64) -> Result<(), SendError> {
            Err(SendError::Full)
        }

        fn poll(&mut self) {
            self.0.times.fetch_add(1, Ordering::SeqCst);
            self.0.changed.notify_one();
        }

        fn close(self, _: Duration) {}
    }

    /// Or what it has accepted would stay with it for as long as the database is away.
    #[tokio::test]
    async fn a_sink_goes_on_while_there_is_no_connection() {
        let ring = Arc::new(AckRing::new(64));
        let reports = Reports::new(Arc::clone(&ring));
        let nudged = Arc::new(Nudged::default());
        let core = Core::new(
            Router::new(Options::default()),
            Arc::new([]),
            ring,
            CommitEnd::from_slot(walrelay_lsn::Lsn::new(1_000)),
        );
        let mut session = Some(SinkSession {
            core,
            sink: CountingSink(Arc::clone(&nudged)),
            reports: Arc::clone(&reports),
        });
        let connected = async {
            // Once at the beginning, and once for each time that the sink asks for it.
            for times in 1..4 {
                while nudged.times.load(Ordering::SeqCst) < times {
                    nudged.changed.notified().await;
                }
                reports.capacity();
            }
            "connected"
        };
        let done = timeout(
            Duration::from_secs(30),
            meanwhile(&mut session, None, connected),
        )
        .await;
        assert_eq!(done, Ok(Some("connected")));
        let now = Instant::now();
        let never = meanwhile(&mut session, Some(now), std::future::pending::<()>());
        assert_eq!(never.await, None, "the sink is to be given up");
        let none: Option<SinkSession<CountingSink>> = None;
        let done = meanwhile(&mut { none }, Some(now), async { "connected" }).await;
        assert_eq!(done, Some("connected"));
    }
}
