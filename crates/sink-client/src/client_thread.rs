use std::future::Future;
use std::io;
use std::thread;

use tokio::runtime::Runtime;

use crate::ConnectError;

/// Runs an action on its own thread, and waits for it: the caller's thread may belong to a
/// runtime, which must not block.
///
/// # Errors
/// If the system starts no thread, or no runtime.
pub fn run_apart<T: Send, F: Future<Output = T>>(
    action: impl FnOnce() -> F + Send,
) -> Result<T, ConnectError> {
    Apart::new()?.run(action)
}

/// A runtime for actions that the caller waits for. What one of them opens, a later one can use.
#[derive(Debug)]
pub struct Apart {
    /// `None` when it is dropped.
    runtime: Option<Runtime>,
}

impl Apart {
    /// Makes the runtime.
    ///
    /// # Errors
    /// If the system starts none.
    pub fn new() -> Result<Self, ConnectError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(thread_error)?;
        Ok(Self {
            runtime: Some(runtime),
        })
    }

    /// Runs an action on its own thread, and waits for it: the caller's thread may belong to a
    /// runtime, which must not block.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn run<T: Send, F: Future<Output = T>>(
        &self,
        action: impl FnOnce() -> F + Send,
    ) -> Result<T, ConnectError> {
        let Some(runtime) = &self.runtime else {
            return Err(thread_error(io::ErrorKind::NotConnected.into()));
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new();
            let running = thread.spawn_scoped(scope, || runtime.block_on(Box::pin(action())));
            let running = running.map_err(thread_error)?;
            Ok(running
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A name that is being resolved is not waited for.
            runtime.shutdown_background();
        }
    }
}

fn thread_error(source: io::Error) -> ConnectError {
    ConnectError::Io {
        address: "this process".to_owned(),
        source,
    }
}
