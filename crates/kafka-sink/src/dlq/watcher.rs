use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::Offset;
use rdkafka::types::RDKafkaErrorCode as Code;
use walrelay_sink::Parking;

use super::entry::Entry;
use crate::client_log::LogThrottle;
use crate::consumer::{Consumer, Polled};
use crate::worker::Worker;
use crate::{KafkaConfig, KafkaError};

/// How long it blocks before it looks whether it is to stop.
const POLL: Duration = Duration::from_millis(250);
/// For one answer of the broker: it cannot be interrupted.
const ANSWER: Duration = Duration::from_secs(1);
/// Until the end is known, and while there is no topic: how often is asked.
const ASK: Duration = Duration::from_millis(500);
/// While there is no topic, once the relay may go on without.
const ASK_FOR_TOPIC: Duration = Duration::from_secs(2);
/// Partitions can be added.
const ASK_FOR_PARTITIONS: Duration = Duration::from_secs(30);
/// So often in a row must be heard that there is no such topic: a broker that has just started may
/// not know them all.
const CERTAIN: u32 = 3;

/// Follows the topic of dead letters on a thread of its own, and keeps a [`Parking`] up to date: keys
/// with open dead letters of one slot are parked, and freed when the last of them is resolved.
///
/// Calls [`Parking::set_ready`] when it has read what was there when it started, or has heard
/// several times that there is no such topic. A topic that appears later is followed from its
/// beginning on. Brokers that are away are waited for.
///
/// Dropping it ends the thread; **blocks** for a second or two at most.
pub struct DlqWatcher(Worker);

