//! Settles the records that the sink refused for good where they are: nothing else is sent again.

use std::error::Error;

use walrelay_checkpoint::Seq;
use walrelay_sink::{
    Deliveries as _, DeliveryError, Disposition, HeldRecord, Record, SendError, Sink, id_text,
};

use super::sink_session::SinkSession;
use crate::core::{Core, Settled};
use crate::event::SentEvent;
use crate::pipeline::error::PipelineError;

impl<K: Sink> SinkSession<K> {
    /// Decides about each record that was refused since the last call, and offers what takes its place.
    /// Returns false if some of it waits for room in the sink.
    pub(super) fn settle_refusals<S, F>(&mut self) -> Result<bool, PipelineError<S, F>>
    where
        S: Error + 'static,
        F: Error + 'static,
    {
        for (seq, refusal) in self.reports.take_refusals() {
            let event = self.core.event_of(Seq::new(seq));
            let decided =
                event.is_some_and(|event| self.core.reject(event, refusal.poison, &refusal.reason));
            // Behind it are events that its dead letter parks.
            let behind = decided && self.core.parks_keys();
            let withdrawn = self.sink.withdraw(seq, behind);
            if !decided {
                let source = DeliveryError::from(refusal);
                self.reports.failed(seq, source.clone());
                let refused = withdrawn.first();
                let event_id = refused
                    .and_then(|(_, record)| record.with(|record| record.event_id.map(id_text)));
                return Err(PipelineError::Delivery {
                    event,
                    event_id,
                    source,
                });
            }
            if withdrawn.is_empty() {
                // The sink has ended with the record: the next one decides about it again.
                let error = DeliveryError {
                    topic: refusal.topic,
                    reason: "the sink has ended with a record that was refused".to_owned(),
                    disposition: Disposition::Retryable,
                    poison: None,
                };
                self.reports.failed(seq, error);
            }
            self.withdrawn.extend(withdrawn);
        }
        // A record that was offered again may be refused before a later one of its key was: the key of
        // that one is parked only when the dead letter of the earlier one is made.
        let withdrawn = self.withdrawn.make_contiguous();
        withdrawn.sort_unstable_by_key(|(seq, _)| *seq);
        while let Some((seq, record)) = self.withdrawn.front() {
            let seq = Seq::new(*seq);
            match settle(&mut self.core, &mut self.sink, seq, record)? {
                Offered::Taken => {}
                // As the report of a sink, so that a parked task is woken.
                Offered::Skipped => self.reports.delivered(seq.get()),
                Offered::Full => return Ok(false),
            }
            self.withdrawn.pop_front();
        }
        Ok(true)
    }
}

/// The result of an offer.
enum Offered {
    Taken,
    /// There is nothing to offer.
    Skipped,
    Full,
}

/// Offers what takes the place of a record that the sink gave back.
fn settle<S, F>(
    core: &mut Core,
    sink: &mut impl Sink,
    seq: Seq,
    record: &HeldRecord,
) -> Result<Offered, PipelineError<S, F>>
where
    S: Error + 'static,
    F: Error + 'static,
{
    record.with(|record: &Record<'_>| {
        let settled = core.settle(seq, record)?;
        let offered = match &settled {
            Settled::Skipped => return Ok(Offered::Skipped),
            Settled::Unchanged => sink.try_send(record, seq.get()),
            Settled::DeadLetter(dead_letter) => sink.try_send(&dead_letter.record(), seq.get()),
        };
        let is_dead_letter = matches!(settled, Settled::DeadLetter(_));
        drop(settled);
        match offered {
            Ok(()) if is_dead_letter => core.settled(seq),
            Ok(()) => {}
            Err(SendError::Full) => return Ok(Offered::Full),
            Err(SendError::Refused(source)) => {
                let event = core.event_of(seq).map(|event| SentEvent {
                    dead_letter: event.dead_letter || is_dead_letter,
                    ..event
                });
                let event_id = record.event_id.map(id_text);
                return Err(PipelineError::Delivery {
                    event,
                    event_id,
                    source,
                });
            }
        }
        Ok(Offered::Taken)
    })
}
