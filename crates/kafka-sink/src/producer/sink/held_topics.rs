//! Topics that are not known to be writable. Their accepted records are held back, in the order in which
//! they came, and no other topic waits: docs/adr/0060-a-missing-topic-holds-itself.md.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use rdkafka::types::RDKafkaErrorCode as Code;
use walrelay_sink::{
    DeliveryError, Disposition, HeldRecord, Obstacle, Poison, Record, Refusal, Retrying, Waiting,
    Window,
};

use super::refusals::refusal;
use super::{KafkaSink, fail, give_back};
use crate::admin::creator::{TopicCreator, TopicStatus};
use crate::answers::TopicState;
use crate::in_flight::hold_queues::Queued;
use crate::in_flight::shared::Shared;
use crate::in_flight::topic::NotQueued;
use crate::outcome::delivery_error;
use crate::producer::obstacle::{MAX_NAMED, problems};
use crate::producer::topic_checks::{Answer, is_refusal};

/// The held topics of a sink, by number.
pub(super) type HeldTopics = BTreeMap<usize, HeldTopic>;

/// A topic whose records are held back.
pub(super) struct HeldTopic {
    /// Those that are set aside come first.
    records: VecDeque<Queued>,
    /// Records that were reported as refused and are not taken back yet. Meanwhile no record is sent: it
    /// may have the key of one of them.
    refused: VecDeque<Queued>,
    /// The topic was given up, and records are not taken back yet: further ones are refused at once.
    is_given_up: bool,
    step: Step,
    /// Why the topic is held, once that is known.
    problem: Option<Problem>,
    /// Since when that is known.
    since: Option<Instant>,
}

/// The event that a held topic waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing: the topic is to be asked for.
    Ask,
    /// The relay creates the topic.
    Creation,
    /// A broker's answer.
    Answer,
}

/// The reason why a topic is held: for its records, and for the operator.
struct Problem {
    error: DeliveryError,
    what: String,
    disposition: Disposition,
    remedy: Option<&'static str>,
}

impl Problem {
    /// Creates the problem of a topic that is refused as a whole.
    fn from_code(name: &str, code: Code) -> Self {
        let state = TopicState {
            name: name.to_owned(),
            error: Some(code),
            leaderless: Vec::new(),
        };
        let error = delivery_error(name, code);
        match problems(&state).pop() {
            Some((disposition, what, remedy)) => Self {
                error,
                what,
                disposition,
                remedy,
            },
            None => Self::from_error(error),
        }
    }

    /// Creates the problem of a first record that is refused, or of a topic that cannot be created.
    fn from_error(error: DeliveryError) -> Self {
        Self {
            what: error.to_string(),
            error,
            disposition: Disposition::Configuration,
            remedy: None,
        }
    }
}

impl HeldTopic {
    fn new(records: VecDeque<Queued>) -> Self {
        Self {
            records,
            refused: VecDeque::new(),
            is_given_up: false,
            step: Step::Ask,
            problem: None,
            since: None,
        }
    }

    /// Returns true if the topic may turn out to be writable at any moment.
    pub(super) fn is_unanswered(&self) -> bool {
        self.step == Step::Answer && self.problem.is_none()
    }

    fn set_problem(&mut self, problem: Problem) {
        self.problem = Some(problem);
        self.since.get_or_insert_with(Instant::now);
    }

    /// Returns which records wait for the topic.
    fn waiting(&self) -> Option<Waiting> {
        let records = self.records.iter().map(|queued| &queued.record);
        let (problem, since) = (self.problem.as_ref()?, self.since?);
        // A broker is asked again within a second.
        Waiting::new(records, &problem.what, since, None)
    }

    /// Reports a record as refused, and keeps it until it is taken back. Its room is free at once, so that
    /// a dead letter may take its place.
    fn refuse(&mut self, queued: Queued, poison: Poison, error: &DeliveryError, shared: &Shared) {
        let refusal = Refusal {
            topic: Arc::clone(&error.topic),
            poison,
            reason: error.reason.clone(),
            // The topic is at fault.
            disposition: Disposition::Configuration,
        };
        let seq = queued.seq;
        give_back(shared, &queued);
        self.refused.push_back(queued);
        shared.refused(seq, refusal);
    }

