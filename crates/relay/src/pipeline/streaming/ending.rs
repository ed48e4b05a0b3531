use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{debug, info, warn};
use walrelay_sink::{Sink, SinkFactory};

use super::connection::Streaming;
use crate::interface::observer::Observer;
use crate::interface::source::{Source, WalStream};
use crate::pipeline::error::Chain;
use crate::pipeline::settings::Outcome;

/// The longest wait after a failure for acknowledgements of other records.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// The longest time that the orderly end of a connection may take, after the wait for records in
/// flight.
const END_LIMIT: Duration = Duration::from_secs(10);
/// The interval of the checks whether the slot has taken the last status.
const VERIFY_INTERVAL: Duration = Duration::from_millis(20);

/// The orderly end of a working connection.
impl<S: Source, F: SinkFactory, W: Observer> Streaming<'_, S, F, W> {
    /// Ends the connection after a drain, and returns the outcome. `reason`: why not all records
    /// were acknowledged, if so.
    pub(super) async fn drained(self, reason: Option<String>) -> Outcome {
        let core = &self.session.core;
        let confirmed = core.acknowledged_position();
        // Inside a transaction there is at least one row that was received and not enqueued.
        let records = core.in_flight().max(core.is_inside_transaction().into());
        let is_confirmed = self.end_stream().await;
        let not_taken = || "the last position is not known to be in the slot".to_owned();
        match reason.or_else(|| (!is_confirmed).then(not_taken)) {
            None => Outcome::Drained { confirmed },
            Some(reason) => Outcome::Incomplete {
                records,
                confirmed: Some(confirmed),
                reason,
            },
        }
    }

    /// Waits for acknowledgements of records in flight after a failure, and confirms them.
    pub(super) async fn settle(&mut self) {
        let deadline = Instant::now() + SETTLE_LIMIT.min(self.settings.drain_timeout);
        let mut feedback = self.first_feedback();
        loop {
            self.session.reports.ring().park();
            self.collect();
            self.session.sink.poll();
            let now = Instant::now();
            if self.session.core.is_settled() || now >= deadline {
                return;
            }
            // Feedback goes on. If the connection fails now, nothing is lost.
            if self.send_feedback(&mut feedback, now).await.is_err() {
                return;
            }
            let due = feedback.due(self.session.core.acknowledged_position());
            tokio::select! {
                () = self.session.reports.woken() => {}
                () = sleep_until(due.min(deadline)) => {}
            }
            self.session.reports.ring().unpark();
        }
    }

    /// Ends the connection in order: sends the last status, checks that the slot has taken it,
    /// sends CopyDone. Returns whether the slot has taken the confirmed position.
    pub(super) async fn end_stream(mut self) -> bool {
        let mut feedback = self.first_feedback();
        feedback.asked = true;
        let confirmed = self.session.core.acknowledged_position();
        let limit = Instant::now() + END_LIMIT.min(self.settings.drain_timeout);
        let is_confirmed = timeout_at(limit, async {
            while self.source.persist_position(confirmed, confirmed)? < confirmed {
                // Marks may take longer than the server waits for a status.
                self.send_feedback(&mut feedback, Instant::now()).await?;
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
        let is_confirmed = match is_confirmed {
            Ok(Ok(())) => {
                info!(%confirmed, "the slot has taken the last status");
                true
            }
            Ok(Err(error)) => {
                warn!(%confirmed, error = %Chain(&error), "the last status was not verified");
                false
            }
            Err(_) => {
                warn!(%confirmed, "the server did not accept the last status in time");
                false
            }
        };
        // Free the slot at once. A failure here loses nothing, because the last status was sent
        // before.
        match timeout_at(limit, self.stream.finish()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(error = %Chain(&error), "the stream did not end in order"),
            Err(_) => debug!("the stream did not end in time"),
        }
        is_confirmed
    }
}
