//! A program that prints a token.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::error::Problem;
use super::{LONGEST, text};

/// How often is looked whether it has ended, once its output has.
const TURN: Duration = Duration::from_millis(10);

/// What the program prints, or why it did not. It has `limit` to end.
///
/// It is started without a shell, has no standard input and the relay's own environment. Its
/// standard error is thrown away.
pub(super) fn output(command: &[String], limit: Duration) -> Result<String, Problem> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Problem::Empty);
    };
    let deadline = Instant::now() + limit;
    let mut child = Started(
        Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Problem::Start)?,
    );
    // On a thread: a read of a pipe has no time limit. It ends when the last process that holds the
    // other end does, which may be a child of the program's own.
    let (sender, receiver) = channel();
    if let Some(stdout) = child.0.stdout.take() {
        thread::Builder::new()
            .name("token-output".to_owned())
            .spawn(move || {
                let mut bytes = Vec::new();
                let read = stdout.take(LONGEST as u64 + 1).read_to_end(&mut bytes);
                // Nobody may be waiting any more.
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
    // Cut off: what becomes of the program says nothing more.
    if bytes.len() > LONGEST {
        return Err(Problem::TooLong);
    }
    let status = loop {
        match child.0.try_wait().map_err(Problem::Output)? {
            Some(status) => break status,
            None if Instant::now() >= deadline => return Err(slow),
            None => thread::sleep(TURN),
        }
    };
    if !status.success() {
        return Err(Problem::Status { status });
    }
    text(bytes)
}

/// Killed and reaped, if it has not ended when nobody waits for it any more.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
