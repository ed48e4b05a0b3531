//! What attempts to relay that failed in a row mean for the next one: how long to wait before it, what to
//! log, and how long its connection may be silent.

use std::time::Duration;

use tokio::time::Instant;

use super::log_throttle::LogThrottle;

/// The limit of silence grows up to this when connections are given up in a row.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);

/// The attempts that failed in a row. All of it ends when a position is confirmed.
#[derive(Debug)]
pub(super) struct FailedAttempts {
    pub(super) backoff: Backoff,
    pub(super) throttle: LogThrottle,
    pub(super) silence: Silence,
}

impl FailedAttempts {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            throttle: LogThrottle::default(),
            silence: Silence::default(),
        }
    }

    /// A position was confirmed.
    pub(super) fn end(&mut self) {
        self.backoff.reset();
        self.throttle.over(Instant::now());
        self.silence.moved();
    }
}

/// Delays between attempts: doubling from `initial` to `max`, each drawn at random from the upper
/// half of its step, so that many relays that lost the same server do not come back as one.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    attempt: u32,
}

impl Backoff {
    /// A back-off whose first delay is at most `initial` and no delay is above `max`.
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self {
            initial: initial.min(max),
            max,
            attempt: 0,
        }
    }

    /// The next delay.
    pub fn next_delay(&mut self) -> Duration {
        let step = self
            .initial
            .saturating_mul(1_u32.checked_shl(self.attempt).unwrap_or(u32::MAX));
        let step = step.min(self.max);
        self.attempt = self.attempt.saturating_add(1).min(31);
        step.mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    /// Starts over, after something worked.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }

    /// How many delays were handed out since the last reset.
    pub fn attempts(&self) -> u32 {
        self.attempt
    }
}

/// Silent connections since something moved.
///
/// A server may need longer than the limit for one step of its own, the commit of a transaction of a
/// million savepoints for example, and reply to nothing meanwhile. Every connection begins that step
/// anew: with a fixed limit the relay would never get beyond it. So the limit doubles with each silent
/// connection until a position is confirmed.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    in_a_row: u32,
}

impl Silence {
    /// The limit, where `usual` holds as long as connections work.
    pub(crate) fn limit(&self, usual: Duration) -> Duration {
        let grown = usual.saturating_mul(1_u32.checked_shl(self.in_a_row).unwrap_or(u32::MAX));
        grown.min(usual.max(LONGEST_SILENCE))
    }

    /// A connection was given up.
    pub(crate) fn given_up(&mut self) {
        self.in_a_row = self.in_a_row.saturating_add(1);
    }

    /// A position was confirmed.
    pub(crate) fn moved(&mut self) {
        self.in_a_row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_limit_doubles_until_something_moves() {
        let seconds = Duration::from_secs;
        let mut silence = Silence::default();
        let mut limits = Vec::new();
        for _ in 0..40 {
            limits.push(silence.limit(seconds(5)));
            silence.given_up();
        }
        assert_eq!(limits[..5], [5, 10, 20, 30, 30].map(seconds));
        assert_eq!(limits[39], seconds(30));
        // A limit that is configured above the longest stays as it is.
        assert_eq!(silence.limit(seconds(60)), seconds(60));
        silence.moved();
        assert_eq!(silence.limit(seconds(5)), seconds(5));
    }
}
