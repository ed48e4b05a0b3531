//! Threads for blocking calls of librdkafka.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

use walrelay_sink::in_current_span;

use crate::error::KafkaError;

/// Starts a thread of this name, which logs in the caller's span.
pub(crate) fn spawn(
    name: &'static str,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, KafkaError> {
    let thread = thread::Builder::new().name(name.to_owned());
    let spawned = thread.spawn(in_current_span(work));
    spawned.map_err(|source| KafkaError::Thread { name, source })
}

/// A thread that runs until its stop flag is set.
pub(crate) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start(
        name: &'static str,
        work: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> Result<Self, KafkaError> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = Some(spawn(name, move || work(&flag))?);
        Ok(Self { stop, thread })
    }

    /// Sets the flag and joins the thread. The error is the thread's panic.
    pub(crate) fn stop(&mut self) -> thread::Result<()> {
        self.stop.store(true, SeqCst);
        self.thread.take().map_or(Ok(()), JoinHandle::join)
    }
}
