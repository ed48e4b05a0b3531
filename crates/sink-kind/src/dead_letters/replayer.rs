use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::index::{DlqIndex, Due, OrderScope, OrderScopes};
use super::interface::{
    Action, DeadLetters, DlqRecord, DlqRecordId, Listed, NotRedriven, OutOfOrder, Outcome,
    ReplayOptions, ReplaySummary, Step,
};
use super::log::{DlqLog, Unanswered};
use crate::topics::Position;
use walrelay_failure::{Exit, Failure};
use walrelay_sink::{DeliveryError, Disposition, Header, Poison, Record, RecordKind, dlq_headers};

/// The most dead letters fetched at once, and the most bytes of them.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 16 << 20;
/// The wait for more parked dead letters: a relay learns a moment later that a key is free,
/// and may park more events meanwhile.
const FOLLOW_WAIT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The reason why a replay ended early.
#[derive(Debug, thiserror::Error)]
enum ReplayError {
    /// The dead letters cannot be read, or the sink could not be created.
    #[error(transparent)]
    Sink(#[from] Failure),
    /// No acknowledgement came in time. The record may have been written or not.
    #[error("dead letter {dead_letter}: no acknowledgement within {patience:?}")]
    NoAnswer {
        /// The dead letter in work; it is open.
        dead_letter: DlqRecordId,
        /// How long the replayer waited.
        patience: Duration,
        /// The last error reported.
        source: Option<DeliveryError>,
    },
    /// The resolution of a dead letter could not be written.
    #[error(
        "dead letter {dead_letter}: that it was {outcome} could not be written to the topic of dead letters"
    )]
    NotRecorded {
        /// The dead letter; it is open.
        dead_letter: DlqRecordId,
        /// What was done already.
        outcome: Outcome,
        /// Why the resolution was not written.
        source: DeliveryError,
    },
}

/// Redrives or drops the dead letters of a topic, in the order that [`DeadLetters`] promises.
///
/// Two replayers that run at the same time can repeat records and send a record behind a later one.
pub struct DlqReplayer<L> {
    topic: String,
    log: L,
    index: DlqIndex,
}

impl<L: DlqLog> DlqReplayer<L> {
    /// Creates a replayer of the dead letters that were written to `topic`. Nothing is read yet.
    pub fn new(topic: &str, log: L) -> Self {
        Self {
            topic: topic.to_owned(),
            log,
            index: DlqIndex::default(),
        }
    }

    /// Returns the number of open dead letters that were read, selected or not.
    pub fn open(&self) -> usize {
        self.index.open()
    }

