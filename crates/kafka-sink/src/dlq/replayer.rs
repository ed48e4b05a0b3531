use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_sink::{DeliveryError, Disposition, Header, Poison, Record, dlq_headers};

use super::entry::{DlqRecord, Outcome};
use super::index::{DlqIndex, DlqRecordId, Due, Listed, OrderScope, OrderScopes, OutOfOrder};
use super::reader::DlqReader;
use super::sender::{Sender, Unanswered};
use crate::{KafkaConfig, KafkaError};

/// Dead letters that are fetched at once: so many, and so many bytes.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 16 << 20;
/// A relay learns a moment later that a key is free, and may park more events meanwhile.
const SETTLED: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(100);

/// What is to become of dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Their records are sent where they were bound for, or to this topic.
    Redrive {
        /// Instead of the dead letters' own.
        topic: Option<String>,
        /// Parked dead letters behind those that are redriven are redriven too, also such as a running
        /// relay adds meanwhile.
        follow: bool,
    },
    /// They are closed and not sent.
    Drop,
}

/// How a [`DlqReplayer`] works.
#[derive(Debug, Clone)]
pub struct ReplayOptions {
    /// What is to be done.
    pub action: Action,
    /// No more dead letters than this.
    pub limit: Option<usize>,
    /// How long an acknowledgement may take. More than the half minute after which librdkafka
    /// says that there is no such topic.
    pub patience: Duration,
}

/// Why a dead letter stays open. The rest goes on.
#[derive(Debug, thiserror::Error)]
pub enum NotRedriven {
    /// Its value is not in the dead letter.
    #[error("its value of {bytes} bytes was left out of the dead letter")]
    Omitted {
        /// The value's size.
        bytes: u64,
    },
    /// It was bound for no topic.
    #[error("it has no topic to go to")]
    NoTopic,
    /// The broker or the client refuses the record.
    #[error(transparent)]
    Refused(DeliveryError),
    /// Retention removed it after it was looked up.
    #[error("it is not in the topic of dead letters any more")]
    Gone,
    /// The topic refused another record a moment ago, for a reason that is not that record's.
    #[error("its topic takes nothing: {0}")]
    TopicRefuses(Arc<str>),
}

/// Why work on dead letters ended.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Dead letters cannot be read, or there is no producer.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    /// Nobody acknowledged in time. The record may have arrived or not.
    #[error("dead letter {dead_letter}: no acknowledgement within {patience:?}")]
    NoAnswer {
        /// The dead letter that was being worked on: it is open.
        dead_letter: DlqRecordId,
        /// How long was waited.
        patience: Duration,
        /// The last that was heard.
        source: Option<DeliveryError>,
    },
    /// What became of a dead letter could not be written down.
    #[error(
        "dead letter {dead_letter}: that it was {outcome} could not be written to the topic of dead letters"
    )]
    NotRecorded {
        /// The dead letter: it counts as open.
        dead_letter: DlqRecordId,
        /// What was done already.
        outcome: Outcome,
        /// Why.
        source: DeliveryError,
    },
}

/// What was done with a dead letter.
#[derive(Debug)]
pub enum Step<'a> {
    /// Done, and written down.
    Done(&'a DlqRecord),
    /// It stays open.
    Failed(&'a DlqRecordId, Option<&'a DlqRecord>, NotRedriven),
    /// It stays open, as one before it did.
    HeldBack {
        /// The dead letter.
        dead_letter: &'a DlqRecordId,
        /// The one before it.
        behind: &'a DlqRecordId,
    },
}

/// How many dead letters came to which end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Redriven or dropped.
    pub done: usize,
    /// Tried, and still open.
    pub failed: usize,
    /// Not tried: one before them is open.
    pub held_back: usize,
}

/// Works on the dead letters of a topic.
///
/// # Order
/// Dead letters are taken one after the other in the order of the log. A dead letter's record is acknowledged
/// before its resolution is written, and that before the next dead letter is begun: whoever is killed
/// repeats one record at most. Behind a dead letter that stays open, no other of its key is sent.
///
/// Two of them at work on the same dead letters repeat records, and can send one behind a later one.
pub struct DlqReplayer {
    topic: String,
    reader: DlqReader,
    index: DlqIndex,
    sender: Sender,
}

impl DlqReplayer {
    /// Looks the topic up; `None`: the brokers know no such topic. `patience`: how long the brokers may
    /// take to answer, and how long reading may make no progress.
    ///
    /// **Blocks**.
    pub fn open(
        config: &KafkaConfig,
        topic: &str,
        patience: Duration,
    ) -> Result<Option<Self>, KafkaError> {
        let reader = DlqReader::open(config, topic, patience)?;
        Ok(reader.map(|reader| Self {
            topic: topic.to_owned(),
            reader,
            index: DlqIndex::default(),
            sender: Sender::new(config),
        }))
    }

    /// Leaves out what was written before that time, in milliseconds since 1970. Only for looking: it may hide dead letters that come before others.
    pub fn start_at(&mut self, timestamp_ms: i64) -> Result<(), KafkaError> {
        self.reader.start_at(timestamp_ms)
    }

