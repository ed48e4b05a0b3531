use std::collections::HashMap;
use std::sync::Arc;

use walrelay_lsn::CommitEnd;
use walrelay_sink::{EventPosition, Poison, PublishedLsn, Record, id_text};

use super::policy::{Class, PoisonAction, PoisonPolicy};

/// The number of events of a transaction that are sent alone after one of it was refused alone.
const ALONE_AFTER: u64 = 64;

/// The decision about an event. The action is never [`PoisonAction::Halt`].
#[derive(Debug, Clone)]
pub(crate) struct PoisonDecision {
    pub(crate) class: Class,
    pub(crate) cause: Arc<str>,
    pub(crate) action: PoisonAction,
}

/// The poison policy and the decisions made by it. The decisions outlive the sink that refused the
/// events: the slot is read again, and then each decision is applied to its event.
#[derive(Debug, Default)]
pub struct PoisonDecisions {
    policy: PoisonPolicy,
    decided: HashMap<EventPosition, PoisonDecision>,
    /// Topics that were given up because a broker refused requests for them. All events of such a topic get the same decision until the
    /// process ends: if each were retried, it would delay all other events.
    given_up: HashMap<Box<str>, PoisonDecision>,
    /// Subjects without a schema. All events of such a subject get the same decision until the
    /// process ends.
    without_schema: HashMap<Box<str>, PoisonDecision>,
    /// Each event up to and including this one is sent alone, with no other record in flight. So a
    /// refusal can only be that of this event's record.
    alone_until: Option<EventPosition>,
}

impl PoisonDecisions {
    /// Creates a policy without decisions.
    pub fn new(policy: PoisonPolicy) -> Self {
        Self {
            policy,
            ..Self::default()
        }
    }

    /// Returns the policy.
    pub fn policy(&self) -> &PoisonPolicy {
        &self.policy
    }

    /// Returns the policy's decision about an event of this class. `None`: the pipeline must halt.
    pub(crate) fn by_policy(
        &self,
        poison: Poison,
        cause: impl Into<Arc<str>>,
    ) -> Option<PoisonDecision> {
        let action = self.policy.action(poison);
        (action != PoisonAction::Halt).then(|| PoisonDecision {
            class: Class::Poison(poison),
            cause: cause.into(),
            action,
        })
    }

    /// Returns the decision about the event of a dead letter that is too large for the sink, which may accept the event
    /// itself: the one about an event that is too large. `None` if the dead letter is small enough, or that decision
    /// would halt the pipeline: a dead letter that cannot be written stops the pipeline, too.
    pub(crate) fn by_size(&self, dead_letter: &Record<'_>) -> Option<PoisonDecision> {
        let limits = self.policy.limits.as_ref()?;
        let why = limits.oversize(dead_letter)?;
        self.by_policy(Poison::Oversize, why)
    }

    /// Rejects an event: stores the policy's decision about it. Returns false if the pipeline must
    /// halt.
    pub fn reject(&mut self, id: EventPosition, poison: Poison, cause: &str) -> bool {
        let Some(decision) = self.by_policy(poison, cause) else {
            return false;
        };
        self.decided.insert(id, decision);
        if let Some(until) = &mut self.alone_until {
            // Its neighbours are often at fault, too, and the refusal of an event that is not alone
            // ends one sink more.
            let row = id.row.saturating_add(ALONE_AFTER);
            *until = EventPosition { row, ..id }.max(*until);
        }
        true
    }

    /// Rejects an event, and all events of its topic until the process ends. Returns false if the
    /// pipeline must halt.
    pub fn give_up_topic(
        &mut self,
        id: EventPosition,
        topic: &str,
        poison: Poison,
        cause: &str,
    ) -> bool {
        if !self.reject(id, poison, cause) {
            return false;
        }
        if let Some(decision) = self.decided.get(&id) {
            self.given_up.insert(topic.into(), decision.clone());
        }
        true
    }

    /// Rejects all events of a schema subject until the process ends. Returns false if the pipeline
    /// must halt.
    pub(crate) fn give_up_subject(&mut self, subject: &str, cause: &str) -> bool {
        let Some(decision) = self.by_policy(Poison::Rejected, cause) else {
            return false;
        };
        self.without_schema.insert(subject.into(), decision);
        true
    }

    /// Returns the decision about all events of a subject, if the subject was given up.
    pub(crate) fn for_subject(&self, subject: &str) -> Option<PoisonDecision> {
        self.without_schema.get(subject).cloned()
    }

    #[cfg(test)]
    pub(crate) fn is_rejected(&self, id: EventPosition) -> bool {
        self.decided.contains_key(&id)
    }

    /// Sends each event alone from now on, up to and including this one.
    pub fn send_alone_until(&mut self, id: EventPosition) {
        self.alone_until = self.alone_until.max(Some(id));
    }

    /// Returns true if events are being sent alone.
    pub fn is_alone(&self) -> bool {
        self.alone_until.is_some()
    }

