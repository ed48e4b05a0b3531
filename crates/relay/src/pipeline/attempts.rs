//! The effect of failed attempts in a row on the next attempt: the delay before it, what is logged,
//! and how long its connection may be silent.

use std::time::Duration;

use tokio::time::Instant;

use super::log_throttle::LogThrottle;

/// The limit of silence grows up to this value when connections are given up in a row.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);

/// The time for which a relay that was connected tries again while the server refuses its login: a certificate
/// or a password that has expired is renewed there. Then it ends so that its supervisor starts it again, because
/// another start may read a new password from its environment.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(300);

/// The attempts that failed in a row. Reset when a new position may be confirmed.
#[derive(Debug)]
pub(super) struct FailedAttempts {
    pub(super) backoff: Backoff,
    pub(super) throttle: LogThrottle,
    pub(super) silence: Silence,
    /// The server has accepted the login of this process.
    is_admitted: bool,
    /// The first of the refused logins since.
    refused: Option<Instant>,
}

impl FailedAttempts {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            throttle: LogThrottle::default(),
            silence: Silence::default(),
            is_admitted: false,
            refused: None,
        }
    }

    /// Notes a refused login. Returns whether it is to be tried again; `None` if the server has accepted none
    /// before.
    pub(super) fn refused(&mut self, now: Instant) -> Option<bool> {
        let since = *self.refused.get_or_insert(now);
        self.is_admitted.then_some(now < since + REFUSAL_PATIENCE)
    }

    /// Notes that the server has accepted the login.
    pub(super) fn admitted(&mut self) {
        self.is_admitted = true;
        self.refused = None;
    }

    /// Resets all counters, because a new position may be confirmed.
    pub(super) fn reset(&mut self) {
        self.backoff.reset();
        self.throttle.over(Instant::now());
        self.silence.reset();
    }
}

/// Delays between attempts. The step doubles from `initial` to `max`. Each delay is drawn at random
/// from the upper half of its step, so that many relays that lost the same server do not reconnect
/// at the same time.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    attempt: u32,
}

impl Backoff {
    /// Creates a back-off whose first delay is at most `initial`, and each delay at most `max`.
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self {
            initial: initial.min(max),
            max,
            attempt: 0,
        }
    }

    /// Draws the next delay.
    pub fn next_delay(&mut self) -> Duration {
        let grown = self
            .initial
            .saturating_mul(2_u32.saturating_pow(self.attempt));
        let step = grown.min(self.max);
        self.attempt = self.attempt.saturating_add(1).min(31);
        step.mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    /// Starts over with the first step.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }
}

/// The limit of silence of a connection. The limit doubles with each connection that is given up,
/// until a new position may be confirmed.
///
/// A server may need longer than the limit for one step of its own, the commit of a transaction of
/// a million savepoints for example, and reply to nothing meanwhile. Every connection begins that
/// step again, so with a fixed limit the relay would never get beyond it.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    given_up: u32,
}

impl Silence {
    /// Returns the limit of silence. `usual`: the limit while no connection was given up.
    pub(crate) fn limit(&self, usual: Duration) -> Duration {
        let grown = usual.saturating_mul(2_u32.saturating_pow(self.given_up));
        grown.min(usual.max(LONGEST_SILENCE))
    }

    /// Notes that a connection was given up.
    pub(crate) fn given_up(&mut self) {
        self.given_up = self.given_up.saturating_add(1);
    }

    pub(crate) fn reset(&mut self) {
        self.given_up = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_login_is_tried_again_for_a_while_if_one_was_accepted() {
        let mut attempts = FailedAttempts::new(Backoff::new(Duration::ZERO, Duration::ZERO));
        let mut now = Instant::now();
        assert_eq!(attempts.refused(now), None, "none was accepted");
        for _ in 0..2 {
            attempts.admitted();
            assert_eq!(attempts.refused(now), Some(true));
            now += REFUSAL_PATIENCE;
            assert_eq!(attempts.refused(now), Some(false));
        }
    }

    #[test]
    fn delays_double_to_the_maximum_and_start_over() {
        let (initial, max) = (Duration::from_millis(100), Duration::from_secs(5));
        let mut backoff = Backoff::new(initial, max);
        for round in 0..200_u32 {
            let step = initial.saturating_mul(2_u32.saturating_pow(round)).min(max);
            let delay = backoff.next_delay();
            assert!(
                delay <= step && delay >= step / 2,
                "round {round}: {delay:?} of {step:?}"
            );
        }
        backoff.reset();
        assert!(backoff.next_delay() <= initial);
    }

    #[test]
    fn the_limit_doubles_until_it_is_reset() {
        let seconds = Duration::from_secs;
        let mut silence = Silence::default();
        let mut limits = Vec::new();
        for _ in 0..40 {
            limits.push(silence.limit(seconds(5)));
            silence.given_up();
        }
        assert_eq!(limits[..5], [5, 10, 20, 30, 30].map(seconds));
        assert_eq!(limits[39], seconds(30));
        // A usual limit above the longest one does not grow.
        assert_eq!(silence.limit(seconds(60)), seconds(60));
        silence.reset();
        assert_eq!(silence.limit(seconds(5)), seconds(5));
    }
}
