//! Reads the topics that are compared, from a time on.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_sink::topics::{self, ReadRecord, SinkTopics};

use super::compare::{Event, event_id};
use crate::cli::{CutoverId, Failure};
use crate::commands::print_notice;

/// Timeout of one request to a server of the sink.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long errors of a topic are retried, and the interval.
const RETRY_FOR: Duration = Duration::from_secs(30);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// After this time without a record, partitions count as read: their last offsets may hold no
/// record for consumers, but the marker of a Kafka transaction.
const IDLE_END: Duration = Duration::from_secs(5);

/// A topic that is read.
#[derive(Debug, Default)]
struct Topic {
    partitions: usize,
    /// For each partition that is not read to its end: the offset of the end when the topic was
    /// followed.
    unread: BTreeMap<i32, i64>,
    /// Number of records without an event id.
    without_id: u64,
}

/// Reads topics, all from the same time on.
pub(super) struct TopicReader {
    reader: Box<dyn topics::TopicReader>,
    /// Milliseconds since 1970.
    from_ms: i64,
    /// `--id`.
    id_place: Option<CutoverId>,
    followed: BTreeMap<String, Topic>,
}

impl TopicReader {
    pub(super) fn new(
        topics: &dyn SinkTopics,
        from_ms: i64,
        id_place: Option<CutoverId>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            reader: topics.reader(&[], REQUEST_TIMEOUT)?,
            from_ms,
            id_place,
            followed: BTreeMap::new(),
        })
    }

    /// Also reads this topic, if it exists. Returns whether it exists.
    pub(super) fn follow(&mut self, topic: &str) -> Result<bool, Failure> {
        if self.followed.contains_key(topic) {
            return Ok(true);
        }
        let begun = Instant::now();
        // Partitions of a new topic have no leader for a moment.
        let followed = loop {
            match self.reader.follow(topic, self.from_ms, REQUEST_TIMEOUT) {
                Err(error) if begun.elapsed() > RETRY_FOR => return Err(error.into()),
                Err(_) => thread::sleep(RETRY_INTERVAL),
                Ok(followed) => break followed,
            }
        };
        let Some(partitions) = followed else {
            return Ok(false);
        };
        let unread = partitions.iter().filter(|of| of.start < of.end);
        let followed = Topic {
            partitions: partitions.len(),
            unread: unread.map(|of| (of.partition, of.end)).collect(),
            without_id: 0,
        };
        self.followed.insert(topic.to_owned(), followed);
        Ok(true)
    }

    /// Number of partitions of a followed topic.
    pub(super) fn partitions(&self, topic: &str) -> Option<usize> {
        self.followed.get(topic).map(|topic| topic.partitions)
    }

    /// The next record; `None` after `timeout`.
    pub(super) fn next(&mut self, timeout: Duration) -> Result<Option<ReadRecord>, Failure> {
        let record = self.reader.next(timeout)?;
        if let Some(record) = &record
            && let Some(topic) = self.followed.get_mut(&record.topic)
            && topic
                .unread
                .get(&record.partition)
                .is_some_and(|end| record.offset + 1 >= *end)
        {
            topic.unread.remove(&record.partition);
        }
        Ok(record)
    }

    /// The record as an event of a topic of this name; `None` if it has no id, which is reported
    /// once for each topic.
    pub(super) fn event(
        &mut self,
        record: &ReadRecord,
        topic: &str,
        partition: Option<i32>,
    ) -> Option<Event> {
        let id = event_id(self.id_place.as_ref(), record);
        if id.is_none()
            && let Some(followed) = self.followed.get_mut(&record.topic)
        {
            if followed.without_id == 0 {
                print_notice(&format!(
                    "topic {} has records without an event's id, which are not compared: say --id header:NAME or \
                     --id value:MEMBER",
                    record.topic
                ));
            }
            followed.without_id += 1;
        }
        Some(Event::new(id?, topic, partition, record))
    }

    /// Calls `each` with all records up to the ends that the topics had when they were followed.
    pub(super) fn read_to_ends(
        &mut self,
        mut each: impl FnMut(&mut Self, &ReadRecord),
    ) -> Result<(), Failure> {
        let mut idle = Duration::ZERO;
        let step = Duration::from_millis(100);
        while idle < IDLE_END && self.followed.values().any(|topic| !topic.unread.is_empty()) {
            match self.next(step)? {
                Some(record) => {
                    idle = Duration::ZERO;
                    each(self, &record);
                }
                None => idle += step,
            }
        }
        Ok(())
    }
}
