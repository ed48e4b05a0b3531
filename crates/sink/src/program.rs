use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Interval of the checks whether a program has ended, after its output has.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A program that has ended.
#[derive(Debug)]
pub struct EndedProgram {
    /// How the program ended.
    pub status: ExitStatus,
    /// The start of its output; empty if standard output is not a pipe.
    pub stdout: Vec<u8>,
    /// The start of its errors; empty if standard error is not a pipe.
    pub stderr: Vec<u8>,
}

/// The reason why a program has no result.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program, or a thread that reads its output, cannot be started.
    #[error("{0}")]
    Start(io::Error),
    /// Its output or its end cannot be read.
    #[error("{0}")]
    Output(io::Error),
    /// It was killed.
    #[error("it has not ended after {} s, and was killed", limit.as_secs())]
    Slow {
        /// The time that it had.
        limit: Duration,
    },
}

/// Runs a program to its end, and keeps at most `most_bytes` of each pipe. A program that has not ended after
/// `limit` is killed.
pub fn run_program(
    command: &mut Command,
    limit: Duration,
    most_bytes: usize,
) -> Result<EndedProgram, ProgramError> {
    let deadline = Instant::now() + limit;
    let slow = || ProgramError::Slow { limit };
    let mut child = KillOnDrop(command.spawn().map_err(ProgramError::Start)?);
    let pipes = [
        read_aside(child.0.stdout.take(), most_bytes),
        read_aside(child.0.stderr.take(), most_bytes),
    ];
    let [stdout, stderr] = pipes.map(|pipe| {
        let left = deadline.saturating_duration_since(Instant::now());
        let read = pipe.map_err(ProgramError::Start)?.recv_timeout(left);
        read.map_err(|_| slow())?.map_err(ProgramError::Output)
    });
    let (stdout, stderr) = (stdout?, stderr?);
    let status = loop {
        match child.0.try_wait().map_err(ProgramError::Output)? {
            Some(status) => break status,
            None if Instant::now() >= deadline => return Err(slow()),
            None => thread::sleep(POLL_INTERVAL),
        }
    };
    Ok(EndedProgram {
        status,
        stdout,
        stderr,
    })
}

/// Reads a pipe on a thread: a read has no timeout, and ends when the last process that holds the other end does,
/// which may be a child of the program.
fn read_aside(
    pipe: Option<impl Read + Send + 'static>,
    most_bytes: usize,
) -> io::Result<Receiver<io::Result<Vec<u8>>>> {
    let (sender, receiver) = channel();
    let read = move || {
        let mut bytes = Vec::new();
        // The rest is read as well, because a full or closed pipe would hold the program up or end it.
        let read = pipe.map_or(Ok(0), |mut pipe| {
            let most_bytes = most_bytes as u64;
            pipe.by_ref().take(most_bytes).read_to_end(&mut bytes)?;
            io::copy(&mut pipe, &mut io::sink())
        });
        // The receiver may be gone.
        let _ = sender.send(read.map(|_| bytes));
    };
    let thread = thread::Builder::new().name("program-output".to_owned());
    thread.spawn(read).map(|_| receiver)
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

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    fn run(line: &str, limit: Duration) -> Result<EndedProgram, ProgramError> {
        let mut command = Command::new("/bin/sh");
        let command = command.args(["-c", line]).stdin(Stdio::null());
        run_program(
            command.stdout(Stdio::piped()).stderr(Stdio::piped()),
            limit,
            1_000_000,
        )
    }

    #[test]
    fn a_program_is_read_to_its_end_or_killed() {
        let both = "head -c 2000000 /dev/zero | tr '\\0' x >&2; echo out; exit 3";
        let ended = run(both, Duration::from_secs(90)).expect("ended");
        assert_eq!(
            (ended.status.code(), &*ended.stdout),
            (Some(3), &b"out\n"[..])
        );
        assert_eq!(ended.stderr.len(), 1_000_000);
        for slow in [
            "exec sleep 600",
            "exec yes",
            "exec >&- 2>&-; exec sleep 600",
        ] {
            let result = run(slow, Duration::from_millis(50));
            assert!(
                matches!(result, Err(ProgramError::Slow { .. })),
                "{slow}: {result:?}"
            );
        }
    }
}