    /// Reads the topic to its end and remembers which dead letters are selected.
    ///
    /// **Blocks**.
    pub fn read(&mut self, select: impl Fn(&DlqRecord) -> bool) -> Result<(), KafkaError> {
        let index = &mut self.index;
        self.reader.read(|entry| index.take(&entry, &select))
    }

    /// What was read.
    pub fn index(&self) -> &DlqIndex {
        &self.index
    }

    /// Selected dead letters that would overtake an open one of their key, were they redriven.
    pub fn out_of_order(&self) -> Vec<OutOfOrder> {
        self.index.out_of_order()
    }

    /// What [`carry_out`](Self::carry_out) would begin with.
    pub fn plan(&self, options: &ReplayOptions) -> Vec<Listed> {
        let nothing = OrderScopes::default();
        let due = self.index.due(options.follows().then_some(&nothing));
        due.into_iter()
            .take(options.limit.unwrap_or(usize::MAX))
            .map(|due| Listed {
                name: due.name,
                position: due.position,
                outcome: None,
            })
            .collect()
    }

    /// Gives the dead letters themselves, in this order; `None` for one that is gone.
    ///
    /// **Blocks**.
    pub fn each(
        &mut self,
        listed: &[Listed],
        mut show: impl FnMut(&Listed, Option<&DlqRecord>),
    ) -> Result<(), KafkaError> {
        // What a value weighs is not known here.
        for some in listed.chunks(50) {
            let found = self.reader.fetch(some.iter().map(|l| l.position))?;
            for one in some {
                show(one, found.get(&one.position));
            }
        }
        Ok(())
    }

