//! Captures the log of the process: events and spans of `tracing`, and lines of `log`, of every
//! level and thread. Keeps the lines that contain a [`MARK`], which only contents of records do.

use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::threads::lock;

/// Begins the marker of a run, which is in each key, value and header value.
pub(super) const MARK: &str = "confidential-";

/// The lines with a mark.
static MARKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Captures from now on, for the rest of the process.
#[track_caller]
pub(super) fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        let set = tracing::subscriber::set_global_default(Captured);
        set.expect("no test of this binary has another subscriber for all threads");
        log::set_logger(&Captured).expect("no test of this binary has another logger");
        log::set_max_level(log::LevelFilter::Trace);
    });
}

/// Returns the captured lines that contain this marker.
pub(super) fn lines_with(marker: &str) -> Vec<String> {
    let marked = lock(&MARKED);
    let lines = marked.iter().filter(|line| line.contains(marker));
    lines.cloned().collect()
}

fn keep(line: String) {
    if line.contains(MARK) {
        lock(&MARKED).push(line);
    }
}

struct Captured;

/// The text of an event's or a span's fields.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for Captured {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = Text(span.metadata().target().to_owned());
        span.record(&mut text);
        keep(text.0);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut text = Text(String::new());
        values.record(&mut text);
        keep(text.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().target().to_owned());
        event.record(&mut text);
        keep(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl log::Log for Captured {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        keep(format!("{} {}", record.target(), record.args()));
    }

    fn flush(&self) {}
}
