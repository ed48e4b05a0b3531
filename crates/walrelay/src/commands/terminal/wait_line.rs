//! A line that names what a command waits for.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::commands::print_notice;

/// Time after which an operator wants to know what is waited for.
const UNNAMED: Duration = Duration::from_secs(2);

/// Does the work. Writes a line on standard error that names `what`, if the work takes longer than
/// two seconds.
pub(crate) fn waiting_for<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (done, wait) = channel::<()>();
    thread::scope(|scope| {
        // Without the thread there is no line.
        let _ = thread::Builder::new().spawn_scoped(scope, move || {
            if wait.recv_timeout(UNNAMED) == Err(RecvTimeoutError::Timeout) {
                print_notice(&format!("waiting for {what} …"));
            }
        });
        let result = work();
        drop(done);
        result
    })
}
