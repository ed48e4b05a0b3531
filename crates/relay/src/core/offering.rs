//! Reads an event, decides about it, and offers its record, or a dead letter in its place.

use walrelay_event_router::{BatchEvent, Messages, Row};
use walrelay_lsn::Lsn;
use walrelay_pgoutput::LogicalMessage;
use walrelay_sink::EventPosition;

use super::read::{WalEvent, messages_table};
use super::schemas::Unreadable;
use super::step::{Content, Outgoing, RecordSpace, Step};
use super::tables::EventTable;
use super::{Core, CoreError, OfferedEvent};
use crate::poison::Body;

impl Core {
    pub(super) fn is_event(&self, message: &LogicalMessage<'_>) -> bool {
        let messages = self.messages.as_ref();
        messages.is_some_and(|messages| messages.prefix() == message.prefix)
    }

    /// Processes a transactional message of the configured prefix, which is an event or a batch.
    pub(super) fn logical_message<'r, 'a>(
        &'a mut self,
        lsn: Lsn,
        message: LogicalMessage<'a>,
        space: &'r mut RecordSpace<'a>,
    ) -> Result<Step<'r, 'a>, CoreError> {
        // Announce the table of messages before its first row on a connection, as a server does
        // with tables.
        if !self.tables.is_announced(Messages::TABLES[0])
            && let Some(messages) = &self.messages
        {
            let plan = messages.announce(&mut self.router);
            let policy = self.diversions.decisions.policy();
            for id in Messages::TABLES {
                let table = messages_table(messages);
                self.tables.add_outbox(id, table, plan.clone(), policy)?;
            }
        }
        if BatchEvent::are_in(message.content) {
            return self.next_of_batch(lsn, &message, space);
        }
        self.event(lsn, &WalEvent::Message(message), space)
    }

    /// Reads an event, decides about it, and emits its record or a dead letter.
    pub(super) fn event<'r, 'a>(
        &'a mut self,
        lsn: Lsn,
        wal_event: &WalEvent<'a>,
        space: &'r mut RecordSpace<'a>,
    ) -> Result<Step<'r, 'a>, CoreError> {
        let Some(open) = self.transactions.open else {
            return Err(outside_transaction(lsn));
        };
        self.tables.last_is_next = false;
        let relation = wal_event.relation();
        if let Some(ignored) = open.ignored {
            let position = open.next_position();
            self.tracked_rows.ignored(position, ignored, wal_event);
            return Ok(Step::Consumed);
        }
        let (table, unroutable) = match self.tables.table_of(relation, lsn)? {
            EventTable::Outbox(table, unroutable) => (table, unroutable),
            EventTable::Unresolved => {
                self.tables.awaited = Some(relation);
                return Ok(Step::AwaitsPlace);
            }
            EventTable::PassedOver => {
                self.tables.count_passed_over(relation);
                return Ok(self.transactions.skip_row());
            }
        };
        let (event, position) = (open.next_event(), open.next_position());
        self.tracked_rows.read(position, wal_event);
        if self.is_resumed(position) {
            self.tracked_rows.resumed(position);
            return Ok(self.transactions.skip_row());
        }
        let decisions = &mut self.diversions.decisions;
        if decisions.holds_back(position, self.ledger.in_flight()) || self.tracked_rows.is_full() {
            return Ok(Step::Blocked);
        }
        let Some(seq) = self.ledger.next_seq() else {
            return Ok(Step::Blocked);
        };
        let Some(source) = wal_event.row(self.messages.as_mut(), &event) else {
            return Ok(self.transactions.skip_row());
        };
        self.offered = Some(OfferedEvent { position, relation });
        self.diversions.forget_offered();
        let mut row = Row::default();
        self.tracked_rows.offer(position, open.begin.xid, wal_event);
        let (decision, body) = match source.read(&mut self.router, unroutable, &event, &mut row) {
            Ok(()) if row.is_passed_over() => {
                self.counts.unselected += 1;
                self.tracked_rows.sent(false);
                return Ok(self.transactions.skip_row());
            }
            Ok(()) => {
                let routed = &mut space.routed;
                self.router.write(&row, routed);
                source.add_headers(routed);
                let decisions = &self.diversions.decisions;
                let decision = match decisions.policy().reserved_part(routed) {
                    None => decisions.for_event(position, routed.topic(), routed.key()),
                    Some(part) => match self.diversions.decide_reserved(part) {
                        Ok(decision) => Some(decision),
                        Err(error) => return Err(error.at(table, &open.begin, routed.event_id())),
                    },
                };
                let Some(decision) = decision else {
                    let acknowledged = &mut self.acknowledged_behind;
                    if !acknowledged.is_empty()
                        && acknowledged.passes_over(position, routed.topic(), routed.key())
                    {
                        self.tracked_rows.acknowledged();
                        return Ok(self.transactions.skip_row());
                    }
                    self.in_flight.offer(routed.topic());
                    let content = Content::Event(routed);
                    return Ok(Step::Send(Outgoing { content, seq }));
                };
                (decision, Body::from_routed(routed))
            }
            Err(error) => {
                let decisions = &self.diversions.decisions;
                match self.schemas.decide(&error, position, decisions) {
                    Unreadable::AwaitsSchema => return Ok(Step::AwaitsSchema),
                    Unreadable::Halts => {
                        let body = source.partial(&self.router);
                        return Err(error.at(table, &open.begin, body.event_id));
                    }
                    Unreadable::Diverted(decision) => (decision, source.partial(&self.router)),
                }
            }
        };
        let place = (&open.begin, &**table);
        let diversions = &mut self.diversions;
        let diversion = diversions.diversion_by_size(decision, position, place, &body);
        self.tracked_rows.diverted(&diversion.diverted);
        if let Some(dead_letter) = diversions.divert(diversion, body) {
            self.in_flight.offer(dead_letter.record().topic);
            let content = Content::DeadLetter(space.dead_letter.insert(dead_letter));
            return Ok(Step::Send(Outgoing { content, seq }));
        }
        self.counts.skipped += 1;
        self.tracked_rows.skipped();
        Ok(self.transactions.skip_row())
    }

    /// Returns true if the event is before the first one that this sink gets, or is diverted already.
    #[inline]
    fn is_resumed(&self, position: EventPosition) -> bool {
        let is_before = |mark: Option<EventPosition>| mark.is_some_and(|mark| position < mark);
        is_before(self.acknowledged_before)
            || is_before(self.taken_before)
            || self.acknowledged_behind.is_diverted(position)
    }
}

#[cold]
fn outside_transaction(lsn: Lsn) -> CoreError {
    CoreError::Sequence {
        what: "an event outside a transaction",
        lsn,
    }
}
