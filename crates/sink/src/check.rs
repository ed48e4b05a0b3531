//! What a sink finds out for `walrelay check`.

use std::error::Error;

use crate::{FailureClass, SinkFailure};

/// The verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkVerdict {
    /// Nothing is wrong.
    Pass,
    /// The relay runs, but something may fail later; or the check could not see enough.
    Warn,
    /// The relay does not run, or its events do not arrive.
    Fail {
        /// The id of the failure, as of other commands.
        id: &'static str,
        /// The class of the failure.
        class: FailureClass,
    },
}

/// The result of a check. `finding` and `remedy` contain names, never secrets or row values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkCheck {
    /// The verdict.
    pub verdict: SinkVerdict,
    /// What was found. Further lines may show causes.
    pub finding: String,
    /// What the operator can do; a command or a setting, where possible.
    pub remedy: Option<String>,
}

/// Checks with the names of their items, in the order of the report.
pub type SinkChecks = Vec<(&'static str, SinkCheck)>;

impl SinkCheck {
    /// Creates a check that found nothing wrong.
    pub fn pass(finding: impl Into<String>) -> Self {
        Self {
            verdict: SinkVerdict::Pass,
            finding: finding.into(),
            remedy: None,
        }
    }

    /// Creates a warning.
    pub fn warn(finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            verdict: SinkVerdict::Warn,
            finding: finding.into(),
            remedy: Some(remedy.into()),
        }
    }

    /// Creates a failed check.
    pub fn fail(
        (id, class): (&'static str, FailureClass),
        finding: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: SinkVerdict::Fail { id, class },
            ..Self::warn(finding, remedy)
        }
    }

    /// Creates a failed check of a failure. Its causes become part of the finding.
    pub fn failed(failure: &SinkFailure) -> Self {
        Self {
            verdict: SinkVerdict::Fail {
                id: failure.id,
                class: failure.class,
            },
            finding: finding(failure),
            remedy: failure.remedy.clone(),
        }
    }
}

/// Returns the text of a failure with its causes, each on a line.
pub fn finding(failure: &dyn Error) -> String {
    let mut finding = failure.to_string().trim_end().to_owned();
    let mut cause = failure.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Transparent errors, and some sources, repeat the text of the error above.
        if !finding.contains(&text) {
            finding.push_str("\ncause: ");
            finding.push_str(&text);
        }
        cause = error.source();
    }
    finding
}

/// Returns the first texts, at most `most`, and how many more there are.
pub fn shortened(mut texts: Vec<String>, most: usize) -> Vec<String> {
    if let Some(more @ 1..) = texts.len().checked_sub(most) {
        texts.truncate(most);
        texts.push(format!("and {more} more"));
    }
    texts
}

/// What the checks of a sink are told.
#[derive(Debug)]
pub struct CheckInput<'a> {
    /// The topics that are known before the first event.
    pub topics: Vec<String>,
    /// The topic of dead letters; `None` if no event becomes one.
    pub dead_letters: Option<&'a str>,
    /// The bytes of the largest row, `None` without rows; or why it is not seen.
    pub largest_row: Result<Option<u64>, SinkCheck>,
}
