//! Rows whose marks fail: each is attempted again after a delay, which doubles.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use walrelay_sink_kind::dead_letters::Outcome;

/// The delay before the second attempt, and the longest one.
const FIRST_DELAY: Duration = Duration::from_secs(5);
const LONGEST_DELAY: Duration = Duration::from_secs(300);

/// Rows whose marks failed.
#[derive(Debug, Default)]
pub(super) struct FailingRows {
    rows: HashMap<u64, Failing>,
    /// The reason of the last failure.
    reason: String,
}

#[derive(Debug)]
struct Failing {
    /// The resolution of the dead letter, which decides how the row is marked.
    outcome: Option<Outcome>,
    due: Instant,
    delay: Duration,
}

impl FailingRows {
    /// Returns true if the row waits for another attempt at the same mark.
    pub(super) fn passes_over(&self, id: u64, outcome: Option<Outcome>) -> bool {
        self.rows
            .get(&id)
            .is_some_and(|failing| failing.outcome == outcome)
    }

    /// Notes an attempt, as one that failed unless [`end`](Self::end) is called.
    pub(super) fn begin(&mut self, id: u64, outcome: Option<Outcome>) {
        let before = self.rows.get(&id);
        let before = before.filter(|failing| failing.outcome == outcome);
        let delay = before.map_or(FIRST_DELAY, |failing| {
            (failing.delay * 2).min(LONGEST_DELAY)
        });
        let due = Instant::now() + delay;
        let failing = Failing {
            outcome,
            due,
            delay,
        };
        self.rows.insert(id, failing);
    }

    /// Notes the reason why the attempt failed.
    pub(super) fn fail(&mut self, reason: String) {
        self.reason = reason;
    }

    /// Forgets a row, which does not fail.
    pub(super) fn end(&mut self, id: u64) {
        self.rows.remove(&id);
    }

    /// Returns the rows whose next attempt is due, those that wait the longest first.
    pub(super) fn due(&self, limit: usize) -> Vec<u64> {
        let now = Instant::now();
        let due = self.rows.iter().filter(|(_, failing)| failing.due <= now);
        let mut due: Vec<(Instant, u64)> = due.map(|(id, failing)| (failing.due, *id)).collect();
        due.sort_unstable();
        due.into_iter().take(limit).map(|(_, id)| id).collect()
    }

    /// Returns the number of rows, and the reason of the last failure; `None` if no mark fails.
    pub(super) fn problem(&self) -> Option<String> {
        let reason = match &*self.reason {
            "" => "the server did not answer in time",
            reason => reason,
        };
        let rows = self.rows.len();
        (rows > 0).then(|| format!("{rows} rows of dead letters cannot be marked: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_row_is_attempted_after_a_delay_that_doubles() {
        let mut failing = FailingRows::default();
        for delay in [5, 10, 20, 40, 80, 160, 300, 300] {
            failing.begin(7, None);
            failing.fail("no right".to_owned());
            tokio::time::advance(Duration::from_millis(delay * 1_000 - 1)).await;
            assert!(failing.due(9).is_empty(), "after less than {delay} s");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(failing.due(9), [7], "after {delay} s");
        }
        let problem = failing.problem().expect("a problem");
        assert_eq!(problem, "1 rows of dead letters cannot be marked: no right");
        failing.end(7);
        assert_eq!((failing.problem(), failing.due(9)), (None, vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_row_whose_dead_letter_was_resolved_is_attempted_at_once() {
        let mut failing = FailingRows::default();
        failing.begin(7, None);
        failing.begin(8, None);
        tokio::time::advance(Duration::from_secs(9)).await;
        failing.begin(8, None);
        assert!(failing.passes_over(7, None));
        assert!(!failing.passes_over(7, Some(Outcome::Redriven)));
        assert!(!failing.passes_over(9, None));
        // The limit leaves those that were due last.
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(failing.due(1), [7]);
        assert_eq!(failing.due(2), [7, 8]);
    }
}
