use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tracing::{debug, warn};
use walrelay_checkpoint::AckRing;
use walrelay_event_router::Router;
use walrelay_lsn::CommitEnd;
use walrelay_sink::{EventPosition, Sink, SinkFactory, StreamStart, in_current_span};

use super::reports::Reports;
use super::sink_session::SinkSession;
use crate::account::{PendingAccount, SentAccount};
use crate::core::{AcknowledgedEvents, Core};
use crate::interface::observer::Counts;
use crate::pipeline::settings::{OnUpdate, Settings};
use crate::poison::{Class, PoisonDecisions};
use crate::sent_rows::{PendingRows, SentRows};

/// The sink sessions of a run, one after the other, and the data that outlives each.
pub(in crate::pipeline) struct Sessions<F: SinkFactory> {
    factory: F,
    pub(in crate::pipeline) current: Option<SinkSession<F::Sink>>,
    /// The router and the poison decisions, between two sessions.
    idle: Option<(Router, PoisonDecisions)>,
    /// The figures of the sessions that ended.
    counts: Counts,
    /// Classes of dead letters that were acknowledged in these, and are not reported yet.
    dead_letters: Vec<Class>,
    /// The [`Core::first_unacknowledged`] of the last session, for the next one. Kept only while no
    /// other relay can have read the slot.
    acknowledged_before: Option<EventPosition>,
    /// What the last session has acknowledged behind that event.
    acknowledged: AcknowledgedEvents,
    /// The keys that are noted of rows, between two sessions.
    sent_rows: Option<PendingRows>,
    /// The account of sent rows, between two sessions.
    account: Option<Box<PendingAccount>>,
    pub(in crate::pipeline) unconfirmed: UnconfirmedEvents,
}

impl<F: SinkFactory> Sessions<F> {
    pub(in crate::pipeline) fn new(
        factory: F,
        router: Router,
        decisions: PoisonDecisions,
        sent_rows: Option<Arc<SentRows>>,
        account: Option<Arc<SentAccount>>,
    ) -> Self {
        Self {
            factory,
            current: None,
            idle: Some((router, decisions)),
            counts: Counts::default(),
            dead_letters: Vec::new(),
            acknowledged_before: None,
            acknowledged: AcknowledgedEvents::default(),
            sent_rows: sent_rows.map(PendingRows::new),
            account: account.map(|account| Box::new(PendingAccount::new(account))),
            unconfirmed: UnconfirmedEvents::default(),
        }
    }

    /// Returns the figures of all sessions.
    pub(in crate::pipeline) fn counts(&self) -> Counts {
        let current = self.current.as_ref().map(|session| session.core.counts());
        self.counts.plus(current.unwrap_or_default())
    }

    /// Takes the classes of the dead letters that were acknowledged since the last call.
    pub(in crate::pipeline) fn take_dead_letters(&mut self) -> Vec<Class> {
        let mut classes = std::mem::take(&mut self.dead_letters);
        if let Some(session) = &mut self.current {
            classes.extend(session.core.take_dead_letters());
        }
        classes
    }

    /// Returns the current session, or opens a new one whose stream begins at `start`.
    pub(in crate::pipeline) fn open(
        &mut self,
        settings: &Settings,
        start: &StreamStart,
    ) -> Result<&mut SinkSession<F::Sink>, F::Error> {
        let session = match self.current.take() {
            Some(session) => session,
            None => self.create(settings, start)?,
        };
        Ok(self.current.insert(session))
    }

    fn create(
        &mut self,
        settings: &Settings,
        start: &StreamStart,
    ) -> Result<SinkSession<F::Sink>, F::Error> {
        let ring = Arc::new(AckRing::new(settings.max_unconfirmed_records));
        let reports = Reports::new(Arc::clone(&ring));
        let deliveries = Arc::clone(&reports);
        let sink = self.factory.create(Some(start), deliveries)?;
        // Positions of a snapshot are none of the WAL.
        let durable_before = sink.durable_before().filter(|_| !start.snapshot);
        let (router, decisions) = self
            .idle
            .take()
            .unwrap_or_else(|| unreachable!("the router comes back when a session is closed"));
        let core = Core::new(router, Arc::clone(&settings.tables), ring, start.confirmed)
            .with_decisions(decisions)
            .resuming_at(
                self.acknowledged_before,
                std::mem::take(&mut self.acknowledged),
            )
            .noting(self.sent_rows.take())
            .accounting(self.account.take())
            .with_durable_before(durable_before)
            .passing_over(Arc::clone(&settings.pass_over))
            .with_messages(settings.messages.clone())
            .stopping_at_updates(settings.on_update == OnUpdate::Stop);
        Ok(SinkSession {
            core,
            sink,
            reports,
            withdrawn: VecDeque::new(),
        })
    }

