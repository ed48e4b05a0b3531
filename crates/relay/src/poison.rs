//! What is to happen to events that cannot be delivered, and what was decided about single ones.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use walrelay_lsn::CommitEnd;
use walrelay_sink::{EventPosition, Parking, Poison, letter};

/// What happens to an event that cannot be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoisonAction {
    /// The pipeline stops before it.
    #[default]
    Halt,
    /// A dead letter is written in its stead, and acknowledged like any record.
    DeadLetter,
    /// It is passed over, counted and logged.
    Skip,
}

/// The configured policy.
#[derive(Debug, Clone)]
pub struct PoisonPolicy {
    /// For [`Poison::Unroutable`].
    pub unroutable: PoisonAction,
    /// For [`Poison::Oversize`].
    pub oversize: PoisonAction,
    /// For [`Poison::Rejected`].
    pub rejected: PoisonAction,
    /// For [`Poison::Undecodable`].
    pub undecodable: PoisonAction,
    /// Where dead letters go.
    pub topic: Arc<str>,
    /// The replication slot, which dead letters name.
    pub slot: Arc<str>,
    /// How long an event whose refusal may pass (a topic that may appear, a permission that may be
    /// granted) is offered again before the action for it is taken.
    pub retry_for: Duration,
    /// Whose keys wait behind a dead letter; `None`: dead letters park nothing.
    pub parking: Option<Arc<Parking>>,
}

impl Default for PoisonPolicy {
    fn default() -> Self {
        Self {
            unroutable: PoisonAction::Halt,
            oversize: PoisonAction::Halt,
            rejected: PoisonAction::Halt,
            undecodable: PoisonAction::Halt,
            topic: Arc::from("walrelay.dead-letters"),
            slot: Arc::from("walrelay"),
            retry_for: Duration::from_secs(300),
            parking: None,
        }
    }
}

impl PoisonPolicy {
    /// What happens to such an event.
    pub fn action(&self, poison: Poison) -> PoisonAction {
        match poison {
            Poison::Unroutable => self.unroutable,
            Poison::Oversize => self.oversize,
            Poison::Rejected => self.rejected,
            Poison::Undecodable => self.undecodable,
        }
    }
}

/// Why an event is diverted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It cannot be delivered.
    Poison(Poison),
    /// An earlier event of its key is a dead letter.
    Parked,
}

impl Class {
    /// As dead letters and logs name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Poison(poison) => poison.name(),
            Self::Parked => letter::PARKED,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was decided about an event: `Halt` is never among these.
#[derive(Debug, Clone)]
pub(crate) struct Verdict {
    pub(crate) class: Class,
    pub(crate) cause: Arc<str>,
    pub(crate) action: PoisonAction,
}

/// The policy, and what was decided about single events under it. It outlives the sinks that refused
/// them: the log is read again, and then each event meets its verdict.
#[derive(Debug, Default)]
pub struct PoisonDecisions {
    policy: PoisonPolicy,
    decided: HashMap<EventPosition, Verdict>,
    /// Topics that were given up: all events bound for them share one verdict, for as long as this
    /// process lives. Each of them offered again and again would hold up all others.
    given_up: HashMap<Box<str>, Verdict>,
    /// The same by subject: there is no schema for their values.
    without_schema: HashMap<Box<str>, Verdict>,
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

    /// Decides about an event, by the policy. False: the pipeline is to halt.
    pub fn reject(&mut self, id: EventPosition, poison: Poison, cause: &str) -> bool {
        let action = self.policy.action(poison);
        if action == PoisonAction::Halt {
            return false;
        }
        let verdict = Verdict {
            class: Class::Poison(poison),
            cause: Arc::from(cause),
            action,
        };
        self.decided.insert(id, verdict);
        // Whoever was refused beside it is innocent, as far as is known.
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
        if let Some(verdict) = self.decided.get(&id) {
            self.given_up.insert(topic.into(), verdict.clone());
        }
        true
    }

    /// Decides about all events whose values are of this subject, as long as this process lives. False:
    /// the pipeline is to halt.
    pub(crate) fn give_up_subject(&mut self, subject: &str, cause: &str) -> bool {
        let verdict = self.of_unroutable(Poison::Rejected, cause.to_owned());
        let goes_on = verdict.is_some();
        if let Some(verdict) = verdict {
            self.without_schema.insert(subject.into(), verdict);
        }
        goes_on
    }

    /// What was decided about the values of a subject.
    pub(crate) fn of_subject(&self, subject: &str) -> Option<Verdict> {
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

    /// Whether the event must wait for what is in flight.
    pub(crate) fn holds_back(&mut self, id: EventPosition, in_flight: u64) -> bool {
        let Some(until) = self.alone_until else {
            return false;
        };
        if in_flight > 0 {
            return true;
        }
        if id > until {
            self.alone_until = None;
        }
        false
    }

    /// Whether it is not known yet which keys are parked.
    pub(crate) fn is_waiting_for_parking(&self) -> bool {
        let parking = self.policy.parking.as_ref();
        parking.is_some_and(|parking| !parking.is_ready())
    }

    /// What was decided about an event that can be routed, or follows from its key.
    #[inline]
    pub(crate) fn of(&self, id: EventPosition, topic: &str, key: Option<&[u8]>) -> Option<Verdict> {
        let nothing = self.decided.is_empty() && self.given_up.is_empty();
        if nothing && self.policy.parking.is_none() {
            return None;
        }
        self.decided_or_parked(id, topic, key)
    }

    fn decided_or_parked(
        &self,
        id: EventPosition,
        topic: &str,
        key: Option<&[u8]>,
    ) -> Option<Verdict> {
        if !self.decided.is_empty()
            && let Some(verdict) = self.decided.get(&id)
        {
            return Some(verdict.clone());
        }
        if !self.given_up.is_empty()
            && let Some(verdict) = self.given_up.get(topic)
        {
            return Some(verdict.clone());
        }
        let (parking, key) = (self.policy.parking.as_ref()?, key?);
        parking.is_parked(id, topic, key).then(|| Verdict {
            class: Class::Parked,
            cause: Arc::from("an earlier event of its key is a dead letter"),
            action: PoisonAction::DeadLetter,
        })
    }

    /// What the policy makes of an event that cannot be routed.
    pub(crate) fn of_unroutable(&self, poison: Poison, cause: String) -> Option<Verdict> {
        let action = self.policy.action(poison);
        (action != PoisonAction::Halt).then(|| Verdict {
            class: Class::Poison(poison),
            cause: cause.into(),
            action,
        })
    }

    /// Forgets what was decided about single events: the log is another one from here on, and what
    /// stands at their places are other events.
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

/// Longest id of an event in a log line or an error, in characters.
const LONGEST_ID: usize = 100;

/// An event's id as people read it. An id is an identifier: no other value of a row is ever shown.
pub(crate) fn id_text(id: &[u8]) -> String {
    let text = String::from_utf8_lossy(id);
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(LONGEST_ID).map(plain).collect()
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
    /// The event's id, for people, where it is known.
    pub event_id: Option<String>,
}

impl Diverted {
    pub(crate) fn new(id: EventPosition, verdict: Verdict, event_id: Option<&[u8]>) -> Self {
        Self {
            id,
            event_id: event_id.map(id_text),
            class: verdict.class,
            cause: verdict.cause,
            action: verdict.action,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: EventPosition = EventPosition { lsn: 8, row: 0 };

    /// On another timeline the place is another event's: it would be skipped for the first one's
    /// fault.
    #[test]
    fn verdicts_end_with_their_log() {
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
    fn a_verdict_is_forgotten_when_its_event_is_confirmed() {
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
