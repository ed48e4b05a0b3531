//! How long the server may take to answer.

use std::future::Future;
use std::time::Duration;

use super::PostgresError;

/// For answers that cost the server nothing. A server that was stopped behind a living TCP stack would
/// otherwise be waited for without end.
const COMMAND_DEADLINE: Duration = Duration::from_secs(30);

/// Waits for a command whose answer takes the server no time of its own.
pub(super) async fn bounded<T, E>(
    doing: &'static str,
    command: impl Future<Output = Result<T, E>>,
) -> Result<T, PostgresError>
where
    PostgresError: From<E>,
{
    bounded_by(COMMAND_DEADLINE, doing, command).await
}

/// Waits for a command at most as long as `after`.
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
