//! What follows from an event that was refused: find the one that is meant, wait while that may
//! help, then do as the policy says.

use tokio::time::Instant;
use walrelay_sink::{DeliveryError, Disposition, LetterId};

use crate::{SentEvent, Verdicts};

/// A refusal that names a record.
pub(crate) struct Refusal<'a> {
    /// What the record stands for.
    pub(crate) event: SentEvent,
    /// The last one that was refused with it, or itself.
    pub(crate) last: LetterId,
    /// No other record can have been meant.
    pub(crate) certain: bool,
    pub(crate) error: &'a DeliveryError,
}

/// What the pipeline does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// As the error's disposition says; the refusal changes nothing.
    AsItIs,
    /// Read the log again at once: something was decided.
    Again,
    /// Read it again after a pause.
    Later,
    /// Waiting has not helped: stop, for somebody must change something.
    GiveUp,
}

/// The event whose refusal may pass, and since when it is refused.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    suspect: Option<(LetterId, Instant)>,
}

impl Patience {
    /// Judges a refusal at `now`.
    pub(crate) fn judge(
        &mut self,
        refusal: &Refusal<'_>,
        verdicts: &mut Verdicts,
        now: Instant,
    ) -> Judgement {
        let Refusal {
            event,
            last,
            certain,
            error,
        } = *refusal;
        let Some(poison) = error.poison else {
            return Judgement::AsItIs;
        };
        // A dead letter that is refused condemns no event, whatever the policy says: the event itself
        // was never offered to the topic that it is bound for, or its verdict is known already.
        let SentEvent {
            id: event,
            dead_letter,
        } = event;
        let alone = certain || verdicts.is_alone();
        if error.disposition == Disposition::Retryable {
            let since = match self.suspect {
                Some((suspect, since)) if suspect == event => since,
                _ => {
                    self.suspect = Some((event, now));
                    now
                }
            };
            if !alone || now.duration_since(since) < verdicts.policy().retry_for {
                // Alone, so that what goes to other topics is not sent again with each attempt.
                verdicts.send_alone_until(event);
                return Judgement::Later;
            }
            if dead_letter {
                return Judgement::GiveUp;
            }
            return if verdicts.give_up_topic(event, &error.topic, poison, &error.reason) {
                tracing::warn!(
                    topic = %error.topic,
                    reason = error.reason,
                    "gave the topic up: its events are treated by the poison policy until the relay \
                     is started anew"
                );
                self.suspect = None;
                Judgement::Again
            } else {
                Judgement::GiveUp
            };
        }
        if !alone {
            tracing::warn!(
                error = %error,
                "a request was refused: sending its records one by one to find the one that is meant"
            );
            verdicts.send_alone_until(last);
            return Judgement::Again;
        }
        if !dead_letter && verdicts.condemn(event, poison, &error.reason) {
            Judgement::Again
        } else {
            Judgement::AsItIs
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use walrelay_sink::Poison;

    use super::*;
    use crate::{PoisonAction, PoisonPolicy};

    const A: LetterId = LetterId { lsn: 8, row: 0 };
    const B: LetterId = LetterId { lsn: 8, row: 5 };
    const ACTIONS: [PoisonAction; 3] = [
        PoisonAction::Halt,
        PoisonAction::DeadLetter,
        PoisonAction::Skip,
    ];

    fn verdicts(action: PoisonAction) -> Verdicts {
        Verdicts::new(PoisonPolicy {
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

    fn refusal(event: LetterId, last: LetterId, error: &DeliveryError) -> Refusal<'_> {
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
    fn of_dead_letter(event: LetterId, error: &DeliveryError) -> Refusal<'_> {
        Refusal {
            event: SentEvent {
                id: event,
                dead_letter: true,
            },
            ..refusal(event, event, error)
        }
    }

    /// Nothing was decided about these events, now or before.
    fn assert_condemned_nobody(verdicts: &Verdicts) {
        for event in [A, B] {
            assert!(!verdicts.is_condemned(event), "{event}");
            assert!(verdicts.of(event, "orders", None).is_none(), "{event}");
        }
    }

    #[test]
    fn a_refused_request_is_taken_apart_before_anybody_is_condemned() {
        for (action, end) in [
            (PoisonAction::DeadLetter, Judgement::Again),
            (PoisonAction::Skip, Judgement::Again),
            (PoisonAction::Halt, Judgement::AsItIs),
        ] {
            let mut verdicts = verdicts(action);
            let mut patience = Patience::default();
            let now = Instant::now();
            let error = error(Disposition::Fatal, Some(Poison::Oversize));
            let first = patience.judge(&refusal(A, B, &error), &mut verdicts, now);
            assert_eq!(first, Judgement::Again);
            assert!(verdicts.is_alone() && !verdicts.is_condemned(A));
            let second = patience.judge(&refusal(B, B, &error), &mut verdicts, now);
            assert_eq!(second, end);
            assert_eq!(verdicts.is_condemned(B), action != PoisonAction::Halt);
            assert!(!verdicts.is_condemned(A));
        }
    }

    #[test]
    fn a_topic_is_waited_for_and_then_given_up() {
        let error = error(Disposition::Retryable, Some(Poison::Rejected));
        let mut verdicts = verdicts(PoisonAction::DeadLetter);
        let mut patience = Patience::default();
        let start = Instant::now();
        for seconds in [0, 1, 59] {
            let now = start + Duration::from_secs(seconds);
            let judged = patience.judge(&refusal(A, A, &error), &mut verdicts, now);
            assert_eq!(judged, Judgement::Later, "{seconds}");
        }
        let now = start + Duration::from_secs(60);
        let judged = patience.judge(&refusal(A, A, &error), &mut verdicts, now);
        assert_eq!(judged, Judgement::Again);
        assert!(verdicts.of(B, "orders", None).is_some());
        assert!(verdicts.of(B, "others", None).is_none());
    }

    #[test]
    fn halting_waits_as_long() {
        let error = error(Disposition::Retryable, Some(Poison::Rejected));
        let mut verdicts = verdicts(PoisonAction::Halt);
        let mut patience = Patience::default();
        let start = Instant::now();
        let judged = patience.judge(&refusal(A, A, &error), &mut verdicts, start);
        assert_eq!(judged, Judgement::Later);
        let now = start + Duration::from_secs(61);
        let judged = patience.judge(&refusal(A, A, &error), &mut verdicts, now);
        assert_eq!(judged, Judgement::GiveUp);
    }

    #[test]
    fn a_broker_that_is_away_condemns_nobody() {
        let mut verdicts = verdicts(PoisonAction::DeadLetter);
        let mut patience = Patience::default();
        verdicts.send_alone_until(A);
        for disposition in [Disposition::Retryable, Disposition::Fatal] {
            let error = error(disposition, None);
            let judged = patience.judge(&refusal(A, A, &error), &mut verdicts, Instant::now());
            assert_eq!(judged, Judgement::AsItIs);
            assert!(!verdicts.is_condemned(A));
        }
    }

    /// Whether an event became a dead letter for its own fault or for that of another one (parked, its
    /// topic given up, no schema): the refusal of the dead letter decides nothing about it.
    #[test]
    fn a_dead_letter_refused_for_good_condemns_no_event_and_stops_the_relay() {
        for action in ACTIONS {
            for poison in Poison::ALL {
                for (disposition, certain) in [
                    (Disposition::Fatal, false),
                    (Disposition::Fatal, true),
                    (Disposition::Configuration, false),
                    (Disposition::Configuration, true),
                ] {
                    let case = format!("{action:?} {poison} {disposition:?} {certain}");
                    let mut verdicts = verdicts(action);
                    let mut patience = Patience::default();
                    let error = error(disposition, Some(poison));
                    let refusal = Refusal {
                        certain,
                        ..of_dead_letter(A, &error)
                    };
                    if !certain {
                        // The request is taken apart first: another record of it may be meant.
                        let judged = patience.judge(&refusal, &mut verdicts, Instant::now());
                        assert_eq!(judged, Judgement::Again, "{case}");
                        assert!(verdicts.is_alone(), "{case}");
                    }
                    let judged = patience.judge(&refusal, &mut verdicts, Instant::now());
                    assert_eq!(judged, Judgement::AsItIs, "{case}");
                    assert_condemned_nobody(&verdicts);
                }
            }
        }
    }

    #[test]
    fn a_dead_letter_whose_refusal_may_pass_is_offered_alone_and_condemns_no_event_in_the_end() {
        for action in ACTIONS {
            for certain in [false, true] {
                let case = format!("{action:?} {certain}");
                let mut verdicts = verdicts(action);
                let mut patience = Patience::default();
                let error = error(Disposition::Retryable, Some(Poison::Rejected));
                let start = Instant::now();
                for (seconds, expected) in [
                    (0, Judgement::Later),
                    (1, Judgement::Later),
                    (59, Judgement::Later),
                    (60, Judgement::GiveUp),
                ] {
                    let refusal = Refusal {
                        certain,
                        ..of_dead_letter(A, &error)
                    };
                    let now = start + Duration::from_secs(seconds);
                    let judged = patience.judge(&refusal, &mut verdicts, now);
                    assert_eq!(judged, expected, "{case} after {seconds} s");
                    assert!(verdicts.is_alone(), "{case}");
                    assert_condemned_nobody(&verdicts);
                }
            }
        }
    }

    #[test]
    fn a_dead_letter_keeps_the_verdict_of_its_event() {
        let mut verdicts = verdicts(PoisonAction::DeadLetter);
        let mut patience = Patience::default();
        assert!(verdicts.condemn(A, Poison::Unroutable, "no topic"));
        let error = error(Disposition::Fatal, Some(Poison::Oversize));
        for expected in [Judgement::Again, Judgement::AsItIs] {
            let judged = patience.judge(&of_dead_letter(A, &error), &mut verdicts, Instant::now());
            assert_eq!(judged, expected);
        }
        let verdict = verdicts.of(A, "orders", None).expect("it is known");
        assert_eq!(&*verdict.cause, "no topic");
    }
}