    /// Drops the current session. Records in flight are given up: they are not confirmed, so they
    /// are sent again.
    pub(in crate::pipeline) async fn discard(&mut self) {
        if let Some(session) = self.current.take() {
            let core = close(session).await;
            self.keep(core);
        }
    }

    /// Keeps the router, the decisions, the figures and the unconfirmed events of a closed session's
    /// core. Returns the decisions.
    pub(in crate::pipeline) fn keep(&mut self, mut core: Core) -> &mut PoisonDecisions {
        core.advance();
        self.acknowledged_before = core.first_unacknowledged();
        self.acknowledged = core.acknowledged_events();
        self.sent_rows = core.take_sent_rows();
        self.account = core.take_account();
        self.unconfirmed.add(core.unacknowledged());
        self.unconfirmed.forget_before(core.acknowledged_position());
        self.counts = self.counts.plus(core.counts());
        self.dead_letters.extend(core.take_dead_letters());
        // Decisions about acknowledged events are kept, too: if the position is forgotten, these events
        // are read again, and would each end a sink again.
        &mut self.idle.insert(core.into_parts()).1
    }

    /// Forgets which events are acknowledged. Another relay may have sent some of them again since:
    /// passing over the others would leave a key on an older event.
    pub(in crate::pipeline) fn forget_acknowledged(&mut self) {
        self.acknowledged_before = None;
        self.acknowledged = AcknowledgedEvents::default();
        if let Some(rows) = &mut self.sent_rows {
            rows.forget();
        }
        if let Some(account) = &mut self.account {
            account.forget();
        }
    }

    /// Forgets all that is known of single events, without a session, because the timeline changed:
    /// other events may have these positions now.
    pub(in crate::pipeline) fn forget_events(&mut self) {
        self.forget_acknowledged();
        self.unconfirmed.forget();
        if let Some((_, decisions)) = &mut self.idle {
            decisions.forget_events();
        }
    }
}

/// Closes the sink. Returns the core, which knows the events of the records in flight.
pub(in crate::pipeline) async fn close<K: Sink + 'static>(session: SinkSession<K>) -> Core {
    let SinkSession { core, sink, .. } = session;
    debug!(in_flight = core.in_flight(), "closing the sink");
    // `close` blocks, so it runs on a blocking thread. A panic in it is only logged.
    let close = in_current_span(move || Box::new(sink).close(Duration::ZERO));
    if let Err(error) = spawn_blocking(close).await {
        warn!(%error, "closing the sink failed");
    }
    core
}

impl<F: SinkFactory> fmt::Debug for Sessions<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

/// Events of dropped sinks that were enqueued, or refused, and are not confirmed. While there are
/// any, a stop is not reported as drained.
///
/// There is one entry for each transaction that was in flight.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct UnconfirmedEvents {
    /// The number of events by the start of the transaction's commit record.
    events: BTreeMap<u64, u64>,
}

impl UnconfirmedEvents {
    /// Adds events that were in flight or refused. Events that are sent again count once.
    pub(in crate::pipeline) fn add(&mut self, events: impl IntoIterator<Item = (u64, u64)>) {
        for (lsn, count) in events {
            let most = self.events.entry(lsn).or_default();
            *most = count.max(*most);
        }
    }

    /// Forgets transactions before `confirmed`, which are confirmed.
    pub(in crate::pipeline) fn forget_before(&mut self, confirmed: CommitEnd) {
        self.events = self.events.split_off(&confirmed.lsn().get());
    }

    /// Forgets all events: the timeline changed, or another relay sends them.
    pub(in crate::pipeline) fn forget(&mut self) {
        self.events.clear();
    }

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
        let mut unconfirmed = UnconfirmedEvents::default();
        unconfirmed.add([(8, 3), (10, 2)]);
        // Sent again, one by one.
        unconfirmed.add([(8, 1)]);
        assert_eq!(unconfirmed.count(), 5);
        // The commit record of a transaction starts before the position that confirms it.
        unconfirmed.forget_before(CommitEnd::from_slot(Lsn::new(8)));
        assert_eq!(unconfirmed.count(), 5);
        unconfirmed.forget_before(CommitEnd::from_slot(Lsn::new(9)));
        assert_eq!(unconfirmed.count(), 2);
        unconfirmed.forget();
        assert_eq!(unconfirmed.count(), 0);
    }
}
