//! The reaction to a record that a sink refused: find the record at fault, retry while the refusal
//! may pass, then apply the poison policy.

use std::time::Duration;

use tokio::time::Instant;
use walrelay_sink::{DeliveryError, Disposition, EventPosition};

use super::decisions::PoisonDecisions;
use crate::event::SentEvent;

/// A refusal of a record whose event is known.
pub(crate) struct Refusal<'a> {
    /// The event that the record stands for.
    pub(crate) event: SentEvent,
    /// The last event that was refused with it, or the event itself.
    pub(crate) last: EventPosition,
    /// True if no other record can be at fault.
    pub(crate) certain: bool,
    pub(crate) error: &'a DeliveryError,
}

/// The next action of the pipeline after a refusal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Follow the error's disposition.
    FollowDisposition,
    /// Read the slot again at once, because a decision was made.
    ReadAgain,
    /// Read the slot again after a delay.
    ReadLater,
    /// Stop: the retries did not help, so the configuration or the sink must be changed.
    Stop,
}

/// The event whose refusal may pass, and since when its records are refused.
#[derive(Debug, Default)]
pub(crate) struct RetryPolicy {
    suspect: Option<(EventPosition, Instant)>,
}

impl RetryPolicy {
    /// Decides about a refusal at `now`.
    pub(crate) fn decide(
        &mut self,
        refusal: &Refusal<'_>,
        decisions: &mut PoisonDecisions,
        now: Instant,
    ) -> Decision {
        let error = refusal.error;
        let Some(poison) = error.poison else {
            return Decision::FollowDisposition;
        };
        let alone = refusal.certain || decisions.is_alone();
        // A refused dead letter rejects no event, whatever the policy is: the event was never
        // offered to its own topic, or was decided about before.
        let SentEvent { id, dead_letter } = refusal.event;
        if error.disposition == Disposition::Retryable {
            let refused_for = self.refused_for(id, now);
            if !alone || refused_for < decisions.policy().retry_for {
                // Alone, so that records of other topics are not sent again with each attempt.
                decisions.send_alone_until(id);
                return Decision::ReadLater;
            }
            if dead_letter || !decisions.give_up_topic(id, &error.topic, poison, &error.reason) {
                return Decision::Stop;
            }
            tracing::warn!(
                topic = %error.topic,
                reason = error.reason,
                "gave the topic up: its events are treated by the poison policy until the relay is \
                 started again"
            );
            self.suspect = None;
            return Decision::ReadAgain;
        }
        if !alone {
            tracing::warn!(
                error = %error,
                "a request was refused: sending its records one by one to find the refused one"
            );
            decisions.send_alone_until(refusal.last);
            return Decision::ReadAgain;
        }
        if !dead_letter && decisions.reject(id, poison, &error.reason) {
            Decision::ReadAgain
        } else {
            Decision::FollowDisposition
        }
    }

