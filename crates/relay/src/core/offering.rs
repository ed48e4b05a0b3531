//! Reads an event, decides about it, and offers its record, or a dead letter in its place.

use walrelay_event_router::{BatchEvent, Messages, Row};
use walrelay_lsn::Lsn;
use walrelay_pgoutput::LogicalMessage;
use walrelay_sink::Poison;

use super::read::{RowError, WalEvent, messages_table};
use super::schemas::Unreadable;
use super::step::{Content, Outgoing, RecordSpace, Step};
use super::tables::EventTable;
use super::transactions::Ignored;
use super::{Core, CoreError, OfferedEvent};
use crate::poison::{Body, PoisonAction};
use crate::sent_rows::PendingRows;

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
            return Err(CoreError::Sequence {
                what: "an event outside a transaction",
                lsn,
            });
        };
        self.tables.last_is_next = false;
        let relation = wal_event.relation();
        if let Some(ignored) = open.ignored {
            if let (Some(account), WalEvent::Row(insert), Ignored::InSink) =
                (&mut self.account, wal_event, ignored)
            {
                account.offer(open.next_position(), relation, &insert.tuple);
                account.keep_stored();
            }
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
                self.transactions.row_skipped();
                return Ok(Step::Consumed);
            }
        };
        let (event, position) = (open.next_event(), open.next_position());
        if let (Some(account), WalEvent::Row(insert)) = (&mut self.account, wal_event) {
            account.offer(position, relation, &insert.tuple);
        }
        if Some(position) < self.acknowledged_before.max(self.taken_before)
            || self.acknowledged_behind.is_diverted(position)
        {
            if let Some(account) = &mut self.account {
                account.keep_acknowledged();
            }
            if let Some(rows) = &mut self.sent_rows {
                rows.resume_dead(position);
            }
            self.transactions.row_skipped();
            return Ok(Step::Consumed);
        }
        let decisions = &mut self.diversions.decisions;
        if decisions.holds_back(position, self.ledger.in_flight()) {
            return Ok(Step::Blocked);
        }
        if self.sent_rows.as_ref().is_some_and(PendingRows::is_full) {
            return Ok(Step::Blocked);
        }
        let Some(seq) = self.ledger.next_seq() else {
            return Ok(Step::Blocked);
        };
        let Some(source) = wal_event.row(self.messages.as_mut(), &event) else {
            self.transactions.row_skipped();
            return Ok(Step::Consumed);
        };
        self.offered = Some(OfferedEvent { position, relation });
        self.diversions.forget_offered();
        let offer = |content| Ok(Step::Send(Outgoing { content, seq }));
        let mut row = Row::default();
        if let (Some(rows), WalEvent::Row(insert)) = (&mut self.sent_rows, wal_event) {
            rows.offer(position, insert.relation, open.begin.xid, &insert.tuple);
        }
        let decisions = &self.diversions.decisions;
        let (decision, body) = match source.read(&mut self.router, unroutable, &event, &mut row) {
            Ok(()) if row.is_passed_over() => {
                self.counts.unselected += 1;
                self.transactions.row_skipped();
                if let Some(account) = &mut self.account {
                    account.keep_offered(false);
                }
                if let Some(rows) = &mut self.sent_rows {
                    rows.keep_offered();
                }
                return Ok(Step::Consumed);
            }
            Ok(()) => {
                let routed = &mut space.routed;
                self.router.write(&row, routed);
                source.add_headers(routed);
                let decision = if let Some(part) = decisions.policy().reserved_part(routed) {
                    let error = RowError::OfDeadLetters(part);
                    let decision = decisions.by_policy(Poison::Unroutable, error.to_string());
                    let Some(decision) = decision else {
                        return Err(error.at(table, &open.begin, routed.event_id()));
                    };
                    Some(decision)
                } else {
                    decisions.for_event(position, routed.topic(), routed.key())
                };
                let acknowledged = &mut self.acknowledged_behind;
                if decision.is_none()
                    && !acknowledged.is_empty()
                    && acknowledged.passes_over(position, routed.topic(), routed.key())
                {
                    if let Some(account) = &mut self.account {
                        account.keep_acknowledged();
                    }
                    if let Some(rows) = &mut self.sent_rows {
                        rows.keep_offered();
                    }
                    self.transactions.row_skipped();
                    return Ok(Step::Consumed);
                }
                match decision {
                    None => {
                        self.in_flight.offer(routed.topic());
                        return offer(Content::Event(routed));
                    }
                    Some(decision) => (decision, Body::from_routed(routed)),
                }
            }
            Err(error) => match self.schemas.decide(&error, position, decisions) {
                Unreadable::AwaitsSchema => return Ok(Step::AwaitsSchema),
                Unreadable::Halts => {
                    let body = source.partial(&self.router);
                    return Err(error.at(table, &open.begin, body.event_id));
                }
                Unreadable::Diverted(decision) => (decision, source.partial(&self.router)),
            },
        };
        let place = (&open.begin, &**table);
        let decision = self.diversions.by_size(decision, position, place, &body);
        // An event that is diverted is not sent, so its row does not count as sent.
        if let Some(rows) = &mut self.sent_rows {
            match decision.action {
                PoisonAction::DeadLetter => rows.offered_is_dead(&decision.cause),
                PoisonAction::Skip | PoisonAction::Halt => rows.retract(),
            }
        }
        if let Some(dead_letter) = self.diversions.divert(decision, position, place, body) {
            self.in_flight.offer(dead_letter.record().topic);
            return offer(Content::DeadLetter(space.dead_letter.insert(dead_letter)));
        }
        self.counts.skipped += 1;
        self.transactions.row_skipped();
        if let Some(account) = &mut self.account {
            account.keep_offered(false);
        }
        Ok(Step::Consumed)
    }
}
