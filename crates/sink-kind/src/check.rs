//! The result of a check of `walrelay check`, and the input of a sink's checks.

use walrelay_failure::{Exit, Failure};

/// The verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is wrong.
    Pass,
    /// The relay runs, but something may fail later; or the check could not see enough.
    Warn,
    /// The relay does not run, or its events do not arrive.
    Fail {
        /// The id of the failure, as of other commands.
        id: &'static str,
        /// The class of the failure.
        exit: Exit,
    },
}

impl Verdict {
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
pub struct Check {
    /// The verdict.
    pub verdict: Verdict,
    /// The finding. Further lines may show causes.
    pub finding: String,
    /// The remedy for the operator; SQL, a command or a setting, where possible.
    pub remedy: Option<String>,
}

/// Checks with the names of their items, in the order of the report.
pub type SinkChecks = Vec<(&'static str, Check)>;

impl Check {
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
        (id, exit): (&'static str, Exit),
        finding: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Fail { id, exit },
            ..Self::warn(finding, remedy)
        }
    }

    /// Creates a failed check of a failure. Its causes become part of the finding.
    pub fn failed(failure: Failure) -> Self {
        let finding = finding(&failure);
        Self {
            verdict: Verdict::Fail {
                id: failure.id,
                exit: failure.exit,
            },
            finding,
            remedy: failure.remedy,
        }
    }
}

/// Returns the text of a failure with its causes, each on a line.
fn finding(failure: &Failure) -> String {
    let mut finding = failure.what.trim_end().to_owned();
    for cause in failure.causes() {
        finding.push_str("\ncause: ");
        finding.push_str(&cause);
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
    pub largest_row: Result<Option<u64>, Check>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_part_of_a_finding() {
        for (what, finding) in [
            ("it failed: inner", "it failed: inner"),
            ("it failed", "it failed\ncause: inner"),
        ] {
            let failure = Failure::new("x", Exit::Data, what).caused_by("inner");
            assert_eq!(Check::failed(failure).finding, finding);
        }
    }
}
