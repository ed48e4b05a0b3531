//! [`Parent`]: the relay whose status page has started this command. Its death closes the pipe to standard input.

use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::sync::Notify;
use walrelay_failure::{Exit, Failure};
use walrelay_kafka_sink::exit_at_once;

use super::no_runtime;
use crate::cli::ParentArgs;

/// The process that has started a command which ends with it; or none.
pub(crate) struct Parent(Option<Arc<State>>);

#[derive(Default)]
struct State {
    /// The command sends records, so it stops in order.
    is_sending: AtomicBool,
    gone: Notify,
}

impl Parent {
    /// Ends this process at once when its parent is gone, if the parent asks for that.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn watch(args: ParentArgs) -> Result<Self, Failure> {
        if !args.end_with_stdin {
            return Ok(Self(None));
        }
        let state = Arc::new(State::default());
        let watched = Arc::clone(&state);
        let watch = move || {
            read_to_end(&mut io::stdin().lock());
            if watched.is_sending.load(Ordering::Acquire) {
                watched.gone.notify_one();
            } else {
                exit_at_once(Exit::Temporary.code());
            }
        };
        let thread = thread::Builder::new()
            .name("parent".to_owned())
            .spawn(watch);
        thread.map_err(no_runtime)?;
        Ok(Self(Some(state)))
    }

    /// Resolves when the parent is gone, and keeps this process from ending at once: records that it has sent are
    /// waited for.
    pub(crate) async fn gone(&self) {
        match &self.0 {
            Some(state) => {
                state.is_sending.store(true, Ordering::Release);
                state.gone.notified().await;
            }
            None => std::future::pending().await,
        }
    }
}

/// Reads until no writer has the pipe open. An error says the same.
fn read_to_end(input: &mut impl Read) {
    let mut bytes = [0; 64];
    loop {
        match input.read(&mut bytes) {
            Ok(0) => return,
            Err(error) if error.kind() != ErrorKind::Interrupted => return,
            _ => {}
        }
    }
}
