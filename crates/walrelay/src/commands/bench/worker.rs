//! A thread of the benchmark.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::cli::Failure;

/// A thread at work. Dropped, it is told to stop, and joined.
pub(super) struct Worker<T> {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<T, Failure>>>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts it. The flag tells it to stop.
    pub(super) fn start(
        name: &str,
        work: impl FnOnce(&AtomicBool) -> Result<T, Failure> + Send + 'static,
    ) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&told))
            .map_err(super::no_thread)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Blocks until it has ended.
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
            // What it would say is not asked for any more.
            let _ = thread.join();
        }
    }
}
