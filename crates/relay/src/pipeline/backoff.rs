use std::time::Duration;

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
}