    /// Does what is ordered with the dead letters that were selected. `select` says which of those that
    /// come meanwhile, of keys that are worked on, are to be taken too.
    ///
    /// **Blocks** until it is done.
    pub fn carry_out(
        &mut self,
        options: &ReplayOptions,
        select: impl Fn(&DlqRecord) -> bool,
        mut report: impl FnMut(Step<'_>),
    ) -> Result<ReplaySummary, ReplayError> {
        let mut work = Work {
            options,
            summary: ReplaySummary::default(),
            taken: OrderScopes::default(),
            blocked: OrderScopes::default(),
            over: HashSet::new(),
            refusing: HashMap::new(),
        };
        let mut since = Instant::now();
        loop {
            let due = self.index.due(options.follows().then_some(&work.taken));
            let due: Vec<Due> = due
                .into_iter()
                .filter(|due| !work.over.contains(&due.name))
                .take(work.left())
                .collect();
            if !due.is_empty() {
                self.round(&due, &mut work, &mut report)?;
                since = Instant::now();
            }
            if !options.follows() || work.left() == 0 || work.taken.is_empty() {
                return Ok(work.summary);
            }
            if since.elapsed() > SETTLED {
                return Ok(work.summary);
            }
            thread::sleep(LOOK);
            let (index, taken) = (&mut self.index, &work.taken);
            self.reader.read(|entry| {
                index.take(&entry, |dead_letter| {
                    taken.before(&OrderScope::of(dead_letter)).is_some() && select(dead_letter)
                });
            })?;
        }
    }

    fn round(
        &mut self,
        due: &[Due],
        work: &mut Work<'_>,
        report: &mut impl FnMut(Step<'_>),
    ) -> Result<(), ReplayError> {
        let mut rest = due;
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(batch_length(rest));
            rest = later;
            let ready = batch
                .iter()
                .filter(|due| work.blocked.before(&due.scope).is_none());
            let found = self.reader.fetch(ready.map(|due| due.position))?;
            for due in batch {
                self.one(due, found.get(&due.position), work, report)?;
            }
        }
        Ok(())
    }

    fn one(
        &mut self,
        due: &Due,
        dead_letter: Option<&DlqRecord>,
        work: &mut Work<'_>,
        report: &mut impl FnMut(Step<'_>),
    ) -> Result<(), ReplayError> {
        work.over.insert(due.name.clone());
        if work.options.action != Action::Drop
            && let Some(behind) = work.blocked.before(&due.scope)
        {
            work.summary.held_back += 1;
            report(Step::HeldBack {
                dead_letter: &due.name,
                behind,
            });
            return Ok(());
        }
        let Some(dead_letter) = dead_letter else {
            work.failed(due, None, NotRedriven::Gone, report);
            return Ok(());
        };
        let (outcome, sent) = match &work.options.action {
            Action::Drop => (Outcome::Dropped, Ok(())),
            Action::Redrive { topic, .. } => {
                let topic = topic.as_deref();
                let sent = self.redrive(&due.name, dead_letter, topic, work)?;
                (Outcome::Redriven, sent)
            }
        };
        match sent {
            Ok(()) => {
                self.record(&due.name, dead_letter, outcome, work.options.patience)?;
                self.index.resolve(&due.name, outcome);
                work.taken.add(&due.scope, &due.name);
                work.summary.done += 1;
                report(Step::Done(dead_letter));
            }
            Err(why) => work.failed(due, Some(dead_letter), why, report),
        }
        Ok(())
    }

    /// Sends a dead letter's record; the inner error leaves it open and lets the others go on.
    fn redrive(
        &mut self,
        name: &DlqRecordId,
        dead_letter: &DlqRecord,
        instead: Option<&str>,
        work: &mut Work<'_>,
    ) -> Result<Result<(), NotRedriven>, ReplayError> {
        if let Some(bytes) = dead_letter.omitted_bytes {
            return Ok(Err(NotRedriven::Omitted { bytes }));
        }
        let Some(topic) = instead.or(dead_letter.topic.as_deref()) else {
            return Ok(Err(NotRedriven::NoTopic));
        };
        if let Some(reason) = work.refusing.get(topic) {
            return Ok(Err(NotRedriven::TopicRefuses(Arc::clone(reason))));
        }
        let headers: Vec<Header<'_>> = dead_letter
            .headers
            .iter()
            .map(|(name, value)| Header {
                name,
                value: value.as_deref(),
            })
            .collect();
        let record = Record {
            topic,
            // Another topic may have other partitions.
            partition: dead_letter.partition.filter(|_| instead.is_none()),
            timestamp_ms: dead_letter.timestamp_ms,
            key: dead_letter.key.as_deref(),
            value: dead_letter.value.as_deref(),
            headers: &headers,
        };
        let patience = work.options.patience;
        let answer = self.sender.send(&record, patience);
        let answer = answer.map_err(|why| why.of(name, patience))?;
        Ok(answer.map_err(|error| {
            // No such topic, or not allowed: it would take half a minute to hear it again.
            let of_topic = error.poison == Some(Poison::Rejected)
                && error.disposition != Disposition::Fatal
                && record.partition.is_none();
            if of_topic {
                let reason = Arc::from(error.reason.as_str());
                work.refusing.insert(topic.to_owned(), reason);
            }
            NotRedriven::Refused(error)
        }))
    }

    /// Writes down what became of a dead letter: in its partition, wherever its key may belong now.
    fn record(
        &mut self,
        name: &DlqRecordId,
        of: &DlqRecord,
        outcome: Outcome,
        patience: Duration,
    ) -> Result<(), ReplayError> {
        let resolves = format!("{} {}", of.slot, of.id);
        let headers = [
            Header {
                name: dlq_headers::RESOLVES,
                value: Some(resolves.as_bytes()),
            },
            Header {
                name: dlq_headers::RESOLUTION,
                value: Some(outcome.name().as_bytes()),
            },
        ];
        let record = Record {
            topic: &self.topic,
            partition: Some(of.position.partition),
            timestamp_ms: None,
            key: of.key.as_deref(),
            value: None,
            headers: &headers,
        };
        let answer = self.sender.send(&record, patience);
        let answer = answer.map_err(|why| why.of(name, patience))?;
        answer.map_err(|source| ReplayError::NotRecorded {
            dead_letter: name.clone(),
            outcome,
            source,
        })
    }
}

impl Unanswered {
    fn of(self, dead_letter: &DlqRecordId, patience: Duration) -> ReplayError {
        match self {
            Self::Late(source) => ReplayError::NoAnswer {
                dead_letter: dead_letter.clone(),
                patience,
                source,
            },
            Self::Client(error) => error.into(),
        }
    }
}

/// How many of them to fetch at once: one at least.
fn batch_length(due: &[Due]) -> usize {
    let mut bytes = 0;
    let fit = due.iter().take(BATCH).take_while(|due| {
        bytes += due.bytes;
        bytes <= BATCH_BYTES
    });
    fit.count().max(1)
}

struct Work<'a> {
    options: &'a ReplayOptions,
    summary: ReplaySummary,
    /// Keys of which dead letters were redriven or dropped.
    taken: OrderScopes,
    /// Keys of which a dead letter stays open.
    blocked: OrderScopes,
    /// Dead letters that were seen to, whatever came of it.
    over: HashSet<DlqRecordId>,
    /// Topics that take nothing, and why.
    refusing: HashMap<String, Arc<str>>,
}

impl Work<'_> {
    /// A dead letter stays open, and with it those of its key behind it.
    fn failed(
        &mut self,
        due: &Due,
        dead_letter: Option<&DlqRecord>,
        why: NotRedriven,
        report: &mut impl FnMut(Step<'_>),
    ) {
        self.blocked.add(&due.scope, &due.name);
        self.summary.failed += 1;
        report(Step::Failed(&due.name, dead_letter, why));
    }

    /// How many dead letters may still be taken.
    fn left(&self) -> usize {
        let limit = self.options.limit.unwrap_or(usize::MAX);
        limit.saturating_sub(self.over.len())
    }
}

impl ReplayOptions {
    fn follows(&self) -> bool {
        matches!(self.action, Action::Redrive { follow: true, .. })
    }
}

impl fmt::Debug for DlqReplayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DlqReplayer")
            .field("topic", &self.topic)
            .field("open", &self.index.open())
            .finish_non_exhaustive()
    }
}
