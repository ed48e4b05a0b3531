use std::collections::HashMap;
use std::sync::Arc;

use walrelay_lsn::CommitEnd;
use walrelay_sink::{EventPosition, Poison};

use super::policy::{Class, PoisonAction, PoisonPolicy};
use crate::interface::event::id_text;

/// What was decided about an event. The action is never [`PoisonAction::Halt`].
#[derive(Debug, Clone)]
pub(crate) struct PoisonDecision {
    pub(crate) class: Class,
    pub(crate) cause: Arc<str>,
    pub(crate) action: PoisonAction,
}

/// The policy, and what was decided under it. The decisions outlive the sinks that refused the events: the log
/// is read again, and then each event meets its decision.
#[derive(Debug, Default)]
pub struct PoisonDecisions {
    policy: PoisonPolicy,
    decided: HashMap<EventPosition, PoisonDecision>,
    /// Topics that were given up: all events bound for them share one decision, for as long as this
    /// process lives. Offered again and again, each of them would hold up all others.
    given_up: HashMap<Box<str>, PoisonDecision>,
    /// The same by subject: there is no schema for their values.
    without_schema: HashMap<Box<str>, PoisonDecision>,
    /// Up to and with this event each is sent alone: nothing before it is in flight and nothing is
    /// sent behind it, until it was acknowledged. So a refusal is of this event and of no other.
    alone_until: Option<EventPosition>,
}

impl PoisonDecisions {
    /// Nothing is decided yet.
    pub fn new(policy: PoisonPolicy) -> Self {
        Self {
            policy,
            ..Self::default()
        }
    }

    /// The policy.
    pub fn policy(&self) -> &PoisonPolicy {
        &self.policy
    }

    /// What the policy says of such an event. `None`: the pipeline is to halt.
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

    /// Decides about an event, by the policy. False: the pipeline is to halt.
    pub fn reject(&mut self, id: EventPosition, poison: Poison, cause: &str) -> bool {
        let Some(decision) = self.by_policy(poison, cause) else {
            return false;
        };
        self.decided.insert(id, decision);
        // As far as is known, the records refused beside it are sound.
        self.alone_until = None;
        true
    }

    /// Decides about an event and all that are bound for the same topic. False: the pipeline is to
    /// halt.
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

    /// Decides about all events whose values are of this subject, as long as this process lives. False:
    /// the pipeline is to halt.
    pub(crate) fn give_up_subject(&mut self, subject: &str, cause: &str) -> bool {
        let Some(decision) = self.by_policy(Poison::Rejected, cause) else {
            return false;
        };
        self.without_schema.insert(subject.into(), decision);
        true
    }

    /// What was decided about the values of a subject.
    pub(crate) fn of_subject(&self, subject: &str) -> Option<PoisonDecision> {
        self.without_schema.get(subject).cloned()
    }

    #[cfg(test)]
    pub(crate) fn is_rejected(&self, id: EventPosition) -> bool {
        self.decided.contains_key(&id)
    }

    /// From now on each event up to and with this one is sent alone.
    pub fn send_alone_until(&mut self, id: EventPosition) {
        self.alone_until = self.alone_until.max(Some(id));
    }

    /// Whether events are being sent alone.
    pub fn is_alone(&self) -> bool {
        self.alone_until.is_some()
    }

    /// Whether the event must wait: to be sent alone, or until the keys that are parked are known.
    pub(crate) fn holds_back(&mut self, id: EventPosition, in_flight: u64) -> bool {
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

    /// What was decided about an event that can be routed, or follows from its key.
    #[inline]
    pub(crate) fn of(
        &self,
        id: EventPosition,
        topic: &str,
        key: Option<&[u8]>,
    ) -> Option<PoisonDecision> {
        let nothing = self.decided.is_empty() && self.given_up.is_empty();
        if nothing && self.policy.parking.is_none() {
            return None;
        }
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

    /// Forgets what was decided about single events: from here on the log is another one, with other events
    /// at these positions.
    pub fn forget_events(&mut self) {
        self.decided.clear();
        self.alone_until = None;
    }

    /// Forgets what will not be read again.
    pub(crate) fn forget_before(&mut self, confirmed: CommitEnd) {
        if let Some(parking) = &self.policy.parking {
            parking.confirm(confirmed.lsn().get());
        }
        if !self.decided.is_empty() {
            self.decided.retain(|id, _| id.lsn >= confirmed.lsn().get());
        }
    }
}

/// An event that did not go where it was bound for.
#[derive(Debug, Clone)]
pub struct Diverted {
    /// Which.
    pub id: EventPosition,
    /// Why.
    pub class: Class,
    /// Why, in words.
    pub cause: Arc<str>,
    /// A dead letter, or passed over.
    pub action: PoisonAction,
    /// The event's id for logs, where it is known.
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

    const A: EventPosition = EventPosition { lsn: 8, row: 0 };

    /// On another timeline the position is another event's, which would be skipped for the first one's fault.
    #[test]
    fn decisions_end_with_their_log() {
        let mut decisions = PoisonDecisions::new(PoisonPolicy {
            oversize: PoisonAction::Skip,
            ..PoisonPolicy::default()
        });
        assert!(decisions.reject(A, Poison::Oversize, "too large"));
        decisions.send_alone_until(A);
        assert!(decisions.of(A, "orders", None).is_some());
        decisions.forget_events();
        assert!(decisions.of(A, "orders", None).is_none());
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
        decisions.forget_before(at(8));
        assert!(decisions.is_rejected(A), "its transaction ends later");
        decisions.forget_before(at(9));
        assert!(!decisions.is_rejected(A));
    }
}
