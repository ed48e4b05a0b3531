//! The numbers of acknowledged messages, to see that a stream has lost acknowledged messages.

use std::collections::HashMap;
use std::sync::Arc;

use walrelay_sink::{
    EventPosition, Loss, Record, RecordKind, SharedEnd, SinkStats, StreamEnd, lock,
};

/// The most streams that are remembered. Those beyond are not compared.
const MAX_STREAMS: usize = 1_000;

/// The events that one stream has acknowledged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acknowledged {
    first: EventPosition,
    last: EventPosition,
    /// None of them was an event.
    is_of_dead_letters: bool,
}

impl Acknowledged {
    /// Adds a record to those of a stream.
    pub(super) fn with(known: Option<Self>, record: &Record<'_>) -> Self {
        let position = record.position;
        Self {
            first: known.map_or(position, |known| known.first.min(position)),
            last: known.map_or(position, |known| known.last.max(position)),
            is_of_dead_letters: known.is_none_or(|known| known.is_of_dead_letters)
                && record.kind != RecordKind::Event,
        }
    }

    /// Accepts a former sink's notes on a stream; `None` if that is nothing.
    pub(super) fn from_end(end: &StreamEnd) -> Option<Self> {
        end.number.map(|_| Self {
            first: end.first,
            last: end.last,
            is_of_dead_letters: end.is_of_dead_letters,
        })
    }

    /// Returns the notes for the next sink on a stream whose newest message has this number.
    pub(super) fn end(self, number: u64) -> StreamEnd {
        StreamEnd {
            number: Some(number),
            first: self.first,
            last: self.last,
            is_of_dead_letters: self.is_of_dead_letters,
            ..StreamEnd::default()
        }
    }

    /// Returns the loss of this number of messages. Nothing tells which ones the stream still has.
    pub(super) fn lost(self, stream: &str, messages: u64) -> Loss {
        let range = (self.first, self.last);
        Loss::new(stream, None, messages, range, self.is_of_dead_letters)
    }
}

/// The number that a stream had given before a message was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Floor {
    stream: usize,
    /// The number of losses of the stream.
    losses: u64,
    number: u64,
}

/// The highest number that each stream has given to a message of this sink. They outlive a connection.
///
/// Numbers rise, also in a stream that is purged. A message that is sent behind an acknowledgement has a
/// higher number than that one, unless the stream was deleted and created again, or has lost its end.
/// Acknowledgements may arrive in another order than the numbers, so a message is compared with those only
/// that were there when it was sent.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    /// Has the notes of former sinks.
    stats: Arc<SinkStats>,
    numbers: HashMap<String, usize>,
    streams: Vec<Stream>,
    recent: Option<Floor>,
}

#[derive(Debug)]
struct Stream {
    losses: u64,
    highest: u64,
    acknowledged: Acknowledged,
    /// What the next sink is to know of it; `None`: there are too many streams.
    end: SharedEnd,
}

impl Sequences {
    pub(super) fn new(stats: &Arc<SinkStats>) -> Self {
        Self {
            stats: Arc::clone(stats),
            ..Self::default()
        }
    }

    /// Returns what a message that is sent now must be above, if its stream is the one of the last
    /// acknowledgement.
    pub(super) fn floor(&self) -> Option<Floor> {
        self.recent
    }