    /// Returns true if the event must wait: to be sent alone, or until the keys that are parked are
    /// known.
    #[inline]
    pub(crate) fn holds_back(&mut self, id: EventPosition, in_flight: u64) -> bool {
        let may_wait = self.alone_until.is_some() || self.policy.parking.is_some();
        may_wait && self.must_wait(id, in_flight)
    }

    // Apart from `holds_back`, so that the check whether any event may have to wait is inlined.
    #[inline(never)]
    fn must_wait(&mut self, id: EventPosition, in_flight: u64) -> bool {
        if let Some(until) = self.alone_until {
            if in_flight > 0 {
                return true;
            }
            if id > until {
                self.alone_until = None;
            }
        }
        let parking = self.policy.parking.as_ref();
        parking.is_some_and(|parking| !parking.is_ready())
    }

    /// Returns the decision about a routable event: about itself, its topic, or its parked key.
    #[inline]
    pub(crate) fn for_event(
        &self,
        id: EventPosition,
        topic: &str,
        key: Option<&[u8]>,
    ) -> Option<PoisonDecision> {
        let nothing = self.decided.is_empty() && self.given_up.is_empty();
        if nothing && self.policy.parking.is_none() {
            return None;
        }
        self.find(id, topic, key)
    }

    // Apart from `for_event`, so that the check whether there is any decision is inlined.
    #[inline(never)]
    fn find(&self, id: EventPosition, topic: &str, key: Option<&[u8]>) -> Option<PoisonDecision> {
        let decided = self.decided.get(&id).or_else(|| self.given_up.get(topic));
        decided.cloned().or_else(|| self.parked(id, topic, key?))
    }

    fn parked(&self, id: EventPosition, topic: &str, key: &[u8]) -> Option<PoisonDecision> {
        let parking = self.policy.parking.as_ref()?;
        parking.is_parked(id, topic, key).then(|| PoisonDecision {
            class: Class::Parked,
            cause: Arc::from("an earlier event of its key is a dead letter"),
            action: PoisonAction::DeadLetter,
        })
    }

    /// Forgets the decisions about single events, because the timeline changed: other events may
    /// have these positions now.
    pub fn forget_events(&mut self) {
        self.decided.clear();
        self.alone_until = None;
    }

    /// Forgets the decisions about events before `confirmed`, a position of the log of this epoch: they
    /// are not read again.
    pub(crate) fn forget_before(&mut self, confirmed: CommitEnd, epoch: u8) {
        let before = PublishedLsn::new(epoch, confirmed.lsn().get());
        if let Some(parking) = &self.policy.parking {
            parking.confirm(before);
        }
        if !self.decided.is_empty() {
            self.decided.retain(|id, _| id.published_lsn() >= before);
        }
    }
}

/// A diverted event: it was skipped, or a dead letter was sent in its place.
#[derive(Debug, Clone)]
pub struct Diverted {
    /// The event's position.
    pub id: EventPosition,
    /// The reason why it was diverted.
    pub class: Class,
    /// The cause in words.
    pub cause: Arc<str>,
    /// Dead letter or skip.
    pub action: PoisonAction,
    /// The event's id for logs, if it is known.
    pub event_id: Option<String>,
}

impl Diverted {
    pub(crate) fn new(
        id: EventPosition,
        decision: PoisonDecision,
        event_id: Option<&[u8]>,
    ) -> Self {
        Self {
            id,
            event_id: event_id.map(id_text),
            class: decision.class,
            cause: decision.cause,
            action: decision.action,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: EventPosition = EventPosition::in_first_epoch(8, 0);

    /// On another timeline another event may have the position, and would be skipped wrongly.
    #[test]
    fn decisions_end_with_their_log() {
        let mut decisions = PoisonDecisions::new(PoisonPolicy {
            oversize: PoisonAction::Skip,
            ..PoisonPolicy::default()
        });
        assert!(decisions.reject(A, Poison::Oversize, "too large"));
        decisions.send_alone_until(A);
        assert!(decisions.for_event(A, "orders", None).is_some());
        decisions.forget_events();
        assert!(decisions.for_event(A, "orders", None).is_none());
        assert!(!decisions.is_alone());
    }

    #[test]
    fn a_decision_is_forgotten_when_its_event_is_confirmed() {
        let mut decisions = PoisonDecisions::new(PoisonPolicy {
            oversize: PoisonAction::Skip,
            ..PoisonPolicy::default()
        });
        assert!(decisions.reject(A, Poison::Oversize, "too large"));
        let at = |lsn: u64| CommitEnd::from_slot(walrelay_lsn::Lsn::new(lsn));
        decisions.forget_before(at(8), 0);
        assert!(decisions.is_rejected(A), "its transaction ends later");
        decisions.forget_before(at(9), 0);
        assert!(!decisions.is_rejected(A));
    }
}
