use std::io;
use std::path::PathBuf;

/// The reason why a connection string, or the password file that it names, cannot be used. All
/// variants are mistakes in the configuration; a retry does not help.
///
/// An error contains nothing that could be a password: values are shown only for parameters that
/// take one of several keywords.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum ConnInfoError {
    /// The string does not have the form of a connection string.
    #[error("connection string, byte {offset}: {problem}")]
    Syntax {
        /// Offset of the error in the string, in bytes from 0.
        offset: usize,
        problem: &'static str,
    },
    /// There is no parameter with this name.
    #[error("connection string, byte {offset}: unknown parameter{}{}", named(.name.as_deref()), suggested(.nearest.as_deref()))]
    UnknownParameter {
        /// Offset of the name in the string, in bytes from 0.
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
        /// The value, if the parameter takes one of several keywords.
        value: Option<String>,
        expected: &'static str,
    },
    /// The parameter is given twice.
    #[error("connection string, byte {offset}: {name} is given a second time")]
    Duplicate {
        /// Offset of the second one in the string, in bytes from 0.
        offset: usize,
        name: &'static str,
    },
    /// Two lists of hosts, addresses or ports have different lengths.
    #[error(
        "connection string: {} × {} does not go with {} × {}",
        .first.1, .first.0, .second.1, .second.0
    )]
    ListLengths {
        /// A parameter and its number of items.
        first: (&'static str, usize),
        /// The parameter that should have the same number of items (or one port for all).
        second: (&'static str, usize),
    },
    /// No user is given.
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
    /// Group or others have access to the password file.
    #[error(
        "password file {} has mode {mode:04o}: group and others must have no access (chmod 600)",
        .path.display()
    )]
    PassfilePermissions { path: PathBuf, mode: u32 },
    /// The password in the matching line of the password file is not UTF-8.
    #[error("password file {}, line {line}: the password is not UTF-8", .path.display())]
    PassfileEncoding {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

/// The result of parsing a connection string or a part of it.
pub(super) type Parsed<T> = Result<T, ConnInfoError>;

fn named(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!(" {name}"))
}

fn suggested(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest}?"))
}

fn equals(value: Option<&str>) -> String {
    value.map_or_else(String::new, |value| format!("={value:?}"))
}
