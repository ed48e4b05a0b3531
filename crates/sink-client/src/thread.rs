//! The thread of a sink.

use std::future::Future;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use walrelay_sink::{Disposition, in_current_span};

use crate::ConnectError;
use crate::shared::{FOREVER, Failure, Queue, Shared};

/// A thread that sends the records of a sink. Dropping it ends the thread at once: what the server has
/// not confirmed has failed.
#[derive(Debug)]
pub struct SinkThread<Q: Queue, S: Send + Sync + 'static> {
    /// What the thread and the sink share.
    pub shared: Arc<Shared<Q, S>>,
    /// `None` after the thread was joined.
    thread: Option<JoinHandle<()>>,
}

impl<Q: Queue, S: Send + Sync + 'static> SinkThread<Q, S> {
    /// Starts a thread of this name, on which `run` sends until the sink is to end. Its result is the
    /// failure of the records that are left.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn start<F: Future<Output = Failure>>(
        name: &str,
        shared: Shared<Q, S>,
        run: impl FnOnce(Arc<Shared<Q, S>>) -> F + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let shared = Arc::new(shared);
        let of_thread = Arc::clone(&shared);
        let run = in_current_span(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let failure = match runtime {
                Ok(runtime) => {
                    let ended = run(Arc::clone(&of_thread));
                    let failure = runtime.block_on(Box::pin(async {
                        tokio::select! {
                            failure = ended => failure,
                            never = of_thread.wake_for_room() => match never {},
                        }
                    }));
                    // A name that is being resolved is not waited for.
                    runtime.shutdown_background();
                    failure
                }
                Err(error) => {
                    let reason = format!("the connection's thread cannot run: {error}");
                    Failure::broken(reason, Disposition::Retryable)
                }
            };
            of_thread.end(&failure);
        });
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
        let thread = thread.map_err(|source| ConnectError::Io {
            address: "the thread of the connection".to_owned(),
            source,
        })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Ends the thread when the server has confirmed all records, or after `grace`.
    pub fn close(mut self, grace: Duration) {
        self.stop(grace);
    }

    fn stop(&mut self, grace: Duration) {
        let now = Instant::now();
        self.shared.state().closing = Some(now + grace.min(FOREVER));
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let panicked = thread.join().is_err();
            if panicked {
                let reason = "the thread of the connection ended".to_owned();
                self.shared
                    .end(&Failure::broken(reason, Disposition::Fatal));
            }
        }
    }
}

impl<Q: Queue, S: Send + Sync + 'static> Drop for SinkThread<Q, S> {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}
