//! Accepted records that a [`PartitionGate`](crate::in_flight::partition_gate::PartitionGate) holds
//! back, by topic and [`HoldQueue`], first in, first out. They count as in flight, so the window
//! bounds them.

use std::collections::{BTreeMap, VecDeque};

use walrelay_sink::{Header, Record};

use crate::in_flight::partition_gate::HoldQueue;

/// The hold queues of all topics of one sink.
#[derive(Default)]
pub(crate) struct HoldQueues {
    /// By the topic's number in the sink. No queue in the map is empty.
    of: BTreeMap<(usize, HoldQueue), VecDeque<HeldRecord>>,
}

/// A copy of a held record without its topic's name. It takes few allocations, because the whole
/// window may be held.
pub(crate) struct HeldRecord {
    pub(crate) seq: u64,
    /// Bytes of the window that the record has taken.
    pub(crate) weight: u64,
    /// The timestamp for librdkafka.
    pub(crate) timestamp_ms: i64,
    partition: Option<i32>,
    key: Length,
    value: Length,
    /// The lengths of names and values.
    headers: Box<[(usize, Length)]>,
    /// Key, value, and the name and value of each header, concatenated.
    bytes: Box<[u8]>,
}

/// The length of a part that may be null.
type Length = Option<usize>;

impl HeldRecord {
    pub(crate) fn new(record: &Record<'_>, timestamp_ms: i64, seq: u64, weight: u64) -> Self {
        let mut bytes = Vec::with_capacity(record.payload_bytes());
        let mut put = |part: Option<&[u8]>| {
            bytes.extend_from_slice(part.unwrap_or_default());
            part.map(<[u8]>::len)
        };
        let (key, value) = (put(record.key), put(record.value));
        let header = |header: &Header<'_>| {
            put(Some(header.name.as_bytes()));
            (header.name.len(), put(header.value))
        };
        let headers = record.headers.iter().map(header).collect();
        Self {
            seq,
            weight,
            timestamp_ms,
            partition: record.partition,
            key,
            value,
            headers,
            bytes: bytes.into(),
        }
    }

    /// Calls `call` with the record. In the queue of a partition the record names that partition: a
    /// record without a key was assigned it, and the partitioner might choose another one.
    pub(crate) fn with<T>(
        &self,
        topic: &str,
        queue: HoldQueue,
        call: impl FnOnce(&Record<'_>) -> T,
    ) -> T {
        let mut rest = &*self.bytes;
        let mut take = |length: usize| {
            let (part, behind) = rest.split_at(length);
            rest = behind;
            part
        };
        let (key, value) = (self.key.map(&mut take), self.value.map(&mut take));
        let headers: Vec<Header<'_>> = self
            .headers
            .iter()
            .map(|(name, value)| Header {
                // The bytes are those of a `str`.
                name: std::str::from_utf8(take(*name)).unwrap_or_default(),
                value: value.map(&mut take),
            })
            .collect();
        call(&Record {
            topic,
            partition: match queue {
                HoldQueue::Topic => self.partition,
                HoldQueue::Partition(partition) => Some(partition),
            },
            timestamp_ms: None,
            key,
            value,
            headers: &headers,
        })
    }
}

impl HoldQueues {
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// The sequence numbers of all held records.
    #[cfg(test)]
    pub(crate) fn seqs(&self) -> Vec<u64> {
        let all = self.of.values().flatten();
        all.map(|queued| queued.seq).collect()
    }

    pub(crate) fn push(&mut self, topic: usize, queue: HoldQueue, queued: HeldRecord) {
        self.of.entry((topic, queue)).or_default().push_back(queued);
    }

    /// The queues of a topic: first those of its partitions, then the topic's own, because records
    /// move from the topic's queue to those of partitions.
    pub(crate) fn of_topic(&self, topic: usize) -> Vec<HoldQueue> {
        let all = (topic, HoldQueue::Topic)..=(topic, HoldQueue::Partition(i32::MAX));
        self.of
            .range(all)
            .rev()
            .map(|((_, queue), _)| *queue)
            .collect()
    }

    pub(crate) fn first(&self, topic: usize, queue: HoldQueue) -> Option<&HeldRecord> {
        self.of.get(&(topic, queue))?.front()
    }

    /// Removes the first record of a queue.
    pub(crate) fn pop(&mut self, topic: usize, queue: HoldQueue) -> Option<HeldRecord> {
        let queued = self.of.get_mut(&(topic, queue))?;
        let first = queued.pop_front();
        if queued.is_empty() {
            self.of.remove(&(topic, queue));
        }
        first
    }

    /// Removes all records; returns them with their topics' numbers.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (usize, HeldRecord)> + use<> {
        std::mem::take(&mut self.of)
            .into_iter()
            .flat_map(|((topic, _), queued)| queued.into_iter().map(move |one| (topic, one)))
    }
}

#[cfg(test)]
mod tests;
