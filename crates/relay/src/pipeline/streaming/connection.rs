use std::time::Duration;

use walrelay_sink::SinkFactory;

use super::feedback::Feedback;
use crate::interface::environment::{Environment, State};
use crate::interface::source::{Source, WalStream};
use crate::pipeline::attempts::FailedAttempts;
use crate::pipeline::lease::Lease;
use crate::pipeline::schema_fetcher::SchemaFetcher;
use crate::pipeline::session::sink_session::SinkSession;
use crate::pipeline::settings::Settings;

/// One connection and all that it works with.
pub(in crate::pipeline) struct Streaming<'a, S: Source, F: SinkFactory, W> {
    pub(in crate::pipeline) stream: S::Stream,
    pub(in crate::pipeline) source: &'a mut S,
    /// The server's `wal_sender_timeout` for this connection.
    pub(in crate::pipeline) server_timeout: Option<Duration>,
    pub(in crate::pipeline) lease: &'a mut Lease,
    /// The server's; a standby may be promoted under the stream.
    pub(in crate::pipeline) timeline: &'a mut u32,
    pub(in crate::pipeline) session: &'a mut SinkSession<F::Sink>,
    pub(in crate::pipeline) settings: &'a Settings,
    pub(in crate::pipeline) environment: &'a mut W,
    pub(in crate::pipeline) failed_attempts: &'a mut FailedAttempts,
    /// A request that is under way outlives the connection.
    pub(in crate::pipeline) schema_fetcher: &'a mut SchemaFetcher,
}

impl<S: Source, F: SinkFactory, W: Environment> Streaming<'_, S, F, W> {
    /// Reports a state. What streams the rows of a snapshot says so.
    pub(super) fn report(&mut self, state: State) {
        let snapshot = state == State::Streaming && self.stream.is_snapshot();
        self.environment
            .state(if snapshot { State::Snapshot } else { state });
    }

    /// Collects acknowledgements.
    pub(super) fn collect(&mut self) {
        if let Some((end, committed)) = self.session.core.advance() {
            self.environment.acknowledged(end, committed);
        }
    }

    /// The longest time between two updates.
    pub(super) fn interval(&self) -> Duration {
        let half = self
            .server_timeout
            .map_or(Duration::MAX, |timeout| timeout / 2);
        self.settings.status_interval.min(half)
    }

    pub(super) fn first_feedback(&self) -> Feedback {
        Feedback::new(self.interval(), self.session.core.confirmed())
    }
}
