use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{debug, info, warn};
use walrelay_sink::{Sink, SinkFactory};

use super::connection::Streaming;
use crate::interface::environment::Environment;
use crate::interface::source::{Source, WalStream};
use crate::pipeline::error::Chain;
use crate::pipeline::settings::Outcome;

/// How long what was acknowledged beside a failure may still be collected and confirmed.
const SETTLE: Duration = Duration::from_secs(5);
/// How long the orderly end of a connection may take, after what is in flight was awaited.
const WIND_UP: Duration = Duration::from_secs(10);
/// How often the control connection is asked whether the slot has taken the last status.
const VERIFY_INTERVAL: Duration = Duration::from_millis(20);

/// How a sound connection ends.
impl<S: Source, F: SinkFactory, W: Environment> Streaming<'_, S, F, W> {
    /// The outcome of a drain. `reason`: why not all was acknowledged.
    pub(super) async fn drained(self, reason: Option<String>) -> Outcome {
        let core = &self.session.core;
        let confirmed = core.confirmed();
        // A row that was received and could not be enqueued is a record at least.
        let records = core.in_flight().max(core.is_inside_transaction().into());
        let taken = self.wind_up().await;
        let not_taken = || "the last position is not known to be in the slot".to_owned();
        match reason.or_else(|| (!taken).then(not_taken)) {
            None => Outcome::Drained { confirmed },
            Some(reason) => Outcome::Incomplete {
                records,
                confirmed: Some(confirmed),
                reason,
            },
        }
    }

    /// Collects acknowledgements of what is in flight beside or before a failure.
    pub(super) async fn settle(&mut self) {
        let deadline = Instant::now() + SETTLE.min(self.settings.drain_timeout);
        let mut feedback = self.first_feedback();
        loop {
            self.session.reports.ring().park();
            self.collect();
            self.session.sink.poll();
            let now = Instant::now();
            if self.session.core.is_settled() || now >= deadline {
                return;
            }
            // Feedback goes on; a connection that fails now changes nothing for the data.
            let due = feedback.due(self.session.core.confirmed());
            if !feedback.pending && now >= due && self.queue_status(&mut feedback).is_err() {
                return;
            }
            if feedback.pending && self.write_status(&mut feedback).await.is_err() {
                return;
            }
            let due = feedback.due(self.session.core.confirmed());
            tokio::select! {
                () = self.session.reports.woken() => {}
                () = sleep_until(due.min(deadline)) => {}
            }
            self.session.reports.ring().unpark();
        }
    }

    /// The orderly end: last status, a look whether it reached the slot, CopyDone. Whether the slot
    /// stands at the confirmed position.
    pub(super) async fn wind_up(mut self) -> bool {
        let mut feedback = self.first_feedback();
        feedback.asked = true;
        let confirmed = self.session.core.confirmed();
        let limit = Instant::now() + WIND_UP.min(self.settings.drain_timeout);
        let taken = timeout_at(limit, async {
            while self.source.note(confirmed)? < confirmed {
                sleep(VERIFY_INTERVAL).await;
            }
            self.queue_status(&mut feedback)?;
            self.stream.flush().await?;
            while self.source.confirmed_on_server().await? < confirmed.lsn() {
                sleep(VERIFY_INTERVAL).await;
            }
            Ok::<_, S::Error>(())
        })
        .await;
        let taken = match taken {
            Ok(Ok(())) => {
                info!(%confirmed, "the slot has taken the last status");
                true
            }
            Ok(Err(error)) => {
                warn!(%confirmed, error = %Chain(&error), "the last status was not verified");
                false
            }
            Err(_) => {
                warn!(%confirmed, "the server did not take the last status in time");
                false
            }
        };
        // Frees the slot at once. The position is safe already, so a failure costs nothing.
        match timeout_at(limit, self.stream.finish()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(error = %Chain(&error), "the stream did not end in order"),
            Err(_) => debug!("the stream did not end in time"),
        }
        taken
    }
}
