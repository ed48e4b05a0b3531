use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// Why a throwaway server could not be found, started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThrowawayError {
    /// No installation was found.
    #[error(
        "no PostgreSQL{} server found (looked in {}); install one (Debian, Ubuntu: `apt-get install \
         postgresql`, Fedora: `dnf install postgresql-server`, macOS: `brew install postgresql`) or \
         name the directory of `postgres` and `initdb` in WALRELAY_POSTGRES_BIN",
        wanted.map(|major| format!(" {major}")).unwrap_or_default(),
        looked.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NotFound {
        /// The major version asked for, if one was.
        wanted: Option<u32>,
        /// The directories that were tried.
        looked: Vec<PathBuf>,
    },

    /// A directory that was named explicitly holds no usable server.
    #[error("{} is not a directory of PostgreSQL server programs: {reason}", path.display())]
    NotPostgres {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A setting, a line of `pg_hba.conf` or a file name cannot be written down safely.
    #[error("cannot use {what} {name:?}: {reason}")]
    Invalid {
        /// What kind of thing it is.
        what: &'static str,
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The operating system refused something.
    #[error("cannot {what}")]
    Io {
        /// What was attempted.
        what: String,
        /// The system's reason.
        source: io::Error,
    },

    /// `initdb` failed.
    #[error("initdb ended with {status}:\n{output}")]
    Initdb {
        /// How it ended.
        status: ExitStatus,
        /// What it printed.
        output: String,
    },

    /// The server ended before it was ready.
    #[error("the server ended with {status} while starting; its log ends:\n{log_tail}")]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log_tail: String,
    },

    /// The server was not ready in time. It has been stopped.
    #[error("the server was not ready after {waited:?}; its log ends:\n{log_tail}")]
    NotReady {
        /// The deadline.
        waited: Duration,
        /// The last lines of its log.
        log_tail: String,
    },

    /// The server did not stop in time. It may still be stopping.
    #[error("the server had not stopped after {waited:?}; its log ends:\n{log_tail}")]
    NotStopped {
        /// The deadline.
        waited: Duration,
        /// The last lines of its log.
        log_tail: String,
    },

    /// [`start_again`](super::Postgres::start_again) of a server that runs.
    #[error("the server is running already")]
    Running,

    /// Something that needs a running server was asked of a stopped one.
    #[error("the server is not running")]
    Stopped,
}

impl ThrowawayError {
    pub(super) fn invalid(what: &'static str, name: &str, reason: &'static str) -> Self {
        let name = name.to_owned();
        Self::Invalid { what, name, reason }
    }

    /// For `map_err`: what was attempted, in words that follow "cannot".
    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
