//! The processing of a batch without the pipeline's task: for the benchmark of the core, the test
//! that counts allocations, and the search of `tests/evidence`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use walrelay_checkpoint::AckRing;
use walrelay_event_router::Router;
use walrelay_lsn::CommitEnd;
use walrelay_sink::{Deliveries, Sink};

use super::error::PipelineError;
use super::session::reports::Reports;
use super::session::sink_session::SinkSession;
use crate::account::{PendingAccount, SentAccount};
use crate::core::Core;
use crate::interface::source::WalStream;
use crate::sent_rows::{PendingRows, SentRows};
use crate::table::TableName;

/// Makes a core account its rows, and note their keys, as a pipeline does.
#[must_use]
pub fn with_evidence(
    core: Core,
    account: Option<&Arc<SentAccount>>,
    rows: Option<&Arc<SentRows>>,
) -> Core {
    let account = account.map(|account| Box::new(PendingAccount::new(Arc::clone(account))));
    core.accounting(account)
        .noting(rows.map(|rows| PendingRows::new(Arc::clone(rows))))
}

/// Makes the core of a new sink continue what the core of the last sink knows of acknowledged rows.
#[must_use]
pub fn continuing(core: Core, last: &mut Core) -> Core {
    core.resuming_at(last.first_unacknowledged(), last.acknowledged_events())
        .noting(last.take_sent_rows())
        .accounting(last.take_account())
}

/// Sends batches to a sink and collects acknowledgements as a pipeline does.
#[derive(Debug)]
pub struct BatchProcessor<K> {
    session: SinkSession<K>,
}

impl<K: Sink> BatchProcessor<K> {
    /// Creates a processor on a slot at `confirmed`. `sink` creates the sink, which reports to the
    /// given [`Deliveries`].
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
            withdrawn: VecDeque::new(),
        };
        Self { session }
    }

    /// Sends every whole frame to the sink until the sink is full. Returns how many were consumed.
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

    /// Collects acknowledgements. Returns the position that may be confirmed.
    pub fn collect(&mut self) -> CommitEnd {
        self.session.core.advance();
        self.session.core.acknowledged_position()
    }

    /// Returns the sink.
    pub fn sink(&mut self) -> &mut K {
        &mut self.session.sink
    }

    /// Returns the state machine.
    pub fn core(&self) -> &Core {
        &self.session.core
    }
}
