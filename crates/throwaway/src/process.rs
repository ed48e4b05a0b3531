use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use super::{
    Pauses, Scratch, Signal, ThrowawayError, account::run_as, janitor::Janitor, sync::lock,
};

/// A server process that ends when this value is dropped (by SIGKILL, unless it has ended before)
/// and when its owner dies.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    log: PathBuf,
    janitor: Arc<Janitor>,
    child: Mutex<Reaped>,
}

/// A child, and its exit status once it was reaped.
#[derive(Debug)]
struct Reaped {
    child: Child,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` in its own process group as the account that owns `scratch`, with its
    /// output appended to the file `log`. If the owner dies, the process is sent `on_owner_death`.
    ///
    /// The command's own settings for user, group, process group and output are replaced. A scratch
    /// directory serves one process at a time: the janitor knows only the latest.
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
        janitor.watch(pid, on_owner_death);
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

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the file that the output goes to.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the exit status, if the process has ended.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.reap().status
    }

    /// Sends a signal. For a process that has ended it does nothing.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        // Under the lock nobody else reaps the process, so its pid is not reused.
        let reaped = self.reap();
        match reaped.status {
            Some(_) => Ok(()),
            None => signal.send_to(&reaped.child),
        }
    }

    /// Waits until the process has ended; `None` after `limit`.
    pub fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let mut pauses = Pauses::new();
        loop {
            let ended = self.ended();
            if ended.is_some() || pauses.waited() >= limit {
                return ended;
            }
            pauses.pause();
        }
    }

    /// Polls `ready` until it returns true.
    ///
    /// # Errors
    /// [`ThrowawayError::Ended`] if the process ends before, [`ThrowawayError::NotReady`] after
    /// `limit`.
    pub fn wait_ready(
        &self,
        limit: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<(), ThrowawayError> {
        let mut pauses = Pauses::new();
        loop {
            pauses.pause();
            // Check for the end first: files that a dead server left must not pass for readiness.
            if let Some(status) = self.ended() {
                let log_tail = tail(&self.log);
                return Err(ThrowawayError::Ended { status, log_tail });
            }
            if ready() {
                return Ok(());
            }
            if pauses.waited() >= limit {
                let (waited, log_tail) = (limit, tail(&self.log));
                return Err(ThrowawayError::NotReady { waited, log_tail });
            }
        }
    }

    /// Reaps the process if it has ended. The janitor is informed once, because another process may
    /// follow.
    fn reap(&self) -> MutexGuard<'_, Reaped> {
        let mut reaped = lock(&self.child);
        if reaped.status.is_none() {
            reaped.status = match reaped.child.try_wait() {
                Ok(status) => status,
                // Another part of this program reaped it, so the exit status is unknown.
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
        let mut reaped = self.reap();
        if reaped.status.is_none() {
            // Both fail only for a child that has ended.
            let _ = reaped.child.kill();
            let _ = reaped.child.wait();
            self.janitor.forget();
        }
    }
}

/// Returns the last 40 lines of a log, or why it cannot be read.
pub(crate) fn tail(log: &Path) -> String {
    match fs::read(log) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        }
        Err(error) => format!("({} cannot be read: {error})", log.display()),
    }
}