    /// Sets records aside, the first ones first, if the topic is refused. Returns their number, and whether more
    /// may be set aside.
    fn set_aside(&mut self, window: &Window) -> (usize, bool) {
        if self.problem.is_none() {
            return (0, true);
        }
        let before = self.records.partition_point(|queued| queued.is_aside);
        for (set, queued) in self.records.range_mut(before..).enumerate() {
            if !queued.set_aside(window) {
                return (set, false);
            }
        }
        (self.records.len() - before, true)
    }

    /// Notes that a broker refuses the topic. With a `creator`, its creation is tried again.
    fn refused_by(&mut self, name: &str, code: Code, creator: Option<&TopicCreator>) {
        match creator.map(|creator| creator.status(name)) {
            Some(TopicStatus::Denied(error)) => self.set_problem(Problem::from_error(error)),
            // The reason why it is not created says more.
            Some(_) if self.problem.is_some() => {}
            _ => self.set_problem(Problem::from_code(name, code)),
        }
    }
}

impl KafkaSink {
    /// Holds an accepted record back until its topic is known to be writable.
    pub(super) fn hold(&mut self, at: usize, queued: Queued) {
        let new = || HeldTopic::new(VecDeque::new());
        let held = self.held.entry(at).or_insert_with(new);
        held.records.push_back(queued);
        if held.is_given_up {
            self.refuse_held(at);
        } else if held.step == Step::Ask && held.refused.is_empty() {
            self.ask(at);
        }
    }

    /// Holds a topic that librdkafka refuses with a record, because it was deleted or the principal lost
    /// its right. Returns false if the topic is not the reason, or if records of the topic are in flight:
    /// then the broker's state of its partitions is not certain. True: call
    /// [`hold_first`](Self::hold_first) with the record.
    pub(super) fn hold_topic(&mut self, at: usize, code: Code) -> bool {
        let topic = &mut self.topics.all[at];
        let is_idle = || topic.gate.as_ref().is_none_or(|gate| gate.reset());
        if !is_refusal(code) || !is_idle() {
            return false;
        }
        topic.is_writable = false;
        let new = || HeldTopic::new(VecDeque::new());
        let held = self.held.entry(at).or_insert_with(new);
        // A record that names a missing partition may hold the topic already. Records of the hold queues came before it.
        for queued in &mut held.records {
            queued.take_room(&self.shared.window);
        }
        let mut records = self.hold_queues.take_topic(at);
        records.append(&mut held.records);
        held.records = records;
        held.step = Step::Answer;
        held.set_problem(Problem::from_code(&topic.name, code));
        self.checks.request_later(&topic.name);
        true
    }

    /// Puts a record before the others of a held topic.
    pub(super) fn hold_first(&mut self, at: usize, first: Queued) {
        if let Some(held) = self.held.get_mut(&at) {
            held.records.push_front(first);
        }
    }

    /// Has a held topic created, or asks a broker whether it may be written to.
    fn ask(&mut self, at: usize) {
        let Some(held) = self.held.get_mut(&at) else {
            return;
        };
        let topic = &self.topics.all[at];
        let creator = self.creator.as_ref();
        match creator.map(|creator| creator.status(&topic.name)) {
            Some(TopicStatus::Pending) => {
                held.step = Step::Creation;
                return;
            }
            Some(TopicStatus::Denied(error)) => {
                let is_final = error.disposition == Disposition::Fatal;
                held.set_problem(Problem::from_error(error));
                if is_final {
                    self.refuse_held(at);
                    return;
                }
            }
            Some(TopicStatus::Exists) | None => {}
        }
        // librdkafka has one handle for each name, and the first one decides about the gate.
        let handle = self.producers.all[0].topic(at, &topic.name, topic.gate.as_ref());
        if let Err(code) = handle {
            held.set_problem(Problem::from_error(delivery_error(&topic.name, code)));
            self.refuse_held(at);
            return;
        }
        held.step = Step::Answer;
        self.checks.request(&topic.name);
    }