    /// Notes that a stream has a record as the message `number`. `floor`: as of the first time that the
    /// record was sent; `None` of a message that the stream had already. Returns the loss that the number
    /// shows.
    pub(super) fn stored(
        &mut self,
        stream: &str,
        number: u64,
        floor: Option<Floor>,
        record: &Record<'_>,
    ) -> Option<Loss> {
        let at = match self.numbers.get(stream) {
            Some(at) => *at,
            None if self.streams.len() == MAX_STREAMS => return None,
            None => {
                let at = self.streams.len();
                self.numbers.insert(stream.to_owned(), at);
                let end = self.stats.ends.stream(stream);
                let former = lock(&end).clone();
                self.streams.push(Stream {
                    losses: 0,
                    highest: former.number.unwrap_or(number),
                    acknowledged: Acknowledged::with(Acknowledged::from_end(&former), record),
                    end,
                });
                at
            }
        };
        let known = &mut self.streams[at];
        let is_behind = floor.is_some_and(|floor| {
            floor.stream == at && floor.losses == known.losses && number <= floor.number
        });
        let loss = is_behind.then(|| {
            let messages = known.highest.saturating_sub(number).saturating_add(1);
            let loss = known.acknowledged.lost(stream, messages);
            known.losses += 1;
            known.highest = number;
            known.acknowledged = Acknowledged::with(None, record);
            loss
        });
        if loss.is_none() {
            known.highest = known.highest.max(number);
            known.acknowledged = Acknowledged::with(Some(known.acknowledged), record);
        }
        *lock(&known.end) = known.acknowledged.end(known.highest);
        self.recent = Some(Floor {
            stream: at,
            losses: known.losses,
            number: known.highest,
        });
        loss
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(
        sequences: &mut Sequences,
        stream: &str,
        number: u64,
        floor: Option<Floor>,
        row: u64,
    ) -> Option<(u64, u64, u64)> {
        let record = Record {
            position: EventPosition::in_first_epoch(1, row),
            ..Record::default()
        };
        let loss = sequences.stored(stream, number, floor, &record)?;
        Some((loss.events, loss.from.row, loss.to.row))
    }

    /// Sends each message behind the acknowledgement of the one before.
    fn store_next(
        sequences: &mut Sequences,
        stream: &str,
        number: u64,
        row: u64,
    ) -> Option<(u64, u64, u64)> {
        let floor = sequences.floor();
        store(sequences, stream, number, floor, row)
    }

    #[test]
    fn a_number_that_does_not_rise_is_a_loss_of_all_that_was_acknowledged() {
        for (number, lost) in [(1, 12), (12, 1)] {
            let mut sequences = Sequences::default();
            for row in 0..3 {
                assert_eq!(store_next(&mut sequences, "a", 10 + row, row), None);
            }
            assert_eq!(
                store_next(&mut sequences, "a", number, 3),
                Some((lost, 0, 2))
            );
            assert_eq!(store_next(&mut sequences, "a", number + 1, 4), None);
            assert_eq!(
                store_next(&mut sequences, "a", number + 1, 5),
                Some((1, 3, 4))
            );
        }
    }

    #[test]
    fn messages_in_flight_are_one_loss_and_may_be_answered_in_any_order() {
        let mut sequences = Sequences::default();
        for row in 0..3 {
            store_next(&mut sequences, "a", 10 + row, row);
        }
        let floor = sequences.floor();
        // Another leader of the stream answers first.
        assert_eq!(store(&mut sequences, "a", 15, floor, 5), None);
        assert_eq!(store(&mut sequences, "a", 14, floor, 4), None);
        // The stream is created again while three are in flight.
        let floor = sequences.floor();
        assert_eq!(store(&mut sequences, "a", 2, floor, 7), Some((14, 0, 5)));
        assert_eq!(store(&mut sequences, "a", 1, floor, 6), None, "once");
        assert_eq!(store(&mut sequences, "a", 3, floor, 8), None);
        assert_eq!(store_next(&mut sequences, "a", 4, 9), None);
        assert_eq!(store_next(&mut sequences, "a", 4, 10), Some((1, 6, 9)));
    }

    #[test]
    fn each_stream_has_its_own_numbers() {
        let mut sequences = Sequences::default();
        assert_eq!(store_next(&mut sequences, "a", 10, 0), None);
        assert_eq!(store_next(&mut sequences, "b", 5, 1), None);
        // The last acknowledgement before was one of the other stream: nothing is compared yet.
        assert_eq!(store_next(&mut sequences, "a", 1, 2), None);
        assert_eq!(store_next(&mut sequences, "a", 2, 3), Some((9, 0, 2)));
        assert_eq!(store_next(&mut sequences, "b", 6, 4), None);
    }

    #[test]
    fn more_streams_than_are_remembered_are_not_compared() {
        let mut sequences = Sequences::default();
        for stream in 0..=MAX_STREAMS {
            store_next(&mut sequences, &stream.to_string(), 10, 0);
        }
        let last = MAX_STREAMS.to_string();
        assert_eq!(store_next(&mut sequences, &last, 1, 1), None);
    }

    #[test]
    fn repeats_and_foreign_messages_are_no_loss() {
        let mut sequences = Sequences::default();
        assert_eq!(store_next(&mut sequences, "a", 10, 0), None);
        assert_eq!(store(&mut sequences, "a", 9, None, 1), None);
        assert_eq!(store_next(&mut sequences, "a", 500, 2), None);
    }
}
