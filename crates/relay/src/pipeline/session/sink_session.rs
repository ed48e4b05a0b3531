use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;

use walrelay_checkpoint::Seq;
use walrelay_sink::{DeliveryError, Disposition, HeldRecord, SendError, Sink, id_text};
use walrelay_walsender::Frame;

use super::reports::Reports;
use crate::core::{Core, CoreError, RecordSpace, Step};
use crate::event::SentEvent;
use crate::interface::source::WalStream;
use crate::pipeline::error::PipelineError;

/// A sink, the ring that it acknowledges into, and the core that reads the ring. They are created
/// and dropped together.
#[derive(Debug)]
pub(crate) struct SinkSession<K> {
    pub(crate) core: Core,
    pub(crate) sink: K,
    pub(crate) reports: Arc<Reports>,
    /// Records that the sink gave back, which are offered before any other, by sequence number.
    pub(crate) withdrawn: VecDeque<(u64, HeldRecord)>,
}

/// The result of processing the frames of one read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BatchResult {
    /// The frame at the front cannot be sent yet, and must be offered again.
    pub(crate) blocked: bool,
    /// The batch is `blocked` because the frame needs [`Core::pending_schema`], or the place of
    /// [`Core::unresolved`].
    pub(crate) awaits_answer: bool,
    /// The server asked for a status update.
    pub(crate) reply: bool,
    /// The number of frames consumed.
    pub(crate) frames: u64,
    /// The time when the server sent the last frame with WAL data of which something was consumed, in µs
    /// since 2000 by its clock.
    pub(crate) sent_at: Option<i64>,
}

/// The outcome of one frame.
enum FrameResult {
    /// The frame needs no record. `reply`: the server asked for a status update.
    Consumed { reply: bool },
    /// The sink took the frame's record.
    Sent(Seq),
    /// The frame cannot be sent yet.
    Blocked { awaits_answer: bool },
    /// The sink refused the frame's record.
    Refused(Refused),
}

/// A record that the sink refused when it was offered.
struct Refused {
    event: SentEvent,
    event_id: Option<String>,
    source: DeliveryError,
}

impl<K: Sink> SinkSession<K> {
    /// Sends the batch of the last read to the sink: every whole frame in the buffer. If
    /// `to_commit`, only the frames up to the end of the open transaction.
    pub(crate) fn send_batch<T: WalStream, F: Error>(
        &mut self,
        stream: &mut T,
        to_commit: bool,
    ) -> Result<BatchResult, PipelineError<T::Error, F>>
    where
        T::Error: 'static,
    {
        let mut batch = BatchResult::default();
        if !self.settle_refusals()? {
            batch.blocked = true;
            return Ok(batch);
        }
        while !to_commit || self.core.is_inside_transaction() {
            let Some(frame) = stream.peek().map_err(PipelineError::Source)? else {
                break;
            };
            let sent_at = match frame {
                Frame::XLogData { sent_at, .. } => Some(sent_at),
                Frame::Keepalive { .. } => batch.sent_at,
            };
            match self.send_frame(&frame)? {
                FrameResult::Consumed { reply } => batch.reply |= reply,
                FrameResult::Sent(seq) => self.core.sent(seq)?,
                FrameResult::Blocked { awaits_answer } => {
                    batch.blocked = true;
                    batch.awaits_answer = awaits_answer;
                    break;
                }
                // Pass the same frame again: it now yields a dead letter, or the event is skipped.
                FrameResult::Refused(refused) if self.reject(&refused) => continue,
                FrameResult::Refused(refused) => {
                    return Err(PipelineError::Delivery {
                        event: Some(refused.event),
                        event_id: refused.event_id,
                        source: refused.source,
                    });
                }
            }
            batch.sent_at = sent_at;
            // Pass the same frame again for its next event.
            if self.core.is_inside_batch() {
                continue;
            }
            stream.consume();
            batch.frames += 1;
        }
        Ok(batch)
    }

    /// Passes a frame to the core, and offers its record to the sink.
    #[inline]
    fn send_frame(&mut self, frame: &Frame<'_>) -> Result<FrameResult, CoreError> {
        let mut space = RecordSpace::default();
        Ok(match self.core.frame(frame, &mut space) {
            Err(error) => return Err(error),
            Ok(Step::Consumed) => FrameResult::Consumed { reply: false },
            Ok(Step::Reply) => FrameResult::Consumed { reply: true },
            Ok(Step::Committed(transaction)) => {
                self.sink.commit(&transaction);
                FrameResult::Consumed { reply: false }
            }
            Ok(Step::Blocked) => FrameResult::Blocked {
                awaits_answer: false,
            },
            Ok(Step::AwaitsSchema | Step::AwaitsPlace) => FrameResult::Blocked {
                awaits_answer: true,
            },
            Ok(Step::Send(outgoing)) => {
                let seq = outgoing.seq();
                let record = outgoing.record();
                match self.sink.try_send(&record, seq.get()) {
                    Ok(()) => FrameResult::Sent(seq),
                    Err(SendError::Full) => FrameResult::Blocked {
                        awaits_answer: false,
                    },
                    Err(SendError::Refused(source)) => FrameResult::Refused(Refused {
                        event: outgoing.event(),
                        event_id: record.event_id.map(id_text),
                        source,
                    }),
                }
            }
        })
    }

    /// Rejects an event whose record `try_send` refused for good. The refusal is that of this
    /// record alone, so its event is at fault. Returns false if the event is not rejected.
    fn reject(&mut self, refused: &Refused) -> bool {
        let error = &refused.source;
        error.disposition != Disposition::Retryable
            && error
                .poison
                .is_some_and(|poison| self.core.reject(refused.event, poison, &error.reason))
    }
}
