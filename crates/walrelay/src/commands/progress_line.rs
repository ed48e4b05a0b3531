//! The line on a terminal that says how far a command is.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the line is written.
const REDRAW: Duration = Duration::from_millis(500);

/// Written over itself on standard error, and cleared at the end; where that is no terminal, never written.
#[derive(Debug)]
pub(super) struct ProgressLine {
    drawn: Option<Instant>,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        Self {
            drawn: io::stderr().is_terminal().then(Instant::now),
        }
    }

    /// Whether there is a terminal.
    pub(super) fn is_shown(&self) -> bool {
        self.drawn.is_some()
    }

    pub(super) fn draw(&mut self, line: impl FnOnce() -> String) {
        if self.drawn.is_some_and(|drawn| drawn.elapsed() >= REDRAW) {
            self.drawn = Some(Instant::now());
            write(&line());
        }
    }

    /// Clears the line, so that others can be written.
    pub(super) fn end(&mut self) {
        if self.drawn.take().is_some() {
            write("");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.end();
    }
}

/// Also when standard error is closed.
fn write(line: &str) {
    let _ = write!(io::stderr(), "\r{line}\u{1b}[K");
    let _ = io::stderr().flush();
}
