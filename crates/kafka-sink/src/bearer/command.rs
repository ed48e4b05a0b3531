//! Runs a program that prints a token.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::error::Problem;
use super::{MAX_TOKEN, text};

/// Interval of the checks whether the program has ended, after its output has.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Runs the program and returns its output. A program that has not ended after `limit` is killed.
///
/// The program is started without a shell, with the relay's environment and without standard input.
/// Its standard error is discarded.
pub(super) fn output(command: &[String], limit: Duration) -> Result<String, Problem> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Problem::Empty);
    };
    let deadline = Instant::now() + limit;
    let mut child = KillOnDrop(
        Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Problem::Start)?,
    );
    // On a thread, because a read of a pipe has no timeout. The read ends when the last process
    // that holds the other end does, which may be a child of the program.
    let (sender, receiver) = channel();
    if let Some(stdout) = child.0.stdout.take() {
        thread::Builder::new()
            .name("token-output".to_owned())
            .spawn(move || {
                let mut bytes = Vec::new();
                let read = stdout.take(MAX_TOKEN as u64 + 1).read_to_end(&mut bytes);
                // The receiver may be gone.
                let _ = sender.send(read.map(|_| bytes));
            })
            .map_err(Problem::Start)?;
    }
    let slow = Problem::Slow { after: limit };
    let left = deadline.saturating_duration_since(Instant::now());
    let bytes = match receiver.recv_timeout(left) {
        Ok(read) => read.map_err(Problem::Output)?,
        Err(RecvTimeoutError::Timeout) => return Err(slow),
        Err(RecvTimeoutError::Disconnected) => {
            return Err(Problem::Output(io::ErrorKind::BrokenPipe.into()));
        }
    };
    // The output was cut off, so the program's exit status does not matter.
    if bytes.len() > MAX_TOKEN {
        return Err(Problem::TooLong);
    }
    let status = loop {
        match child.0.try_wait().map_err(Problem::Output)? {
            Some(status) => break status,
            None if Instant::now() >= deadline => return Err(slow),
            None => thread::sleep(POLL_INTERVAL),
        }
    };
    if !status.success() {
        return Err(Problem::Status { status });
    }
    text(bytes)
}

/// A child process that is killed and reaped on drop, if it has not ended.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
