//! Records that were accepted and that a [`Gate`](crate::gate::Gate) holds back: kept by topic and
//! [`Line`], first come first served. They count as in flight, so the window bounds them as well.

use std::collections::{BTreeMap, VecDeque};

use walrelay_sink::{Header, Record};

use crate::gate::Line;

/// The lines of all topics of one producer.
#[derive(Default)]
pub(crate) struct Lines {
    /// By the topic's number. None is empty.
    of: BTreeMap<(usize, Line), VecDeque<Standing>>,
}

/// A record that stands in a line: a copy, without its topic's name.
pub(crate) struct Standing {
    pub(crate) seq: u64,
    /// What it has taken of the window.
    pub(crate) weight: u64,
    /// As the client wants it.
    pub(crate) timestamp_ms: i64,
    partition: Option<i32>,
    key: Option<Box<[u8]>>,
    value: Option<Box<[u8]>>,
    headers: Box<[OwnHeader]>,
}

type OwnHeader = (Box<str>, Option<Box<[u8]>>);

impl Standing {
    pub(crate) fn new(record: &Record<'_>, timestamp_ms: i64, seq: u64, weight: u64) -> Self {
        Self {
            seq,
            weight,
            timestamp_ms,
            partition: record.partition,
            key: record.key.map(Box::from),
            value: record.value.map(Box::from),
            headers: record
                .headers
                .iter()
                .map(|header| (Box::from(header.name), header.value.map(Box::from)))
                .collect(),
        }
    }

    fn headers(&self) -> Vec<Header<'_>> {
        self.headers
            .iter()
            .map(|(name, value)| Header {
                name,
                value: value.as_deref(),
            })
            .collect()
    }

    /// Calls with the record as it was, of that topic. It goes to the partition whose line it stands in: one
    /// without a key has been given that, and might be given another one.
    pub(crate) fn with<T>(
        &self,
        topic: &str,
        line: Line,
        call: impl FnOnce(&Record<'_>) -> T,
    ) -> T {
        call(&Record {
            topic,
            partition: match line {
                Line::Topic => self.partition,
                Line::Partition(partition) => Some(partition),
            },
            timestamp_ms: None,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            headers: &self.headers(),
        })
    }
}

impl Lines {
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// The sequence numbers of all.
    #[cfg(test)]
    pub(crate) fn seqs(&self) -> Vec<u64> {
        let all = self.of.values().flatten();
        all.map(|standing| standing.seq).collect()
    }

    /// Behind all others of the line.
    pub(crate) fn push(&mut self, topic: usize, line: Line, standing: Standing) {
        self.of
            .entry((topic, line))
            .or_default()
            .push_back(standing);
    }

    /// The lines of a topic, its own after those of its partitions: it may lengthen those.
    pub(crate) fn of_topic(&self, topic: usize) -> Vec<Line> {
        let all = (topic, Line::Topic)..=(topic, Line::Partition(i32::MAX));
        self.of
            .range(all)
            .rev()
            .map(|((_, line), _)| *line)
            .collect()
    }

    pub(crate) fn first(&self, topic: usize, line: Line) -> Option<&Standing> {
        self.of.get(&(topic, line))?.front()
    }

    /// Takes the first away.
    pub(crate) fn pop(&mut self, topic: usize, line: Line) -> Option<Standing> {
        let standing = self.of.get_mut(&(topic, line))?;
        let first = standing.pop_front();
        if standing.is_empty() {
            self.of.remove(&(topic, line));
        }
        first
    }

    /// Takes all away, with their topics' numbers.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (usize, Standing)> + use<> {
        std::mem::take(&mut self.of)
            .into_iter()
            .flat_map(|((topic, _), standing)| standing.into_iter().map(move |one| (topic, one)))
    }
}
