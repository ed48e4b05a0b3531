use walrelay_pgoutput::{Begin, LogicalMessage};
use walrelay_sink::{EventPosition, Poison};

use super::error::CoreError;
use crate::interface::table::TableName;
use crate::poison::{
    Body, Class, Diverted, DlqHeaders, DlqRecord, PoisonAction, PoisonDecision, PoisonDecisions,
};

/// Events that do not go where they are bound for: they are skipped, or a dead letter takes their place.
#[derive(Debug, Default)]
pub(super) struct Diversions {
    pub(super) decisions: PoisonDecisions,
    /// Of the dead letter that was offered last.
    headers: DlqHeaders,
    /// The event of that dead letter, until the sink takes it or another event comes.
    offered: Option<Diverted>,
    /// To be logged.
    diverted: Vec<Diverted>,
}

impl Diversions {
    /// Another event is offered.
    #[inline]
    pub(super) fn forget_offered(&mut self) {
        if self.offered.is_some() {
            self.offered = None;
        }
    }

    /// The dead letter of an event. `None`: the event is skipped.
    pub(super) fn divert<'a>(
        &'a mut self,
        decision: PoisonDecision,
        position: EventPosition,
        (begin, table): (&Begin, &TableName),
        body: &Body<'a>,
    ) -> Option<DlqRecord<'a>> {
        let diverted = Diverted::new(position, decision, body.event_id());
        if diverted.action == PoisonAction::Skip {
            self.diverted.push(diverted);
            return None;
        }
        let policy = self.decisions.policy();
        self.headers = DlqHeaders::of(policy, &diverted, begin, table, body);
        if let (Some(parking), Some(key)) = (&policy.parking, body.key()) {
            parking.park(position, body.topic(), key);
        }
        let record = DlqRecord::new(&self.headers, diverted.class, body);
        self.offered = Some(diverted);
        Some(record)
    }

    /// Skips a message that is meant to be an event and belongs to no transaction. No commit stands for it: it
    /// could be confirmed before it is acknowledged, and would be lost, and so would a dead letter.
    pub(super) fn skip_not_transactional(
        &mut self,
        message: &LogicalMessage<'_>,
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
            lsn: message.lsn.get(),
            row: 0,
        };
        let action = PoisonAction::Skip;
        let decision = PoisonDecision { action, ..decision };
        self.diverted.push(Diverted::new(position, decision, None));
        Ok(())
    }

    /// The sink took the record that was offered last. Returns the class of the dead letter, if it was one.
    pub(super) fn sent(&mut self) -> Option<Class> {
        let diverted = self.offered.take()?;
        let class = diverted.class;
        self.diverted.push(diverted);
        Some(class)
    }

    /// The events that were diverted since the last call.
    pub(super) fn take(&mut self) -> Vec<Diverted> {
        std::mem::take(&mut self.diverted)
    }
}
