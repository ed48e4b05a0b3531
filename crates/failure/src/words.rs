//! [`FailureWords`]: the words for an error of a server.

use std::error::Error;

use crate::{Chain, Exit, Failure};

/// The words for an error of a server: a row of the table that `check` and the running relay share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureWords {
    /// The [id](Failure::id).
    pub id: &'static str,
    /// The class.
    pub exit: Exit,
    /// The problem, without a full stop and without names.
    pub what: &'static str,
    /// The remedy for the operator.
    pub remedy: &'static str,
}

impl FailureWords {
    /// Returns the failure that the error is.
    pub fn failure(&self, error: &dyn Error) -> Failure {
        self.without_cause().caused_by(Chain(error).to_string())
    }

    /// Returns the words as a failure without a cause.
    pub fn without_cause(&self) -> Failure {
        Failure::new(self.id, self.exit, self.what).remedy(self.remedy)
    }

    /// Returns the error with its causes, and the id to search for.
    pub fn cause(&self, error: &dyn Error) -> String {
        format!("{} [{}]", Chain(error), self.id)
    }
}
