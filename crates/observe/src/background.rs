//! [`Background`]: work beside the pipeline, on a thread and a runtime of its own.

use std::future::Future;
use std::io;
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;
use walrelay_sink::in_current_span;

/// A thread with a runtime. Its work is cancelled when this is dropped.
#[derive(Debug)]
pub struct Background {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread, which logs in the caller's span. `work` is called there and creates the
    /// future.
    pub fn start<F: Future<Output = ()>>(
        name: &'static str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(in_current_span(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = Box::pin(work()) => {}
                        _ = stopped => {}
                    }
                });
            }))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!(thread = name, "a thread panicked");
            }
        }
    }
}
