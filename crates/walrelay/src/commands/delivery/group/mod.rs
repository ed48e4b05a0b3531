//! Runs the relays of one process beside each other.

use std::future::Future;
use std::panic::resume_unwind;
use std::thread;

use tokio::sync::watch;
use walrelay_failure::Failure;
use walrelay_observe::RunObserver;

use super::relay::{CommitToAck, Relay};
use crate::commands::assembly::{block_on, no_runtime};

/// The result of one relay: the latencies.
type Relayed = Result<CommitToAck, Failure>;

/// Runs the relays until each has ended: one on this thread, several on a thread each. All are asked
/// to stop when the future that `stop` returns resolves; `stop` is called once. Returns the results
/// in the order of the relays.
pub(super) fn run_together<F: Future<Output = ()>>(
    mut relays: Vec<(Relay<'_>, RunObserver)>,
    stop: impl FnOnce() -> Result<F, Failure>,
) -> Vec<Relayed> {
    let only = if relays.len() == 1 {
        relays.pop()
    } else {
        None
    };
    if let Some((relay, observer)) = only {
        return vec![relay.run_until(observer, stop)];
    }
    thread::scope(|scope| {
        let (request, _) = watch::channel(false);
        let threads = relays.into_iter().map(|(relay, observer)| {
            let mut requested = request.subscribe();
            let running = requested.clone();
            let body = move || {
                let relayed = relay.run_until(observer, || {
                    Ok(async move {
                        // Fails if the sender is gone: this process panics.
                        let _ = requested.wait_for(|requested| *requested).await;
                    })
                });
                drop(running);
                relayed
            };
            let thread = thread::Builder::new().name("pipeline".to_owned());
            thread.spawn_scoped(scope, body).map_err(no_runtime)
        });
        let threads: Vec<_> = threads.collect();
        let stopped = block_on(async {
            let stop = stop()?;
            tokio::select! {
                () = stop => {}
                () = request.closed() => {}
            }
            request.send_replace(true);
            // Each relay drops its receivers when it ends. A second signal is listened for until then,
            // on this runtime.
            request.closed().await;
            Ok::<_, Failure>(())
        });
        // If the listener for signals cannot be started: no relay runs without it.
        request.send_replace(true);
        let results = threads.into_iter().map(|thread| match thread?.join() {
            Ok(relayed) => relayed,
            Err(panic) => resume_unwind(panic),
        });
        let results = results.collect::<Vec<_>>().into_iter();
        match stopped.and_then(|stopped| stopped) {
            Ok(()) => results.collect(),
            Err(failure) => results.chain([Err(failure)]).collect(),
        }
    })
}

#[cfg(test)]
mod tests;
