//! Batches: one logical message with several events, a JSON array of their contents.
//!
//! A batch is read event by event, so that memory and work of one step are those of one event. The
//! rest of a content, from the byte on where it stops being an array, is one more event: poison.

use serde_json::value::RawValue;

use super::{MessageError, MessageRow, Messages};
use walrelay_pgoutput::PgTimestamp;

/// A place in a batch: its beginning, or the end of one of its events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchPlace {
    offset: usize,
    /// Number of events before the place.
    events: u64,
    is_end: bool,
}

/// One event of a batch.
#[derive(Clone, Copy)]
pub struct BatchEvent<'a> {
    content: &'a [u8],
    /// Number in the batch, from 1.
    number: u64,
    fault: Option<Fault>,
    next: BatchPlace,
}

/// The reason why the rest of a batch has no events.
#[derive(Debug, Clone, Copy)]
enum Fault {
    NotJson { at: usize },
    TooMany,
}

impl<'a> BatchEvent<'a> {
    /// Most events of a batch: bounds the work for one message. `outbox.emit_all` refuses more.
    pub const MOST: u64 = 10_000;

    /// Returns true if a message with this content is a batch. The content of a message with one
    /// event is an object.
    pub fn are_in(content: &[u8]) -> bool {
        content.get(blanks(content, 0)) == Some(&b'[')
    }

    /// Returns the event behind `place`, or `None` at the end of the batch.
    pub fn at(content: &'a [u8], place: BatchPlace) -> Option<Self> {
        if place.is_end {
            return None;
        }
        let number = place.events + 1;
        let rest = |fault| Self {
            content: content.get(place.offset..).unwrap_or_default(),
            number,
            fault: Some(fault),
            next: BatchPlace {
                is_end: true,
                ..place
            },
        };
        let mut at = blanks(content, place.offset);
        match (content.get(at), place.events) {
            (Some(b'['), 0) => {
                at = blanks(content, at + 1);
                if content.get(at) == Some(&b']') {
                    return end(content, at).map(|at| rest(Fault::NotJson { at }));
                }
            }
            (Some(b','), 1..) => at += 1,
            (Some(b']'), 1..) => return end(content, at).map(|at| rest(Fault::NotJson { at })),
            _ => return Some(rest(Fault::NotJson { at })),
        }
        if number > Self::MOST {
            return Some(rest(Fault::TooMany));
        }
        // From bytes: a text would have to be checked whole for each event.
        let behind = content.get(at..).unwrap_or_default();
        let mut values = serde_json::Deserializer::from_slice(behind).into_iter::<&RawValue>();
        let Some(Ok(value)) = values.next() else {
            return Some(rest(Fault::NotJson { at }));
        };
        Some(Self {
            content: value.get().as_bytes(),
            number,
            fault: None,
            next: BatchPlace {
                offset: at + values.byte_offset(),
                events: number,
                is_end: false,
            },
        })
    }

    /// Returns the number of events of a batch.
    pub fn count(content: &[u8]) -> u64 {
        let mut place = BatchPlace::default();
        let mut events = 0;
        while let Some(event) = BatchEvent::at(content, place) {
            place = event.next;
            events += 1;
        }
        events
    }

    /// Returns the place behind the event.
    pub fn next(&self) -> BatchPlace {
        self.next
    }

    /// Returns the content of the event, as that of a message with one event.
    pub fn content(&self) -> &'a [u8] {
        self.content
    }
}

impl Messages {
    /// Turns an event of a batch into a row.
    ///
    /// # Errors
    /// The event does not have the documented form.
    pub fn read_event<'a>(
        &'a mut self,
        event: &BatchEvent<'_>,
        commit_time: PgTimestamp,
    ) -> Result<MessageRow<'a>, MessageError> {
        match event.fault {
            Some(Fault::NotJson { at }) => Err(MessageError::NoBatch { at }),
            Some(Fault::TooMany) => Err(MessageError::TooMany {
                most: BatchEvent::MOST,
            }),
            None => {
                let row = self.read(event.content, commit_time);
                row.map_err(|fault| MessageError::InBatch {
                    number: event.number,
                    fault: Box::new(fault),
                })
            }
        }
    }
}

/// Returns the offset of the first byte after the closing bracket that is no whitespace, if there is
/// one.
fn end(content: &[u8], bracket: usize) -> Option<usize> {
    let at = blanks(content, bracket + 1);
    (at < content.len()).then_some(at)
}

/// Returns the offset of the first byte from `at` on that is no whitespace of JSON.
fn blanks(content: &[u8], at: usize) -> usize {
    let mut rest = content.iter().skip(at);
    at + rest
        .position(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
        .unwrap_or_else(|| content.len().saturating_sub(at))
}

/// Shows lengths, no content.
impl std::fmt::Debug for BatchEvent<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchEvent")
            .field("number", &self.number)
            .field("bytes", &self.content.len())
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
