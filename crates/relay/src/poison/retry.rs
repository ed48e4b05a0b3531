//! What follows from a refused record: find the record that is meant, wait while that may help, then apply the
//! poison policy.

use std::time::Duration;

use tokio::time::Instant;
use walrelay_sink::{DeliveryError, Disposition, EventPosition};

use super::decisions::PoisonDecisions;
use crate::interface::event::SentEvent;

/// A refusal that names a record.
pub(crate) struct Refusal<'a> {
    /// The event that the record stands for.
    pub(crate) event: SentEvent,
    /// The last event that was refused with it, or itself.
    pub(crate) last: EventPosition,
    /// No other record can have been meant.
    pub(crate) certain: bool,
    pub(crate) error: &'a DeliveryError,
}

/// What the pipeline does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// As the error's disposition says; the refusal changes nothing.
    AsItIs,
    /// Read the log again at once: something was decided.
    Again,
    /// Read it again after a pause.
    Later,
    /// Waiting has not helped: stop, because somebody must change something.
    GiveUp,
}

/// The event whose refusal may pass, and since when it is refused.
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
            return Decision::AsItIs;
        };
        let alone = refusal.certain || decisions.is_alone();
        // A dead letter that is refused rejects no event, whatever the policy says: the event itself was never
        // offered to the topic that it is bound for, or its decision is known already.
        let SentEvent { id, dead_letter } = refusal.event;
        if error.disposition == Disposition::Retryable {
            let refused_for = self.refused_for(id, now);
            if !alone || refused_for < decisions.policy().retry_for {
                // Alone, so that what goes to other topics is not sent again with each attempt.
                decisions.send_alone_until(id);
                return Decision::Later;
            }
            if dead_letter || !decisions.give_up_topic(id, &error.topic, poison, &error.reason) {
                return Decision::GiveUp;
            }
            tracing::warn!(
                topic = %error.topic,
                reason = error.reason,
                "gave the topic up: its events are treated by the poison policy until the relay \
                 is started anew"
            );
            self.suspect = None;
            return Decision::Again;
        }
        if !alone {
            tracing::warn!(
                error = %error,
                "a request was refused: sending its records one by one to find the one that is meant"
            );
            decisions.send_alone_until(refusal.last);
            return Decision::Again;
        }
        if !dead_letter && decisions.reject(id, poison, &error.reason) {
            Decision::Again
        } else {
            Decision::AsItIs
        }
    }

    /// For how long this event has been refused without another one in between.
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

    const A: EventPosition = EventPosition { lsn: 8, row: 0 };
    const B: EventPosition = EventPosition { lsn: 8, row: 5 };
    const ACTIONS: [PoisonAction; 3] = [
        PoisonAction::Halt,
        PoisonAction::DeadLetter,
        PoisonAction::Skip,
    ];

    fn decisions(action: PoisonAction) -> PoisonDecisions {
        PoisonDecisions::new(PoisonPolicy {
            unroutable: action,
            oversize: action,
            rejected: action,
            retry_for: Duration::from_secs(60),
            ..PoisonPolicy::default()
        })
    }

    fn error(disposition: Disposition, poison: Option<Poison>) -> DeliveryError {
        DeliveryError {
            topic: Arc::from("orders"),
            reason: "no".to_owned(),
            disposition,
            poison,
        }
    }

    fn refusal(event: EventPosition, last: EventPosition, error: &DeliveryError) -> Refusal<'_> {
        Refusal {
            event: SentEvent {
                id: event,
                dead_letter: false,
            },
            last,
            certain: false,
            error,
        }
    }

    /// A refusal of the dead letter that was made of the event.
    fn of_dead_letter(event: EventPosition, error: &DeliveryError) -> Refusal<'_> {
        Refusal {
            event: SentEvent {
                id: event,
                dead_letter: true,
            },
            ..refusal(event, event, error)
        }
    }

    /// Nothing was decided about these events, now or before.
    fn assert_rejected_no_event(decisions: &PoisonDecisions) {
        for event in [A, B] {
            assert!(!decisions.is_rejected(event), "{event}");
            assert!(decisions.of(event, "orders", None).is_none(), "{event}");
        }
    }

    #[test]
    fn a_refused_request_is_taken_apart_before_anybody_is_rejected() {
        for (action, end) in [
            (PoisonAction::DeadLetter, Decision::Again),
            (PoisonAction::Skip, Decision::Again),
            (PoisonAction::Halt, Decision::AsItIs),
        ] {
            let mut decisions = decisions(action);
            let mut retry_policy = RetryPolicy::default();
            let now = Instant::now();
            let error = error(Disposition::Fatal, Some(Poison::Oversize));
            let first = retry_policy.decide(&refusal(A, B, &error), &mut decisions, now);
            assert_eq!(first, Decision::Again);
            assert!(decisions.is_alone() && !decisions.is_rejected(A));
            let second = retry_policy.decide(&refusal(B, B, &error), &mut decisions, now);
            assert_eq!(second, end);
            assert_eq!(decisions.is_rejected(B), action != PoisonAction::Halt);
            assert!(!decisions.is_rejected(A));
        }
    }

    #[test]
    fn a_topic_is_waited_for_and_then_given_up() {
        let error = error(Disposition::Retryable, Some(Poison::Rejected));
        let mut decisions = decisions(PoisonAction::DeadLetter);
        let mut retry_policy = RetryPolicy::default();
        let start = Instant::now();
        for seconds in [0, 1, 59] {
            let now = start + Duration::from_secs(seconds);
            let decided = retry_policy.decide(&refusal(A, A, &error), &mut decisions, now);
            assert_eq!(decided, Decision::Later, "{seconds}");
        }
        let now = start + Duration::from_secs(60);
        let decided = retry_policy.decide(&refusal(A, A, &error), &mut decisions, now);
        assert_eq!(decided, Decision::Again);
        assert!(decisions.of(B, "orders", None).is_some());
        assert!(decisions.of(B, "others", None).is_none());
    }

    #[test]
    fn halting_waits_as_long() {
        let error = error(Disposition::Retryable, Some(Poison::Rejected));
        let mut decisions = decisions(PoisonAction::Halt);
        let mut retry_policy = RetryPolicy::default();
        let start = Instant::now();
        let decided = retry_policy.decide(&refusal(A, A, &error), &mut decisions, start);
        assert_eq!(decided, Decision::Later);
        let now = start + Duration::from_secs(61);
        let decided = retry_policy.decide(&refusal(A, A, &error), &mut decisions, now);
        assert_eq!(decided, Decision::GiveUp);
    }

    #[test]
    fn a_broker_that_is_away_rejects_nobody() {
        let mut decisions = decisions(PoisonAction::DeadLetter);
        let mut retry_policy = RetryPolicy::default();
        decisions.send_alone_until(A);
        for disposition in [Disposition::Retryable, Disposition::Fatal] {
            let error = error(disposition, None);
            let decided =
                retry_policy.decide(&refusal(A, A, &error), &mut decisions, Instant::now());
            assert_eq!(decided, Decision::AsItIs);
            assert!(!decisions.is_rejected(A));
        }
    }

    /// Whether an event became a dead letter for its own fault or for that of another one (parked, its
    /// topic given up, no schema): the refusal of the dead letter decides nothing about it.
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
                    let mut decisions = decisions(action);
                    let mut retry_policy = RetryPolicy::default();
                    let error = error(disposition, Some(poison));
                    let refusal = Refusal {
                        certain,
                        ..of_dead_letter(A, &error)
                    };
                    if !certain {
                        // The request is taken apart first: another record of it may be meant.
                        let decided = retry_policy.decide(&refusal, &mut decisions, Instant::now());
                        assert_eq!(decided, Decision::Again, "{case}");
                        assert!(decisions.is_alone(), "{case}");
                    }
                    let decided = retry_policy.decide(&refusal, &mut decisions, Instant::now());
                    assert_eq!(decided, Decision::AsItIs, "{case}");
                    assert_rejected_no_event(&decisions);
                }
            }
        }
    }

    #[test]
    fn a_dead_letter_whose_refusal_may_pass_is_offered_alone_and_rejects_no_event_in_the_end() {
        for action in ACTIONS {
            for certain in [false, true] {
                let case = format!("{action:?} {certain}");
                let mut decisions = decisions(action);
                let mut retry_policy = RetryPolicy::default();
                let error = error(Disposition::Retryable, Some(Poison::Rejected));
                let start = Instant::now();
                for (seconds, expected) in [
                    (0, Decision::Later),
                    (1, Decision::Later),
                    (59, Decision::Later),
                    (60, Decision::GiveUp),
                ] {
                    let refusal = Refusal {
                        certain,
                        ..of_dead_letter(A, &error)
                    };
                    let now = start + Duration::from_secs(seconds);
                    let decided = retry_policy.decide(&refusal, &mut decisions, now);
                    assert_eq!(decided, expected, "{case} after {seconds} s");
                    assert!(decisions.is_alone(), "{case}");
                    assert_rejected_no_event(&decisions);
                }
            }
        }
    }

    #[test]
    fn a_dead_letter_keeps_the_decision_about_its_event() {
        let mut decisions = decisions(PoisonAction::DeadLetter);
        let mut retry_policy = RetryPolicy::default();
        assert!(decisions.reject(A, Poison::Unroutable, "no topic"));
        let error = error(Disposition::Fatal, Some(Poison::Oversize));
        for expected in [Decision::Again, Decision::AsItIs] {
            let decided =
                retry_policy.decide(&of_dead_letter(A, &error), &mut decisions, Instant::now());
            assert_eq!(decided, expected);
        }
        let decision = decisions.of(A, "orders", None).expect("it is known");
        assert_eq!(&*decision.cause, "no topic");
    }
}
