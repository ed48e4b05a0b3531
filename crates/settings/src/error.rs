//! Errors of a configuration: what is wrong, and where.

use std::error::Error;
use std::fmt;
use std::io;

/// All problems of a configuration, in the order of the file; never empty.
#[derive(Debug)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

/// One problem of a configuration.
///
/// No field holds the value of a secret or of an environment variable. Values are shown as they are
/// written in the file, and values of secret keys are not shown.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {what}{}", excerpt.as_ref().map(|lines| format!("\n{lines}")).unwrap_or_default())]
pub struct Problem {
    /// The problem's id: a stable name, such as `config-unknown-key`.
    pub id: &'static str,
    /// Where the problem is.
    pub place: Location,
    /// The problem, without a full stop.
    pub what: String,
    /// The line with a caret under the place.
    pub excerpt: Option<String>,
    /// What the user does about it.
    pub help: Option<String>,
    /// The operating system's error, for files that cannot be read.
    pub source: Option<io::Error>,
}

/// The place of a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// The whole file: a key is missing, or the file cannot be read.
    File {
        /// Name of the file, as given by the caller.
        name: String,
    },
    /// A character in the file.
    At {
        /// Name of the file, as given by the caller.
        name: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1, in characters.
        column: usize,
    },
    /// An override on the command line.
    Set {
        /// `--set key=value`, without the value if it may be a secret.
        argument: String,
    },
}

impl Problem {
    /// Creates a problem without excerpt, help and source.
    pub fn new(id: &'static str, place: Location, what: String) -> Self {
        Self {
            id,
            place,
            what,
            excerpt: None,
            help: None,
            source: None,
        }
    }
}

impl ConfigError {
    /// Creates the error of these problems; there is at least one.
    pub fn new(problems: Vec<Problem>) -> Self {
        Self { problems }
    }

    /// Returns the problems, in the order of the file.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the problems, by value.
    pub fn into_problems(self) -> Vec<Problem> {
        self.problems
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::File { name } => f.write_str(name),
            Location::At { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Location::Set { argument } => f.write_str(argument),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problems: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        f.write_str(&problems.join("\n"))
    }
}

impl Error for ConfigError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self.problems.as_slice() {
            [problem] => problem.source(),
            _ => None,
        }
    }
}
