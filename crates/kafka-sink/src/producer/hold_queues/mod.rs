//! Records that were accepted and that a [`PartitionGate`](crate::producer::partition_gate::PartitionGate) holds back:
//! kept by topic and [`HoldQueue`], first come first served. They count as in flight, so the window bounds them as
//! well.

use std::collections::{BTreeMap, VecDeque};

use walrelay_sink::{Header, Record};

use crate::producer::partition_gate::HoldQueue;

/// The queues of all topics of one producer.
#[derive(Default)]
pub(crate) struct HoldQueues {
    /// By the topic's number. None is empty.
    of: BTreeMap<(usize, HoldQueue), VecDeque<HeldRecord>>,
}

/// A held record: a copy, without its topic's name. In few allocations, as there may be a
/// window full of them.
pub(crate) struct HeldRecord {
    pub(crate) seq: u64,
    /// What it has taken of the window.
    pub(crate) weight: u64,
    /// As the client wants it.
    pub(crate) timestamp_ms: i64,
    partition: Option<i32>,
    key: Length,
    value: Length,
    /// Of names and values.
    headers: Box<[(usize, Length)]>,
    /// Key, value, and each header's name and value, one behind the other.
    bytes: Box<[u8]>,
}

/// Of something that may be null.
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

    /// Calls with the record as it was, of that topic. It goes to the partition of its queue: one
    /// without a key has been given that, and might be given another one.
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
                // It came from one.
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

    /// The sequence numbers of all.
    #[cfg(test)]
    pub(crate) fn seqs(&self) -> Vec<u64> {
        let all = self.of.values().flatten();
        all.map(|queued| queued.seq).collect()
    }

    /// Behind all others of the queue.
    pub(crate) fn push(&mut self, topic: usize, queue: HoldQueue, queued: HeldRecord) {
        self.of.entry((topic, queue)).or_default().push_back(queued);
    }

    /// The queues of a topic, its own after those of its partitions: it may lengthen those.
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

    /// Takes the first away.
    pub(crate) fn pop(&mut self, topic: usize, queue: HoldQueue) -> Option<HeldRecord> {
        let queued = self.of.get_mut(&(topic, queue))?;
        let first = queued.pop_front();
        if queued.is_empty() {
            self.of.remove(&(topic, queue));
        }
        first
    }

    /// Takes all away, with their topics' numbers.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (usize, HeldRecord)> + use<> {
        std::mem::take(&mut self.of)
            .into_iter()
            .flat_map(|((topic, _), queued)| queued.into_iter().map(move |one| (topic, one)))
    }
}

#[cfg(test)]
mod tests;
