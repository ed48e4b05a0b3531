use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use walrelay_sink::lock;

/// The causes that are remembered, at most.
const MAX_CAUSES: usize = 10_000;
/// The time without a refusal after which a cause is forgotten, if `retry_for` is shorter.
const MIN_MEMORY: Duration = Duration::from_secs(60);

/// The patience with refusals that may pass. A record is given up when it was refused for `retry_for`, or
/// when its *cause* was: the key, the exchange with its routing key, or the address for which records
/// are refused, with no success between. So ten refused events of one key take one `retry_for`.
///
/// Clones share the causes, so they outlive a sink.
#[derive(Clone)]
pub struct Patience {
    retry_for: Duration,
    /// The time without a refusal after which a cause is forgotten.
    memory: Duration,
    causes: Arc<Causes>,
}

#[derive(Default)]
struct Causes {
    since: Mutex<HashMap<Box<[u8]>, Clock>>,
    /// The number of causes. It is usually 0, and then a delivered record costs one load.
    known: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
struct Clock {
    started: Instant,
    noted: Instant,
}

impl Patience {
    /// Creates the patience with causes that last for `retry_for`.
    pub fn new(retry_for: Duration) -> Self {
        Self {
            retry_for,
            memory: retry_for.max(MIN_MEMORY),
            causes: Arc::default(),
        }
    }

    /// Remembers causes for so long after their last refusal.
    #[must_use]
    pub fn with_memory(self, memory: Duration) -> Self {
        Self { memory, ..self }
    }

    /// Notes that a record is refused at `now` for this cause. `since`: when the record was refused
    /// first. Returns true if the record is to be given up.
    pub fn is_over(&self, cause: &[u8], since: Instant, now: Instant) -> bool {
        let mut causes = lock(&self.causes.since);
        if causes.len() >= MAX_CAUSES && !causes.contains_key(cause) {
            // Those that were noted longest ago are not refused any more.
            let mut noted: Vec<Instant> = causes.values().map(|clock| clock.noted).collect();
            let half = noted.len() / 2;
            let (_, &mut median, _) = noted.select_nth_unstable(half);
            causes.retain(|_, clock| clock.noted > median);
        }
        let new = Clock {
            started: now,
            noted: now,
        };
        let clock = causes.entry(cause.into()).or_insert(new);
        if now.saturating_duration_since(clock.noted) > self.memory {
            *clock = new;
        }
        clock.noted = now;
        let started = clock.started.min(since);
        self.causes.known.store(causes.len(), Ordering::Release);
        now.saturating_duration_since(started) >= self.retry_for
    }

    /// Returns true if no cause is known, so that nothing need be [forgotten](Self::forget).
    pub fn is_unused(&self) -> bool {
        self.causes.known.load(Ordering::Acquire) == 0
    }

    /// Notes that a record was delivered which this cause would have stopped.
    pub fn forget(&self, cause: &[u8]) {
        if self.is_unused() {
            return;
        }
        let mut causes = lock(&self.causes.since);
        causes.remove(cause);
        self.causes.known.store(causes.len(), Ordering::Release);
    }
}

// Not derived: causes hold keys.
impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience")
            .field("retry_for", &self.retry_for)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_cause_that_lasts_is_over_for_the_next_record_at_once() {
        let patience = Patience::new(10 * SECOND);
        let first = Instant::now();
        let over = |cause: &[u8], since: u32, now: u32| {
            patience.is_over(cause, first + since * SECOND, first + now * SECOND)
        };
        assert!(!over(b"a", 0, 0) && !over(b"a", 0, 9));
        assert!(!over(b"b", 9, 9), "another cause");
        assert!(over(b"a", 0, 10), "the record");
        assert!(over(b"a", 11, 11), "the next one, at once");
        patience.forget(b"a");
        assert!(!over(b"a", 12, 12), "there was a success");
        // Records of other causes succeed, and this one's is noted each time as another's.
        patience.forget(b"a");
        assert!(over(b"a", 12, 22), "the record's own time counts as well");
        assert!(!over(b"a", 83, 83), "nothing was refused for a minute");
        assert!(over(b"a", 83, 93));
        patience.forget(b"a");
        patience.forget(b"b");
        assert!(patience.is_unused());
    }

    #[test]
    fn the_causes_are_bounded() {
        let patience = Patience::new(SECOND);
        let first = Instant::now();
        for number in 0..3 * MAX_CAUSES as u32 {
            let now = first + number * Duration::from_micros(1);
            assert!(!patience.is_over(&number.to_be_bytes(), now, now));
        }
        assert!(lock(&patience.causes.since).len() <= MAX_CAUSES);
        let last = 3 * MAX_CAUSES as u32 - 1;
        let now = first + 2 * SECOND;
        assert!(patience.is_over(&last.to_be_bytes(), now, now));
    }

    #[test]
    fn no_patience_gives_up_at_once() {
        let now = Instant::now();
        assert!(Patience::new(Duration::ZERO).is_over(b"a", now, now));
    }
}