    /// Asks for the topics that the relay has created meanwhile.
    pub(super) fn advance_creations(&mut self) {
        let held = self.held.iter();
        let created = held.filter(|(_, held)| held.step == Step::Creation);
        for at in created.map(|(at, _)| *at).collect::<Vec<_>>() {
            self.ask(at);
        }
    }

    /// Sends or refuses the held records of topics that have an answer.
    pub(super) fn advance_held(&mut self) {
        // Called for each record.
        if !self.checks.has_answers() {
            return;
        }
        for (name, answer) in self.checks.take_answers() {
            let at = self.topics.index.get(&name).copied();
            let Some((at, held)) = at.and_then(|at| Some((at, self.held.get_mut(&at)?))) else {
                continue;
            };
            match answer {
                Answer::Writable => {
                    held.step = Step::Ask;
                    self.release(at);
                }
                Answer::Refused(code) => held.refused_by(&name, code, self.creator.as_ref()),
                Answer::GivenUp(code) => {
                    held.refused_by(&name, code, self.creator.as_ref());
                    self.refuse_held(at);
                }
            }
        }
    }

    /// Sets the records of refused topics aside while other records find no room, up to the bound. Returns false if
    /// there is none to set aside.
    pub(super) fn set_held_aside(&mut self) -> bool {
        let mut all = 0;
        for held in self.held.values_mut() {
            let (set, has_room) = held.set_aside(&self.shared.window);
            all += set;
            if !has_room {
                break;
            }
        }
        all > 0
    }

    /// Sends the records of a topic that may be written to, until librdkafka refuses one.
    fn release(&mut self, at: usize) {
        while let Some(held) = self.held.get_mut(&at)
            && held.step == Step::Ask
            && held.refused.is_empty()
            && !self.shared.broken()
        {
            let topic = &mut self.topics.all[at];
            let Some(mut first) = held.records.pop_front() else {
                self.held.remove(&at);
                topic.is_writable = true;
                return;
            };
            first.take_room(&self.shared.window);
            let queued = (first.seq, first.timestamp_ms, None);
            let producers = &mut self.producers;
            let offer = |record: &Record<'_>| Self::offer(producers, topic, at, record, queued);
            match first.record.with(offer) {
                Ok(()) => self.patience.forget(topic.name.as_bytes()),
                Err(NotQueued::Held(queue)) => self.hold_queues.push(at, queue, first),
                Err(NotQueued::Refused(code)) => self.settle_first(at, first, code),
            }
        }
    }

    /// Settles the first record of a held topic, which librdkafka refuses: keeps it if the refusal may
    /// pass, or else reports it.
    fn settle_first(&mut self, at: usize, mut first: Queued, code: Code) {
        let Some(held) = self.held.get_mut(&at) else {
            return;
        };
        let name = &self.topics.all[at].name;
        let (error, partition) = first.record.with(|record| {
            let error = refusal(record, code, &self.message_max_bytes);
            (error, record.partition)
        });
        let Some(poison) = error.poison else {
            fail(&self.shared, &first, error);
            return;
        };
        let (problem, cause) = match partition {
            Some(partition) if !is_refusal(code) => {
                (Problem::from_error(error), format!("{name}/{partition}"))
            }
            _ => (Problem::from_code(name, code), name.to_string()),
        };
        let may_pass = problem.error.disposition == Disposition::Retryable;
        let now = Instant::now();
        if may_pass && !self.patience.is_over(cause.as_bytes(), now, now) {
            held.set_problem(problem);
            // Then its bytes were set aside, too, until it was offered.
            if held.records.front().is_some_and(|next| next.is_aside) {
                first.set_aside(&self.shared.window);
            }
            held.records.push_front(first);
            held.step = Step::Answer;
            self.checks.request_later(name);
        } else {
            held.refuse(first, poison, &problem.error, &self.shared);
        }
    }

