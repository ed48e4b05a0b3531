//! The output of a command: its result on standard output, and notices on standard error.

use std::fmt::Display;
use std::io::{self, Write};
use std::ops::ControlFlow;

use serde::Serialize;
use walrelay_failure::{Exit, Failure};
use walrelay_observe::printable_json;

use crate::cli::Output;

/// Returns the failure to write to standard output.
pub(in crate::commands) fn write_failed(error: io::Error) -> Failure {
    Failure::new("output", Exit::Unavailable, "cannot write")
        .caused_by(error)
        .remedy("see where standard output leads to: for example a file on a full disk. What the command did is done")
}

/// Prints the output of a command on standard output, by one write. A reader that has gone away, as
/// in `walrelay check | head -1`, is no failure: the exit code says what the command found.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    print_part(bytes).map(drop)
}

/// Prints a part of a command's output as [`print_bytes`] does. Breaks if the reader has gone away,
/// so that nothing more need be read to be printed.
pub(in crate::commands) fn print_part(bytes: &[u8]) -> Result<ControlFlow<()>, Failure> {
    let mut out = io::stdout();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(write_failed(error)),
    }
}

/// Prints a text as [`print_bytes`] does.
pub(in crate::commands) fn print_text(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// Prints the result of a command: as text, or as one object in a line.
pub(in crate::commands) fn print_as(
    output: Output,
    text: &impl Display,
    object: &impl Serialize,
) -> Result<(), Failure> {
    match output {
        Output::Table => print_text(&text.to_string()),
        Output::Json => print_line(&printable_json(&serde_json::json!(object).to_string())),
    }
}

/// Prints a line of a command's output on standard output.
pub(in crate::commands) fn print_line(line: &str) -> Result<(), Failure> {
    print_text(&format!("{line}\n"))
}

/// Prints a line for the operator on standard error; does nothing if it is closed.
pub(in crate::commands) fn print_notice(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
