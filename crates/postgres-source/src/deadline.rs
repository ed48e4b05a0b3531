//! Timeouts of the server's answers.

use std::future::Future;
use std::time::Duration;

use super::PostgresError;

/// Timeout of commands that cost the server no time. A server process that was stopped never
/// answers, though its TCP stack keeps the connection.
const COMMAND_DEADLINE: Duration = Duration::from_secs(30);

/// Waits for a command that costs the server no time, for [`COMMAND_DEADLINE`] at most.
pub(super) async fn bounded<T, E>(
    doing: &'static str,
    command: impl Future<Output = Result<T, E>>,
) -> Result<T, PostgresError>
where
    PostgresError: From<E>,
{
    bounded_by(COMMAND_DEADLINE, doing, command).await
}

/// Waits for a command, for `after` at most.
///
/// # Errors
/// [`PostgresError::NoAnswer`], which names `doing`.
pub(super) async fn bounded_by<T, E>(
    after: Duration,
    doing: &'static str,
    command: impl Future<Output = Result<T, E>>,
) -> Result<T, PostgresError>
where
    PostgresError: From<E>,
{
    match tokio::time::timeout(after, command).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(PostgresError::NoAnswer { doing, after }),
    }
}
