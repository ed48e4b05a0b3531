//! Makes a [`Core`] for a new sink from the knowledge of earlier cores, and returns that knowledge for the next one.

use std::sync::Arc;

use walrelay_checkpoint::{AckRing, Ledger, Seq};
use walrelay_event_router::{Messages, Router};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_sink::EventPosition;

use super::Core;
use super::acknowledged::AcknowledgedEvents;
use super::diversions::Diversions;
use super::schemas::SchemaWait;
use super::tables::Tables;
use super::tracked_rows::TrackedRows;
use super::transactions::Transactions;
use crate::account::PendingAccount;
use crate::interface::observer::Counts;
use crate::poison::PoisonDecisions;
use crate::sent_rows::PendingRows;
use crate::table::TableName;

impl Core {
    /// Creates a state machine for a new sink that acknowledges into `ring`, on a slot at
    /// `confirmed`. Without [`with_decisions`](Self::with_decisions) an event that cannot be
    /// delivered is an error.
    pub fn new(
        router: Router,
        configured: Arc<[TableName]>,
        ring: Arc<AckRing>,
        confirmed: CommitEnd,
    ) -> Self {
        Self {
            router,
            messages: None,
            stops_at_updates: false,
            tables: Tables::new(configured),
            transactions: Transactions::default(),
            batch: None,
            schemas: SchemaWait::default(),
            diversions: Diversions::default(),
            acknowledged_before: None,
            acknowledged_behind: Box::default(),
            taken_before: None,
            offered: None,
            ledger: Ledger::new(ring, Some(confirmed)),
            in_flight: Box::default(),
            tracked_rows: TrackedRows::default(),
            next: 0,
            received: confirmed.lsn(),
            end_of_rows: CommitEnd::from_slot(Lsn::ZERO),
            counts: Counts::default(),
        }
    }

    /// Sets the poison policy, and the decisions about events that were made with earlier sinks.
    #[must_use]
    pub fn with_decisions(mut self, mut decisions: PoisonDecisions) -> Self {
        decisions.forget_before(self.acknowledged_position(), self.transactions.epoch);
        self.diversions.decisions = decisions;
        self
    }

    /// Makes the core pass over the events before `first`, the
    /// [`first_unacknowledged`](Self::first_unacknowledged) event of an earlier core, and over what was
    /// [acknowledged](Self::acknowledged_events) behind it.
    #[must_use]
    pub fn resuming_at(
        mut self,
        first: Option<EventPosition>,
        acknowledged: AcknowledgedEvents,
    ) -> Self {
        self.acknowledged_before = first;
        self.acknowledged_behind = Box::new(acknowledged);
        self
    }

    /// Sets where the keys of acknowledged rows are noted, with those of earlier cores.
    #[must_use]
    pub(crate) fn noting(mut self, rows: Option<PendingRows>) -> Self {
        self.tracked_rows.keys = rows;
        self
    }

    /// Sets the account of sent rows, with that of earlier cores.
    #[must_use]
    pub(crate) fn accounting(mut self, account: Option<Box<PendingAccount>>) -> Self {
        self.tracked_rows.account = account;
        self
    }

    /// Sets the position up to which the sink has everything, see
    /// [`Sink::durable_before`](walrelay_sink::Sink::durable_before).
    #[must_use]
    pub fn with_durable_before(mut self, position: Option<Lsn>) -> Self {
        self.transactions.durable_before = position;
        self
    }

    /// Sets tables whose rows are passed over even if they may be events. No outbox is passed over:
    /// a table that is one by its name or OID is routed.
    #[must_use]
    pub fn passing_over(mut self, tables: Arc<[TableName]>) -> Self {
        self.tables.pass_over(tables);
        self
    }

    /// Sets which logical messages are events.
    #[must_use]
    pub fn with_messages(mut self, messages: Option<Messages>) -> Self {
        self.messages = messages;
        self
    }

    /// Makes the core return an error when an outbox row is updated.
    #[must_use]
    pub fn stopping_at_updates(mut self, stops: bool) -> Self {
        self.stops_at_updates = stops;
        self
    }

    /// Takes what is noted of rows, for the core of the next sink: that of acknowledged events. All
    /// others are sent again.
    pub(crate) fn take_sent_rows(&mut self) -> Option<PendingRows> {
        let mut rows = self.tracked_rows.keys.take()?;
        match self.first_unacknowledged() {
            Some(first) => rows.forget_from(first),
            None => rows.forget(),
        }
        rows.clear_tables();
        Some(rows)
    }

    /// Takes the account of acknowledged events, for the core of the next sink. All others are sent
    /// again.
    pub(crate) fn take_account(&mut self) -> Option<Box<PendingAccount>> {
        let mut account = self.tracked_rows.account.take()?;
        match self.first_unacknowledged() {
            Some(first) => account.forget_from(first),
            None => account.forget(),
        }
        account.clear_tables();
        Some(account)
    }

    /// Returns the events that are acknowledged behind the
    /// [first one that may not be](Self::first_unacknowledged), for the core of the next sink.
    pub fn acknowledged_events(&self) -> AcknowledgedEvents {
        let mut events = AcknowledgedEvents::clone(&self.acknowledged_behind);
        for seq in self.lowest_in_flight()..self.next {
            if self.ledger.is_acknowledged(Seq::new(seq))
                && let Some(event) = self.in_flight.event(seq)
            {
                events.insert(event, self.diversions.is_diverted(seq));
            }
        }
        match self.first_unacknowledged() {
            Some(first) => events.starting_at(first),
            None => AcknowledgedEvents::default(),
        }
    }

    /// Returns the router and the decisions, for the core of the next sink.
    pub fn into_parts(mut self) -> (Router, PoisonDecisions) {
        self.router.clear();
        (self.router, self.diversions.decisions)
    }
}
