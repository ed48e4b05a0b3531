//! What is wrong with a configuration, and where.

use std::error::Error;
use std::fmt;
use std::io;

/// Everything that was found wrong, in the order of the file; never empty.
#[derive(Debug)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

/// One mistake.
///
/// No field holds the value of a secret or of an environment variable: values are shown as they
/// stand in the file, and those of secret keys not at all.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {what}{}", excerpt.as_ref().map(|lines| format!("\n{lines}")).unwrap_or_default())]
pub struct Problem {
    /// A stable name to search for, such as `config-unknown-key`.
    pub id: &'static str,
    /// Where.
    pub place: Place,
    /// What is wrong, without a full stop.
    pub what: String,
    /// The offending line with a caret under the place.
    pub excerpt: Option<String>,
    /// What to do.
    pub help: Option<String>,
    /// What the operating system said, for files that cannot be read.
    pub source: Option<io::Error>,
}

/// Where a mistake was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the file as a whole: something is missing, or it cannot be read.
    File {
        /// As it was named.
        name: String,
    },
    /// At a place in the file.
    At {
        /// As it was named.
        name: String,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
    },
    /// In an override on the command line.
    Set {
        /// `--set key=value`, without the value where it may be secret.
        argument: String,
    },
}

impl Problem {
    /// Without excerpt, help and source.
    pub(super) fn new(id: &'static str, place: Place, what: String) -> Self {
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
    pub(super) fn new(problems: Vec<Problem>) -> Self {
        Self { problems }
    }

    /// What was found wrong.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The same, to be taken apart.
    pub fn into_problems(self) -> Vec<Problem> {
        self.problems
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { name } => f.write_str(name),
            Place::At { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Place::Set { argument } => f.write_str(argument),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            fmt::Display::fmt(problem, f)?;
        }
        Ok(())
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
