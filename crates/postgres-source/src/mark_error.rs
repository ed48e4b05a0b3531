//! [`MarkError`]: why rows are not marked.

use walrelay_relay::TableName;
use walrelay_walsender::Error;

use super::confirmation::ConfirmedError;
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
    /// Rows that were sent cannot be distinguished from others.
    #[error("table {0} is not among [source] tables, or has no primary key now")]
    NoKey(TableName),
    /// The table of dead letters' rows is missing.
    #[error(
        "table walrelay_state.dead is missing, and the relay does not create it: it may not, or a publication carries \
         all tables. walrelay init --role ROLE creates it"
    )]
    NoDeadTable,
}

impl MarkError {
    /// Returns true if the session cannot be used any more, or the server is busy: the attempt may be
    /// made again.
    pub(super) fn may_pass(&self) -> bool {
        // 25006: the server, or the session, is read-only for a while.
        self.is_of(&["08", "40", "53", "57P", "25006"])
    }

    /// Returns true if keys may be stored a moment later: another session locks the table
    /// (`lock_not_available`), or the statement was cancelled (`query_canceled`, also by a timeout).
    pub(super) fn may_store_later(&self) -> bool {
        self.may_pass() || self.is_of(&["55P03", "57014"])
    }

    /// Returns true if the server answered with one of these errors or classes, or did not answer.
    fn is_of(&self, states: &[&str]) -> bool {
        let sql = match self {
            Self::Postgres(PostgresError::Wal(error))
            | Self::Confirmed(ConfirmedError::Sql(error)) => error,
            Self::Postgres(PostgresError::Setup(_)) => return false,
            Self::Postgres(_) => return true,
            _ => return false,
        };
        sql.sqlstate()
            .is_none_or(|state| states.iter().any(|class| state.starts_with(class)))
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
