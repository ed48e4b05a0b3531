use std::time::Duration;

use tokio::time::Instant;

/// Least time between two words about the same trouble; doubles with each.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(600);

/// Says the same thing at once, and then at growing intervals: a trouble that lasts must neither fill
/// the log nor be forgotten in it.
#[derive(Debug, Default)]
pub(crate) struct Nag {
    trouble: Option<Trouble>,
}

#[derive(Debug)]
struct Trouble {
    what: String,
    since: Instant,
    next: Instant,
    interval: Duration,
    held_back: u64,
}

/// A word that is due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// How long it has been so.
    pub(crate) lasts: Duration,
    /// How often it happened since the last word, and was not said.
    pub(crate) held_back: u64,
}

impl Due {
    /// For a log line, which leaves a zero out.
    pub(crate) fn not_said(&self) -> Option<u64> {
        (self.held_back > 0).then_some(self.held_back)
    }
}

impl Nag {
    /// Something is wrong, at `now`. Something else than before is said at once.
    pub(crate) fn about(&mut self, what: &str, now: Instant) -> Option<Due> {
        let trouble = match &mut self.trouble {
            Some(trouble) if trouble.what == what => trouble,
            _ => {
                self.trouble = Some(Trouble {
                    what: what.to_owned(),
                    since: now,
                    next: now + FIRST,
                    interval: FIRST,
                    held_back: 0,
                });
                return Some(Due {
                    lasts: Duration::ZERO,
                    held_back: 0,
                });
            }
        };
        if now < trouble.next {
            trouble.held_back += 1;
            return None;
        }
        trouble.interval = (trouble.interval * 2).min(LONGEST);
        trouble.next = now + trouble.interval;
        Some(Due {
            lasts: now.duration_since(trouble.since),
            held_back: std::mem::take(&mut trouble.held_back),
        })
    }

    /// Since when something is wrong.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.trouble.as_ref().map(|trouble| trouble.since)
    }

    /// All is well again; how long it was not.
    pub(crate) fn over(&mut self, now: Instant) -> Option<Duration> {
        let trouble = self.trouble.take()?;
        Some(now.duration_since(trouble.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_grow_and_something_new_is_said_at_once() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut nag = Nag::default();
        let said: Vec<u64> = (0..3_600)
            .filter(|seconds| nag.about("down", at(*seconds)).is_some())
            .collect();
        assert_eq!(
            said,
            [
                0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1623, 2223, 2823, 3423
            ]
        );
        let due = nag.about("refused", at(3_600)).expect("it is new");
        assert_eq!(due.lasts, Duration::ZERO);
        nag.over(at(3_601));
        assert!(nag.about("refused", at(3_602)).is_some());
    }
}