    /// Returns the time for which this event has been refused without a refusal of another event in
    /// between.
    fn refused_for(&mut self, event: EventPosition, now: Instant) -> Duration {
        match self.suspect {
            Some((suspect, since)) if suspect == event => now.duration_since(since),
            _ => {
                self.suspect = Some((event, now));
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use walrelay_sink::Poison;

    use super::*;
    use crate::poison::{PoisonAction, PoisonPolicy};

    const A: EventPosition = EventPosition::in_first_epoch(8, 0);
    const B: EventPosition = EventPosition::in_first_epoch(8, 5);
    const ACTIONS: [PoisonAction; 3] = [
        PoisonAction::Halt,
        PoisonAction::DeadLetter,
        PoisonAction::Skip,
    ];

    /// A relay whose events are refused.
    struct Relay {
        decisions: PoisonDecisions,
        policy: RetryPolicy,
        start: Instant,
    }

    impl Relay {
        fn new(action: PoisonAction) -> Self {
            let policy = PoisonPolicy {
                unroutable: action,
                oversize: action,
                rejected: action,
                retry_for: Duration::from_secs(60),
                ..PoisonPolicy::default()
            };
            Self {
                decisions: PoisonDecisions::new(policy),
                policy: RetryPolicy::default(),
                start: Instant::now(),
            }
        }

        fn decide(&mut self, refusal: &Refusal<'_>, seconds: u64) -> Decision {
            let now = self.start + Duration::from_secs(seconds);
            self.policy.decide(refusal, &mut self.decisions, now)
        }

        /// Asserts that there is no decision about the events A and B.
        fn assert_rejected_no_event(&self) {
            for event in [A, B] {
                assert!(!self.decisions.is_rejected(event), "{event}");
                assert!(self.decisions.for_event(event, "orders", None).is_none());
            }
        }
    }

    fn error(disposition: Disposition, poison: Option<Poison>) -> DeliveryError {
        DeliveryError {
            topic: Arc::from("orders"),
            reason: "no".to_owned(),
            disposition,
            poison,
        }
    }

    fn refusal(id: EventPosition, last: EventPosition, error: &DeliveryError) -> Refusal<'_> {
        let dead_letter = false;
        Refusal {
            event: SentEvent { id, dead_letter },
            last,
            certain: false,
            error,
        }
    }

    /// Creates the refusal of the dead letter of the event A.
    fn dead_letter_refused(certain: bool, error: &DeliveryError) -> Refusal<'_> {
        let mut refusal = refusal(A, A, error);
        refusal.event.dead_letter = true;
        refusal.certain = certain;
        refusal
    }

    #[test]
    fn a_refused_request_is_taken_apart_before_anybody_is_rejected() {
        for (action, end) in [
            (PoisonAction::DeadLetter, Decision::ReadAgain),
            (PoisonAction::Skip, Decision::ReadAgain),
            (PoisonAction::Halt, Decision::FollowDisposition),
        ] {
            let mut relay = Relay::new(action);
            let error = error(Disposition::Fatal, Some(Poison::Oversize));
            let first = relay.decide(&refusal(A, B, &error), 0);
            assert_eq!(first, Decision::ReadAgain);
            assert!(relay.decisions.is_alone() && !relay.decisions.is_rejected(A));
            assert_eq!(relay.decide(&refusal(B, B, &error), 0), end);
            let rejected = relay.decisions.is_rejected(B);
            assert_eq!(rejected, action != PoisonAction::Halt);
            assert!(!relay.decisions.is_rejected(A));
            // Others of the request may be at fault, too.
            assert!(relay.decisions.is_alone());
            assert_eq!(relay.decide(&refusal(A, A, &error), 0), end);
            let rejected = relay.decisions.is_rejected(A);
            assert_eq!(rejected, action != PoisonAction::Halt);
        }
    }

    #[test]
    fn events_behind_a_rejected_one_are_sent_alone_for_a_while() {
        let mut relay = Relay::new(PoisonAction::Skip);
        let error = error(Disposition::Fatal, Some(Poison::Oversize));
        for _ in 0..2 {
            relay.decide(&refusal(B, B, &error), 0);
        }
        assert!(relay.decisions.is_rejected(B));
        let mut is_alone = |row| {
            assert!(!relay.decisions.holds_back(EventPosition { row, ..B }, 0));
            relay.decisions.is_alone()
        };
        assert!(is_alone(B.row + 64));
        assert!(!is_alone(B.row + 65));
    }

    #[test]
    fn a_topic_is_waited_for_and_then_given_up_unless_the_policy_is_to_halt() {
        for (action, end) in [
            (PoisonAction::DeadLetter, Decision::ReadAgain),
            (PoisonAction::Halt, Decision::Stop),
        ] {
            let error = error(Disposition::Retryable, Some(Poison::Rejected));
            let mut relay = Relay::new(action);
            for seconds in [0, 1, 59] {
                let decided = relay.decide(&refusal(A, A, &error), seconds);
                assert_eq!(decided, Decision::ReadLater, "{seconds}");
            }
            let given_up = end == Decision::ReadAgain;
            assert_eq!(relay.decide(&refusal(A, A, &error), 60), end);
            let of = |topic| relay.decisions.for_event(B, topic, None);
            assert_eq!(of("orders").is_some(), given_up);
            assert!(of("others").is_none());
        }
    }

    #[test]
    fn a_broker_that_is_away_rejects_nobody() {
        let mut relay = Relay::new(PoisonAction::DeadLetter);
        relay.decisions.send_alone_until(A);
        for disposition in [Disposition::Retryable, Disposition::Fatal] {
            let error = error(disposition, None);
            let decided = relay.decide(&refusal(A, A, &error), 0);
            assert_eq!(decided, Decision::FollowDisposition);
            assert!(!relay.decisions.is_rejected(A));
        }
    }

    /// The refusal of a dead letter decides nothing about its event, whether the event itself was
    /// at fault or not (parked, its topic given up, no schema).
    #[test]
    fn a_dead_letter_refused_for_good_rejects_no_event_and_stops_the_relay() {
        for action in ACTIONS {
            for poison in Poison::ALL {
                for (disposition, certain) in [
                    (Disposition::Fatal, false),
                    (Disposition::Fatal, true),
                    (Disposition::Configuration, false),
                    (Disposition::Configuration, true),
                ] {
                    let case = format!("{action:?} {poison} {disposition:?} {certain}");
                    let mut relay = Relay::new(action);
                    let error = error(disposition, Some(poison));
                    let refusal = dead_letter_refused(certain, &error);
                    if !certain {
                        // Its records are sent one by one first: another one may be at fault.
                        let decided = relay.decide(&refusal, 0);
                        assert_eq!(decided, Decision::ReadAgain, "{case}");
                        assert!(relay.decisions.is_alone(), "{case}");
                    }
                    let decided = relay.decide(&refusal, 0);
                    assert_eq!(decided, Decision::FollowDisposition, "{case}");
                    relay.assert_rejected_no_event();
                }
            }
        }
    }

    #[test]
    fn a_dead_letter_whose_refusal_may_pass_is_offered_alone_and_rejects_no_event_in_the_end() {
        for action in ACTIONS {
            for certain in [false, true] {
                let mut relay = Relay::new(action);
                let error = error(Disposition::Retryable, Some(Poison::Rejected));
                for (seconds, expected) in [
                    (0, Decision::ReadLater),
                    (1, Decision::ReadLater),
                    (59, Decision::ReadLater),
                    (60, Decision::Stop),
                ] {
                    let case = format!("{action:?} {certain} after {seconds} s");
                    let decided = relay.decide(&dead_letter_refused(certain, &error), seconds);
                    assert_eq!(decided, expected, "{case}");
                    assert!(relay.decisions.is_alone(), "{case}");
                    relay.assert_rejected_no_event();
                }
            }
        }
    }

    #[test]
    fn a_dead_letter_keeps_the_decision_about_its_event() {
        let mut relay = Relay::new(PoisonAction::DeadLetter);
        assert!(relay.decisions.reject(A, Poison::Unroutable, "no topic"));
        let error = error(Disposition::Fatal, Some(Poison::Oversize));
        for expected in [Decision::ReadAgain, Decision::FollowDisposition] {
            let decided = relay.decide(&dead_letter_refused(false, &error), 0);
            assert_eq!(decided, expected);
        }
        let decision = relay
            .decisions
            .for_event(A, "orders", None)
            .expect("it is known");
        assert_eq!(&*decision.cause, "no topic");
    }
}
