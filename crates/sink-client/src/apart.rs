use std::future::Future;
use std::io;
use std::thread;

use crate::ConnectError;

/// Runs an action on a thread of its own, and waits for it: the caller's thread may belong to a
/// runtime, which must not block.
///
/// # Errors
/// If the system starts no thread, or no runtime.
pub fn run_apart<T: Send, F: Future<Output = T>>(
    action: impl FnOnce() -> F + Send,
) -> Result<T, ConnectError> {
    let done: io::Result<T> = thread::scope(|scope| {
        let running = thread::Builder::new().spawn_scoped(scope, || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let done = runtime.block_on(Box::pin(action()));
            // A name that is being resolved is not waited for.
            runtime.shutdown_background();
            Ok(done)
        })?;
        running
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    done.map_err(|source| ConnectError::Io {
        address: "this process".to_owned(),
        source,
    })
}
