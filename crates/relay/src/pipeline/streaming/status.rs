//! Standby status updates. They go on whatever the sink does.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use walrelay_sink::SinkFactory;
use walrelay_walsender::StatusUpdate;

use super::connection::Streaming;
use super::feedback::Feedback;
use crate::interface::environment::{Environment, Failpoint};
use crate::interface::source::{Source, WalStream};
use crate::pipeline::error::{PipelineError, PipelineResult};

impl<S: Source, F: SinkFactory, W: Environment> Streaming<'_, S, F, W> {
    /// Sends a status update if one is due. A blocked sink does not change that.
    pub(super) async fn send_feedback(
        &mut self,
        feedback: &mut Feedback,
        now: Instant,
    ) -> PipelineResult<(), S, F> {
        if !feedback.pending && now >= feedback.due(self.session.core.confirmed()) {
            self.queue_status(feedback).map_err(PipelineError::Source)?;
        }
        if feedback.pending {
            if feedback.confirms {
                self.environment.failpoint(Failpoint::AfterConfirm);
            }
            self.write_status(feedback)
                .await
                .map_err(PipelineError::Source)?;
        }
        Ok(())
    }

    pub(super) fn queue_status(&mut self, feedback: &mut Feedback) -> Result<(), S::Error> {
        self.environment.progress(&self.session.core.progress());
        let confirmed = self.source.note(self.session.core.confirmed())?;
        self.stream.queue_status(StatusUpdate {
            written: self.session.core.received(),
            flushed: confirmed,
            applied: confirmed,
            clock_us_since_2000: self.environment.wall_clock().get(),
            // An idle server answers with a keepalive, whose position is what lets an idle slot
            // move. Never in the answer to one: that would go back and forth for ever.
            reply_requested: !feedback.asked,
        });
        feedback.queued(confirmed);
        Ok(())
    }

    /// Writes what is queued, without waiting for a server that does not read: reading and
    /// acknowledging go on, and it is tried again.
    pub(super) async fn write_status(&mut self, feedback: &mut Feedback) -> Result<(), S::Error> {
        if let Ok(written) = timeout(Duration::from_millis(1), self.stream.flush()).await {
            written?;
            feedback.pending = false;
        }
        Ok(())
    }
}
