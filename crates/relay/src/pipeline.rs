//! The task around the state machine.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tracing::{debug, info, warn};
use walrelay_checkpoint::AckRing;
use walrelay_event_router::Router;
use walrelay_lsn::CommitEnd;
use walrelay_sink::{Disposition, Sink, SinkFactory};

use crate::deliveries::{Reports, rank};
use crate::error::Chain;
use crate::generation::Generation;
use crate::machine::Core;
use crate::shutdown::Shutdown;
use crate::stream::Streaming;
use crate::{
    Backoff, Continuity, Counts, Opened, Outcome, PipelineError, Resume, Settings, Source, State,
    Surroundings,
};

/// One slot, one sink.
#[derive(Debug)]
pub struct Pipeline<S, F: SinkFactory, W> {
    source: S,
    factory: F,
    surroundings: W,
    settings: Settings,
    /// At home here between generations.
    router: Option<Router>,
    generation: Option<Generation<F::Sink>>,
    resume: Option<Resume>,
    backoff: Backoff,
    /// Of generations that ended.
    counts: Counts,
}

type PipelineResult<T, S, F> =
    Result<T, PipelineError<<S as Source>::Error, <F as SinkFactory>::Error>>;

impl<S: Source, F: SinkFactory, W: Surroundings> Pipeline<S, F, W> {
    /// A pipeline that has not connected to anything yet.
    pub fn new(source: S, router: Router, factory: F, surroundings: W, settings: Settings) -> Self {
        let backoff = Backoff::new(settings.backoff_initial, settings.backoff_max);
        Self {
            source,
            factory,
            surroundings,
            settings,
            router: Some(router),
            generation: None,
            resume: None,
            backoff,
            counts: Counts::default(),
        }
    }

    /// The figures of the run so far.
    pub fn counts(&self) -> Counts {
        let running = self
            .generation
            .as_ref()
            .map(|running| running.core.counts());
        self.counts.plus(running.unwrap_or_default())
    }

    /// What the pipeline tells the world through.
    pub fn surroundings(&self) -> &W {
        &self.surroundings
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
                    return Ok(outcome);
                }
                Err(error) => error,
            };
            let error = self.after(error).await;
            let disposition = error.disposition(F::disposition);
            if disposition != Disposition::Retryable {
                return Err(error);
            }
            let delay = self.backoff.next_delay();
            warn!(error = %Chain(&error), retry_in_ms = delay.as_millis() as u64, "trying again");
            self.surroundings.state(State::Waiting);
            tokio::select! {
                biased;
                () = shutdown.asked() => return Ok(self.stopped_without_connection().await),
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Throws away the sink that an error spoiled. Only when it is closed are all reports in: the
    /// gravest of them is the error, as one spoiled record makes its neighbours fail for reasons
    /// that would be worth a retry.
    async fn after(
        &mut self,
        mut error: PipelineError<S::Error, F::Error>,
    ) -> PipelineError<S::Error, F::Error> {
        let spoiled = matches!(
            error,
            PipelineError::Delivery { .. } | PipelineError::OtherTimeline { .. }
        );
        if !spoiled && error.disposition(F::disposition) == Disposition::Retryable {
            return error;
        }
        let reports = self
            .generation
            .as_ref()
            .map(|running| Arc::clone(&running.reports));
        self.discard(Duration::ZERO).await;
        if let PipelineError::Delivery {
            source,
            transaction,
        } = &mut error
            && let Some(reported) = reports.and_then(|reports| reports.failure())
            && rank(reported.disposition) > rank(source.disposition)
        {
            *source = reported;
            *transaction = None;
        }
        error
    }

    /// One connection, from opening to its end.
    async fn attempt(
        &mut self,
        shutdown: &mut Shutdown<'_, impl Future<Output = ()>>,
    ) -> PipelineResult<Outcome, S, F> {
        self.surroundings.state(State::Connecting);
        let opened = tokio::select! {
            biased;
            () = shutdown.asked() => return Ok(self.stopped_without_connection().await),
            opened = self.source.open(self.resume.as_ref()) => {
                opened.map_err(PipelineError::Source)?
            }
        };
        self.same_log(&opened)?;
        let Opened {
            stream,
            system_id,
            timeline,
            confirmed,
            server_timeout,
            ..
        } = opened;
        let mut running = match self.generation.take() {
            Some(running) => running,
            None => self.generate(confirmed)?,
        };
        running.core.connected(confirmed);
        info!(%confirmed, system_id, timeline, "streaming");
        self.surroundings.state(State::Streaming);
        let result = Streaming {
            stream,
            server_timeout,
            running: &mut running,
            settings: &self.settings,
            surroundings: &mut self.surroundings,
            backoff: &mut self.backoff,
        }
        .run(shutdown, &mut self.source)
        .await;
        running.core.disconnected();
        self.resume = Some(Resume {
            system_id,
            timeline,
            confirmed: running.core.confirmed(),
            seen: running.core.seen(),
        });
        self.generation = Some(running);
        result
    }

    /// Whether the stream continues the log that this process has read so far.
    fn same_log(&mut self, opened: &Opened<S::Stream>) -> PipelineResult<(), S, F> {
        let Some(resume) = &self.resume else {
            return Ok(());
        };
        match resume.continued_by(opened)? {
            Continuity::Same => Ok(()),
            Continuity::Promoted => {
                let error = PipelineError::OtherTimeline {
                    before: resume.timeline,
                    now: opened.timeline,
                };
                // Start over from the slot: beyond it, positions of two timelines do not compare.
                self.resume = Some(Resume {
                    system_id: opened.system_id.clone(),
                    timeline: opened.timeline,
                    confirmed: opened.confirmed,
                    seen: opened.confirmed,
                });
                Err(error)
            }
        }
    }

    fn generate(&mut self, confirmed: CommitEnd) -> PipelineResult<Generation<F::Sink>, S, F> {
        let ring = Arc::new(AckRing::new(self.settings.max_in_flight_records));
        let reports = Reports::new(Arc::clone(&ring));
        let deliveries = Arc::clone(&reports);
        let sink = self
            .factory
            .create(deliveries)
            .map_err(PipelineError::Sink)?;
        let router = self.router.take().unwrap_or_else(|| {
            unreachable!("the router comes home when a generation is discarded")
        });
        let core = Core::new(router, Arc::clone(&self.settings.tables), ring, confirmed);
        Ok(Generation {
            core,
            sink,
            reports,
        })
    }

    /// Throws sink and machine away. What is in flight after `grace` is given up: it is not
    /// confirmed, so it is sent again.
    async fn discard(&mut self, grace: Duration) {
        if let Some(Generation { core, sink, .. }) = self.generation.take() {
            debug!(in_flight = core.in_flight(), "closing the sink");
            self.counts = self.counts.plus(core.counts());
            self.router = Some(core.into_router());
            // Closing blocks. A panic in there leaves nothing to be done here.
            if let Err(error) = spawn_blocking(move || sink.close(grace)).await {
                warn!(%error, "closing the sink failed");
            }
        }
    }

    async fn stopped_without_connection(&mut self) -> Outcome {
        let outcome = match &mut self.generation {
            None => Outcome::Incomplete {
                in_flight: 0,
                confirmed: None,
            },
            Some(running) => {
                running.core.advance();
                Outcome::Incomplete {
                    in_flight: running.core.in_flight(),
                    confirmed: Some(running.core.confirmed()),
                }
            }
        };
        self.discard(Duration::ZERO).await;
        outcome
    }
}
