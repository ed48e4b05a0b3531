//! The result of a check of `walrelay check`, and what a sink is asked to check.

use std::error::Error;

use crate::{FailureClass, SinkFailure};

/// The verdict of a check. `C` is the class of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<C> {
    /// Nothing is wrong.
    Pass,
    /// The relay runs, but something may fail later; or the check could not see enough.
    Warn,
    /// The relay does not run, or its events do not arrive.
    Fail {
        /// The id of the failure, as of other commands.
        id: &'static str,
        /// The class of the failure.
        class: C,
    },
}

impl<C> Verdict<C> {
    /// Returns the verdict as reports name it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail { .. } => "fail",
        }
    }
}

/// The result of a check. `finding` and `remedy` contain names, never secrets or row values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check<C> {
    /// The verdict.
    pub verdict: Verdict<C>,
    /// The finding. Further lines may show causes.
    pub finding: String,
    /// The remedy for the operator; SQL, a command or a setting, where possible.
    pub remedy: Option<String>,
}

/// The verdict of a sink's check.
pub type SinkVerdict = Verdict<FailureClass>;

/// The result of a sink's check.
pub type SinkCheck = Check<FailureClass>;

/// Checks with the names of their items, in the order of the report.
pub type SinkChecks = Vec<(&'static str, SinkCheck)>;

/// A failure that a check can find.
pub trait CheckFailure: Error + Sized {
    /// The class of the failure.
    type Class;

    /// Returns id, class and remedy.
    fn into_parts(self) -> (&'static str, Self::Class, Option<String>);
}

impl CheckFailure for SinkFailure {
    type Class = FailureClass;

    fn into_parts(self) -> (&'static str, FailureClass, Option<String>) {
        (self.id, self.class, self.remedy)
    }
}

impl<C> Check<C> {
    /// Creates a check that found nothing wrong.
    pub fn pass(finding: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Pass,
            finding: finding.into(),
            remedy: None,
        }
    }

    /// Creates a warning.
    pub fn warn(finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Warn,
            finding: finding.into(),
            remedy: Some(remedy.into()),
        }
    }

    /// Creates a failed check.
    pub fn fail(
        (id, class): (&'static str, C),
        finding: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Fail { id, class },
            ..Self::warn(finding, remedy)
        }
    }

    /// Creates a failed check of a failure. Its causes become part of the finding.
    pub fn failed(failure: impl CheckFailure<Class = C>) -> Self {
        let finding = finding(&failure);
        let (id, class, remedy) = failure.into_parts();
        Self {
            verdict: Verdict::Fail { id, class },
            finding,
            remedy,
        }
    }

    /// Converts the class of a failure.
    pub fn with_class<D: From<C>>(self) -> Check<D> {
        Check {
            verdict: match self.verdict {
                Verdict::Pass => Verdict::Pass,
                Verdict::Warn => Verdict::Warn,
                Verdict::Fail { id, class } => Verdict::Fail {
                    id,
                    class: class.into(),
                },
            },
            finding: self.finding,
            remedy: self.remedy,
        }
    }
}

/// Returns the text of a failure with its causes, each on a line.
fn finding(failure: &dyn Error) -> String {
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

/// The input of a sink's checks.
#[derive(Debug)]
pub struct CheckInput<'a> {
    /// The topics that are known before the first event.
    pub topics: Vec<String>,
    /// The topics and routing keys of the newest rows. Routing keys are values of rows: a finding
    /// does not show them.
    pub addresses: Vec<(String, Option<String>)>,
    /// The topic of dead letters; `None` if no event becomes one.
    pub dead_letters: Option<&'a str>,
    /// The bytes of the largest row, `None` without rows; or why it is not seen.
    pub largest_row: Result<Option<u64>, SinkCheck>,
}
