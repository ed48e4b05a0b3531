use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::{Scratch, Signal, ThrowawayError, account::run_as, janitor::Janitor};

/// Between two looks whether a process has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A server process that ends when this value is dropped (SIGKILL, unless it has ended before) and
/// when its owner dies.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    log: PathBuf,
    janitor: Arc<Janitor>,
    child: Mutex<Reaped>,
}

/// A child, and how it ended if it was reaped.
#[derive(Debug)]
struct Reaped {
    child: Child,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` as the account `scratch` belongs to, in its own process group, with its
    /// output appended to the file `log`. If the owner dies it is sent `on_owner_death`.
    ///
    /// The command's own settings for user, group, process group and output are not kept. One
    /// process at a time per scratch directory: the janitor minds the latest.
    ///
    /// # Errors
    /// [`ThrowawayError::Io`] if the log cannot be opened or the program cannot be run.
    pub fn spawn(
        command: &mut Command,
        scratch: &Scratch,
        log: &Path,
        on_owner_death: Signal,
    ) -> Result<Self, ThrowawayError> {
        let opened = || {
            let out = OpenOptions::new().create(true).append(true).open(log)?;
            Ok((out.try_clone()?, out))
        };
        let (out, err) = opened().map_err(ThrowawayError::io(format!("open {}", log.display())))?;
        run_as(command, scratch.account())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0);
        let child = command.spawn().map_err(ThrowawayError::io(format!(
            "run {}",
            command.get_program().display()
        )))?;
        let (pid, janitor) = (child.id(), scratch.janitor());
        janitor.mind(pid, on_owner_death);
        Ok(Self {
            pid,
            log: log.to_owned(),
            janitor,
            child: Mutex::new(Reaped {
                child,
                status: None,
            }),
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The file its output goes to.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.look().status
    }

    /// Sends a signal. A process that has ended is none to signal: that is no error.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        // Locked, it is reaped by nobody else meanwhile: its pid is still its own.
        let reaped = self.look();
        match reaped.status {
            Some(_) => Ok(()),
            None => signal.send_to(&reaped.child),
        }
    }

    /// Waits until it has ended, or `limit` has passed: `None`.
    pub fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            let ended = self.ended();
            if ended.is_some() || Instant::now() >= deadline {
                return ended;
            }
            thread::sleep(LOOK);
        }
    }

    /// Polls `ready` until it gives true.
    ///
    /// # Errors
    /// [`ThrowawayError::Ended`] if the process ends before, [`ThrowawayError::NotReady`] after
    /// `limit`.
    pub fn wait_ready(
        &self,
        limit: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<(), ThrowawayError> {
        let deadline = Instant::now() + limit;
        loop {
            // The end is looked at first: what a dead server left behind must not pass for ready.
            if let Some(status) = self.wait(LOOK) {
                let log_tail = tail(&self.log);
                return Err(ThrowawayError::Ended { status, log_tail });
            }
            if ready() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let (waited, log_tail) = (limit, tail(&self.log));
                return Err(ThrowawayError::NotReady { waited, log_tail });
            }
        }
    }

    /// Reaps it if it has ended. The janitor forgets it then, once: another process may follow.
    fn look(&self) -> MutexGuard<'_, Reaped> {
        let mut reaped = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if reaped.status.is_none() {
            reaped.status = match reaped.child.try_wait() {
                Ok(status) => status,
                // Somebody else has reaped it: it has ended, we know not how.
                Err(_) => Some(ExitStatus::default()),
            };
            if reaped.status.is_some() {
                self.janitor.forget();
            }
        }
        reaped
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut reaped = self.look();
        if reaped.status.is_none() {
            // Neither fails but for a child that has ended.
            let _ = reaped.child.kill();
            let _ = reaped.child.wait();
            self.janitor.forget();
        }
    }
}

/// The last 40 lines of a log, or why there are none.
pub(super) fn tail(log: &Path) -> String {
    match fs::read(log) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        }
        Err(error) => format!("({} cannot be read: {error})", log.display()),
    }
}
