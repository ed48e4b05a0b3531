//! A thread that writes or reads the load of the benchmark.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use walrelay_failure::Failure;

/// A running thread. Dropping it sets the thread's stop flag and joins it.
pub(super) struct Worker<T> {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<T, Failure>>>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts the thread. `work` ends early when its flag is set.
    pub(super) fn start(
        name: &str,
        work: impl FnOnce(&AtomicBool) -> Result<T, Failure> + Send + 'static,
    ) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn({
                let stop = Arc::clone(&stop);
                move || work(&stop)
            })
            .map_err(super::no_thread)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Blocks until the thread has ended, and returns its result.
    pub(super) fn join(mut self) -> Result<T, Failure> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) | None => Err(super::panicked()),
        }
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The result is not needed any more.
            let _ = thread.join();
        }
    }
}
