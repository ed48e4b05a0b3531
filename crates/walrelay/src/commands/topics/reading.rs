//! Reads topics of the sink from a time on, to the ends that they have when the reading begins, and
//! further records.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_failure::{Exit, Failure};
use walrelay_sink_kind::topics::{self, FollowedPartition, ReadRecord, ReadableTopics, SentTo};

use super::place::event_id;
use crate::cli::RecordPlace;
use crate::commands::print_notice;

/// Timeout of one request to a server of the sink.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which errors of a topic are retried, and the interval.
const RETRY_FOR: Duration = Duration::from_secs(30);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// After this time in which no partition advances, those that are not read to their ends make the
/// reading fail.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// A topic that is read.
#[derive(Debug, Default)]
struct Topic {
    partitions: Vec<FollowedPartition>,
    /// For each partition that is not read to its end: the next offset, and the offset of the end
    /// when the topic was followed.
    unread: BTreeMap<i32, (i64, i64)>,
    /// Number of records without an event id.
    without_id: u64,
}

/// Reads topics, all from the same time on.
pub(crate) struct TopicReader {
    reader: Box<dyn topics::TopicReader>,
    /// Milliseconds since 1970.
    from_ms: i64,
    /// `--id`.
    id_place: Option<RecordPlace>,
    followed: BTreeMap<String, Topic>,
    /// Number of offsets between the starts and the ends of the followed partitions.
    expected: u64,
}

impl TopicReader {
    pub(crate) fn new(
        topics: &dyn ReadableTopics,
        from_ms: i64,
        id_place: Option<RecordPlace>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            reader: topics.reader()?,
            from_ms,
            id_place,
            followed: BTreeMap::new(),
            expected: 0,
        })
    }

    /// Reads this topic, if it exists. Returns whether it exists.
    pub(crate) fn follow(&mut self, topic: &str) -> Result<bool, Failure> {
        if self.followed.contains_key(topic) {
            return Ok(true);
        }
        let begun = Instant::now();
        // Partitions of a new topic have no leader for a moment.
        let followed = loop {
            match self.reader.follow(topic, self.from_ms, REQUEST_TIMEOUT) {
                Err(error) if begun.elapsed() > RETRY_FOR || error.exit != Exit::Unavailable => {
                    return Err(error);
                }
                Err(_) => thread::sleep(RETRY_INTERVAL),
                Ok(followed) => break followed,
            }
        };
        let Some(partitions) = followed else {
            return Ok(false);
        };
        let unread = partitions.iter().filter(|of| of.start < of.end);
        let unread = unread.map(|of| (of.partition, (of.start, of.end)));
        let followed = Topic {
            unread: unread.collect(),
            partitions,
            without_id: 0,
        };
        self.expected += followed.left();
        self.followed.insert(topic.to_owned(), followed);
        Ok(true)
    }

    /// Returns the partitions of a followed topic.
    pub(crate) fn partitions(&self, topic: &str) -> Option<&[FollowedPartition]> {
        self.followed.get(topic).map(|topic| &*topic.partitions)
    }

    /// Returns true if what is sent to an address is in the followed topic.
    pub(crate) fn holds(&mut self, topic: &str, sent_to: &SentTo) -> Result<bool, Failure> {
        self.reader.holds(topic, sent_to)
    }

    /// Returns the part of the offsets up to the ends that was read, 0 to 1.
    pub(crate) fn progress(&self) -> f64 {
        let left: u64 = self.followed.values().map(Topic::left).sum();
        1.0 - left as f64 / self.expected.max(1) as f64
    }

    /// Waits for the next record; `None` after `timeout`.
    pub(crate) fn next(&mut self, timeout: Duration) -> Result<Option<ReadRecord>, Failure> {
        let record = self.reader.next(timeout)?;
        if let Some(record) = &record
            && let Some(topic) = self.followed.get_mut(&record.topic)
        {
            topic.advance(record.partition, record.offset + 1);
        }
        Ok(record)
    }

    /// Returns the id of the record's event; `None` if it has none, which is reported once for each
    /// topic.
    pub(crate) fn event_id(&mut self, record: &ReadRecord) -> Option<String> {
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
        id
    }

    /// Calls `each` with all records up to the ends that the topics had when they were followed.
    ///
    /// # Errors
    /// If reading fails, or an end is not reached.
    pub(crate) fn read_to_ends(
        &mut self,
        mut each: impl FnMut(&mut Self, &ReadRecord),
    ) -> Result<(), Failure> {
        self.read_until(None, |reader, record| {
            each(reader, record);
            ControlFlow::Continue(())
        })
    }

    /// Returns true if all topics were read to the ends that they had when they were followed.
    pub(crate) fn is_at_ends(&self) -> bool {
        self.followed.values().all(|topic| topic.unread.is_empty())
    }

    /// Calls `each` as [`read_to_ends`](Self::read_to_ends) does, until it breaks or the time is over.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn read_until(
        &mut self,
        deadline: Option<Instant>,
        mut each: impl FnMut(&mut Self, &ReadRecord) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let mut advanced = Instant::now();
        while !self.is_at_ends() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            if let Some(record) = self.next(Duration::from_millis(100))? {
                if each(self, &record).is_break() {
                    return Ok(());
                }
                advanced = Instant::now();
            } else if self.pass_markers() {
                advanced = Instant::now();
            } else if advanced.elapsed() > IDLE_LIMIT {
                return Err(self.unread());
            }
        }
        Ok(())
    }

    /// Advances over offsets that hold no record for consumers. Returns whether there were any.
    fn pass_markers(&mut self) -> bool {
        let mut advanced = false;
        for (name, topic) in &mut self.followed {
            let unread: Vec<i32> = topic.unread.keys().copied().collect();
            for partition in unread {
                let position = self.reader.position(name, partition);
                advanced |= position.is_some_and(|next| topic.advance(partition, next));
            }
        }
        advanced
    }

    fn unread(&self) -> Failure {
        let unread = self.followed.iter().flat_map(|(topic, of)| {
            let partitions = of.unread.iter();
            partitions.map(move |(partition, (next, end))| {
                format!("{topic}[{partition}] from offset {next} to {end}")
            })
        });
        let unread: Vec<String> = unread.collect();
        let what = format!(
            "not read within {} s: {}",
            IDLE_LIMIT.as_secs(),
            unread.join(", ")
        );
        Failure::new("topic-unread", Exit::Unavailable, what)
            .remedy("see that the servers run and the partitions have leaders, and begin it again")
    }
}

