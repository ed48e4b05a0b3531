//! [`PruneError`]: the reasons why rows or partitions stay.

use walrelay_relay::TableName;
use walrelay_walsender::Error;

use crate::confirmation::ConfirmedError;
use crate::dead_letters::DeadLettersError;
use crate::dead_rows::{KeysElsewhere, LostKeys};
use crate::error::PostgresError;
use crate::sent_rows::compare::{AccountError, NoAccount};
use crate::sent_rows::unaccounted::Unaccounted;

/// The reason why rows are not deleted, or partitions not changed.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// A statement failed.
    #[error("the statement failed")]
    Sql(#[from] Error),
    /// A statement about one table failed.
    #[error("rows of {table} stay: a statement failed")]
    Statement {
        /// The table.
        table: TableName,
        /// The answer of the server.
        #[source]
        source: Error,
    },
    /// The table does not exist.
    #[error("rows of {0} stay: the table does not exist")]
    Missing(TableName),
    /// Which rows are marked cannot be known.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// The table has not the configured column, or neither of `occurred_at` and `created_at`.
    #[error("rows of {0} stay: the table has no column that tells a row's age")]
    Column(TableName),
    /// Other sessions hold a lock on the table.
    #[error("table {0} is in use: its lock was not free within lock_timeout")]
    Locked(TableName),
    /// The role is not a member of the table's owner, so it may not change partitions.
    #[error("the role may not create and drop partitions of table {0}")]
    Owner(TableName),
    /// The DEFAULT partition holds rows of the new partition's range.
    #[error("partition {0} cannot be created: the DEFAULT partition holds rows of its range")]
    DefaultPartition(TableName),
    /// A table of that name exists, or another partition's range overlaps.
    #[error("partition {0} cannot be created next to the existing tables")]
    Partition(TableName, #[source] Error),
    /// Some of the rows have an event that was never sent.
    #[error("partition {part} is not dropped: {rows} of its rows have an open dead letter")]
    DeadLetters {
        /// The partition.
        part: TableName,
        /// The number of such rows.
        rows: u64,
    },
    /// Rows of the partition have an infinite time, so none of them is accounted.
    #[error(
        "partition {part} is not dropped: {rows} of its rows have no finite time, so they are not accounted"
    )]
    Timeless {
        /// The partition.
        part: TableName,
        /// The number of such rows.
        rows: u64,
    },
    /// No slot carries some of the rows, so they are not accounted.
    #[error(
        "partition {part} is not dropped: {rows} of its rows are in no slot's publication, so they are not accounted"
    )]
    Uncarried {
        /// The partition.
        part: TableName,
        /// The number of such rows.
        rows: u64,
    },
    /// Some of the rows were gone, or others, when they were compared.
    #[error(
        "partition {part} is not dropped: {rows} of its rows changed, or were deleted, while they were compared"
    )]
    Uncompared {
        /// The partition.
        part: TableName,
        /// The number of such rows.
        rows: u64,
    },
    /// Rows of the partition are not marked as sent.
    #[error("partition {part} is not dropped: {rows} of its rows are not marked as sent")]
    Unmarked {
        /// The partition.
        part: TableName,
        /// The number of such rows.
        rows: u64,
    },
    /// Rows of open dead letters cannot be found.
    #[error(transparent)]
    LostKeys(#[from] LostKeys),
    /// Dead letters of some rows are in another store than the configured one.
    #[error(transparent)]
    KeysElsewhere(#[from] KeysElsewhere),
    /// Rows are not those that were accounted as sent.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Unaccounted(Vec<Unaccounted>),
    /// There is no account to compare with.
    #[error(transparent)]
    NoAccount(#[from] NoAccount),
    /// The slots have not confirmed what was written, or dead letters cannot be read.
    #[error(transparent)]
    Confirmed(#[from] ConfirmedError),
}

impl PruneError {
    /// Returns true if the dead letters cannot be read or compared. Rows without one do not depend on them.
    pub(super) fn is_of_dead_letters(&self) -> bool {
        matches!(self, Self::Confirmed(ConfirmedError::DeadLetters(_)))
    }

    /// Returns true if rows of a partition stay, and others of its table may go.
    pub(super) fn is_of_rows(&self) -> bool {
        matches!(
            self,
            Self::Unaccounted(_)
                | Self::NoAccount(NoAccount::Key(_))
                | Self::LostKeys(_)
                | Self::Timeless { .. }
                | Self::Uncarried { .. }
                | Self::Uncompared { .. }
                | Self::Unmarked { .. }
                | Self::DeadLetters { .. }
        ) || self.is_of_dead_letters()
    }

    /// Returns the error if rows of this table stay, and those of other tables may go.
    ///
    /// # Errors
    /// The error if no other table can be pruned: no session works, or the account is missing.
    pub(super) fn limit_to(self, table: &TableName) -> Result<Self, Self> {
        match self {
            Self::Sql(source)
            | Self::Postgres(PostgresError::Wal(source))
            | Self::Confirmed(ConfirmedError::Sql(source)) => {
                if is_of_server(&source) {
                    return Err(Self::Sql(source));
                }
                let table = table.clone();
                Ok(Self::Statement { table, source })
            }
            Self::NoAccount(NoAccount::Missing | NoAccount::Slot(_)) => Err(self),
            error => Ok(error),
        }
    }
}

/// Returns true if the session failed, or the server is busy or read-only, so that no other statement is expected to
/// succeed.
fn is_of_server(error: &Error) -> bool {
    let server = ["08", "53", "57P", "25006"];
    error
        .sqlstate()
        .is_none_or(|state| server.iter().any(|class| state.starts_with(class)))
}

/// SQLSTATEs of a statement that another session's change, or lock, prevents: `serialization_failure`,
/// `unique_violation` and `lock_not_available`.
const CONCURRENT: [&str; 3] = ["40001", "23505", "55P03"];

impl PruneError {
    /// Returns true if another session changes the same rows of the account.
    pub(super) fn is_of_concurrent_change(&self) -> bool {
        let Self::Sql(error) = self else {
            return false;
        };
        error
            .sqlstate()
            .is_some_and(|state| CONCURRENT.contains(&state))
    }
}

impl From<DeadLettersError> for PruneError {
    fn from(error: DeadLettersError) -> Self {
        Self::Confirmed(error.into())
    }
}

impl From<AccountError> for PruneError {
    fn from(error: AccountError) -> Self {
        match error {
            AccountError::Sql(error) => Self::Sql(error),
            AccountError::None(error) => Self::NoAccount(error),
        }
    }
}

/// Returns the [`PruneError`] of a statement that changes partitions. `part`: the partition that it
/// creates.
pub(super) fn prune_error(error: Error, table: &TableName, part: Option<&TableName>) -> PruneError {
    match (error.sqlstate(), part) {
        // lock_not_available, query_canceled: a lock, or the statement that waits for it, timed
        // out.
        (Some("55P03" | "57014"), _) => PruneError::Locked(table.clone()),
        // A policy that hides rows has the same code: they cannot be counted.
        (Some("42501"), _) if !error.is_of_row_security() => PruneError::Owner(table.clone()),
        (Some("23514"), Some(part)) => PruneError::DefaultPartition(part.clone()),
        (Some("42P17" | "42P07"), Some(part)) => PruneError::Partition(part.clone(), error),
        _ => error.into(),
    }
}
