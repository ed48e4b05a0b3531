//! The sink of standard output keeps the promises of every sink. Its server is the reader of a pipe,
//! and a line is stored once it is in the pipe.

use std::io::{PipeReader, PipeWriter, Read as _, pipe};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use walrelay_testkit::conformance::{Bounds, Destination, Refusal, Stored};
use walrelay_testkit::{PATIENCE, conformance, eventually};

use super::*;

conformance!(Pipe::new());

/// A pipe to a reader that reads all that is written.
struct Pipe {
    end: Arc<End>,
    read: Arc<Mutex<Vec<u8>>>,
    reader: Mutex<Option<JoinHandle<()>>>,
}

/// The end that is written to.
#[derive(Default)]
struct End {
    state: Mutex<EndState>,
    resumed: Condvar,
    /// Held while a batch is written, as `io::Stdout` does.
    batch: Mutex<()>,
}

#[derive(Default)]
struct EndState {
    /// `None`: the reader has gone away.
    pipe: Option<PipeWriter>,
    /// Nothing more fits into the pipe.
    paused: bool,
    /// Number of readers so far. A sink writes to one reader only, as a process does.
    readers: u64,
    /// Bytes that all readers together must get.
    written: usize,
}

/// Standard output of a process.
struct Stdout {
    end: Arc<End>,
    reader: u64,
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_this = |state: &EndState| state.pipe.is_some() && state.readers == self.reader;
        let full = |state: &mut EndState| state.paused && is_this(state);
        let state = self.end.resumed.wait_while(lock(&self.end.state), full);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let is_gone = !is_this(&state);
        let EndState { pipe, written, .. } = &mut *state;
        match pipe {
            Some(pipe) if !is_gone => {
                let count = pipe.write(bytes)?;
                *written += count;
                Ok(count)
            }
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let end = Arc::clone(&self.end);
        let _batch = lock(&end.batch);
        while !bytes.is_empty() {
            let count = self.write(bytes)?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes sinks of the process's standard output.
struct Stdouts {
    end: Arc<End>,
    bounds: Bounds,
}

impl SinkFactory for Stdouts {
    type Sink = StdoutSink;
    type Error = StdoutError;

    fn create(
        &mut self,
        _: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<StdoutSink, StdoutError> {
        let end = Arc::clone(&self.end);
        let reader = lock(&end.state).readers;
        let window = Window::new(self.bounds.records.into(), self.bounds.bytes);
        Ok(StdoutSink::start(
            Stdout { end, reader },
            deliveries,
            window,
        )?)
    }

    fn disposition(error: &StdoutError) -> Disposition {
        StdoutSinkFactory::disposition(error)
    }
}

impl Pipe {
    fn new() -> Self {
        let new = Self {
            end: Arc::default(),
            read: Arc::default(),
            reader: Mutex::default(),
        };
        new.start();
        new
    }

    fn set_paused(&self, paused: bool) {
        lock(&self.end.state).paused = paused;
        self.end.resumed.notify_all();
    }
}

impl Destination for Pipe {
    fn factory(&self, bounds: Bounds) -> AnySinkFactory {
        any_factory(Stdouts {
            end: Arc::clone(&self.end),
            bounds,
        })
    }

    fn stored(&self, topic: &str) -> Vec<Stored> {
        let written = || lock(&self.end.state).written;
        eventually(PATIENCE, || lock(&self.read).len() == written());
        let read = lock(&self.read);
        let lines = std::str::from_utf8(&read).unwrap().lines();
        let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        let lines = lines.filter(|line| line["topic"] == topic);
        let stored = lines.map(|line| Stored {
            key: content(&line["key"]),
            value: content(&line["value"]),
            id: line["headers"][0][1].as_str().unwrap().to_owned(),
        });
        stored.collect()
    }

    fn pause(&self) {
        self.set_paused(true);
    }

    fn resume(&self) {
        self.set_paused(false);
    }

    /// Ends the reader, which reads what is in the pipe before.
    fn kill(&self) {
        let pipe = lock(&self.end.state).pipe.take();
        drop(pipe.unwrap());
        self.end.resumed.notify_all();
        let reader = lock(&self.reader).take();
        reader.unwrap().join().unwrap();
        // A write that failed may leave a part of a line.
        let mut read = lock(&self.read);
        let whole = read.iter().rposition(|byte| *byte == b'\n');
        read.truncate(whole.map_or(0, |last| last + 1));
        lock(&self.end.state).written = read.len();
    }

    /// Starts another reader, whose process is another as well.
    fn start(&self) {
        let (mut from, to): (PipeReader, PipeWriter) = pipe().unwrap();
        let mut state = lock(&self.end.state);
        state.pipe = Some(to);
        state.readers += 1;
        let read = Arc::clone(&self.read);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                lock(&read).extend_from_slice(&bytes[..count]);
            }
        });
        *lock(&self.reader) = Some(reader);
    }

    /// Returns no refusal: each record can be a line.
    fn refusals(&self) -> Vec<Refusal> {
        Vec::new()
    }

    /// Returns an outage that does not end: the process has no other standard output.
    fn outage(&self) -> Disposition {
        Disposition::Fatal
    }
}

/// Returns the bytes of a key or value in a line.
fn content(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone().into_bytes()),
        other => Some(STANDARD.decode(other["base64"].as_str().unwrap()).unwrap()),
    }
}
