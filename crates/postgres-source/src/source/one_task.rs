//! [`OneTask`]: queries that run alongside the stream, one at a time.

use std::future::{Future, pending};

use tokio::task::{JoinError, JoinSet};
use tracing::Instrument as _;

/// A holder of at most one task. Dropping it ends the task.
#[derive(Debug)]
pub(super) struct OneTask<T>(JoinSet<T>);

impl<T> Default for OneTask<T> {
    fn default() -> Self {
        Self(JoinSet::new())
    }
}

impl<T: Send + 'static> OneTask<T> {
    /// Returns whether a task was started whose result is not taken yet.
    pub(super) fn is_started(&self) -> bool {
        !self.0.is_empty()
    }

    /// Starts a task, unless one is started.
    pub(super) fn start(&mut self, task: impl Future<Output = T> + Send + 'static) {
        if !self.is_started() {
            self.0.spawn(task.in_current_span());
        }
    }

    /// Returns the result of the task, if it has ended.
    pub(super) fn ended_already(&mut self) -> Option<T> {
        self.0.try_join_next().map(result)
    }

    /// Waits for the task and returns its result; pending if none is started. Cancel-safe.
    pub(super) async fn ended(&mut self) -> T {
        match self.0.join_next().await {
            Some(joined) => result(joined),
            None => pending().await,
        }
    }
}

fn result<T>(joined: Result<T, JoinError>) -> T {
    match joined {
        Ok(result) => result,
        // The task panicked. (With `panic = "abort"` the process has ended.)
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
