use std::error::Error;
use std::sync::Arc;

use walrelay_checkpoint::Seq;
use walrelay_sink::{DeliveryError, Disposition, SendError, Sink};
use walrelay_walsender::Frame;

use crate::deliveries::Reports;
use crate::machine::{Core, Step};
use crate::poison::id_text;
use crate::{CoreError, PipelineError, SentEvent, WalStream};

/// A sink, the ring it acknowledges into and the machine that reads the ring: made together,
/// thrown away together.
#[derive(Debug)]
pub(crate) struct SinkSession<K> {
    pub(crate) core: Core,
    pub(crate) sink: K,
    pub(crate) reports: Arc<Reports>,
}

/// What became of the frames in the buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BatchResult {
    /// The sink is full; the frame at the front was offered and is to be offered again.
    pub(crate) blocked: bool,
    /// It is `blocked` because a schema is wanted: [`Core::pending_schema`].
    pub(crate) wanted: bool,
    /// The server asked for a status update.
    pub(crate) reply: bool,
    /// Frames consumed.
    pub(crate) frames: u64,
    /// When the server sent the last of them, µs since 2000 by its clock.
    pub(crate) sent_at: Option<i64>,
}

impl<K: Sink> SinkSession<K> {
    /// Walks the batch of the last read: every whole frame in the buffer, or up to the end of the
    /// open transaction if `to_commit`.
    pub(crate) fn walk<T: WalStream, F: Error>(
        &mut self,
        stream: &mut T,
        to_commit: bool,
    ) -> Result<BatchResult, PipelineError<T::Error, F>>
    where
        T::Error: 'static,
    {
        let mut walk = BatchResult::default();
        while !to_commit || self.core.is_inside_transaction() {
            let Some(frame) = stream.peek().map_err(PipelineError::Source)? else {
                break;
            };
            let sent_at = match frame {
                Frame::XLogData { sent_at, .. } => Some(sent_at),
                Frame::Keepalive { .. } => walk.sent_at,
            };
            match self.offer(&frame)? {
                Offer::Consumed => {}
                Offer::Reply => walk.reply = true,
                Offer::Taken(seq) => self.core.sent(seq)?,
                Offer::Blocked => {
                    walk.blocked = true;
                    break;
                }
                Offer::AwaitsSchema => {
                    walk.blocked = true;
                    walk.wanted = true;
                    break;
                }
                Offer::Refused(event, event_id, source) => {
                    // Nobody but this record was asked about: the verdict needs no second look, and
                    // the frame is taken again under it.
                    if source.disposition != Disposition::Retryable
                        && let Some(poison) = source.poison
                        && self.core.reject(event, poison, &source.reason)
                    {
                        continue;
                    }
                    return Err(PipelineError::Delivery {
                        event: Some(event),
                        event_id,
                        source,
                    });
                }
            }
            stream.consume();
            walk.frames += 1;
            walk.sent_at = sent_at;
        }
        Ok(walk)
    }

    /// Takes a frame to the core, and what comes of it to the sink.
    fn offer(&mut self, frame: &Frame<'_>) -> Result<Offer, CoreError> {
        // By reference: a record is large, and moving it costs more than looking at it.
        Ok(match self.core.frame(frame) {
            Err(error) => return Err(error),
            Ok(Step::Consumed) => Offer::Consumed,
            Ok(Step::Reply) => Offer::Reply,
            Ok(Step::Blocked) => Offer::Blocked,
            Ok(Step::AwaitsSchema) => Offer::AwaitsSchema,
            Ok(Step::Send(ref outgoing)) => {
                let seq = outgoing.seq();
                match self.sink.try_send(&outgoing.record(), seq.get()) {
                    Ok(()) => Offer::Taken(seq),
                    Err(SendError::Full) => Offer::Blocked,
                    Err(SendError::Refused(source)) => {
                        let event_id = outgoing.event_id().map(id_text);
                        Offer::Refused(outgoing.event(), event_id, source)
                    }
                }
            }
        })
    }
}

/// What became of a frame.
enum Offer {
    Consumed,
    /// As `Consumed`, and the server wants to hear of us.
    Reply,
    /// The sink has its record.
    Taken(Seq),
    /// Later.
    Blocked,
    /// The same, once there is a schema.
    AwaitsSchema,
    /// The sink will not have its record; with the event's id for people.
    Refused(SentEvent, Option<String>, DeliveryError),
}
