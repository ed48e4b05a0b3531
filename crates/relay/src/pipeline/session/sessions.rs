use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tracing::{debug, warn};
use walrelay_checkpoint::AckRing;
use walrelay_event_router::Router;
use walrelay_lsn::CommitEnd;
use walrelay_sink::{Sink, SinkFactory};

use super::reports::Reports;
use super::sink_session::SinkSession;
use crate::core::Core;
use crate::interface::environment::Counts;
use crate::pipeline::settings::{OnUpdate, Settings};
use crate::poison::PoisonDecisions;

/// The sink sessions of a run, one after the other, and what outlives each.
pub(in crate::pipeline) struct Sessions<F: SinkFactory> {
    factory: F,
    pub(in crate::pipeline) current: Option<SinkSession<F::Sink>>,
    /// Between two sessions: the router, and what was decided about events.
    idle: Option<(Router, PoisonDecisions)>,
    /// The figures of the sessions that ended.
    counts: Counts,
    pub(in crate::pipeline) owed: Owed,
}

impl<F: SinkFactory> Sessions<F> {
    pub(in crate::pipeline) fn new(factory: F, router: Router, decisions: PoisonDecisions) -> Self {
        Self {
            factory,
            current: None,
            idle: Some((router, decisions)),
            counts: Counts::default(),
            owed: Owed::default(),
        }
    }

    /// The figures of all sessions.
    pub(in crate::pipeline) fn counts(&self) -> Counts {
        let current = self.current.as_ref().map(|session| session.core.counts());
        self.counts.plus(current.unwrap_or_default())
    }

    /// The current session, or a new one on a slot at `confirmed`.
    pub(in crate::pipeline) fn open(
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
    pub(in crate::pipeline) async fn discard(&mut self) {
        if let Some(session) = self.current.take() {
            let core = close(session).await;
            self.keep(core);
        }
    }

    /// Keeps of a closed session's core what the next one starts with, and what is owed. Returns the decisions.
    pub(in crate::pipeline) fn keep(&mut self, mut core: Core) -> &mut PoisonDecisions {
        core.advance();
        self.owed.add(core.unacknowledged());
        self.owed.forget_before(core.confirmed());
        self.counts = self.counts.plus(core.counts());
        &mut self.idle.insert(core.into_parts()).1
    }
}

/// Closes the sink. The core remembers which events its records stood for.
pub(in crate::pipeline) async fn close<K: Sink + 'static>(session: SinkSession<K>) -> Core {
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

/// Events of dropped sinks that were enqueued, or refused, and are not confirmed.
/// As long as there are any, a relay that stops is not drained, whatever it did since.
///
/// One entry for each transaction that was in flight.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct Owed {
    /// The start of each transaction's commit record, and how many events.
    events: BTreeMap<u64, u64>,
}

impl Owed {
    /// Takes in what was in flight. What is sent again is counted once.
    pub(in crate::pipeline) fn add(&mut self, events: impl IntoIterator<Item = (u64, u64)>) {
        for (lsn, count) in events {
            let known = self.events.entry(lsn).or_default();
            *known = count.max(*known);
        }
    }

    /// Everything before this is confirmed.
    pub(in crate::pipeline) fn forget_before(&mut self, confirmed: CommitEnd) {
        self.events = self.events.split_off(&confirmed.lsn().get());
    }

    /// The log is another one from here on, and is read again.
    pub(in crate::pipeline) fn forget(&mut self) {
        self.events.clear();
    }

    /// How many events.
    pub(in crate::pipeline) fn count(&self) -> u64 {
        self.events.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use walrelay_lsn::Lsn;

    use super::*;

    #[test]
    fn events_are_counted_once_and_until_they_are_confirmed() {
        let mut owed = Owed::default();
        owed.add([(8, 3), (10, 2)]);
        // Sent again, one by one.
        owed.add([(8, 1)]);
        assert_eq!(owed.count(), 5);
        // The commit record of a transaction starts before the position that confirms it.
        owed.forget_before(CommitEnd::from_slot(Lsn::new(8)));
        assert_eq!(owed.count(), 5);
        owed.forget_before(CommitEnd::from_slot(Lsn::new(9)));
        assert_eq!(owed.count(), 2);
        owed.forget();
        assert_eq!(owed.count(), 0);
    }
}
