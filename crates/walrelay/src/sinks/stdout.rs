//! Records as lines of JSON, for trying things out and for pipes.
//!
//! One object a line:
//!
//! ```text
//! {"topic":"outbox.event.Order","partition":null,"timestamp_ms":null,"key":"42","value":"{\"a\":1}","headers":[["id","7"]]}
//! ```
//!
//! Key, value and the values of headers are `null`, a string where the bytes are valid UTF-8, and
//! `{"base64":"…"}` otherwise. A value that is JSON itself is still a string, so that the line tells
//! the bytes apart. `partition` and `timestamp_ms` are numbers where the record fixes them.
//!
//! A record is delivered once its line was written and flushed: the pipe or the file has it. When a write
//! fails, a line may be torn; its record was not delivered and is not confirmed.

mod line;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use walrelay_sink::{Deliveries, DeliveryError, Disposition, Record, SendError, Sink, SinkFactory};

pub(crate) use line::write as record_line;

use crate::config::Delivery;
use crate::sync::lock;

/// Makes sinks that write to standard output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StdoutSinkFactory {
    limits: Limits,
}

impl StdoutSinkFactory {
    /// Sinks that take as much as may be in flight.
    pub(crate) fn new(delivery: &Delivery) -> Self {
        let at_least_one = |limit: u64| usize::try_from(limit / 2).unwrap_or(usize::MAX).max(1);
        Self {
            // One half waits for the writer while the other is in its hands.
            limits: Limits {
                bytes: at_least_one(delivery.max_in_flight_bytes),
                lines: at_least_one(u64::from(delivery.max_in_flight_records)),
            },
        }
    }
}

impl SinkFactory for StdoutSinkFactory {
    type Sink = StdoutSink;
    type Error = io::Error;

    fn create(&mut self, deliveries: Arc<dyn Deliveries>) -> io::Result<StdoutSink> {
        StdoutSink::start(io::stdout(), deliveries, self.limits)
    }

    fn disposition(_: &io::Error) -> Disposition {
        // A thread could not be started, for lack of memory or threads.
        Disposition::Retryable
    }
}

/// A sink that writes lines to anything that can be written to, on a thread of its own.
///
/// # Ordering
/// Lines appear in the order of acceptance and are reported in that order. Closing or dropping the sink
/// reports the remaining records as failed. A write that never returns keeps its thread until the process
/// ends.
pub(crate) struct StdoutSink {
    deliveries: Arc<dyn Deliveries>,
    shared: Arc<Shared>,
    /// Taken when the thread was joined or given up.
    writer: Option<JoinHandle<()>>,
    /// The last record's topic: most records have the same.
    topic: Arc<str>,
    /// The line under construction; kept for its memory.
    line: Vec<u8>,
    limits: Limits,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Of the lines queued for the writer. The last line may exceed it.
    bytes: usize,
    /// Queued for the writer.
    lines: usize,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the writer: lines are queued, or the sink closes.
    work: Condvar,
    /// Wakes `shut_down`: all was reported, or the writer has ended.
    idle: Condvar,
}

#[derive(Default)]
struct State {
    /// Lines for the next batch.
    lines: Vec<u8>,
    /// Their records, in order.
    queued: VecDeque<Queued>,
    /// Records of the batch being written. The thread that takes them out reports them.
    writing: VecDeque<Queued>,
    /// The writer has taken a batch out and is reporting it.
    reporting: bool,
    /// A record was refused with [`SendError::Full`].
    full: bool,
    life: Life,
    /// Why nothing can be written any more.
    broken: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Life {
    #[default]
    Open,
    /// No more lines will come.
    Closing,
    /// The writer has ended, or was given up.
    Ended,
}

struct Queued {
    seq: u64,
    topic: Arc<str>,
}

// By hand: lines hold row values.
impl fmt::Debug for StdoutSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdoutSink").finish_non_exhaustive()
    }
}

