//! [`MarkError`]: why rows are not marked.

use walrelay_relay::TableName;
use walrelay_walsender::Error;

use super::confirmed::ConfirmedError;
use super::dead_letters::DeadLettersError;
use super::error::PostgresError;

/// The reason why rows are not marked.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    /// The server cannot be asked.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// The rows are not changed.
    #[error(transparent)]
    Confirmed(#[from] ConfirmedError),
    /// Sent rows are not visible yet, so they cannot be marked.
    #[error("{0} rows that were sent cannot be marked yet: their commits are not complete")]
    Left(u64),
    /// A row of a dead letter would count as sent.
    #[error(
        "rows of {0} would count as sent after mark_dead, although their events were not sent: let snapshot_where stay \
         true for them, for example status <> 'SENT'"
    )]
    DeadCountsAsSent(TableName),
}

impl MarkError {
    /// Returns true if the session cannot be used any more, or the server is busy: the attempt may be
    /// made again.
    pub(super) fn may_pass(&self) -> bool {
        let sql = match self {
            Self::Postgres(PostgresError::Wal(error))
            | Self::Confirmed(ConfirmedError::Sql(error)) => error,
            Self::Postgres(_) => return true,
            _ => return false,
        };
        let passing = ["08", "40", "53", "57P"];
        sql.sqlstate()
            .is_none_or(|state| passing.iter().any(|class| state.starts_with(class)))
    }
}

impl MarkError {
    /// Returns true if a lock was not granted in time (`lock_not_available`).
    pub(super) fn is_lock_timeout(&self) -> bool {
        let Self::Confirmed(ConfirmedError::Sql(error)) = self else {
            return false;
        };
        error.sqlstate() == Some("55P03")
    }
}

impl From<DeadLettersError> for MarkError {
    fn from(error: DeadLettersError) -> Self {
        Self::Confirmed(error.into())
    }
}

impl From<Error> for MarkError {
    fn from(error: Error) -> Self {
        Self::Postgres(error.into())
    }
}