impl Topic {
    /// Returns the number of offsets that are not read.
    fn left(&self) -> u64 {
        let left = self.unread.values().map(|(next, end)| end.abs_diff(*next));
        left.sum()
    }

    /// Notes that a partition was read up to `next`. Returns whether that is further than before.
    fn advance(&mut self, partition: i32, next: i64) -> bool {
        let Some((known, end)) = self.unread.get_mut(&partition) else {
            return false;
        };
        let advances = next > *known;
        *known = next.max(*known);
        if *known >= *end {
            self.unread.remove(&partition);
        }
        advances
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use walrelay_failure::Failure;

    use super::*;

    /// A topic of partition 0 that ends at `end`: behind its records are markers.
    struct Scripted {
        records: VecDeque<i64>,
        end: i64,
        position: Option<i64>,
    }

    impl topics::TopicReader for Scripted {
        fn follow(
            &mut self,
            _: &str,
            _: i64,
            _: Duration,
        ) -> Result<Option<Vec<FollowedPartition>>, Failure> {
            Ok(Some(vec![FollowedPartition {
                partition: 0,
                start: 2,
                end: self.end,
            }]))
        }

        fn next(&mut self, _: Duration) -> Result<Option<ReadRecord>, Failure> {
            let offset = self.records.pop_front();
            if let Some(offset) = offset {
                self.position = Some(offset + 1);
            } else {
                self.position = Some(self.end);
            }
            Ok(offset.map(|offset| ReadRecord {
                topic: "t".to_owned(),
                offset,
                ..ReadRecord::default()
            }))
        }

        fn position(&self, _: &str, _: i32) -> Option<i64> {
            self.position
        }
    }

    #[test]
    fn the_end_is_reached_behind_the_marker_of_a_transaction_and_not_before() {
        for (records, end, read, left) in [
            (vec![2, 3, 4, 5], 4, vec![2, 3], vec![4, 5]),
            (vec![2, 3], 6, vec![2, 3], vec![]),
        ] {
            let reader = Scripted {
                records: records.into(),
                end,
                position: None,
            };
            let mut reader = TopicReader {
                reader: Box::new(reader),
                from_ms: 0,
                id_place: None,
                followed: BTreeMap::new(),
                expected: 0,
            };
            assert!(reader.follow("t").unwrap());
            let mut seen = Vec::new();
            let each = |reader: &mut TopicReader, record: &ReadRecord| {
                seen.push((record.offset, reader.progress()));
            };
            reader.read_to_ends(each).unwrap();
            let offsets: Vec<i64> = seen.iter().map(|(offset, _)| *offset).collect();
            assert_eq!(offsets, read);
            assert!(
                seen[0].1 > 0.0 && seen.is_sorted_by(|a, b| a.1 < b.1),
                "{seen:?}"
            );
            assert!((reader.progress() - 1.0).abs() < 1e-9);
            let next = |reader: &mut TopicReader| reader.next(Duration::ZERO).unwrap();
            for offset in left {
                assert_eq!(next(&mut reader).map(|record| record.offset), Some(offset));
            }
        }
    }
}
