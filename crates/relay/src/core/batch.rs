//! Messages with several events. Each is an event of the transaction like a row: it has the next
//! number, and is decided about, sent and acknowledged by itself.

use walrelay_event_router::{BatchEvent, BatchPlace};
use walrelay_lsn::Lsn;
use walrelay_pgoutput::LogicalMessage;

use super::read::WalEvent;
use super::{Core, CoreError, RecordSpace, Step};

/// The message whose events are being processed.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenBatch {
    /// Position of the message.
    message: Lsn,
    /// The event that was processed last: its number in the transaction, and the places before and
    /// behind it.
    row: u64,
    before: BatchPlace,
    behind: BatchPlace,
}

impl Core {
    /// Returns true if the last frame may have more events: it is passed again instead of being
    /// consumed.
    #[inline]
    pub fn is_inside_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// Processes the next event of a batch: the last one again if it was not processed yet.
    pub(super) fn next_of_batch<'r, 'a>(
        &'a mut self,
        lsn: Lsn,
        message: &LogicalMessage<'a>,
        space: &'r mut RecordSpace<'a>,
    ) -> Result<Step<'r, 'a>, CoreError> {
        let Some(open) = self.transactions.open else {
            return Err(CoreError::Sequence {
                what: "a batch of events outside a transaction",
                lsn,
            });
        };
        if open.ignored.is_some() {
            return Ok(Step::Consumed);
        }
        let before = match self.batch {
            None => BatchPlace::default(),
            Some(batch) if batch.message != message.lsn => {
                return Err(unfinished(lsn));
            }
            Some(batch) if batch.row < open.rows() => batch.behind,
            Some(batch) => batch.before,
        };
        let Some(event) = BatchEvent::at(message.content, before) else {
            self.batch = None;
            return Ok(Step::Consumed);
        };
        self.batch = Some(OpenBatch {
            message: message.lsn,
            row: open.rows(),
            before,
            behind: event.next(),
        });
        self.event(lsn, &WalEvent::OfBatch(event), space)
    }

    /// Returns an error if a batch has events that were not processed: they would be lost.
    pub(super) fn check_batch_is_over(&self, lsn: Lsn) -> Result<(), CoreError> {
        match self.batch {
            None => Ok(()),
            Some(_) => Err(unfinished(lsn)),
        }
    }
}

fn unfinished(lsn: Lsn) -> CoreError {
    CoreError::Sequence {
        what: "a message before the end of a batch of events",
        lsn,
    }
}
