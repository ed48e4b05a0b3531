//! [`InTurns`]: reads streams of which a client asks for parts.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use walrelay_failure::{Exit, Failure};

use super::{FollowedPartition, ReadRecord, SentTo, TopicReader};

/// Streams that are read in parts. Each is one partition, and has a number: those that are followed are
/// counted from 0.
pub trait StreamParts: Send {
    /// Follows one more stream, as [`TopicReader::follow`] says.
    ///
    /// # Errors
    /// As there.
    fn follow(
        &mut self,
        topic: &str,
        from_ms: i64,
        timeout: Duration,
    ) -> Result<Option<FollowedPartition>, Failure>;

    /// Returns the number of streams that are followed.
    fn count(&self) -> usize;

    /// Appends the next records of a stream to `read`; none at its end.
    ///
    /// # Errors
    /// If no server answers, or it refuses.
    fn read(&mut self, number: usize, read: &mut VecDeque<ReadRecord>) -> Result<(), Failure>;

    /// Returns the offset behind what was read of a stream; `None` if it is not followed.
    fn next_offset(&self, topic: &str) -> Option<i64>;

    /// Returns true if what is sent to an address is in the followed topic, as [`TopicReader::holds`]
    /// says.
    ///
    /// # Errors
    /// As there.
    fn holds(&mut self, topic: &str, sent_to: &SentTo) -> Result<bool, Failure> {
        Ok(topic == sent_to.topic)
    }
}

/// Reads streams in turns: one that is written as fast as it is read does not keep the reader from the
/// others.
#[derive(Debug)]
pub struct InTurns<S> {
    streams: S,
    /// The number of the stream that is read next.
    turn: usize,
    read: VecDeque<ReadRecord>,
}

impl<S: StreamParts> InTurns<S> {
    /// Makes a reader of streams, none of which is followed.
    pub fn new(streams: S) -> Self {
        Self {
            streams,
            turn: 0,
            read: VecDeque::new(),
        }
    }

    /// Reads the next records of the first stream that has any.
    fn read_more(&mut self) -> Result<(), Failure> {
        let count = self.streams.count();
        for _ in 0..count {
            let number = self.turn % count;
            self.streams.read(number, &mut self.read)?;
            self.turn = number + 1;
            if !self.read.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

impl<S: StreamParts> TopicReader for InTurns<S> {
    fn follow(
        &mut self,
        topic: &str,
        from_ms: i64,
        timeout: Duration,
    ) -> Result<Option<Vec<FollowedPartition>>, Failure> {
        let followed = self.streams.follow(topic, from_ms, timeout)?;
        Ok(followed.map(|partition| vec![partition]))
    }

    fn next(&mut self, timeout: Duration) -> Result<Option<ReadRecord>, Failure> {
        if self.read.is_empty() {
            match self.read_more() {
                // A lost connection is opened again.
                Err(failure) if failure.exit != Exit::Unavailable => return Err(failure),
                _ if self.read.is_empty() => thread::sleep(timeout),
                _ => {}
            }
        }
        Ok(self.read.pop_front())
    }

    fn holds(&mut self, topic: &str, sent_to: &SentTo) -> Result<bool, Failure> {
        self.streams.holds(topic, sent_to)
    }

    fn position(&self, topic: &str, _: i32) -> Option<i64> {
        let next = self.streams.next_offset(topic)?;
        let mut unread = self.read.iter();
        let unread = unread.find(|record| record.topic == topic);
        Some(unread.map_or(next, |record| record.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Streams that always have two more records, and the failure of the next part.
    #[derive(Default)]
    struct Busy {
        next: Vec<(String, i64)>,
        failure: Option<Exit>,
    }

    impl StreamParts for Busy {
        fn follow(
            &mut self,
            topic: &str,
            _: i64,
            _: Duration,
        ) -> Result<Option<FollowedPartition>, Failure> {
            self.next.push((topic.to_owned(), 0));
            Ok(Some(FollowedPartition {
                partition: 0,
                start: 0,
                end: 9,
            }))
        }

        fn count(&self) -> usize {
            self.next.len()
        }

        fn read(&mut self, number: usize, read: &mut VecDeque<ReadRecord>) -> Result<(), Failure> {
            if let Some(class) = self.failure.take() {
                return Err(Failure::new("a-part", class, "not read"));
            }
            let (topic, next) = &mut self.next[number];
            for _ in 0..2 {
                read.push_back(ReadRecord {
                    topic: topic.clone(),
                    offset: *next,
                    ..ReadRecord::default()
                });
                *next += 1;
            }
            Ok(())
        }

        fn next_offset(&self, topic: &str) -> Option<i64> {
            let mut next = self.next.iter();
            next.find(|(name, _)| name == topic).map(|(_, next)| *next)
        }
    }

    #[test]
    fn a_stream_that_always_has_more_does_not_keep_the_others_waiting() {
        let mut reader = InTurns::new(Busy::default());
        assert!(matches!(reader.next(Duration::ZERO), Ok(None)));
        for topic in ["a", "b"] {
            reader.follow(topic, 0, Duration::ZERO).unwrap();
        }
        let mut read = Vec::new();
        for _ in 0..6 {
            let record = reader.next(Duration::ZERO).unwrap().unwrap();
            read.push((record.topic, record.offset));
            if read.len() == 5 {
                // Of the second part, one is not returned yet.
                assert_eq!(reader.position("a", 0), Some(3));
                assert_eq!(reader.position("b", 0), Some(2));
                assert_eq!(reader.position("c", 0), None);
            }
        }
        let expected = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("a", 2), ("a", 3)];
        assert!(read.iter().map(|(topic, at)| (&**topic, *at)).eq(expected));
    }

    #[test]
    fn a_server_that_does_not_answer_is_asked_again() {
        let mut reader = InTurns::new(Busy::default());
        reader.follow("a", 0, Duration::ZERO).unwrap();
        reader.streams.failure = Some(Exit::Unavailable);
        assert!(matches!(reader.next(Duration::ZERO), Ok(None)));
        assert!(matches!(reader.next(Duration::ZERO), Ok(Some(_))));
        reader.read.clear();
        reader.streams.failure = Some(Exit::Denied);
        reader.next(Duration::ZERO).unwrap_err();
    }
}