    /// Replays the selected dead letters.
    fn replay(
        &mut self,
        options: &ReplayOptions,
        select: &dyn Fn(&DlqRecord) -> bool,
        report: &mut dyn FnMut(Step<'_>),
    ) -> Result<ReplaySummary, ReplayError> {
        let mut run = Run {
            options,
            summary: ReplaySummary::default(),
            taken: OrderScopes::default(),
            blocked: OrderScopes::default(),
            tried: HashSet::new(),
            refusing: HashMap::new(),
        };
        let mut since = Instant::now();
        loop {
            let due: Vec<Due> = self
                .index
                .due(options.follows().then_some(&run.taken))
                .into_iter()
                .filter(|due| !run.tried.contains(&due.name))
                .take(run.left())
                .collect();
            if !due.is_empty() {
                self.replay_batches(&due, &mut run, report)?;
                since = Instant::now();
            }
            let follows = options.follows() && run.left() > 0 && !run.taken.is_empty();
            if !follows || since.elapsed() > FOLLOW_WAIT {
                return Ok(run.summary);
            }
            thread::sleep(POLL_INTERVAL);
            let (index, taken) = (&mut self.index, &run.taken);
            self.log.read(&mut |entry| {
                index.add(&entry, |dead_letter| {
                    taken
                        .before(&OrderScope::from_dead_letter(dead_letter))
                        .is_some()
                        && select(dead_letter)
                });
            })?;
        }
    }

    fn replay_batches(
        &mut self,
        due: &[Due],
        run: &mut Run<'_>,
        report: &mut dyn FnMut(Step<'_>),
    ) -> Result<(), ReplayError> {
        let mut rest = due;
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(batch_length(rest));
            rest = later;
            let ready = batch
                .iter()
                .filter(|due| run.blocked.before(&due.scope).is_none());
            let ready: Vec<Position> = ready.map(|due| due.position).collect();
            let records = self.log.fetch(&ready)?;
            for due in batch {
                self.replay_one(due, records.get(&due.position), run, report)?;
            }
        }
        Ok(())
    }

    fn replay_one(
        &mut self,
        due: &Due,
        dead_letter: Option<&DlqRecord>,
        run: &mut Run<'_>,
        report: &mut dyn FnMut(Step<'_>),
    ) -> Result<(), ReplayError> {
        run.tried.insert(due.name.clone());
        if run.options.action != Action::Drop
            && let Some(behind) = run.blocked.before(&due.scope)
        {
            run.summary.held_back += 1;
            report(Step::HeldBack {
                dead_letter: &due.name,
                behind,
            });
            return Ok(());
        }
        // A topic that was made anew meanwhile may have another one at that place.
        let is_due = |it: &&DlqRecord| {
            let system = due.name.system.as_deref();
            it.slot == *due.name.slot && it.id == due.name.id && it.system.as_deref() == system
        };
        let Some(dead_letter) = dead_letter.filter(is_due) else {
            run.failed(due, None, NotRedriven::Gone, report);
            return Ok(());
        };
        let (outcome, sent) = match &run.options.action {
            Action::Drop => (Outcome::Dropped, Ok(())),
            Action::Redrive { topic, .. } => {
                let topic = topic.as_deref();
                let sent = self.redrive(&due.name, dead_letter, topic, run)?;
                (Outcome::Redriven, sent)
            }
        };
        match sent {
            Ok(()) => {
                self.record(&due.name, dead_letter, outcome, run.options.patience)?;
                self.index.resolve(&due.name, outcome);
                run.taken.add(&due.scope, &due.name);
                run.summary.done += 1;
                report(Step::Done(dead_letter));
            }
            Err(why) => run.failed(due, Some(dead_letter), why, report),
        }
        Ok(())
    }

    /// Sends a dead letter's record. The outer error ends the replay; the inner error leaves the
    /// dead letter open, and the replay continues.
    fn redrive(
        &mut self,
        name: &DlqRecordId,
        dead_letter: &DlqRecord,
        instead: Option<&str>,
        run: &mut Run<'_>,
    ) -> Result<Result<(), NotRedriven>, ReplayError> {
        if let Some(bytes) = dead_letter.omitted_bytes {
            return Ok(Err(NotRedriven::Omitted { bytes }));
        }
        if let Some(why) = dead_letter.unrestored {
            return Ok(Err(NotRedriven::Unrestored(why)));
        }
        if !dead_letter.is_exact {
            return Ok(Err(NotRedriven::Inexact));
        }
        let Some(topic) = instead.or(dead_letter.topic.as_deref()) else {
            return Ok(Err(NotRedriven::NoTopic));
        };
        if let Some(reason) = run.refusing.get(topic) {
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
            kind: RecordKind::Event,
            topic,
            routing_key: None,
            // Another topic may have other partitions.
            partition: dead_letter.partition.filter(|_| instead.is_none()),
            timestamp_ms: dead_letter.timestamp_ms,
            key: dead_letter.key.as_deref(),
            value: dead_letter.value.as_deref(),
            headers: &headers,
            event_id: dead_letter.event_id.as_deref(),
            position: dead_letter.id,
        };
        let patience = run.options.patience;
        let answer = self.log.send(&record, patience);
        let answer = answer.map_err(|why| why.into_error(name, patience))?;
        Ok(answer.map_err(|error| {
            // A missing or forbidden topic: the next record would wait half a minute for this
            // error.
            let of_topic = error.poison == Some(Poison::Rejected)
                && error.disposition != Disposition::Fatal
                && record.partition.is_none();
            if of_topic {
                let reason = Arc::from(error.reason.as_str());
                run.refusing.insert(topic.to_owned(), reason);
            }
            NotRedriven::Refused(error)
        }))
    }

    /// Writes the resolution into the dead letter's own partition, because its key may belong to
    /// another partition by now.
    fn record(
        &mut self,
        name: &DlqRecordId,
        of: &DlqRecord,
        outcome: Outcome,
        patience: Duration,
    ) -> Result<(), ReplayError> {
        let resolves = format!("{} {}", of.slot, of.id);
        let mut headers = vec![
            Header {
                name: dlq_headers::RESOLVES,
                value: Some(resolves.as_bytes()),
            },
            Header {
                name: dlq_headers::RESOLUTION,
                value: Some(outcome.name().as_bytes()),
            },
        ];
        headers.extend(of.system.as_ref().map(|system| Header {
            name: dlq_headers::SYSTEM,
            value: Some(system.as_bytes()),
        }));
        let record = Record {
            kind: RecordKind::Resolution,
            topic: &self.topic,
            routing_key: None,
            partition: Some(of.position.partition),
            timestamp_ms: None,
            key: of.key.as_deref(),
            value: None,
            headers: &headers,
            event_id: of.event_id.as_deref(),
            position: of.id,
        };
        let answer = self.log.send(&record, patience);
        let answer = answer.map_err(|why| why.into_error(name, patience))?;
        answer.map_err(|source| ReplayError::NotRecorded {
            dead_letter: name.clone(),
            outcome,
            source,
        })
    }
}

impl Unanswered {
    fn into_error(self, dead_letter: &DlqRecordId, patience: Duration) -> ReplayError {
        match self {
            Self::Late(source) => ReplayError::NoAnswer {
                dead_letter: dead_letter.clone(),
                patience,
                source,
            },
            Self::Sink(failure) => failure.into(),
        }
    }
}

/// Returns the length of the next batch, at least one.
fn batch_length(due: &[Due]) -> usize {
    let mut bytes = 0;
    let fit = due.iter().take(BATCH).take_while(|due| {
        bytes += due.bytes;
        bytes <= BATCH_BYTES
    });
    fit.count().max(1)
}

struct Run<'a> {
    options: &'a ReplayOptions,
    summary: ReplaySummary,
    /// The scopes of redriven or dropped dead letters.
    taken: OrderScopes,
    /// The scopes of dead letters that stay open.
    blocked: OrderScopes,
    /// Dead letters with a result, whichever it is.
    tried: HashSet<DlqRecordId>,
    /// Topics that refuse all records, and why.
    refusing: HashMap<String, Arc<str>>,
}

impl Run<'_> {
    /// Reports a dead letter that stays open, and blocks those of its key behind it.
    fn failed(
        &mut self,
        due: &Due,
        dead_letter: Option<&DlqRecord>,
        why: NotRedriven,
        report: &mut dyn FnMut(Step<'_>),
    ) {
        self.blocked.add(&due.scope, &due.name);
        self.summary.failed += 1;
        report(Step::Failed(&due.name, dead_letter, why));
    }

    /// Returns how many more dead letters the limit allows.
    fn left(&self) -> usize {
        let limit = self.options.limit.unwrap_or(usize::MAX);
        limit.saturating_sub(self.tried.len())
    }
}

impl<L> fmt::Debug for DlqReplayer<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DlqReplayer")
            .field("topic", &self.topic)
            .field("open", &self.index.open())
            .finish_non_exhaustive()
    }
}

