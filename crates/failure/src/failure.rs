//! [`Failure`]: how a failure is described to the operator.

use std::convert::Infallible;
use std::error::Error;

use crate::Exit;

/// A failure: what is wrong, why, what to do, and its class.
///
/// `what` and `remedy` contain names of things, never secrets or row values.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Failure {
    /// A stable id to search for, in lower case with hyphens. `docs/reference/errors.md` lists it.
    pub id: &'static str,
    /// The class, and the exit code of a command that ends with the failure.
    pub exit: Exit,
    /// The problem, without a full stop. Further lines may show where.
    pub what: String,
    /// The cause. Its own chain of sources is printed, too.
    pub source: Option<Box<dyn Error + Send + Sync>>,
    /// The remedy for the operator.
    pub remedy: Option<String>,
}

impl Failure {
    /// Creates a failure without cause and remedy.
    pub fn new(id: &'static str, exit: Exit, what: impl Into<String>) -> Self {
        Self {
            id,
            exit,
            what: what.into(),
            source: None,
            remedy: None,
        }
    }

    /// Sets the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Returns the causes, the outer first.
    pub fn causes(&self) -> Vec<String> {
        let mut causes = Vec::new();
        let mut cause = Error::source(self);
        let mut before = self.what.clone();
        while let Some(error) = cause {
            let text = error.to_string();
            // Transparent errors, and some sources, repeat the text of the error above.
            if !before.contains(&text) {
                causes.push(text.clone());
            }
            before = text;
            cause = error.source();
        }
        causes
    }

    /// Returns what is wrong and the causes, the outer first, on one line.
    pub fn finding(&self) -> String {
        let mut parts = vec![self.what.clone()];
        parts.extend(self.causes());
        let lines = parts.iter().flat_map(|part| part.lines()).map(str::trim);
        lines.collect::<Vec<_>>().join(": ")
    }
}

impl From<Failure> for Vec<Failure> {
    fn from(failure: Failure) -> Self {
        vec![failure]
    }
}

/// An error that has words for the operator.
pub trait ToFailure: Error {
    /// Returns the error as a failure.
    fn to_failure(&self) -> Failure;
}

impl ToFailure for Infallible {
    fn to_failure(&self) -> Failure {
        match *self {}
    }
}
