use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::Offset;
use rdkafka::types::RDKafkaErrorCode as Code;
use walrelay_sink::{Parking, PublishedLsn};
use walrelay_sink_kind::dead_letters::DlqEntry;
use walrelay_sink_kind::topics::{Position, ReadRecord};

use super::reader::resumed;
use crate::client_log::KindThrottle;
use crate::consumer::{Consumer, Polled};
use crate::worker::Worker;
use crate::{KafkaConfig, KafkaError};

/// The time for which a poll blocks before the stop flag and the required reading are checked.
const POLL: Duration = Duration::from_millis(100);
/// Timeout of one request to a broker, which cannot be interrupted.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of requests for metadata until the parking is ready.
const STARTUP_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of requests for metadata after that, while the topic does not exist.
const MISSING_TOPIC_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of requests for metadata after that, while the topic exists: partitions can be added.
const PARTITIONS_INTERVAL: Duration = Duration::from_secs(30);
/// The time that a reading after the first may take before the partitions are assigned again: their last
/// records may be none that is read, and the client reports an end once.
const ASSIGN_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// `fetch.wait.max.ms`: a broker answers the requests of a connection in turn, so a question about the
/// topic's ends waits for this long at most.
const FETCH_WAIT_MS: &str = "100";
/// A topic is missing if brokers report so this often in a row: a broker that has just started may
/// not know all topics yet.
const MISSING_REPORTS: u32 = 3;

/// Follows the topic of dead letters on the thread `kafka-dlq`, and keeps a [`Parking`] up to date:
/// keys with open dead letters of one slot are parked, and freed when the last one is resolved.
///
/// A reading that [`Parking::required`] asks for is done when everything is read up to the ends that
/// brokers tell after the request, or when they have reported several times that the topic does not
/// exist. A topic that is created later is followed from its beginning. While brokers are
/// unreachable, the watcher waits for them.
///
/// Dropping it ends the thread. **Blocks** until running requests have ended, each within
/// a second.
pub struct DlqWatcher(Worker);

impl DlqWatcher {
    /// Starts reading. Does not wait for a broker.
    ///
    /// # Errors
    /// If the client or the thread could not be created.
    pub fn start(
        config: &KafkaConfig,
        topic: &str,
        slot: &str,
        parking: Arc<Parking>,
    ) -> Result<Self, KafkaError> {
        let mut watch = Watch {
            client: Consumer::new(config, &[("fetch.wait.max.ms", FETCH_WAIT_MS)])?,
            topic: topic.to_owned(),
            slot: slot.to_owned(),
            parking,
            partitions: BTreeMap::new(),
            reading: 0,
            assign_again_at: None,
            missing: 0,
            next_refresh: Instant::now(),
            confirmed: None,
            throttle: KindThrottle::default(),
        };
        let worker = Worker::start("kafka-dlq", move |stop| {
            while !stop.load(Ordering::Relaxed) {
                watch.step();
            }
        });
        worker.map(Self)
    }
}

impl Drop for DlqWatcher {
    fn drop(&mut self) {
        if self.0.stop().is_err() {
            tracing::error!("the thread that reads dead letters panicked");
        }
    }
}

impl fmt::Debug for DlqWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DlqWatcher").finish_non_exhaustive()
    }
}

struct Watch {
    client: Consumer,
    topic: String,
    slot: String,
    parking: Arc<Parking>,
    partitions: BTreeMap<i32, Progress>,
    /// The number of the current reading.
    reading: u64,
    /// While the current reading is not the first: when the partitions are to be assigned again.
    assign_again_at: Option<Instant>,
    /// How often in a row brokers reported that the topic does not exist.
    missing: u32,
    /// When to refresh the partitions next.
    next_refresh: Instant,
    /// The position that the relay had confirmed before the ends in `Progress::marked` were
    /// requested.
    confirmed: Option<PublishedLsn>,
    throttle: KindThrottle,
}

/// The progress of reading a partition. All positions are offsets.
#[derive(Debug, Default)]
struct Progress {
    /// The partition's end at the first response of the current reading.
    end: Option<i64>,
    /// The offset behind the last record read.
    next: i64,
    /// Whether the partition was read to this end.
    done: bool,
    /// The partition's end, requested after the position in `Watch::confirmed` was taken.
    marked: Option<i64>,
}

impl Progress {
    fn is_done(&mut self) -> bool {
        self.done |= self.end.is_some_and(|end| self.next >= end);
        self.done
    }
}

impl Watch {
    fn step(&mut self) {
        self.start_reading();
        if Instant::now() >= self.next_refresh {
            if let Err(error) = self.refresh_partitions() {
                self.warn("the brokers cannot be asked for it", &error);
            }
            let ready = self.parking.is_ready();
            self.next_refresh = Instant::now()
                + match self.partitions.is_empty() {
                    _ if !ready => STARTUP_INTERVAL,
                    true => MISSING_TOPIC_INTERVAL,
                    false => PARTITIONS_INTERVAL,
                };
        }
        match self.client.poll(POLL) {
            Polled::Record(record) => self.apply(*record),
            // Before the partitions are assigned again, it may be the end of an earlier reading.
            Polled::End(partition) if self.assign_again_at.is_none() => {
                if let Some(progress) = self.partitions.get_mut(&partition) {
                    progress.done = true;
                }
            }
            Polled::Nothing | Polled::End(_) => {}
            // A principal may have the right to write to a topic but not to read it.
            Polled::Error(
                code @ (Code::TopicAuthorizationFailed | Code::UnknownTopicOrPartition),
            ) => self.warn("it cannot be read", &code),
            // The client retries by itself and logs the error.
            Polled::Error(code) => tracing::debug!(topic = self.topic, %code, "dead letters"),
        }
        self.forget_resolved();
        let current = self.reading == self.parking.required();
        if current && !self.parking.is_ready() && self.has_caught_up() {
            self.parking.set_read(self.reading);
            tracing::info!(
                topic = self.topic,
                open = self.parking.open(),
                "dead letters of earlier runs are known"
            );
        }
    }

