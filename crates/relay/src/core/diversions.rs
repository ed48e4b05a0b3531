use std::collections::BTreeMap;

use walrelay_pgoutput::{Begin, LogicalMessage};
use walrelay_sink::{EventPosition, Poison};

use super::error::CoreError;
use super::read::RowError;
use crate::interface::observer::Counts;
use crate::poison::{
    Body, Class, Diverted, DlqHeaders, DlqRecord, PoisonAction, PoisonDecision, PoisonDecisions,
    ReservedPart,
};
use crate::table::TableName;

/// Diverted events: each is skipped, or a dead letter is sent in its place.
#[derive(Debug, Default)]
pub(super) struct Diversions {
    pub(super) decisions: PoisonDecisions,
    /// The cluster that is read.
    pub(super) system: String,
    /// The headers of the dead letter that was offered last.
    headers: DlqHeaders,
    /// The event of that dead letter, until the sink takes it or another event is offered.
    offered: Option<Diverted>,
    /// Events that were diverted, and not reported yet.
    pub(super) diverted: Vec<Diverted>,
    /// Classes of the dead letters that are in flight, by sequence number. `None`: the event was skipped
    /// when its record was in flight.
    in_flight: BTreeMap<u64, Option<Class>>,
    /// Classes of dead letters that were acknowledged, and are not reported yet.
    pub(super) acknowledged: Vec<Class>,
}

/// The diversion of an event that was decided about.
#[derive(Debug)]
pub(super) struct Diversion {
    pub(super) diverted: Diverted,
    /// The headers of its dead letter; empty if it is skipped.
    headers: DlqHeaders,
}

impl Diversions {
    /// Forgets the dead letter that was offered last, because another event is offered.
    #[inline]
    pub(super) fn forget_offered(&mut self) {
        if self.offered.is_some() {
            self.drop_offered();
        }
    }

    #[cold]
    fn drop_offered(&mut self) {
        self.offered = None;
    }

    /// Returns the decision about an event that has the topic or a header of a dead letter, or an error if the policy
    /// is to halt.
    #[cold]
    pub(super) fn decide_reserved(&self, part: ReservedPart) -> Result<PoisonDecision, RowError> {
        let error = RowError::OfDeadLetters(part);
        let decision = self
            .decisions
            .by_policy(Poison::Unroutable, error.to_string());
        decision.ok_or(error)
    }

    /// Makes the diversion of an event by a decision about it.
    pub(super) fn diversion(
        &self,
        decision: PoisonDecision,
        position: EventPosition,
        (begin, table): (&Begin, &TableName),
        body: &Body<'_>,
    ) -> Diversion {
        let diverted = Diverted::new(position, decision, body.event_id);
        let headers = if diverted.action == PoisonAction::Skip {
            DlqHeaders::default()
        } else {
            let policy = (self.decisions.policy(), &*self.system);
            DlqHeaders::new(policy, &diverted, begin, table, body)
        };
        Diversion { diverted, headers }
    }

    /// Makes the diversion of an event. If its dead letter would be too large for the sink, which may accept the event
    /// itself, the event is decided about as one that is too large.
    pub(super) fn diversion_by_size(
        &self,
        decision: PoisonDecision,
        position: EventPosition,
        place: (&Begin, &TableName),
        body: &Body<'_>,
    ) -> Diversion {
        let diversion = self.diversion(decision, position, place, body);
        let Diversion { diverted, headers } = &diversion;
        if diverted.action == PoisonAction::Skip || self.decisions.policy().limits.is_none() {
            return diversion;
        }
        let dead_letter = DlqRecord::new(headers, (position, diverted.class), body.clone());
        match self.decisions.by_size(&dead_letter.record()) {
            Some(decision) => self.diversion(decision, position, place, body),
            None => diversion,
        }
    }

    /// Diverts an event. Returns its dead letter; `None` if it is skipped.
    pub(super) fn divert<'a>(
        &'a mut self,
        Diversion { diverted, headers }: Diversion,
        body: Body<'a>,
    ) -> Option<DlqRecord<'a>> {
        if diverted.action == PoisonAction::Skip {
            self.diverted.push(diverted);
            return None;
        }
        self.headers = headers;
        let parking = &self.decisions.policy().parking;
        if let (Some(parking), Some(key)) = (parking, body.key) {
            let system = Some(&*self.system).filter(|system| !system.is_empty());
            parking.park(diverted.id, system, body.topic, key);
        }
        let record = DlqRecord::new(&self.headers, (diverted.id, diverted.class), body);
        self.offered = Some(diverted);
        Some(record)
    }

    /// Skips a non-transactional message of the configured prefix, or returns an error if the
    /// policy is to halt. The message is skipped even if the policy is a dead letter: no commit
    /// stands for the message, so its position could be confirmed before a record or a dead letter
    /// of it is acknowledged, and the record would be lost.
    pub(super) fn skip_non_transactional(
        &mut self,
        message: &LogicalMessage<'_>,
        epoch: u8,
    ) -> Result<(), CoreError> {
        let error = CoreError::NotTransactional {
            prefix: message.prefix.to_owned(),
            lsn: message.lsn,
        };
        let decisions = &self.decisions;
        let Some(decision) = decisions.by_policy(Poison::Unroutable, error.to_string()) else {
            return Err(error);
        };
        let position = EventPosition {
            epoch,
            lsn: message.lsn.get(),
            row: 0,
        };
        let action = PoisonAction::Skip;
        let decision = PoisonDecision { action, ..decision };
        self.diverted.push(Diverted::new(position, decision, None));
        Ok(())
    }

    /// Notes that the sink took the record that was offered last, with number `seq`. Returns true if
    /// the record was a dead letter.
    #[inline]
    pub(super) fn sent(&mut self, seq: u64) -> bool {
        self.offered.is_some() && self.dead_letter_sent(seq)
    }

    #[cold]
    fn dead_letter_sent(&mut self, seq: u64) -> bool {
        let Some(diverted) = self.offered.take() else {
            return false;
        };
        self.in_flight.insert(seq, Some(diverted.class));
        self.diverted.push(diverted);
        true
    }

    /// Returns true if the record `seq` is a dead letter in flight.
    pub(super) fn is_dead_letter(&self, seq: u64) -> bool {
        matches!(self.in_flight.get(&seq), Some(Some(_)))
    }

    /// Returns true if the event of the record `seq` is diverted.
    pub(super) fn is_diverted(&self, seq: u64) -> bool {
        self.in_flight.contains_key(&seq)
    }

    /// Notes that the event of the record `seq`, which was in flight, is skipped.
    pub(super) fn skipped(&mut self, seq: u64) {
        self.in_flight.insert(seq, None);
    }

    /// Counts the dead letters below `lowest`: these records are acknowledged.
    pub(super) fn acknowledged_below(&mut self, lowest: u64, counts: &mut Counts) {
        while let Some(first) = self
            .in_flight
            .first_entry()
            .filter(|entry| *entry.key() < lowest)
        {
            let Some(class) = first.remove() else {
                continue;
            };
            match class {
                Class::Parked => counts.parked += 1,
                Class::Poison(_) => counts.dead_letters += 1,
            }
            self.acknowledged.push(class);
        }
    }
}
