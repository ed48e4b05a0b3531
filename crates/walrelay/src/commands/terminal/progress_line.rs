//! A line on the terminal that shows the progress of a command.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Shortest time between two writes of the line.
const REDRAW: Duration = Duration::from_millis(500);

/// A line on standard error that is overwritten in place and cleared at the end. It is not written
/// if standard error is no terminal.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    /// The time when the line was last written; `None` without a terminal, and after the end.
    drawn: Option<Instant>,
}

impl ProgressLine {
    pub(crate) fn new() -> Self {
        Self {
            drawn: io::stderr().is_terminal().then(Instant::now),
        }
    }

    /// Returns whether standard error is a terminal.
    pub(crate) fn is_shown(&self) -> bool {
        self.drawn.is_some()
    }

    pub(crate) fn draw(&mut self, line: impl FnOnce() -> String) {
        if self.drawn.is_some_and(|drawn| drawn.elapsed() >= REDRAW) {
            self.drawn = Some(Instant::now());
            write(&line());
        }
    }

    /// Clears the line; it is not drawn again.
    pub(crate) fn end(&mut self) {
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

/// Overwrites the line; does nothing if standard error is closed.
fn write(line: &str) {
    let _ = write!(io::stderr(), "\r{line}\u{1b}[K");
    let _ = io::stderr().flush();
}
