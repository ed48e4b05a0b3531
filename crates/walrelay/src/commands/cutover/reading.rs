//! Topics that are compared, read from a time on.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_kafka_sink::{KafkaConfig, Tail, TailedRecord};

use super::super::slots::warn;
use super::compare::{Event, IdPlace};
use crate::cli::{CutoverId, Failure};
use crate::failures;

const ANSWER: Duration = Duration::from_secs(10);
/// How long a topic may be in trouble, and how often it is asked for.
const PATIENCE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(200);
/// How long nothing comes until a partition counts as read, where its last offsets hold no record for readers, as a
/// transaction's marker.
const QUIET: Duration = Duration::from_secs(5);
/// Headers with an event's id, of the presets and of polling relays.
const ID_HEADERS: [&str; 4] = ["id", "event_id", "x-outbox-event-id", "event-id"];

/// Where the event's id is, as asked for or as usual.
pub(super) fn id_place(asked: Option<&CutoverId>) -> IdPlace {
    match asked {
        Some(CutoverId::Header(name)) => IdPlace::Headers(vec![name.clone()]),
        Some(CutoverId::Value(member)) => IdPlace::Member(member.clone()),
        None => IdPlace::Headers(ID_HEADERS.map(str::to_owned).to_vec()),
    }
}

/// A topic that is read.
#[derive(Debug, Default)]
struct Topic {
    partitions: usize,
    /// By partition, the offset at which reading may end.
    open: BTreeMap<i32, i64>,
    /// Records that have no id.
    without_id: u64,
}

/// Reads topics, each from the same time on.
pub(super) struct Topics {
    tail: Tail,
    from_ms: i64,
    ids: IdPlace,
    followed: BTreeMap<String, Topic>,
}

impl Topics {
    pub(super) fn new(kafka: &KafkaConfig, from_ms: i64, ids: IdPlace) -> Result<Self, Failure> {
        let tail = Tail::with_config(kafka, &[], ANSWER);
        Ok(Self {
            tail: tail.map_err(|error| failures::kafka_client(&error))?,
            from_ms,
            ids,
            followed: BTreeMap::new(),
        })
    }

    /// Reads this topic, too, if it exists. Whether it does.
    pub(super) fn follow(&mut self, topic: &str) -> Result<bool, Failure> {
        if self.followed.contains_key(topic) {
            return Ok(true);
        }
        let begun = Instant::now();
        // A topic that was just made has partitions without a leader for a moment.
        let followed = loop {
            match self.tail.follow(topic, self.from_ms, ANSWER) {
                Err(error) if begun.elapsed() > PATIENCE => {
                    return Err(failures::kafka_client(&error));
                }
                Err(_) => thread::sleep(RETRY),
                Ok(followed) => break followed,
            }
        };
        let Some(partitions) = followed else {
            return Ok(false);
        };
        let open = partitions.iter().filter(|of| of.start < of.end);
        let topic_read = Topic {
            partitions: partitions.len(),
            open: open.map(|of| (of.partition, of.end)).collect(),
            without_id: 0,
        };
        self.followed.insert(topic.to_owned(), topic_read);
        Ok(true)
    }

    /// How many partitions a topic that is read has.
    pub(super) fn partitions(&self, topic: &str) -> Option<usize> {
        self.followed.get(topic).map(|topic| topic.partitions)
    }

    /// The next record; `None` when none came in time.
    pub(super) fn next(&mut self, timeout: Duration) -> Result<Option<TailedRecord>, Failure> {
        let record = self.tail.next(timeout);
        let record = record.map_err(|error| failures::kafka_client(&error))?;
        if let Some(record) = &record
            && let Some(topic) = self.followed.get_mut(&record.topic)
            && topic
                .open
                .get(&record.partition)
                .is_some_and(|end| record.offset + 1 >= *end)
        {
            topic.open.remove(&record.partition);
        }
        Ok(record)
    }

    /// The record as an event of a topic of this name. `None`: it has no id, which is said once for each topic.
    pub(super) fn event(
        &mut self,
        record: &TailedRecord,
        topic: &str,
        partition: Option<i32>,
    ) -> Option<Event> {
        let id = self.ids.of(record);
        if id.is_none()
            && let Some(read) = self.followed.get_mut(&record.topic)
        {
            if read.without_id == 0 {
                warn(&format!(
                    "topic {} has records without an event's id, which are not compared: say --id header:NAME or \
                     --id value:MEMBER",
                    record.topic
                ));
            }
            read.without_id += 1;
        }
        Some(Event::of(id?, topic, partition, record))
    }

    /// Gives all records up to where the topics ended when they were followed.
    pub(super) fn read_to_ends(
        &mut self,
        mut each: impl FnMut(&mut Self, &TailedRecord),
    ) -> Result<(), Failure> {
        let mut quiet = Duration::ZERO;
        let step = Duration::from_millis(100);
        while quiet < QUIET && self.followed.values().any(|topic| !topic.open.is_empty()) {
            match self.next(step)? {
                Some(record) => {
                    quiet = Duration::ZERO;
                    each(self, &record);
                }
                None => quiet += step,
            }
        }
        Ok(())
    }
}
