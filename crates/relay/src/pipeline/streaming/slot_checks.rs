//! The times of the slot checks (queries of the catalogs beside the stream), and the warnings about
//! failed ones.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::interface::source::SlotCheck;
use crate::pipeline::log_throttle::{LogThrottle, Throttled};

/// The time from the start of one check to the start of the next. Checks are needed because the
/// server does not notify us when a table is removed from the publication. The documents promise
/// ten seconds, which include the time of the check.
const CHECK_INTERVAL: Duration = Duration::from_secs(9);
/// The time from the end of a failed check to the start of the next.
const CHECK_RETRY: Duration = Duration::from_secs(1);
/// The shortest time between the end of one check and the start of the next.
const CHECK_PAUSE: Duration = Duration::from_millis(200);
/// A warning is logged after this many failed checks in a row, or after this time without an answer.
const FAILURES_NOTICE: u32 = 3;
const SILENCE_NOTICE: Duration = Duration::from_secs(30);

/// The schedule of the slot checks of one stream.
#[derive(Debug)]
pub(crate) struct SlotChecks {
    next_at: Instant,
    /// [`CHECK_PAUSE`] after the end of the last check; `None` while one is under way.
    not_before: Option<Instant>,
    /// The time when a check was answered last, or when the stream was opened.
    answered_at: Instant,
    /// The number of failed checks since `answered_at`.
    failures: u32,
    throttle: LogThrottle,
}

impl SlotChecks {
    /// Creates the schedule of a stream that is opened at `now`.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            next_at: now + CHECK_INTERVAL,
            not_before: Some(now),
            answered_at: now,
            failures: 0,
            throttle: LogThrottle::default(),
        }
    }

    /// Returns the time when the next check is due; `None` while one is under way, or if none is
    /// wanted. `regular`: checks are wanted every [`CHECK_INTERVAL`]. `prove_at`: when a check must
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

    /// Records that a check was started.
    pub(crate) fn started(&mut self, now: Instant) {
        self.next_at = now + CHECK_INTERVAL;
        self.not_before = None;
    }

    /// Records the result of a check, and logs it.
    pub(crate) fn ended(&mut self, check: &SlotCheck, now: Instant) {
        self.not_before = Some(now + CHECK_PAUSE);
        let SlotCheck::Failed { reason } = check else {
            self.answered_at = now;
            self.failures = 0;
            if let Some(lasted) = self.throttle.over(now) {
                let lasted_s = lasted.as_secs();
                info!(lasted_s, "slot checks are answered again");
            }
            return;
        };
        debug!(reason, "a slot check failed");
        if let Some(warning) = self.failed(now) {
            warn!(
                error = reason,
                failures = self.failures,
                unanswered_s = now.duration_since(self.answered_at).as_secs(),
                suppressed = warning.suppressed,
                "slot checks fail: a table that is taken out of the publication is not \
                 noticed meanwhile, nor is WAL that is kept for the slot"
            );
        }
    }

    /// Counts a failed check. Returns a warning if one is due.
    fn failed(&mut self, now: Instant) -> Option<Throttled> {
        self.next_at = now + CHECK_RETRY;
        self.failures += 1;
        let lasts = self.failures >= FAILURES_NOTICE
            || now.duration_since(self.answered_at) >= SILENCE_NOTICE;
        lasts
            .then(|| self.throttle.about("failed slot checks", now))
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::source::SlotOwner;

    fn failure() -> SlotCheck {
        SlotCheck::Failed {
            reason: "no answer".to_owned(),
        }
    }

    fn answer(asked_at: Instant) -> SlotCheck {
        SlotCheck::Answered {
            asked_at,
            owner: SlotOwner::Ours,
            timeline: Some(1),
            place: None,
        }
    }

    #[test]
    fn a_failed_check_is_repeated_soon_and_an_answered_one_after_the_interval() {
        let start = Instant::now();
        let mut checks = SlotChecks::new(start);
        let due = |checks: &SlotChecks| checks.due(true, None, false);
        assert_eq!(due(&checks), Some(start + CHECK_INTERVAL));
        checks.started(start + CHECK_INTERVAL);
        assert_eq!(due(&checks), None, "one is under way");
        let after = start + CHECK_INTERVAL + Duration::from_millis(500);
        checks.ended(&answer(start + CHECK_INTERVAL), after);
        // Counted from the start: the promise of ten seconds includes the time of the check.
        assert_eq!(due(&checks), Some(start + 2 * CHECK_INTERVAL));
        checks.started(start + 2 * CHECK_INTERVAL);
        let after = start + 2 * CHECK_INTERVAL + Duration::from_secs(5);
        checks.ended(&failure(), after);
        assert_eq!(due(&checks), Some(after + CHECK_RETRY));
        // A proof is requested sooner, but not before the pause.
        assert_eq!(
            checks.due(false, Some(start), false),
            Some(after + CHECK_PAUSE)
        );
        assert_eq!(checks.due(false, None, false), None);
        // A table's place is asked for at once; after a failure, at the next try.
        assert_eq!(checks.due(false, None, true), Some(after + CHECK_RETRY));
        checks.ended(&answer(after), after);
        assert_eq!(checks.due(false, None, true), Some(after + CHECK_PAUSE));
    }

    #[test]
    fn a_run_of_failed_checks_is_one_throttled_warning() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut checks = SlotChecks::new(start);
        let warned: Vec<u64> = (1..=20)
            .filter(|second| checks.failed(at(*second)).is_some())
            .collect();
        assert_eq!(warned, [3, 4, 6, 10, 18]);
        checks.ended(&answer(at(21)), at(21));
        assert_eq!(checks.throttle.since(), None);
        // Few failures, but no answer for a long time.
        assert!(checks.failed(at(35)).is_none());
        assert!(checks.failed(at(51)).is_some());
    }
}
