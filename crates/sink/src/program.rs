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

/// The limit of a program's output, for each pipe.
#[derive(Debug, Clone, Copy)]
pub enum OutputLimit {
    /// So many bytes are kept, and the rest is read and dropped: a full or closed pipe would hold the program up or
    /// end it.
    Kept(usize),
    /// A program that writes more than so many bytes is killed.
    AtMost(usize),
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
    /// It was killed, because it wrote more than it may.
    #[error("its output is longer than {most} bytes")]
    TooLong {
        /// The number of bytes that it may write.
        most: usize,
    },
    /// It was killed, because it took too long.
    #[error("it has not ended after {} s, and was killed", limit.as_secs())]
    Slow {
        /// The time that it had.
        limit: Duration,
    },
}

/// Runs a program to its end. A program that has not ended after `limit` is killed.
pub fn run_program(
    command: &mut Command,
    limit: Duration,
    output: OutputLimit,
) -> Result<EndedProgram, ProgramError> {
    let deadline = Instant::now() + limit;
    let slow = || ProgramError::Slow { limit };
    let mut child = KillOnDrop(command.spawn().map_err(ProgramError::Start)?);
    let stdout = read_aside(child.0.stdout.take(), output).map_err(ProgramError::Start)?;
    let stderr = read_aside(child.0.stderr.take(), output).map_err(ProgramError::Start)?;
    let read = |pipe: Receiver<Result<Vec<u8>, ProgramError>>| {
        let left = deadline.saturating_duration_since(Instant::now());
        pipe.recv_timeout(left).map_err(|_| slow())?
    };
    let (stdout, stderr) = (read(stdout)?, read(stderr)?);
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
    output: OutputLimit,
) -> io::Result<Receiver<Result<Vec<u8>, ProgramError>>> {
    let (sender, receiver) = channel();
    let read = move || {
        let read = pipe.map_or(Ok(Vec::new()), |pipe| read_within(pipe, output));
        // The receiver may be gone.
        let _ = sender.send(read);
    };
    let thread = thread::Builder::new().name("program-output".to_owned());
    thread.spawn(read).map(|_| receiver)
}

fn read_within(mut pipe: impl Read, output: OutputLimit) -> Result<Vec<u8>, ProgramError> {
    let mut bytes = Vec::new();
    let read = match output {
        OutputLimit::Kept(most) => {
            let mut kept = pipe.by_ref().take(most as u64);
            let read = kept.read_to_end(&mut bytes);
            read.and_then(|_| io::copy(&mut pipe, &mut io::sink()))
        }
        OutputLimit::AtMost(most) => {
            let read = pipe.take(most as u64 + 1).read_to_end(&mut bytes);
            if bytes.len() > most {
                return Err(ProgramError::TooLong { most });
            }
            read.map(|read| read as u64)
        }
    };
    read.map(|_| bytes).map_err(ProgramError::Output)
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

    fn run(line: &str, limit: Duration, output: OutputLimit) -> Result<EndedProgram, ProgramError> {
        let mut command = Command::new("/bin/sh");
        let command = command.args(["-c", line]).stdin(Stdio::null());
        run_program(
            command.stdout(Stdio::piped()).stderr(Stdio::piped()),
            limit,
            output,
        )
    }

    #[test]
    fn a_program_is_read_to_its_end_or_killed() {
        let both = "head -c 2000000 /dev/zero | tr '\\0' x >&2; echo out; exit 3";
        let (kept, long) = (OutputLimit::Kept(1_000_000), Duration::from_secs(90));
        let ended = run(both, long, kept).expect("ended");
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
            let result = run(slow, Duration::from_millis(50), kept);
            assert!(
                matches!(result, Err(ProgramError::Slow { .. })),
                "{slow}: {result:?}"
            );
        }
        for longer in ["exec yes", "yes & exec sleep 600"] {
            let result = run(longer, long, OutputLimit::AtMost(1_000));
            assert!(
                matches!(result, Err(ProgramError::TooLong { most: 1_000 })),
                "{longer}: {result:?}"
            );
        }
        let most = run("printf abc", long, OutputLimit::AtMost(3)).expect("ended");
        assert_eq!(most.stdout, b"abc");
    }
}
