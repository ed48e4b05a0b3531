//! The runtime of the clients that are asynchronous, for callers that block.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use tokio::runtime::{Builder, Handle};
use tokio::task::unconstrained;

use crate::wait::PATIENCE;

/// Runs the tasks of all clients, so that the servers' pings and heartbeats are answered while no call waits.
static RUNTIME: LazyLock<Handle> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let handle = runtime.handle().clone();
    let thread = thread::Builder::new().name("test clients".to_owned());
    let spawned = thread.spawn(move || runtime.block_on(pending::<()>()));
    spawned.expect("a thread");
    handle
});

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread, which may be inside any runtime: `block_on` of tokio and of futures
/// refuses that.
///
/// # Panics
/// After [`PATIENCE`].
#[track_caller]
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    let _entered = RUNTIME.enter();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    // The budget of a task that this is called in would be used up, and is renewed only after it returns.
    let mut future = pin!(unconstrained(future));
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "the server does not answer");
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_future_is_waited_for_inside_other_runtimes() {
        let spawned = || wait(async { tokio::spawn(async { 1 }).await.expect("a task") });
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        assert_eq!(runtime.block_on(async { spawned() }), 1);
        assert_eq!(futures_executor::block_on(async { spawned() }), 1);
    }

    #[test]
    fn a_long_future_in_a_task_is_waited_for() {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            wait(async {
                let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
                for number in 0..1_000 {
                    sender.send(number).await.expect("it is open");
                    assert_eq!(receiver.recv().await, Some(number));
                }
            });
        });
    }
}
