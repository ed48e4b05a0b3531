use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// The reason why a throwaway server could not be found, started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says what its fields are")]
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
        wanted: Option<u32>,
        looked: Vec<PathBuf>,
    },

    /// No RabbitMQ was found.
    #[error(
        "no RabbitMQ found (looked in {}); scripts/fetch-rabbitmq.sh fetches one without root where \
         apt-get is, or install it (Debian, Ubuntu: `apt-get install rabbitmq-server`)",
        looked.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoRabbitMq { looked: Vec<PathBuf> },

    /// A directory that was named explicitly contains no usable server.
    #[error("{} is not a directory of PostgreSQL server programs: {reason}", path.display())]
    NotPostgres { path: PathBuf, reason: String },

    /// A setting, a line of `pg_hba.conf` or a file name cannot be written safely.
    #[error("cannot use {what} {name:?}: {reason}")]
    Invalid {
        what: &'static str,
        name: String,
        reason: &'static str,
    },

    /// The operating system returned an error.
    #[error("cannot {what}")]
    Io { what: String, source: io::Error },

    /// `initdb` failed.
    #[error("initdb ended with {status}:\n{output}")]
    Initdb { status: ExitStatus, output: String },

    /// The server ended before it was ready.
    #[error("the server ended with {status} while starting; its log ends:\n{log_tail}")]
    Ended {
        status: ExitStatus,
        log_tail: String,
    },

    /// The server was not ready in time. It was stopped.
    #[error("the server was not ready after {waited:?}; its log ends:\n{log_tail}")]
    NotReady { waited: Duration, log_tail: String },

    /// The server did not stop in time. It may still be stopping.
    #[error("the server had not stopped after {waited:?}; its log ends:\n{log_tail}")]
    NotStopped { waited: Duration, log_tail: String },

    /// [`start_again`](super::Postgres::start_again) was called on a running server.
    #[error("the server is running already")]
    Running,

    /// A stopped server was asked for something that needs a running one.
    #[error("the server is not running")]
    Stopped,
}

impl ThrowawayError {
    pub(crate) fn invalid(what: &'static str, name: &str, reason: &'static str) -> Self {
        let name = name.to_owned();
        Self::Invalid { what, name, reason }
    }

    /// Returns a function for `map_err`. `what`: the attempted action, in words that follow
    /// "cannot".
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
