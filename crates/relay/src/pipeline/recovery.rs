//! What a pipeline does with its sink after an attempt has failed, and what it decides about a
//! refused event.

use std::sync::Arc;

use tokio::time::Instant;
use walrelay_checkpoint::Seq;
use walrelay_sink::{Disposition, SinkFactory};

use super::Pipeline;
use super::error::PipelineError;
use super::session::reports::{Failure, severity};
use super::session::sessions::close;
use crate::core::Core;
use crate::interface::observer::Observer;
use crate::interface::source::Source;
use crate::poison::{Decision, Refusal};

impl<S: Source, F: SinkFactory, W: Observer> Pipeline<S, F, W> {
    /// Drops the sink if it cannot be used after the error, and decides about the event that was
    /// refused. Returns `None` if a decision was made, so that the slot must be read again at once;
    /// otherwise the error.
    ///
    /// `is_retried`: another attempt follows, whatever the disposition is. `stopping`: nothing is decided about
    /// the event, because the slot is not read again.
    pub(super) async fn recover(
        &mut self,
        error: PipelineError<S::Error, F::Error>,
        is_retried: bool,
        stopping: bool,
    ) -> Option<PipelineError<S::Error, F::Error>> {
        if matches!(error, PipelineError::OtherTimeline { .. }) {
            self.sessions.discard().await;
            self.sessions.forget_events();
            return Some(error);
        }
        let spoiled = matches!(error, PipelineError::Delivery { .. });
        let is_retried = is_retried || error.disposition(F::disposition) == Disposition::Retryable;
        if !spoiled && is_retried {
            return Some(error);
        }
        let Some(session) = self.sessions.current.take() else {
            return Some(error);
        };
        let reports = Arc::clone(&session.reports);
        let core = close(session).await;
        match error {
            PipelineError::Delivery { .. } => self.decide(error, reports.failure(), core, stopping),
            error => {
                self.sessions.keep(core);
                Some(error)
            }
        }
    }

    /// Decides about a refused event, after the sink was closed, so that all reports have arrived.
    /// The most severe failure replaces the error: one refused record makes its neighbours fail, too,
    /// with errors that are retryable by themselves.
    fn decide(
        &mut self,
        mut error: PipelineError<S::Error, F::Error>,
        failure: Option<Failure>,
        core: Core,
        stopping: bool,
    ) -> Option<PipelineError<S::Error, F::Error>> {
        let PipelineError::Delivery {
            source,
            event,
            event_id,
        } = &mut error
        else {
            return Some(error);
        };
        // If the event is known already, `try_send` refused its record, so no other can be at
        // fault.
        let mut last = *event;
        let mut certain = event.is_some();
        if let Some(failure) = failure
            && (!certain || severity(&failure.error) > severity(source))
        {
            *source = failure.error;
            *event = core.event_of(Seq::new(failure.seq));
            *event_id = None;
            last = core.event_of(Seq::new(failure.last));
            certain = false;
        }
        let decisions = self.sessions.keep(core);
        let Some(event) = *event else {
            return Some(error);
        };
        let decision = if stopping {
            Decision::FollowDisposition
        } else {
            let refusal = Refusal {
                event,
                last: last.unwrap_or(event).id,
                certain,
                error: source,
            };
            self.retry_policy
                .decide(&refusal, decisions, Instant::now())
        };
        // An event whose record `try_send` refused was never in flight, so it is added here.
        self.sessions.unconfirmed.add([(event.id.lsn, 1)]);
        match decision {
            Decision::ReadAgain => return None,
            Decision::FollowDisposition | Decision::ReadLater => {}
            // The retries did not help: the topic must be created, or the permission granted.
            Decision::Stop => source.disposition = Disposition::Configuration,
        }
        Some(error)
    }
}
