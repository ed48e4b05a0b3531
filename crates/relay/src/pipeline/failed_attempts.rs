use tokio::time::Instant;

use super::backoff::Backoff;
use super::log_throttle::LogThrottle;
use super::silence::Silence;

/// What the attempts to relay that failed in a row mean for the next one. All of it ends when a position is
/// confirmed.
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
