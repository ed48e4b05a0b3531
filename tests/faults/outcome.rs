//! The figures that a scenario yields.

use std::fmt::{self, Write as _};
use std::time::Duration;

use walrelay_testkit::{TooEarly, Verdict};

/// The figures of one scenario on one version.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) committed: usize,
    pub(crate) lost: usize,
    pub(crate) reordered: usize,
    /// Rows that were confirmed too early; `None` if nothing watched the slot.
    pub(crate) early: Option<usize>,
    pub(crate) duplicates: usize,
    /// From the end of each fault to the first new record in the broker.
    pub(crate) first: Vec<Duration>,
    /// From the end of each fault until all rows committed before were in the broker.
    pub(crate) caught_up: Vec<Duration>,
    /// Failed expectations, and the report of the checker.
    pub(crate) wrong: Vec<String>,
    /// Why the scenario did not run, for the report.
    pub(crate) skipped: Option<String>,
}

impl Outcome {
    /// The outcome of a scenario that this machine cannot run, with the reason for the report.
    pub(crate) fn skipped(why: impl Into<String>) -> Self {
        Self {
            skipped: Some(why.into()),
            ..Self::default()
        }
    }

    /// `ragged`: whether repeats may leave rows out, because the broker may still process requests
    /// of a relay that was killed.
    pub(crate) fn from_verdict(
        verdict: &Verdict,
        early: Option<&[TooEarly]>,
        ragged: bool,
    ) -> Self {
        let mut wrong = Vec::new();
        let clean = if ragged {
            verdict.is_clean_but_for_ragged()
        } else {
            verdict.is_clean()
        };
        if !clean {
            wrong.push(verdict.to_string());
        }
        if let Some(early) = early
            && !early.is_empty()
        {
            let mut text = format!("confirmed early: {}", early.len());
            for one in early.iter().take(5) {
                let _ = write!(text, "\n    {one:?}");
            }
            wrong.push(text);
        }
        Self {
            committed: verdict.committed,
            lost: verdict.lost.len(),
            reordered: verdict.reordered.len(),
            early: early.map(<[TooEarly]>::len),
            duplicates: verdict.duplicates,
            wrong,
            ..Self::default()
        }
    }

    /// Adds an expectation.
    pub(crate) fn expect(mut self, holds: bool, words: impl FnOnce() -> String) -> Self {
        if !holds {
            self.wrong.push(words());
        }
        self
    }

    /// Expects no repeats: for faults after which the relay can continue exactly where it was.
    pub(crate) fn nothing_repeated(self) -> Self {
        let repeated = self.duplicates;
        self.expect(repeated == 0, || format!("{repeated} repeated"))
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.wrong.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.skipped {
            return write!(f, "not run: {why}");
        }
        write!(
            f,
            "{} rows, lost {}, reordered {}, confirmed early {}, repeated {}",
            self.committed,
            self.lost,
            self.reordered,
            self.early
                .map_or_else(|| "unwatched".to_owned(), |early| early.to_string()),
            self.duplicates
        )?;
        if let Some(figures) = MedianMax::from_durations(&self.first) {
            write!(f, ", first {figures}")?;
        }
        if let Some(figures) = MedianMax::from_durations(&self.caught_up) {
            write!(f, ", caught up {figures}")?;
        }
        Ok(())
    }
}

/// Median and maximum of several durations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MedianMax {
    median: Duration,
    max: Duration,
}

impl MedianMax {
    pub(crate) fn from_durations(durations: &[Duration]) -> Option<Self> {
        let mut sorted = durations.to_vec();
        sorted.sort();
        Some(Self {
            median: *sorted.get(sorted.len().checked_sub(1)? / 2)?,
            max: *sorted.last()?,
        })
    }
}

impl fmt::Display for MedianMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, max } = self;
        write!(
            f,
            "{:.2} / {:.2} s",
            median.as_secs_f64(),
            max.as_secs_f64()
        )
    }
}
