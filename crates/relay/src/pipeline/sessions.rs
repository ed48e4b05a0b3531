use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tracing::{debug, warn};
use walrelay_checkpoint::AckRing;
use walrelay_event_router::Router;
use walrelay_lsn::CommitEnd;
use walrelay_sink::{Sink, SinkFactory};

use super::owed::Owed;
use super::reports::Reports;
use super::session::SinkSession;
use super::settings::{OnUpdate, Settings};
use crate::core::Core;
use crate::counts::Counts;
use crate::poison::PoisonDecisions;

/// The sink sessions of a run, one after the other, and what outlives each.
pub(super) struct Sessions<F: SinkFactory> {
    factory: F,
    pub(super) current: Option<SinkSession<F::Sink>>,
    /// Between two sessions: the router, and what was decided about events.
    idle: Option<(Router, PoisonDecisions)>,
    /// The figures of the sessions that ended.
    counts: Counts,
    pub(super) owed: Owed,
}

impl<F: SinkFactory> Sessions<F> {
    pub(super) fn new(factory: F, router: Router, decisions: PoisonDecisions) -> Self {
        Self {
            factory,
            current: None,
            idle: Some((router, decisions)),
            counts: Counts::default(),
            owed: Owed::default(),
        }
    }

    /// The figures of all sessions.
    pub(super) fn counts(&self) -> Counts {
        let current = self.current.as_ref().map(|session| session.core.counts());
        self.counts.plus(current.unwrap_or_default())
    }

    /// The current session, or a new one on a slot at `confirmed`.
    pub(super) fn open(
        &mut self,
        settings: &Settings,
        confirmed: CommitEnd,
    ) -> Result<&mut SinkSession<F::Sink>, F::Error> {
        let session = match self.current.take() {
            Some(session) => session,
            None => self.create(settings, confirmed)?,
        };
        Ok(self.current.insert(session))
    }

    fn create(
        &mut self,
        settings: &Settings,
        confirmed: CommitEnd,
    ) -> Result<SinkSession<F::Sink>, F::Error> {
        let ring = Arc::new(AckRing::new(settings.max_in_flight_records));
        let reports = Reports::new(Arc::clone(&ring));
        let deliveries = Arc::clone(&reports);
        let sink = self.factory.create(deliveries)?;
        let (router, decisions) = self
            .idle
            .take()
            .unwrap_or_else(|| unreachable!("the router comes back when a session is closed"));
        let core = Core::new(router, Arc::clone(&settings.tables), ring, confirmed)
            .with_decisions(decisions)
            .with_messages(settings.messages.clone())
            .stopping_at_updates(settings.on_update == OnUpdate::Stop);
        Ok(SinkSession {
            core,
            sink,
            reports,
        })
    }

    /// Drops the current session. What is in flight is given up: it is not confirmed, so it is sent again.
    pub(super) async fn discard(&mut self) {
        if let Some(session) = self.current.take() {
            let core = close(session).await;
            self.keep(core);
        }
    }

    /// Keeps of a closed session's core what the next one starts with, and what is owed. Returns the decisions.
    pub(super) fn keep(&mut self, mut core: Core) -> &mut PoisonDecisions {
        core.advance();
        self.owed.add(core.unacknowledged());
        self.owed.forget_before(core.confirmed());
        self.counts = self.counts.plus(core.counts());
        &mut self.idle.insert(core.into_parts()).1
    }
}

/// Closes the sink. The core remembers which events its records stood for.
pub(super) async fn close<K: Sink + 'static>(session: SinkSession<K>) -> Core {
    let SinkSession { core, sink, .. } = session;
    debug!(in_flight = core.in_flight(), "closing the sink");
    // Closing blocks. A panic in there leaves nothing to be done here.
    if let Err(error) = spawn_blocking(move || sink.close(Duration::ZERO)).await {
        warn!(%error, "closing the sink failed");
    }
    core
}

impl<F: SinkFactory> fmt::Debug for Sessions<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}
