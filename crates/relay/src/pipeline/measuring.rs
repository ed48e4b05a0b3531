//! The way of a row through the pipeline without its task: for the benchmark of the core and the test that counts
//! allocations.

use std::convert::Infallible;
use std::sync::Arc;

use walrelay_checkpoint::AckRing;
use walrelay_event_router::Router;
use walrelay_lsn::CommitEnd;
use walrelay_sink::{Deliveries, Sink};

use super::error::PipelineError;
use super::session::reports::Reports;
use super::session::sink_session::SinkSession;
use crate::core::Core;
use crate::interface::source::WalStream;
use crate::interface::table::TableName;

/// What a pipeline does with the bytes of one read, and with acknowledgements.
#[derive(Debug)]
pub struct Walker<K> {
    session: SinkSession<K>,
}

impl<K: Sink> Walker<K> {
    /// As a pipeline that starts at `confirmed`. What the sink reports to is given to `sink`.
    pub fn new(
        router: Router,
        tables: Arc<[TableName]>,
        max_in_flight: usize,
        confirmed: CommitEnd,
        sink: impl FnOnce(Arc<dyn Deliveries>) -> K,
    ) -> Self {
        let ring = Arc::new(AckRing::new(max_in_flight));
        let reports = Reports::new(Arc::clone(&ring));
        let deliveries = Arc::clone(&reports);
        let mut core = Core::new(router, tables, ring, confirmed);
        core.connected(confirmed);
        let session = SinkSession {
            core,
            sink: sink(deliveries),
            reports,
        };
        Self { session }
    }

    /// Sends every whole frame to the sink, until that is full. Returns how many were consumed.
    pub fn send_batch<T: WalStream>(
        &mut self,
        stream: &mut T,
    ) -> Result<u64, PipelineError<T::Error, Infallible>>
    where
        T::Error: 'static,
    {
        self.session
            .send_batch(stream, false)
            .map(|batch| batch.frames)
    }

    /// Collects acknowledgements; what may be confirmed.
    pub fn collect(&mut self) -> CommitEnd {
        self.session.core.advance();
        self.session.core.confirmed()
    }

    /// The sink.
    pub fn sink(&mut self) -> &mut K {
        &mut self.session.sink
    }

    /// The state machine.
    pub fn core(&self) -> &Core {
        &self.session.core
    }
}
