//! A program under test.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use walrelay_measure::proc;
use walrelay_throwaway::{ChildGuard, Pauses, Signal};

use crate::threads::{lock, spawn};
use crate::wait::PATIENCE;

/// Most bytes of a log that a failure shows: at the level trace a log has many megabytes.
const SHOWN: usize = 200_000;

/// Limit of a command that runs to its end. Some publish events for a while.
const COMMAND_LIMIT: Duration = Duration::from_secs(10 * 60);

/// Runs a command to its end, without input. Returns what it printed; kills it and panics if it has not
/// ended after ten minutes.
#[track_caller]
pub fn output(command: &mut Command) -> Output {
    let name = command.get_program().display().to_string();
    let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let spawned = ChildGuard::spawn(pipes.stderr(Stdio::piped()));
    let mut child = spawned.unwrap_or_else(|error| panic!("{name} cannot be run: {error}"));
    let stdout = read_to_end(child.stdout.take().expect("a pipe"));
    let stderr = read_to_end(child.stderr.take().expect("a pipe"));
    let begun = Instant::now();
    let bytes = |from: Receiver<Vec<u8>>| {
        let left = COMMAND_LIMIT.saturating_sub(begun.elapsed());
        from.recv_timeout(left).unwrap_or_else(|_| {
            panic!("{name} did not end and close its output within {COMMAND_LIMIT:?}: {command:?}")
        })
    };
    let (stdout, stderr) = (bytes(stdout), bytes(stderr));
    let mut pauses = Pauses::new();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        let waited = begun.elapsed();
        assert!(waited < COMMAND_LIMIT, "{name} did not end: {command:?}");
        pauses.pause();
    };
    Output {
        status,
        stdout,
        stderr,
    }
}

/// Reads a pipe in a thread of its own.
fn read_to_end(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (read, all) = channel();
    spawn("output", move || {
        let mut bytes = Vec::new();
        // The other side may be killed.
        let _ = pipe.read_to_end(&mut bytes);
        let _ = read.send(bytes);
    });
    all
}

/// A running program, such as `walrelay run`, with its log in a file. Dropping it kills it.
#[derive(Debug)]
pub struct Program {
    child: Mutex<ChildGuard>,
    log: PathBuf,
}

impl Program {
    /// Starts a command with both outputs in this file.
    pub fn spawn(command: &mut Command, log: &Path) -> Self {
        let file = File::create(log).expect("a log file");
        let both = file.try_clone().expect("a second handle");
        Self::start(command.stdout(both).stderr(file), log)
    }

    /// Starts a command with only standard error in this file.
    pub fn spawn_to(command: &mut Command, stdout: impl Into<Stdio>, log: &Path) -> Self {
        let file = File::create(log).expect("a log file");
        Self::start(command.stdout(stdout).stderr(file), log)
    }

    fn start(command: &mut Command, log: &Path) -> Self {
        let child = ChildGuard::spawn(command.stdin(Stdio::null())).unwrap_or_else(|error| {
            panic!("{} cannot be run: {error}", command.get_program().display())
        });
        Self {
            child: Mutex::new(child),
            log: log.to_owned(),
        }
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.end_of_log(usize::MAX)
    }

    fn end_of_log(&self, bytes: usize) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(bytes)..]).into_owned()
    }

    /// Waits until the condition holds, which `what` names; panics with the log if the program ends
    /// before.
    #[track_caller]
    pub fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let mut pauses = Pauses::new();
        loop {
            let ended = self.status();
            // After the status: the last words of a program that has ended count.
            if condition() {
                return;
            }
            let log = || self.end_of_log(SHOWN);
            assert!(ended.is_none(), "{ended:?} before {what}; log:\n{}", log());
            assert!(pauses.waited() < PATIENCE, "no {what}; log:\n{}", log());
            pauses.pause();
        }
    }

    /// Waits until the log contains `words`.
    #[track_caller]
    pub fn says(&self, words: &str) {
        self.says_often(words, 1);
    }

    /// Waits until the log contains `words` this often.
    #[track_caller]
    pub fn says_often(&self, words: &str, times: usize) {
        let what = format!("{words:?}, {times} times");
        self.until(&what, || self.log().matches(words).count() >= times);
    }

    /// Waits until the relay streams.
    #[track_caller]
    pub fn streaming(&self) {
        self.says("\"streaming\"");
    }

    /// Returns how often the relay has started to stream.
    pub fn streams(&self) -> usize {
        self.log().matches("\"streaming\"").count()
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        lock(&self.child).id()
    }

    /// Returns the exit status, once the program has ended.
    pub fn status(&self) -> Option<ExitStatus> {
        lock(&self.child).try_wait().expect("a child")
    }

    /// Sends a signal, unless the program has ended.
    pub fn signal(&self, signal: Signal) {
        let mut child = lock(&self.child);
        // Once its status was read, another process may have its pid.
        if child.try_wait().expect("a child").is_none() {
            child.signal(signal).expect("a signal is sent");
        }
    }

    /// Waits for the end of the program.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        self.until("end", || {
            status = self.status();
            status.is_some()
        });
        status.expect("it has ended")
    }

    /// Sends SIGTERM; returns exit code and log.
    #[track_caller]
    pub fn terminate(mut self) -> (Option<i32>, String) {
        self.signal(Signal::Term);
        let code = self.ended().code();
        (code, self.log())
    }

    /// Sends SIGTERM and asserts by the exit code that everything is confirmed. Returns the log.
    #[track_caller]
    pub fn ends_well(self) -> String {
        let (code, log) = self.terminate();
        assert_eq!(code, Some(0), "{log}");
        log
    }

    /// Sends SIGKILL.
    pub fn kill(self) {
        self.signal(Signal::Kill);
    }

    /// Returns the peak of the memory of its own, in MiB: `VmHWM` of proc(5) without `RssFile`, the
    /// pages of the program and of libraries. A build for tests has 30 MiB of these and a release
    /// 12, and they grow with the program, not with what it relays.
    pub fn peak_memory(&self) -> u64 {
        let memory = |name| proc::memory(self.pid(), name).expect("it runs");
        memory("VmHWM").saturating_sub(memory("RssFile")) >> 20
    }
}
