//! [`SinkFailure`]: how a failure of a sink is told to the operator.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;

/// The class of a failure. It decides the exit code of a command that ends with the failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// A configuration is wrong, the relay's or a server's.
    Configuration,
    /// Access is denied: authentication, or a missing privilege.
    Denied,
    /// A server cannot be reached, or does not answer.
    Unavailable,
}

/// A failure of a sink: what is wrong, why, what to do, and its class.
///
/// `what` and `remedy` contain names of things, never secrets or row values.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct SinkFailure {
    /// A stable id to search for, in lower case with hyphens. `docs/reference/errors.md` lists it.
    pub id: &'static str,
    /// The class.
    pub class: FailureClass,
    /// The problem, without a full stop.
    pub what: String,
    /// The cause.
    pub source: Option<Box<dyn Error + Send + Sync>>,
    /// The remedy for the operator.
    pub remedy: Option<String>,
}

impl SinkFailure {
    /// Creates a failure without cause and remedy.
    pub fn new(id: &'static str, class: FailureClass, what: impl Into<String>) -> Self {
        Self {
            id,
            class,
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
}

/// The words for an error of a sink's servers: a row of the table that `check` and the running relay
/// share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureWords {
    /// The [id](SinkFailure::id).
    pub id: &'static str,
    /// The class.
    pub class: FailureClass,
    /// The problem, without a full stop and without names.
    pub what: &'static str,
    /// The remedy for the operator.
    pub remedy: &'static str,
}

impl FailureWords {
    /// Returns the failure that the error is.
    pub fn failure(&self, error: &dyn Error) -> SinkFailure {
        SinkFailure::new(self.id, self.class, self.what)
            .caused_by(Chain(error).to_string())
            .remedy(self.remedy)
    }

    /// Returns the error with its causes, and the id to search for.
    pub fn cause(&self, error: &dyn Error) -> String {
        format!("{} [{}]", Chain(error), self.id)
    }
}

/// The reason why the last attempt to connect to the servers of a sink failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectFailure {
    /// The words for it.
    pub words: FailureWords,
    /// The error with its causes, and the id.
    pub cause: String,
}

/// An error of a sink that has words for the operator.
pub trait ToFailure: Error {
    /// Returns the error as a failure.
    fn to_failure(&self) -> SinkFailure;
}

impl ToFailure for Infallible {
    fn to_failure(&self) -> SinkFailure {
        match *self {}
    }
}

/// Displays an error with its causes on one line.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0, f)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