impl DlqWatcher {
    /// Starts to read. Does not wait for a broker.
    ///
    /// # Errors
    /// The client or the thread could not be made.
    pub fn start(
        config: &KafkaConfig,
        topic: &str,
        slot: &str,
        parking: Arc<Parking>,
    ) -> Result<Self, KafkaError> {
        let mut watch = Watch {
            client: Consumer::new(config, &[])?,
            topic: topic.to_owned(),
            slot: slot.to_owned(),
            parking,
            partitions: BTreeMap::new(),
            missing: 0,
            ask: Instant::now(),
            confirmed: None,
            throttle: LogThrottle::default(),
        };
        let worker = Worker::start("kafka-dlq", move |stop| {
            while !stop.load(Ordering::Relaxed) {
                watch.turn();
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
    /// How often in a row a broker said that there is no such topic.
    missing: u32,
    /// When to ask the broker next.
    ask: Instant,
    /// The position that the relay had confirmed before the ends of the partitions were asked for.
    confirmed: Option<u64>,
    throttle: LogThrottle,
}

/// How far a partition was read.
#[derive(Debug, Default)]
struct Progress {
    /// Where it ended when we first asked; unknown until we were answered.
    end: Option<i64>,
    /// Behind the last record that was read.
    next: i64,
    /// Read to its end once.
    done: bool,
    /// Where it ended when the position of `Watch::confirmed` was known.
    marked: Option<i64>,
}

impl Progress {
    fn is_done(&mut self) -> bool {
        self.done |= self.end.is_some_and(|end| self.next >= end);
        self.done
    }
}

impl Watch {
    fn turn(&mut self) {
        if Instant::now() >= self.ask {
            if let Err(error) = self.look_around() {
                self.complain("the brokers cannot be asked for it", &error);
            }
            let ready = self.parking.is_ready();
            self.ask = Instant::now()
                + match self.partitions.is_empty() {
                    _ if !ready => ASK,
                    true => ASK_FOR_TOPIC,
                    false => ASK_FOR_PARTITIONS,
                };
        }
        match self.client.poll(POLL) {
            Polled::Nothing => {}
            Polled::Record(record) => self.take(Entry::of(record)),
            Polled::End(partition) => {
                if let Some(progress) = self.partitions.get_mut(&partition) {
                    progress.done = true;
                }
            }
            // As there are topics that one may write to and not read.
            Polled::Complaint(
                code @ (Code::TopicAuthorizationFailed | Code::UnknownTopicOrPartition),
            ) => self.complain("it cannot be read", &code),
            // The client tries again by itself, and says more in its log.
            Polled::Complaint(code) => tracing::debug!(topic = self.topic, %code, "dead letters"),
        }
        self.forget_resolved();
        if !self.parking.is_ready() && self.has_caught_up() {
            self.parking.set_ready();
            tracing::info!(
                topic = self.topic,
                open = self.parking.open(),
                "dead letters of earlier runs are known"
            );
        }
    }

    /// Looks for the topic, for partitions that are new, and for the ends of the first ones.
    fn look_around(&mut self) -> Result<(), KafkaError> {
        match self.client.partitions(&self.topic, ANSWER)? {
            None => self.missing = self.missing.saturating_add(1),
            Some(found) => {
                self.missing = 0;
                let new: Vec<i32> = found
                    .into_iter()
                    .filter(|partition| !self.partitions.contains_key(partition))
                    .collect();
                if !new.is_empty() {
                    self.client
                        .assign_also(&self.topic, new.iter().map(|p| (*p, Offset::Beginning)))?;
                    let new = new.into_iter().map(|p| (p, Progress::default()));
                    self.partitions.extend(new);
                }
            }
        }
        if !self.parking.is_ready() {
            for (partition, progress) in &mut self.partitions {
                if progress.end.is_none() {
                    let (low, high) = self.client.ends(&self.topic, *partition, ANSWER)?;
                    progress.end = Some(high);
                    progress.next = progress.next.max(low);
                }
            }
        }
        self.mark()
    }

    /// Notes where the partitions end, so that resolved dead letters can be forgotten once they are read so
    /// far.
    fn mark(&mut self) -> Result<(), KafkaError> {
        if self.parking.resolved() == 0 || self.partitions.values().any(|p| p.marked.is_some()) {
            return Ok(());
        }
        // In this order: the dead letters of what was confirmed lie before these ends.
        let confirmed = self.parking.confirmed();
        let mut ends = Vec::new();
        for partition in self.partitions.keys() {
            ends.push((
                *partition,
                self.client.ends(&self.topic, *partition, ANSWER)?,
            ));
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

    /// Forgets the resolved dead letters of which no repeat is left to be read.
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
        if self.partitions.is_empty() {
            self.missing >= CERTAIN
        } else {
            // Each is asked: the answer is remembered.
            let open = self
                .partitions
                .values_mut()
                .filter_map(|p| (!p.is_done()).then_some(()));
            open.count() == 0
        }
    }

    fn take(&mut self, entry: Entry) {
        let position = match entry {
            Entry::DlqRecord(dead_letter) => {
                if let Some(key) = dead_letter
                    .key
                    .as_deref()
                    .filter(|_| dead_letter.slot == self.slot)
                {
                    self.parking
                        .park(dead_letter.id, dead_letter.topic.as_deref(), key);
                }
                dead_letter.position
            }
            Entry::Resolution(resolution) => {
                if resolution.slot == self.slot {
                    self.parking.resolve(resolution.id);
                }
                resolution.position
            }
            Entry::Foreign { position, why } => {
                if let Some(held_back) = self.throttle.pass("foreign") {
                    tracing::warn!(
                        topic = self.topic,
                        partition = position.partition,
                        offset = position.offset,
                        why,
                        held_back = held_back.shown(),
                        "a record among the dead letters is none"
                    );
                }
                position
            }
        };
        if let Some(progress) = self.partitions.get_mut(&position.partition) {
            progress.next = position.offset + 1;
        }
    }

    fn complain(&self, what: &'static str, error: &dyn fmt::Display) {
        if let Some(held_back) = self.throttle.pass(what) {
            let waiting = !self.parking.is_ready();
            tracing::warn!(
                topic = self.topic,
                %error,
                waiting,
                held_back = held_back.shown(),
                "dead letters: {what}"
            );
        }
    }
}
