use std::collections::BTreeSet;
use std::time::Duration;

use walrelay_sink::SinkFactory;

use crate::interface::observer::{Observer, PipelineState};
use crate::interface::source::{Source, WalStream};
use crate::pipeline::attempts::FailedAttempts;
use crate::pipeline::lease::Lease;
use crate::pipeline::schema_fetcher::SchemaFetcher;
use crate::pipeline::session::sink_session::SinkSession;
use crate::pipeline::settings::Settings;
use crate::table::TableName;

/// One connection, and the parts of the pipeline that it uses.
pub(in crate::pipeline) struct Streaming<'a, S: Source, F: SinkFactory, W> {
    pub(in crate::pipeline) stream: S::Stream,
    pub(in crate::pipeline) source: &'a mut S,
    /// The server's `wal_sender_timeout` for this connection.
    pub(in crate::pipeline) server_timeout: Option<Duration>,
    pub(in crate::pipeline) lease: &'a mut Lease,
    /// The server's timeline, which changes if a standby is promoted under the stream.
    pub(in crate::pipeline) timeline: &'a mut u32,
    pub(in crate::pipeline) session: &'a mut SinkSession<F::Sink>,
    pub(in crate::pipeline) settings: &'a Settings,
    pub(in crate::pipeline) observer: &'a mut W,
    pub(in crate::pipeline) failed_attempts: &'a mut FailedAttempts,
    /// A request that is under way outlives the connection.
    pub(in crate::pipeline) schema_fetcher: &'a mut SchemaFetcher,
    /// The tables that were logged as passed over.
    pub(in crate::pipeline) passed_over: &'a mut BTreeSet<TableName>,
}

impl<S: Source, F: SinkFactory, W: Observer> Streaming<'_, S, F, W> {
    /// Reports a state. While a snapshot is streamed, `Streaming` is reported as `Snapshot`.
    pub(super) fn report(&mut self, state: PipelineState) {
        let snapshot = state == PipelineState::Streaming && self.stream.is_snapshot();
        self.observer.state(if snapshot {
            PipelineState::Snapshot
        } else {
            state
        });
    }

    /// Collects acknowledgements, and reports a sample and dead letters to the observer.
    pub(super) fn collect(&mut self) {
        if let Some((end, committed)) = self.session.core.advance() {
            self.observer.acknowledged(end, committed);
        }
        let dead_letters = self.session.core.take_dead_letters();
        if !dead_letters.is_empty() {
            self.observer.dead_letters(&dead_letters);
        }
    }
}