impl StdoutSink {
    /// A sink that writes to `out`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    fn start(
        out: impl Write + Send + 'static,
        deliveries: Arc<dyn Deliveries>,
        limits: Limits,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            idle: Condvar::new(),
        });
        let of_writer = Arc::clone(&shared);
        let for_close = Arc::clone(&deliveries);
        let writer = thread::Builder::new()
            .name("stdout-writer".to_owned())
            .spawn(move || write_batches(out, &of_writer, &*deliveries))?;
        Ok(Self {
            shared,
            writer: Some(writer),
            topic: Arc::from(""),
            line: Vec::new(),
            limits,
            deliveries: for_close,
        })
    }

    /// Waits for the writer until `grace` is over, then takes away what it has not reported.
    fn shut_down(&mut self, grace: Duration) {
        let Some(writer) = self.writer.take() else {
            return;
        };
        let deadline = Instant::now().checked_add(grace);
        let mut state = self.shared.lock();
        if state.life == Life::Open {
            state.life = Life::Closing;
        }
        self.shared.work.notify_one();
        while state.life != Life::Ended {
            // Wait for reports that have begun: they do not block.
            let left = match deadline {
                Some(deadline) if !state.reporting => {
                    deadline.saturating_duration_since(Instant::now())
                }
                _ => Duration::from_secs(60),
            };
            if left.is_zero() {
                break;
            }
            state = self
                .shared
                .idle
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let ended = state.life == Life::Ended;
        state.life = Life::Ended;
        state.lines = Vec::new();
        let mut left = std::mem::take(&mut state.writing);
        left.append(&mut state.queued);
        drop(state);
        fail(
            left,
            "given up when the sink was closed",
            Disposition::Retryable,
            &*self.deliveries,
        );
        if ended {
            // The thread has only to return. A panic is reported by the thread itself.
            let _ = writer.join();
        }
    }
}

impl Sink for StdoutSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        if *self.topic != *record.topic {
            self.topic = Arc::from(record.topic);
        }
        let mut state = self.shared.lock();
        state.usable(&self.topic)?;
        if state.queued.len() >= self.limits.lines || state.lines.len() >= self.limits.bytes {
            state.full = true;
            return Err(SendError::Full);
        }
        drop(state);
        // Only this function adds lines, so the room remains while the line is built.
        self.line.clear();
        line::write(&mut self.line, record);
        let mut state = self.shared.lock();
        state.usable(&self.topic)?;
        state.lines.extend_from_slice(&self.line);
        state.queued.push_back(Queued {
            seq,
            topic: Arc::clone(&self.topic),
        });
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }

    fn close(mut self, grace: Duration) {
        self.shut_down(grace);
    }
}

impl Drop for StdoutSink {
    fn drop(&mut self) {
        self.shut_down(Duration::ZERO);
    }
}

impl State {
    fn usable(&self, topic: &Arc<str>) -> Result<(), SendError> {
        match &self.broken {
            None => Ok(()),
            Some(reason) => Err(SendError::Refused(DeliveryError {
                topic: Arc::clone(topic),
                reason: reason.clone(),
                disposition: Disposition::Fatal,
                poison: None,
            })),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that may panic runs under the lock, and a report must not be lost.
        lock(&self.state)
    }
}

/// The writer's thread.
fn write_batches(mut out: impl Write, shared: &Shared, deliveries: &dyn Deliveries) {
    let mut batch = Vec::new();
    loop {
        let mut state = shared.lock();
        while state.queued.is_empty() && state.life == Life::Open {
            state = shared
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.life == Life::Ended || state.queued.is_empty() {
            break;
        }
        batch.clear();
        std::mem::swap(&mut batch, &mut state.lines);
        state.writing = std::mem::take(&mut state.queued);
        let was_full = std::mem::take(&mut state.full);
        drop(state);
        if was_full {
            deliveries.capacity();
        }

        let result = out.write_all(&batch).and_then(|()| out.flush());

        let mut state = shared.lock();
        if state.life == Life::Ended {
            // `shut_down` gave up meanwhile, and has reported the batch.
            return;
        }
        let mut written = std::mem::take(&mut state.writing);
        state.reporting = true;
        match result {
            Ok(()) => {
                drop(state);
                for record in &written {
                    deliveries.delivered(record.seq);
                }
                shared.lock().reporting = false;
                shared.idle.notify_all();
            }
            Err(error) => {
                let reason = words(&error);
                // From here on the sink accepts nothing, so these records are the last.
                state.broken = Some(reason.clone());
                written.append(&mut state.queued);
                state.lines = Vec::new();
                let was_full = std::mem::take(&mut state.full);
                drop(state);
                fail(written, &reason, Disposition::Fatal, deliveries);
                if was_full {
                    // Wakes the caller, whose next record is refused.
                    deliveries.capacity();
                }
                break;
            }
        }
    }
    let mut state = shared.lock();
    state.reporting = false;
    state.life = Life::Ended;
    drop(state);
    shared.idle.notify_all();
}

fn fail(
    records: VecDeque<Queued>,
    reason: &str,
    disposition: Disposition,
    deliveries: &dyn Deliveries,
) {
    for record in records {
        let error = DeliveryError {
            topic: record.topic,
            reason: reason.to_owned(),
            disposition,
            poison: None,
        };
        deliveries.failed(record.seq, error);
    }
}

fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::BrokenPipe => "whoever read standard output has gone away".to_owned(),
        _ => format!("cannot write to standard output: {error}"),
    }
}
