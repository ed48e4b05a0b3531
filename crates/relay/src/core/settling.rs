//! Settling a record that the sink refused for good and gave back: a dead letter takes its place, or
//! its event is skipped. It keeps its sequence number, so its transaction is confirmed after the dead
//! letter is acknowledged, and no other record is offered again.

use std::fmt;

use walrelay_checkpoint::Seq;
use walrelay_sink::Record;

use super::{Core, CoreError};
use crate::poison::{Body, DlqRecord, PoisonAction};

/// The end of a record that the sink gave back.
pub enum Settled<'a> {
    /// Offer it again under its number, unchanged.
    Unchanged,
    /// Offer this under its number, and call [`Core::settled`] when the sink has taken it.
    DeadLetter(DeadLetter<'a>),
    /// Nothing: the event is skipped. Acknowledge the number.
    Skipped,
}

/// A dead letter that takes the place of a record.
pub struct DeadLetter<'a>(DlqRecord<'a>);

impl DeadLetter<'_> {
    /// Returns the record for the sink.
    pub fn record(&self) -> Record<'_> {
        self.0.record()
    }
}

// Shows no row values, which must not be logged.
impl fmt::Debug for Settled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unchanged => "Unchanged",
            Self::DeadLetter(_) => "DeadLetter",
            Self::Skipped => "Skipped",
        })
    }
}

// Shows no row values, as above.
impl fmt::Debug for DeadLetter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetter").finish_non_exhaustive()
    }
}

impl Core {
    /// Decides about a record in flight that the sink gave back, by the decision about its event, its
    /// topic or its key. [`reject`](Self::reject) decides about an event that was refused.
    ///
    /// # Errors
    /// If `seq` is not in flight.
    pub fn settle<'a>(
        &'a mut self,
        seq: Seq,
        record: &Record<'a>,
    ) -> Result<Settled<'a>, CoreError> {
        self.diversions.forget_offered();
        if self.diversions.is_dead_letter(seq.get()) {
            return Ok(Settled::Unchanged);
        }
        let is_in_flight = (self.lowest_in_flight()..self.next).contains(&seq.get());
        let place = self.in_flight.place(seq.get()).filter(|_| is_in_flight);
        let Some((position, begin, table)) = place else {
            return Err(CoreError::Sequence {
                what: "a record given back that is not in flight",
                lsn: self.received(),
            });
        };
        let decisions = &self.diversions.decisions;
        let Some(decision) = decisions.for_event(position, record.topic, record.key) else {
            return Ok(Settled::Unchanged);
        };
        if decision.action == PoisonAction::Skip {
            self.diversions.skipped(seq.get());
        }
        let body = Body::from_record(record);
        let diversions = &mut self.diversions;
        let diversion = diversions.diversion(decision, position, (&begin, &table), &body);
        if let Some(dead_letter) = diversions.divert(diversion, body) {
            return Ok(Settled::DeadLetter(DeadLetter(dead_letter)));
        }
        self.counts.skipped += 1;
        if let Some(keys) = &mut self.tracked_rows.keys {
            keys.forget_event(position);
        }
        Ok(Settled::Skipped)
    }

    /// Notes that the sink took the dead letter that [`settle`](Self::settle) returned for `seq`.
    pub fn settled(&mut self, seq: Seq) {
        self.counts.records += 1;
        if !self.diversions.sent(seq.get()) {
            return;
        }
        let Some(position) = self.in_flight.event(seq.get()) else {
            return;
        };
        // An event that is diverted was not sent, so its row does not count as sent.
        let cause = self.diversions.diverted.last().map(|last| &*last.cause);
        let cause = cause.unwrap_or_default();
        self.tracked_rows.settled(position, cause);
    }
}
