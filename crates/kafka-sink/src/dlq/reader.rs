use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use rdkafka::Offset;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::entry::{DlqRecord, Entry, Position};
use crate::consumer::{Consumer, Polled};
use crate::{KafkaConfig, KafkaError, probe};

const POLL: Duration = Duration::from_millis(100);
/// Records that are read and thrown away rather than asking the broker for another place.
const PASSED_OVER: i64 = 2_000;

/// Reads the topic of dead letters up to where it ended when it was asked to; then again from there.
///
/// Memory: what librdkafka reads ahead (2 MiB and one answer of 1 MiB for each partition, or one record), and what the
/// caller keeps.
pub(super) struct DlqReader {
    client: Consumer,
    topic: String,
    patience: Duration,
    /// The next offset of each partition.
    offsets: BTreeMap<i32, Offset>,
}

impl DlqReader {
    /// Looks the topic up; `None`: the brokers know no such topic.
    ///
    /// `patience`: how long the brokers may take to answer, and how long reading may make no
    /// progress.
    ///
    /// **Blocks** for about `patience` at most.
    pub(super) fn open(
        config: &KafkaConfig,
        topic: &str,
        patience: Duration,
    ) -> Result<Option<Self>, KafkaError> {
        // It knows the words for what can be wrong.
        probe(config, patience)?;
        let client = Consumer::new(config, &[])?;
        let Some(partitions) = client.partitions(topic, patience)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            client,
            topic: topic.to_owned(),
            patience,
            offsets: partitions
                .into_iter()
                .map(|partition| (partition, Offset::Beginning))
                .collect(),
        }))
    }

    /// Leaves out what was written before that time, by the brokers' or the relay's clock, in
    /// milliseconds since 1970.
    ///
    /// **Blocks** until the brokers answer.
    pub(super) fn start_at(&mut self, timestamp_ms: i64) -> Result<(), KafkaError> {
        let partitions = self.offsets.keys().copied();
        let found = self
            .client
            .offsets_at(&self.topic, partitions, timestamp_ms, self.patience)?;
        self.offsets.extend(found);
        Ok(())
    }

    /// Gives every record from where the last reading ended, the first time from the beginning, to
    /// where each partition ends now. In order within a partition.
    ///
    /// **Blocks** meanwhile.
    pub(super) fn read(&mut self, mut each: impl FnMut(Entry)) -> Result<(), KafkaError> {
        let mut ends = BTreeMap::new();
        for (partition, next) in &mut self.offsets {
            let (low, high) = self.client.ends(&self.topic, *partition, self.patience)?;
            let from = match *next {
                Offset::Offset(offset) => offset.max(low),
                Offset::End => high,
                _ => low,
            };
            *next = Offset::Offset(from);
            if from < high {
                ends.insert(*partition, high);
            }
        }
        if ends.is_empty() {
            return Ok(());
        }
        let starts = ends
            .keys()
            .map(|partition| (*partition, self.offsets[partition]));
        self.client.assign(&self.topic, starts)?;
        let mut complaint = Code::OperationTimedOut;
        while !ends.is_empty() {
            match self.next(&mut complaint)? {
                // What is left up to the end is not committed, or not for readers: it is looked at
                // again the next time.
                Read::End(partition) => {
                    ends.remove(&partition);
                }
                Read::Entry(entry) => {
                    let Position { partition, offset } = entry.position();
                    // Behind the end, or of an assignment that is over.
                    let Some(end) = ends.get(&partition).filter(|end| offset < **end) else {
                        continue;
                    };
                    if offset + 1 >= *end {
                        ends.remove(&partition);
                    }
                    self.offsets.insert(partition, Offset::Offset(offset + 1));
                    each(entry);
                }
            }
        }
        self.client.assign(&self.topic, [])
    }

    /// The dead letters that lie there; those that are gone since are missing. Does not change where
    /// [`read`](Self::read) goes on.
    ///
    /// **Blocks** meanwhile. Keeps all of them: ask for a bounded number.
    pub(super) fn fetch(
        &mut self,
        positions: impl IntoIterator<Item = Position>,
    ) -> Result<HashMap<Position, DlqRecord>, KafkaError> {
        let mut positions: Vec<Position> = positions.into_iter().collect();
        positions.sort_unstable();
        positions.dedup();
        let mut found = HashMap::new();
        let near = |a: &Position, b: &Position| {
            a.partition == b.partition && b.offset - a.offset <= PASSED_OVER
        };
        for run in positions.chunk_by(near) {
            self.fetch_run(run, &mut found)?;
        }
        self.client.assign(&self.topic, [])?;
        Ok(found)
    }

    /// Positions of one partition, in order and near each other.
    fn fetch_run(
        &self,
        run: &[Position],
        found: &mut HashMap<Position, DlqRecord>,
    ) -> Result<(), KafkaError> {
        let [first, ..] = run else { return Ok(()) };
        let last = run.last().unwrap_or(first).offset;
        self.client.assign(
            &self.topic,
            [(first.partition, Offset::Offset(first.offset))],
        )?;
        let mut complaint = Code::OperationTimedOut;
        loop {
            let entry = match self.next(&mut complaint)? {
                Read::End(partition) if partition == first.partition => return Ok(()),
                Read::End(_) => continue,
                Read::Entry(entry) => entry,
            };
            let position = entry.position();
            if position.partition != first.partition || position.offset < first.offset {
                continue;
            }
            if let Entry::DlqRecord(dead_letter) = entry
                && run.binary_search(&position).is_ok()
            {
                found.insert(position, *dead_letter);
            }
            if position.offset >= last {
                return Ok(());
            }
        }
    }

    /// Waits for a record or an end, and gives up when neither has come for long.
    ///
    /// `complaint`: the last one, which is the cause if nothing comes.
    fn next(&self, complaint: &mut Code) -> Result<Read, KafkaError> {
        let since = Instant::now();
        loop {
            match self.client.poll(POLL) {
                Polled::Record(record) => return Ok(Read::Entry(Entry::of(record))),
                Polled::End(partition) => return Ok(Read::End(partition)),
                Polled::Complaint(code @ Code::TopicAuthorizationFailed) => {
                    return Err(KafkaError::of_topic(&self.topic, code));
                }
                // Not that of a group: reading needs none.
                Polled::Nothing | Polled::Complaint(Code::GroupAuthorizationFailed) => {}
                Polled::Complaint(code) => *complaint = code,
            }
            if since.elapsed() > self.patience {
                return Err(KafkaError::of_topic(&self.topic, *complaint));
            }
        }
    }
}

enum Read {
    Entry(Entry),
    End(i32),
}
