//! The sink of standard output: records as lines of JSON, for experiments and pipes.
//!
//! Each line is one object:
//!
//! ```text
//! {"topic":"outbox.event.Order","partition":null,"timestamp_ms":null,"key":"42","value":"{\"a\":1}","headers":[["id","7"]]}
//! ```
//!
//! Key, value and the values of headers are `null`, a string if the bytes are valid UTF-8, and
//! `{"base64":"…"}` otherwise. A value that is JSON itself is still a string, so that the line
//! shows the exact bytes. `partition` and `timestamp_ms` are numbers if the record sets them.
//!
//! A record is delivered when its line was written and flushed to the pipe or file. A write that
//! fails may leave a part of a line, whose record was not delivered and is not confirmed.

#[cfg(test)]
mod conformance;
mod line;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use walrelay_failure::{Exit, Failure, ToFailure};
use walrelay_sink::{
    AnySinkFactory, Deliveries, DeliveryError, Disposition, Record, SendError, Sink, SinkFactory,
    SinkStats, StreamStart, Window, any_factory, lock,
};
use walrelay_sink_kind::{KindDescription, SinkKind};

pub(crate) use line::write as record_line;

/// Makes sinks that write to standard output.
#[derive(Debug, Clone, Copy)]
pub(super) struct StdoutSinkFactory {
    max_records: u64,
    max_bytes: u64,
}

/// Standard output as a [`SinkKind`].
pub(crate) struct StdoutKind(StdoutSinkFactory);

impl StdoutKind {
    /// Creates a sink with so many records, and bytes of lines, in flight at most.
    pub(crate) fn new(max_records: u64, max_bytes: u64) -> Self {
        Self(StdoutSinkFactory {
            max_records,
            max_bytes,
        })
    }
}

impl StdoutKind {
    /// The facts about the kind. What is printed cannot be read back.
    pub(crate) const DESCRIPTION: KindDescription = KindDescription {
        name: "stdout",
        title: "standard output",
        settings_item: None,
        items: &[],
        cannot: &[],
    };
}

impl SinkKind for StdoutKind {
    fn description(&self) -> &'static KindDescription {
        &Self::DESCRIPTION
    }

    fn factory(&self, _: Option<Arc<SinkStats>>) -> (AnySinkFactory, Option<Arc<SinkStats>>) {
        (any_factory(self.0), None)
    }
}

/// The writer's thread could not be started.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct StdoutError(#[from] io::Error);

impl ToFailure for StdoutError {
    fn to_failure(&self) -> Failure {
        let what = "standard output cannot be opened";
        Failure::new("output", Exit::Unavailable, what)
            .caused_by(self.to_string())
            .remedy("start walrelay with standard output open, for example without >&-")
    }
}

impl SinkFactory for StdoutSinkFactory {
    type Sink = StdoutSink;
    type Error = StdoutError;

    fn create(
        &mut self,
        _: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<StdoutSink, StdoutError> {
        let window = Window::new(self.max_records, self.max_bytes);
        Ok(StdoutSink::start(io::stdout(), deliveries, window)?)
    }

    fn disposition(_: &StdoutError) -> Disposition {
        // The writer's thread could not be started, for lack of memory or threads.
        Disposition::Retryable
    }
}

/// A sink that writes lines to any [`Write`], on a thread of its own.
///
/// # Ordering
/// Lines are written and reported in the order of acceptance. Closing or dropping the sink reports
/// the remaining records as failed. A write that never returns keeps its thread until the process
/// ends.
pub(crate) struct StdoutSink {
    deliveries: Arc<dyn Deliveries>,
    shared: Arc<Shared>,
    /// The writer's thread; `None` after it was joined or given up.
    writer: Option<JoinHandle<()>>,
    /// The last record's topic, reused because most records have the same.
    topic: Arc<str>,
    /// The buffer in which a line is built.
    line: Vec<u8>,
}

struct Shared {
    /// The lines that are queued, or are being written and reported.
    window: Window,
    state: Mutex<WriterState>,
    /// Notified when lines are queued, or the sink closes: wakes the writer.
    work: Condvar,
    /// Notified when all records are reported, or the writer has ended: wakes `shut_down`.
    idle: Condvar,
}

#[derive(Default)]
struct WriterState {
    /// Lines for the next batch.
    lines: Vec<u8>,
    /// The records of `lines`, in order.
    queued: VecDeque<Queued>,
    /// Records of the batch that is being written. The thread that takes them out reports them.
    writing: VecDeque<Queued>,
    /// The writer is reporting a batch.
    reporting: bool,
    life: Life,
    /// Why a write failed. The sink refuses records after that.
    broken: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Life {
    #[default]
    Open,
    /// The sink is closing: no more lines are queued.
    Closing,
    /// The writer has ended, or was given up.
    Ended,
}

struct Queued {
    seq: u64,
    topic: Arc<str>,
    /// The bytes of the line.
    weight: u64,
}

// Not derived, because lines hold row values.
impl fmt::Debug for StdoutSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdoutSink").finish_non_exhaustive()
    }
}

