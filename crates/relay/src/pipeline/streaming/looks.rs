//! The times of the looks (queries of the catalogs beside the stream), and the warnings about
//! failed looks.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::interface::source::Looked;
use crate::pipeline::log_throttle::{LogThrottle, Throttled};

/// The time from the start of one check to the start of the next. Checks are needed because the
/// server does not notify us when a table is removed from the publication. The documents promise
/// ten seconds, which include the time of the check.
const LOOK_INTERVAL: Duration = Duration::from_secs(9);
/// The time from the end of a failed check to the start of the next.
const LOOK_RETRY: Duration = Duration::from_secs(1);
/// Shortest time between the end of one look and the start of the next.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// A warning is logged after this many failed looks in a row, or after this time without an answer.
const FAILURES_NOTICE: u32 = 3;
const SILENCE_NOTICE: Duration = Duration::from_secs(30);

/// The looks of one stream.
#[derive(Debug)]
pub(crate) struct Looks {
    next_at: Instant,
    /// [`LOOK_PAUSE`] after the end of the last look; `None` while a look is under way.
    not_before: Option<Instant>,
    /// The time when a check was answered last, or when the stream was opened.
    answered_at: Instant,
    /// Failed looks since `answered_at`.
    failures: u32,
    throttle: LogThrottle,
}

impl Looks {
    /// Creates the schedule of a stream that is opened at `now`.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            next_at: now + LOOK_INTERVAL,
            not_before: Some(now),
            answered_at: now,
            failures: 0,
            throttle: LogThrottle::default(),
        }
    }

    /// Returns the time when the next check is due; `None` while one is under way, or if none is
    /// wanted. `regular`: checks are wanted every [`LOOK_INTERVAL`]. `prove_at`: when a check must
    /// prove that the slot is still ours. `placing`: the frame at the front waits for the place of
    /// its table.
    pub(crate) fn due(
        &self,
        regular: bool,
        prove_at: Option<Instant>,
        placing: bool,
    ) -> Option<Instant> {
        let regular = regular.then_some(self.next_at);
        let at_once = match self.failures {
            0 => self.answered_at,
            _ => self.next_at,
        };
        let placing = placing.then_some(at_once);
        let due = [regular, prove_at, placing].into_iter().flatten().min()?;
        self.not_before.map(|not_before| due.max(not_before))
    }

    /// Notes that a look was started.
    pub(crate) fn started(&mut self, now: Instant) {
        self.next_at = now + LOOK_INTERVAL;
        self.not_before = None;
    }

    /// Notes the result of a look, and logs it.
    pub(crate) fn ended(&mut self, looked: &Looked, now: Instant) {
        self.not_before = Some(now + LOOK_PAUSE);
        let Looked::Failed { reason } = looked else {
            self.answered_at = now;
            self.failures = 0;
            if let Some(lasted) = self.throttle.over(now) {
                let lasted_s = lasted.as_secs();
                info!(lasted_s, "looks at the catalogs are answered again");
            }
            return;
        };
        debug!(reason, "a look at the catalogs failed");
        if let Some(warning) = self.failed(now) {
            warn!(
                error = reason,
                failures = self.failures,
                unanswered_s = now.duration_since(self.answered_at).as_secs(),
                suppressed = warning.suppressed,
                "looks at the catalogs fail: a table that is taken out of the publication is not \
                 noticed meanwhile, nor is WAL that is kept for the slot"
            );
        }
    }

    /// Counts a failed look. Returns a warning if one is due.
    fn failed(&mut self, now: Instant) -> Option<Throttled> {
        self.next_at = now + LOOK_RETRY;
        self.failures += 1;
        let lasts = self.failures >= FAILURES_NOTICE
            || now.duration_since(self.answered_at) >= SILENCE_NOTICE;
        lasts
            .then(|| self.throttle.about("failed looks", now))
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::source::SlotOwner;

    fn failure() -> Looked {
        Looked::Failed {
            reason: "no answer".to_owned(),
        }
    }

    fn answer(asked_at: Instant) -> Looked {
        Looked::Answered {
            asked_at,
            owner: SlotOwner::Ours,
            timeline: Some(1),
            place: None,
        }
    }

    #[test]
    fn a_failed_look_is_repeated_soon_and_an_answered_one_after_the_interval() {
        let start = Instant::now();
        let mut looks = Looks::new(start);
        let due = |looks: &Looks| looks.due(true, None, false);
        assert_eq!(due(&looks), Some(start + LOOK_INTERVAL));
        looks.started(start + LOOK_INTERVAL);
        assert_eq!(due(&looks), None, "one is under way");
        let after = start + LOOK_INTERVAL + Duration::from_millis(500);
        looks.ended(&answer(start + LOOK_INTERVAL), after);
        // Counted from the start: the promise of ten seconds includes the time of the look.
        assert_eq!(due(&looks), Some(start + 2 * LOOK_INTERVAL));
        looks.started(start + 2 * LOOK_INTERVAL);
        let after = start + 2 * LOOK_INTERVAL + Duration::from_secs(5);
        looks.ended(&failure(), after);
        assert_eq!(due(&looks), Some(after + LOOK_RETRY));
        // A proof is requested sooner, but not before the pause.
        assert_eq!(
            looks.due(false, Some(start), false),
            Some(after + LOOK_PAUSE)
        );
        assert_eq!(looks.due(false, None, false), None);
        // A table's place is asked for at once; after a failure, at the next try.
        assert_eq!(looks.due(false, None, true), Some(after + LOOK_RETRY));
        looks.ended(&answer(after), after);
        assert_eq!(looks.due(false, None, true), Some(after + LOOK_PAUSE));
    }

    #[test]
    fn a_run_of_failed_looks_is_one_throttled_warning() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut looks = Looks::new(start);
        let warned: Vec<u64> = (1..=20)
            .filter(|second| looks.failed(at(*second)).is_some())
            .collect();
        assert_eq!(warned, [3, 4, 6, 10, 18]);
        looks.ended(&answer(at(21)), at(21));
        assert_eq!(looks.throttle.since(), None);
        // Few failures, but no answer for a long time.
        assert!(looks.failed(at(35)).is_none());
        assert!(looks.failed(at(51)).is_some());
    }
}