    /// Begins the reading that was required last, unless that was begun.
    fn start_reading(&mut self) {
        let required = self.parking.required();
        if required == self.reading {
            return;
        }
        self.reading = required;
        self.missing = 0;
        self.next_refresh = Instant::now();
        let again = !self.partitions.is_empty();
        self.assign_again_at = again.then(|| self.next_refresh + ASSIGN_AGAIN_AFTER);
        for progress in self.partitions.values_mut() {
            progress.end = None;
            progress.done = false;
        }
    }

    /// Requests the topic's partitions and reads the new ones; until the parking is ready, also
    /// requests their ends.
    fn refresh_partitions(&mut self) -> Result<(), KafkaError> {
        match self.client.partitions(&self.topic, REQUEST_TIMEOUT)? {
            None => {
                self.missing = self.missing.saturating_add(1);
                return Ok(());
            }
            Some(mut new) => {
                self.missing = 0;
                new.retain(|partition| !self.partitions.contains_key(partition));
                if !new.is_empty() {
                    let beginning = new.iter().map(|p| (*p, Offset::Beginning));
                    self.client.assign_also(&self.topic, beginning)?;
                    let new = new.into_iter().map(|p| (p, Progress::default()));
                    self.partitions.extend(new);
                }
            }
        }
        if !self.parking.is_ready() {
            for (partition, progress) in &mut self.partitions {
                if progress.end.is_none() {
                    let (low, high) = self.client.ends(&self.topic, *partition, REQUEST_TIMEOUT)?;
                    progress.end = Some(high);
                    // A topic that was made anew is read from its beginning.
                    progress.next = resumed(progress.next, low, high).unwrap_or(low);
                }
            }
            if self.assign_again_at.is_some_and(|at| Instant::now() >= at) {
                let next = |(partition, progress): (&i32, &Progress)| {
                    (*partition, Offset::Offset(progress.next))
                };
                self.client
                    .assign(&self.topic, self.partitions.iter().map(next))?;
                self.assign_again_at = None;
            }
        }
        self.mark()
    }

    /// Marks the ends of the partitions: when they are read, resolved dead letters can be
    /// forgotten.
    fn mark(&mut self) -> Result<(), KafkaError> {
        if self.parking.resolved() == 0 || self.partitions.values().any(|p| p.marked.is_some()) {
            return Ok(());
        }
        // The order matters: `confirmed` is taken first, so that the dead letters of confirmed
        // transactions are before the ends.
        let confirmed = self.parking.confirmed();
        let mut ends = Vec::new();
        for partition in self.partitions.keys() {
            let end = self.client.ends(&self.topic, *partition, REQUEST_TIMEOUT)?;
            ends.push((*partition, end));
        }
        for (partition, (low, high)) in ends {
            if let Some(progress) = self.partitions.get_mut(&partition) {
                progress.next = progress.next.max(low);
                progress.marked = Some(high);
            }
        }
        self.confirmed = Some(confirmed);
        Ok(())
    }

    /// Forgets the resolved dead letters without a repeat left to read.
    fn forget_resolved(&mut self) {
        let Some(confirmed) = self.confirmed else {
            return;
        };
        let reached = |p: &Progress| p.marked.is_none_or(|end| p.next >= end);
        if self.partitions.values().all(reached) {
            self.parking.forget_resolved_before(confirmed);
            self.confirmed = None;
            for progress in self.partitions.values_mut() {
                progress.marked = None;
            }
        }
    }

    fn has_caught_up(&mut self) -> bool {
        if self.partitions.is_empty() || self.missing > 0 {
            self.missing >= MISSING_REPORTS
        } else {
            // No short circuit: `is_done` remembers its result for each partition.
            let done = self.partitions.values_mut().map(Progress::is_done);
            done.fold(true, |all, done| all & done)
        }
    }

    fn apply(&mut self, record: ReadRecord) {
        let Position { partition, offset } = record.position();
        match DlqEntry::from_record(record) {
            DlqEntry::DlqRecord(dead_letter) if dead_letter.slot == self.slot => {
                if let Some(key) = &dead_letter.key {
                    let (system, topic) =
                        (dead_letter.system.as_deref(), dead_letter.topic.as_deref());
                    self.parking.park(dead_letter.id, system, topic, key);
                }
            }
            DlqEntry::Resolution(resolution) if resolution.slot == self.slot => {
                let system = resolution.system.as_deref();
                self.parking.resolve(resolution.id, system);
            }
            // Another slot's.
            DlqEntry::DlqRecord(_) | DlqEntry::Resolution(_) => {}
            DlqEntry::Foreign(why) => {
                if let Some(suppressed) = self.throttle.pass("foreign") {
                    tracing::warn!(
                        topic = self.topic,
                        partition,
                        offset,
                        why,
                        suppressed = suppressed.shown(),
                        "a record among the dead letters is none"
                    );
                }
            }
        }
        if let Some(progress) = self.partitions.get_mut(&partition) {
            progress.next = offset + 1;
        }
    }

    fn warn(&self, what: &'static str, error: &dyn fmt::Display) {
        if let Some(suppressed) = self.throttle.pass(what) {
            let waiting = !self.parking.is_ready();
            tracing::warn!(
                topic = self.topic,
                %error,
                waiting,
                suppressed = suppressed.shown(),
                "dead letters: {what}"
            );
        }
    }
}
