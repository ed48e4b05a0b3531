use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use rdkafka::Offset;
use rdkafka::types::RDKafkaErrorCode as Code;
use walrelay_sink_kind::dead_letters::{DlqEntry, DlqRecord};
use walrelay_sink_kind::topics::Position;

use crate::consumer::{Consumer, Polled};
use crate::{KafkaConfig, KafkaError, probe};

const POLL: Duration = Duration::from_millis(100);
/// The most records that are read and discarded instead of fetching from another offset.
const MAX_SKIPPED: i64 = 2_000;

/// Reads the topic of dead letters to its current end; the next call continues from there.
///
/// Memory: librdkafka's read-ahead (2 MiB, and for each partition one response of 1 MiB or one
/// larger record), and what the caller keeps.
pub(super) struct DlqReader {
    client: Consumer,
    topic: String,
    patience: Duration,
    /// The next offset of each partition.
    offsets: BTreeMap<i32, Offset>,
}

impl DlqReader {
    /// Opens the topic; `None` if it does not exist.
    ///
    /// `patience`: how long a broker may take for a response, and how long reading may make no
    /// progress.
    ///
    /// **Blocks** for `patience` at most for each of some requests.
    pub(super) fn open(
        config: &KafkaConfig,
        topic: &str,
        patience: Duration,
    ) -> Result<Option<Self>, KafkaError> {
        let mut reader = Self::connect(config, topic, patience)?;
        Ok(reader.find()?.then_some(reader))
    }

    /// Creates a reader that does not know yet whether the topic exists: see [`find`](Self::find).
    ///
    /// **Blocks** for `patience` at most.
    pub(super) fn connect(
        config: &KafkaConfig,
        topic: &str,
        patience: Duration,
    ) -> Result<Self, KafkaError> {
        // The probe has the specific errors for whatever can be wrong.
        probe(config, patience)?;
        Ok(Self {
            client: Consumer::new(config, &[])?,
            topic: topic.to_owned(),
            patience,
            offsets: BTreeMap::new(),
        })
    }

    /// Checks whether the topic exists. Requests its partitions on every call, because partitions
    /// can be added: a new one is read from its beginning.
    ///
    /// **Blocks** for `patience` at most.
    ///
    /// # Errors
    /// Also if the topic was found before and is missing now. Make a new reader then.
    pub(super) fn find(&mut self) -> Result<bool, KafkaError> {
        match self.client.partitions(&self.topic, self.patience)? {
            Some(partitions) => {
                for partition in partitions {
                    self.offsets.entry(partition).or_insert(Offset::Beginning);
                }
                Ok(true)
            }
            None if self.offsets.is_empty() => Ok(false),
            None => Err(KafkaError::for_topic(
                &self.topic,
                Code::UnknownTopicOrPartition,
            )),
        }
    }

    /// Skips the records with an earlier timestamp (milliseconds since 1970-01-01 UTC; by the clock
    /// of the brokers or of the relay).
    ///
    /// **Blocks** for `patience` at most for each request: one per partition, and one for all.
    pub(super) fn start_at(&mut self, timestamp_ms: i64) -> Result<(), KafkaError> {
        let partitions = self.offsets.keys().copied();
        let found = self
            .client
            .offsets_at(&self.topic, partitions, timestamp_ms, self.patience)?;
        let starts = found.into_iter();
        self.offsets
            .extend(starts.map(|of| (of.partition, Offset::Offset(of.start))));
        Ok(())
    }

    /// Passes every record to `each`, from the end of the previous read (at first from the
    /// beginning) to the current end of each partition. In order within a partition.
    ///
    /// **Blocks** until all are read.
    ///
    /// # Errors
    /// Also if the topic was made anew. What was read is not in it then, so make a new reader.
    pub(super) fn read(&mut self, mut each: impl FnMut(DlqEntry)) -> Result<(), KafkaError> {
        let mut ends = BTreeMap::new();
        for (partition, next) in &mut self.offsets {
            let (low, high) = self.client.ends(&self.topic, *partition, self.patience)?;
            let from = match *next {
                Offset::Offset(offset) => resumed(offset, low, high)
                    .ok_or_else(|| KafkaError::for_topic(&self.topic, Code::OffsetOutOfRange))?,
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
        let mut last_error = Code::OperationTimedOut;
        while !ends.is_empty() {
            match self.next(&mut last_error)? {
                // The rest up to the end is uncommitted or control records. The next read starts
                // with it.
                Read::End(partition) => {
                    ends.remove(&partition);
                }
                Read::Entry(Position { partition, offset }, entry) => {
                    // Skip a record behind the end or of an earlier assignment.
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

    /// Returns the dead letters at these positions, without those that are gone since. Does not
    /// change where [`read`](Self::read) continues.
    ///
    /// **Blocks** until all are read. They are all in memory, so request a bounded number.
    pub(super) fn fetch(
        &mut self,
        positions: impl IntoIterator<Item = Position>,
    ) -> Result<HashMap<Position, DlqRecord>, KafkaError> {
        let mut positions: Vec<Position> = positions.into_iter().collect();
        positions.sort_unstable();
        positions.dedup();
        let mut found = HashMap::new();
        let near = |a: &Position, b: &Position| {
            a.partition == b.partition && b.offset - a.offset <= MAX_SKIPPED
        };
        for run in positions.chunk_by(near) {
            self.fetch_run(run, &mut found)?;
        }
        self.client.assign(&self.topic, [])?;
        Ok(found)
    }

    /// Fetches positions of one partition that are in order and near each other.
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
        let mut last_error = Code::OperationTimedOut;
        loop {
            let (position, entry) = match self.next(&mut last_error)? {
                Read::End(partition) if partition == first.partition => return Ok(()),
                Read::End(_) => continue,
                Read::Entry(position, entry) => (position, entry),
            };
            if position.partition != first.partition || position.offset < first.offset {
                continue;
            }
            if let DlqEntry::DlqRecord(dead_letter) = entry
                && run.binary_search(&position).is_ok()
            {
                found.insert(position, *dead_letter);
            }
            if position.offset >= last {
                return Ok(());
            }
        }
    }

    /// Waits for a record or the end of a partition; an error after `patience` without either.
    ///
    /// `last_error` keeps the last error of the client, which is then reported as the cause.
    fn next(&self, last_error: &mut Code) -> Result<Read, KafkaError> {
        let since = Instant::now();
        loop {
            match self.client.poll(POLL) {
                Polled::Record(record) => {
                    return Ok(Read::Entry(
                        record.position(),
                        DlqEntry::from_record(*record),
                    ));
                }
                Polled::End(partition) => return Ok(Read::End(partition)),
                Polled::Error(code @ Code::TopicAuthorizationFailed) => {
                    return Err(KafkaError::for_topic(&self.topic, code));
                }
                // Reading needs no consumer group.
                Polled::Nothing | Polled::Error(Code::GroupAuthorizationFailed) => {}
                Polled::Error(code) => *last_error = code,
            }
            if since.elapsed() > self.patience {
                return Err(KafkaError::for_topic(&self.topic, *last_error));
            }
        }
    }
}

/// Returns the offset at which reading continues behind what was read before; `None` if this is
/// beyond the partition's end, because the topic was made anew.
pub(super) fn resumed(next: i64, low: i64, high: i64) -> Option<i64> {
    (next <= high).then_some(next.max(low))
}

enum Read {
    Entry(Position, DlqEntry),
    End(i32),
}