impl StdoutSink {
    /// Starts a sink that writes to `out`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    fn start(
        out: impl Write + Send + 'static,
        deliveries: Arc<dyn Deliveries>,
        window: Window,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            window,
            state: Mutex::new(WriterState::default()),
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
            deliveries: for_close,
        })
    }

    /// Waits for the writer, for `grace` at most. Then reports the remaining records as failed.
    fn shut_down(&mut self, grace: Duration) {
        let Some(writer) = self.writer.take() else {
            return;
        };
        let deadline = Instant::now().checked_add(grace);
        let mut state = lock(&self.shared.state);
        if state.life == Life::Open {
            state.life = Life::Closing;
        }
        self.shared.work.notify_one();
        while state.life != Life::Ended {
            // If the writer is reporting, wait until it has finished: reports do not block.
            let timeout = match deadline {
                Some(deadline) if !state.reporting => {
                    deadline.saturating_duration_since(Instant::now())
                }
                _ => Duration::from_secs(60),
            };
            if timeout.is_zero() {
                break;
            }
            state = self
                .shared
                .idle
                .wait_timeout(state, timeout)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let ended = state.life == Life::Ended;
        state.life = Life::Ended;
        state.lines = Vec::new();
        let mut unreported = std::mem::take(&mut state.writing);
        unreported.append(&mut state.queued);
        drop(state);
        fail(
            unreported,
            "given up when the sink was closed",
            Disposition::Retryable,
            (&self.shared.window, &*self.deliveries),
        );
        if ended {
            // The thread returns at once. It has reported a panic itself.
            let _ = writer.join();
        }
    }
}

impl Sink for StdoutSink {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        if *self.topic != *record.topic {
            self.topic = Arc::from(record.topic);
        }
        // Build the line before taking the lock, which the writer waits for.
        self.line.clear();
        line::write(&mut self.line, record);
        let weight = self.line.len() as u64;
        let mut state = lock(&self.shared.state);
        state.check_usable(&self.topic)?;
        if !self.shared.window.try_take(weight) {
            return Err(SendError::Full);
        }
        state.lines.extend_from_slice(&self.line);
        state.queued.push_back(Queued {
            seq,
            topic: Arc::clone(&self.topic),
            weight,
        });
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }

    fn close(mut self: Box<Self>, grace: Duration) {
        self.shut_down(grace);
    }
}

impl Drop for StdoutSink {
    fn drop(&mut self) {
        self.shut_down(Duration::ZERO);
    }
}

impl WriterState {
    /// Refuses records after a failed write.
    fn check_usable(&self, topic: &Arc<str>) -> Result<(), SendError> {
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

/// Writes and reports batches of lines: the body of the writer's thread.
fn write_batches(mut out: impl Write, shared: &Shared, deliveries: &dyn Deliveries) {
    let mut batch = Vec::new();
    loop {
        let idle = |state: &mut WriterState| state.queued.is_empty() && state.life == Life::Open;
        let woken = shared.work.wait_while(lock(&shared.state), idle);
        let mut state = woken.unwrap_or_else(PoisonError::into_inner);
        if state.life == Life::Ended || state.queued.is_empty() {
            break;
        }
        batch.clear();
        std::mem::swap(&mut batch, &mut state.lines);
        state.writing = std::mem::take(&mut state.queued);
        drop(state);

        let result = out.write_all(&batch).and_then(|()| out.flush());

        let mut state = lock(&shared.state);
        if state.life == Life::Ended {
            // `shut_down` gave up meanwhile and has reported the batch.
            return;
        }
        let mut written = std::mem::take(&mut state.writing);
        state.reporting = true;
        match result {
            Ok(()) => {
                drop(state);
                for record in &written {
                    deliveries.delivered(record.seq);
                    give_back(record, (&shared.window, deliveries));
                }
                lock(&shared.state).reporting = false;
                shared.idle.notify_all();
            }
            Err(error) => {
                let reason = failure_reason(&error);
                // From here on the sink refuses records, so these are the last ones.
                state.broken = Some(reason.clone());
                written.append(&mut state.queued);
                state.lines = Vec::new();
                drop(state);
                // A caller that waits for room is woken, and its next record is refused.
                let reports = (&shared.window, deliveries);
                fail(written, &reason, Disposition::Fatal, reports);
                break;
            }
        }
    }
    let mut state = lock(&shared.state);
    state.reporting = false;
    state.life = Life::Ended;
    drop(state);
    shared.idle.notify_all();
}

/// Reports the records as failed.
fn fail(
    records: VecDeque<Queued>,
    reason: &str,
    disposition: Disposition,
    (window, deliveries): (&Window, &dyn Deliveries),
) {
    for record in records {
        let error = DeliveryError {
            topic: Arc::clone(&record.topic),
            reason: reason.to_owned(),
            disposition,
            poison: None,
        };
        deliveries.failed(record.seq, error);
        give_back(&record, (window, deliveries));
    }
}

/// Gives the room of a reported record back.
fn give_back(record: &Queued, (window, deliveries): (&Window, &dyn Deliveries)) {
    if window.give_back(record.weight) {
        deliveries.capacity();
    }
}

fn failure_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::BrokenPipe => "the reader of standard output has gone away".to_owned(),
        _ => format!("cannot write to standard output: {error}"),
    }
}
