use std::time::Duration;

use tokio::time::Instant;

/// The interval between two warnings about the same problem: after the first warning, and at most.
/// It doubles with each warning.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(600);

/// Throttles a repeated warning: the first is logged at once, later ones at growing intervals. A
/// problem that lasts must neither fill the log nor vanish from it.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    problem: Option<Problem>,
}

#[derive(Debug)]
struct Problem {
    what: String,
    since: Instant,
    next: Instant,
    interval: Duration,
    suppressed: u64,
}

/// A throttled warning that is to be logged now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Throttled {
    /// The time for which the problem lasts.
    pub(crate) lasts: Duration,
    /// The number of times that it happened since the last warning without being logged; `None`
    /// instead of zero, so that a log line has no field for it.
    pub(crate) suppressed: Option<u64>,
}

impl LogThrottle {
    /// Notes a problem at `now`. Returns a warning if the problem is to be logged now. A problem
    /// other than the last one is always logged.
    pub(crate) fn about(&mut self, what: &str, now: Instant) -> Option<Throttled> {
        let problem = match &mut self.problem {
            Some(problem) if problem.what == what => problem,
            _ => {
                self.problem = Some(Problem {
                    what: what.to_owned(),
                    since: now,
                    next: now + FIRST,
                    interval: FIRST,
                    suppressed: 0,
                });
                return Some(Throttled {
                    lasts: Duration::ZERO,
                    suppressed: None,
                });
            }
        };
        if now < problem.next {
            problem.suppressed += 1;
            return None;
        }
        problem.interval = (problem.interval * 2).min(LONGEST);
        problem.next = now + problem.interval;
        let suppressed = std::mem::take(&mut problem.suppressed);
        Some(Throttled {
            lasts: now.duration_since(problem.since),
            suppressed: (suppressed > 0).then_some(suppressed),
        })
    }

    /// Returns the time when the current problem began.
    #[cfg(test)]
    pub(crate) fn since(&self) -> Option<Instant> {
        self.problem.as_ref().map(|problem| problem.since)
    }

    /// Ends the current problem. Returns how long it lasted.
    pub(crate) fn over(&mut self, now: Instant) -> Option<Duration> {
        let problem = self.problem.take()?;
        Some(now.duration_since(problem.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_grow_and_a_new_problem_is_logged_at_once() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut throttle = LogThrottle::default();
        let logged: Vec<u64> = (0..3_600)
            .filter(|seconds| throttle.about("down", at(*seconds)).is_some())
            .collect();
        assert_eq!(
            logged,
            [
                0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1623, 2223, 2823, 3423
            ]
        );
        let warning = throttle.about("refused", at(3_600)).expect("it is new");
        assert_eq!(warning.lasts, Duration::ZERO);
        throttle.over(at(3_601));
        assert!(throttle.about("refused", at(3_602)).is_some());
    }
}