impl<L: DlqLog> DeadLetters for DlqReplayer<L> {
    fn start_at(&mut self, timestamp_ms: i64) -> Result<(), Failure> {
        self.log.start_at(timestamp_ms)
    }

    fn read(&mut self, select: &dyn Fn(&DlqRecord) -> bool) -> Result<(), Failure> {
        let index = &mut self.index;
        self.log.read(&mut |entry| index.add(&entry, select))
    }

    fn foreign(&self) -> u64 {
        self.index.foreign()
    }

    fn selected(&self, resolved: bool) -> Vec<Listed> {
        self.index.selected(resolved)
    }

    fn out_of_order(&self) -> Vec<OutOfOrder> {
        self.index.out_of_order()
    }

    fn plan(&self, options: &ReplayOptions) -> Vec<Listed> {
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

    fn each(
        &mut self,
        listed: &[Listed],
        show: &mut dyn FnMut(&Listed, Option<&DlqRecord>) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        // Small batches, because the sizes of the values are not known here.
        for some in listed.chunks(50) {
            let positions: Vec<Position> = some.iter().map(|listed| listed.position).collect();
            let records = self.log.fetch(&positions)?;
            for item in some {
                if show(item, records.get(&item.position)).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        options: &ReplayOptions,
        select: &dyn Fn(&DlqRecord) -> bool,
        report: &mut dyn FnMut(Step<'_>),
    ) -> Result<ReplaySummary, Failure> {
        let carried = self.replay(options, select, report);
        carried.map_err(ReplayError::into_failure)
    }
}

impl ReplayError {
    /// Finds the words for the operator.
    fn into_failure(self) -> Failure {
        let what = self.to_string();
        match self {
            Self::Sink(failure) => failure,
            Self::NoAnswer { source, .. } => Failure {
                source: source.map(Into::into),
                ..Failure::new("dlq-no-answer", Exit::Unavailable, what).remedy(
                    "see to the server of the sink, then run it again: what was done is not \
                     repeated, but this one dead letter may be",
                )
            },
            Self::NotRecorded { source, .. } => Failure::new(
                "dlq-not-recorded",
                Exit::Unavailable,
                what,
            )
            .caused_by(source)
            .remedy(
                "allow the user of the sink to write to the topic of dead letters, then run it \
                     again: this one dead letter is repeated",
            ),
        }
    }
}
