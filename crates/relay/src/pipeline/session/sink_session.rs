use std::error::Error;
use std::sync::Arc;

use walrelay_sink::{DeliveryError, Disposition, SendError, Sink};
use walrelay_walsender::Frame;

use super::reports::Reports;
use crate::core::{Core, Step};
use crate::interface::event::{SentEvent, id_text};
use crate::interface::source::WalStream;
use crate::pipeline::error::PipelineError;

/// A sink, the ring it acknowledges into and the core that reads the ring: made together, dropped together.
#[derive(Debug)]
pub(crate) struct SinkSession<K> {
    pub(crate) core: Core,
    pub(crate) sink: K,
    pub(crate) reports: Arc<Reports>,
}

/// What happened to the frames in the buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BatchResult {
    /// The frame at the front cannot be sent yet, and is to be offered again.
    pub(crate) blocked: bool,
    /// It is `blocked` because it needs [`Core::pending_schema`].
    pub(crate) awaits_schema: bool,
    /// The server asked for a status update.
    pub(crate) reply: bool,
    /// Frames consumed.
    pub(crate) frames: u64,
    /// When the server sent the last of them, µs since 2000 by its clock.
    pub(crate) sent_at: Option<i64>,
}

/// A record that the sink refused.
struct Refused {
    event: SentEvent,
    event_id: Option<String>,
    source: DeliveryError,
}

impl<K: Sink> SinkSession<K> {
    /// Sends the batch of the last read: every whole frame in the buffer, or those up to the end of the open
    /// transaction if `to_commit`.
    pub(crate) fn send_batch<T: WalStream, F: Error>(
        &mut self,
        stream: &mut T,
        to_commit: bool,
    ) -> Result<BatchResult, PipelineError<T::Error, F>>
    where
        T::Error: 'static,
    {
        let mut batch = BatchResult::default();
        while !to_commit || self.core.is_inside_transaction() {
            let Some(frame) = stream.peek().map_err(PipelineError::Source)? else {
                break;
            };
            let sent_at = match frame {
                Frame::XLogData { sent_at, .. } => Some(sent_at),
                Frame::Keepalive { .. } => batch.sent_at,
            };
            // By reference: a record is large, and moving it costs more than looking at it.
            let taken = match self.core.frame(&frame) {
                Err(error) => return Err(error.into()),
                Ok(Step::Consumed) => Ok(None),
                Ok(Step::Reply) => {
                    batch.reply = true;
                    Ok(None)
                }
                Ok(Step::Send(ref outgoing)) => {
                    let seq = outgoing.seq();
                    match self.sink.try_send(&outgoing.record(), seq.get()) {
                        Ok(()) => Ok(Some(seq)),
                        Err(SendError::Full) => {
                            batch.blocked = true;
                            break;
                        }
                        Err(SendError::Refused(source)) => Err(Refused {
                            event: outgoing.event(),
                            event_id: outgoing.event_id().map(id_text),
                            source,
                        }),
                    }
                }
                Ok(ref step @ (Step::Blocked | Step::AwaitsSchema)) => {
                    batch.blocked = true;
                    batch.awaits_schema = matches!(step, Step::AwaitsSchema);
                    break;
                }
            };
            match taken {
                Ok(None) => {}
                Ok(Some(seq)) => self.core.sent(seq)?,
                // The same frame then gives what the policy makes of the event.
                Err(refused) if self.reject(&refused) => continue,
                Err(refused) => {
                    return Err(PipelineError::Delivery {
                        event: Some(refused.event),
                        event_id: refused.event_id,
                        source: refused.source,
                    });
                }
            }
            stream.consume();
            batch.frames += 1;
            batch.sent_at = sent_at;
        }
        Ok(batch)
    }

    /// Rejects an event whose record was refused for good. The sink was asked about this record alone, so the
    /// refusal needs no second look.
    fn reject(&mut self, refused: &Refused) -> bool {
        let error = &refused.source;
        error.disposition != Disposition::Retryable
            && error
                .poison
                .is_some_and(|poison| self.core.reject(refused.event, poison, &error.reason))
    }
}