    /// Reports all held records of a topic as refused, in their order.
    fn refuse_held(&mut self, at: usize) {
        let Some(held) = self.held.get_mut(&at) else {
            return;
        };
        held.step = Step::Ask;
        let Some(problem) = &held.problem else { return };
        let error = problem.error.clone();
        held.is_given_up = error.poison.is_some();
        for queued in std::mem::take(&mut held.records) {
            match error.poison {
                Some(poison) => held.refuse(queued, poison, &error, &self.shared),
                None => fail(&self.shared, &queued, error.clone()),
            }
        }
    }

    /// See [`Sink::withdraw`](walrelay_sink::Sink::withdraw). A record behind that is refused as well is
    /// left to its own call.
    pub(super) fn take_back(&mut self, seq: u64, behind: bool) -> Vec<(u64, HeldRecord)> {
        // Records are taken back in the order in which they were reported: it is most often the first of its topic.
        let place = |held: &HeldTopic| held.refused.iter().position(|queued| queued.seq == seq);
        let is_first =
            |held: &HeldTopic| held.refused.front().is_some_and(|queued| queued.seq == seq);
        let first = self.held.iter().find(|(_, held)| is_first(held));
        let found = first.or_else(|| self.held.iter().find(|(_, held)| place(held).is_some()));
        let at = found.map(|(at, _)| *at);
        let Some((at, held)) = at.and_then(|at| Some((at, self.held.get_mut(&at)?))) else {
            return Vec::new();
        };
        let Some(refused) = place(held).and_then(|index| held.refused.remove(index)) else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        let key = refused.record.with(|record| record.key.map(<[u8]>::to_vec));
        if behind && key.is_some() {
            let records = std::mem::take(&mut held.records).into_iter();
            let (of_key, others) = records.partition(|queued: &Queued| {
                queued.record.with(|record| record.key == key.as_deref())
            });
            (taken, held.records) = (Vec::from(of_key), others);
        }
        if held.refused.is_empty() {
            held.is_given_up = false;
            (held.problem, held.since) = (None, None);
            if held.records.is_empty() {
                self.held.remove(&at);
            } else {
                self.ask(at);
            }
        }
        for queued in &taken {
            give_back(&self.shared, queued);
        }
        let numbered = std::iter::once(refused).chain(taken);
        numbered.map(|queued| (queued.seq, queued.record)).collect()
    }

    /// See [`Sink::retrying`](walrelay_sink::Sink::retrying).
    pub(super) fn held_keys(&self) -> Option<Retrying> {
        let waiting = self.held.values().filter_map(HeldTopic::waiting);
        Waiting::total(waiting, self.max_retrying_keys)
    }

    /// Returns the held topics that have records, with the reason.
    pub(super) fn held_obstacle(&self) -> Option<Obstacle> {
        let problems = self.held.values().filter_map(|held| {
            let is_empty = held.records.is_empty();
            let problem = held.problem.as_ref().filter(|_| !is_empty)?;
            // Without their number and their age: the log repeats what differs.
            let what = format!("{}: its records wait for it", problem.what);
            Some((what, problem))
        });
        let named: Vec<_> = problems.collect();
        let (_, first) = named.first()?;
        let (disposition, remedy) = (first.disposition, first.remedy);
        let more = named.len().saturating_sub(MAX_NAMED);
        let mut what: Vec<String> = named.into_iter().map(|(what, _)| what).collect();
        what.truncate(MAX_NAMED);
        if more > 0 {
            what.push(format!("and {more} more topics"));
        }
        Some(Obstacle {
            what: what.join(", "),
            disposition,
            remedy,
        })
    }

    /// Reports the held records of all topics as given up. Those that were reported as refused are
    /// dropped.
    pub(super) fn fail_held_topics(&mut self) {
        for (at, held) in std::mem::take(&mut self.held) {
            let name = &self.topics.all[at].name;
            for queued in held.records {
                fail(&self.shared, &queued, self.given_up(name));
            }
        }
    }
}
