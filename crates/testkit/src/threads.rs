//! Threads of this crate, so that nothing needs an async runtime of its caller.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

pub use walrelay_sink::lock;

pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let thread = thread::Builder::new().name(format!("testkit-{name}"));
    thread.spawn(work).expect("a thread can be started")
}

/// Runs a future to its end in this thread.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build();
    runtime.expect("a runtime can be made").block_on(future)
}

/// A thread that works until it is stopped. Dropping it stops it and waits for its end.
#[derive(Debug)]
pub struct Background<T> {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Background<T> {
    /// Starts a thread with this name. `work` returns soon after the flag is set.
    pub fn start(name: &str, work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let thread = spawn(name, {
            let stop = Arc::clone(&stop);
            move || work(&stop)
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    /// Stops the thread; returns its result.
    pub fn end(mut self) -> T {
        self.stop();
        let thread = self.thread.take().expect("it was not ended before");
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<T> Background<T> {
    /// Sets the flag, and does not wait.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
