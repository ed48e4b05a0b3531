use std::io;
use std::path::PathBuf;

use crate::error::part;

/// What is wrong with a connection string or the password file it leads to. All of these are
/// mistakes in the configuration; trying again does not help.
///
/// Nothing that could be a password is in here: values are shown only for parameters that take one
/// of a few words.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum ConnInfoError {
    /// The string does not have the form of a connection string.
    #[error("connection string, byte {offset}: {problem}")]
    Syntax {
        /// The byte in the string, from 0, at which it goes wrong.
        offset: usize,
        problem: &'static str,
    },
    /// There is no parameter of that name.
    #[error("connection string, byte {offset}: unknown parameter{}{}", part(" ", .name.as_deref()), suggested(.nearest.as_deref()))]
    UnknownParameter {
        /// The byte in the string, from 0, at which the name starts.
        offset: usize,
        /// The name; `None` if it does not look like one (it may be a piece of a password).
        name: Option<String>,
        nearest: Option<&'static str>,
    },
    /// A parameter of libpq, or one of its values, that is not supported.
    #[error("connection parameter {name}: {reason}")]
    Unsupported {
        name: &'static str,
        reason: &'static str,
    },
    /// A value that the parameter cannot have.
    #[error("connection parameter {name}{}: expected {expected}", equals(.value.as_deref()))]
    InvalidValue {
        name: &'static str,
        /// The value, for parameters that take one of a few words.
        value: Option<String>,
        expected: &'static str,
    },
    /// The parameter stands there twice.
    #[error("connection string, byte {offset}: {name} is given a second time")]
    Duplicate {
        /// The byte in the string, from 0, of the second.
        offset: usize,
        name: &'static str,
    },
    /// A list of hosts, addresses or ports does not go with another.
    #[error(
        "connection string: {} × {} does not go with {} × {}",
        .first.1, .first.0, .second.1, .second.0
    )]
    ListLengths {
        /// The parameter, and how many it lists.
        first: (&'static str, usize),
        /// The parameter that should list as many (or one port for all).
        second: (&'static str, usize),
    },
    /// No role is named.
    #[error(
        "connection string: no user is given (the name of the operating system's user is not assumed)"
    )]
    MissingUser,
    /// One of `sslcert` and `sslkey` is given without the other.
    #[error("connection string: {given} is given without {missing}")]
    HalfKeyPair {
        given: &'static str,
        missing: &'static str,
    },
    /// The password file cannot be read.
    #[error("password file {}", .path.display())]
    Passfile { path: PathBuf, source: io::Error },
    /// The password file can be used by others than its owner.
    #[error(
        "password file {} has mode {mode:04o}: group and others must have no access (chmod 600)",
        .path.display()
    )]
    PassfilePermissions { path: PathBuf, mode: u32 },
    /// The line of the password file that matches holds a password that is not UTF-8.
    #[error("password file {}, line {line}: the password is not UTF-8", .path.display())]
    PassfileEncoding {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

/// What the connection string or a part of it was read as.
pub(super) type Parsed<T> = Result<T, ConnInfoError>;

fn suggested(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest}?"))
}

fn equals(value: Option<&str>) -> String {
    value.map_or_else(String::new, |value| format!("={value:?}"))
}
