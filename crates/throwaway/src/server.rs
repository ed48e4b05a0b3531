use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    time::Duration,
};

use super::{Account, Process, Scratch, Signal, ThrowawayError, process::tail, sync::lock};

/// The time that a server may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The process of a server with its directory. It is stopped, and started again with the same data.
///
/// Dropping it ends the server at once and removes the directory.
#[derive(Debug)]
pub struct ServerProcess {
    // Before `scratch`: drop the process first, then its directory.
    process: Mutex<Option<Process>>,
    scratch: Scratch,
}

impl ServerProcess {
    /// Makes the directory of a server that does not run yet. Its name begins with `prefix`, and it belongs to
    /// `account`.
    ///
    /// # Errors
    /// [`ThrowawayError::Io`].
    pub fn new(prefix: &str, account: Option<Account>) -> Result<Self, ThrowawayError> {
        let scratch = Scratch::new(prefix, account);
        Ok(Self {
            process: Mutex::new(None),
            scratch: scratch.map_err(ThrowawayError::io("make a temporary directory"))?,
        })
    }

    /// Starts the server, and waits until it is ready.
    ///
    /// # Errors
    /// [`ThrowawayError::Running`]; or as for [`Process::spawn`] and [`Process::wait_ready`].
    pub fn start(
        &self,
        command: &mut Command,
        limit: Duration,
        is_ready: impl FnMut() -> bool,
    ) -> Result<(), ThrowawayError> {
        if self.is_running() {
            return Err(ThrowawayError::Running);
        }
        // SIGKILL: these data need no orderly end.
        let process = Process::spawn(command, &self.scratch, &self.log_path(), Signal::Kill)?;
        process.wait_ready(limit, is_ready)?;
        *lock(&self.process) = Some(process);
        Ok(())
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// Returns the account that the server runs as; `None`: that of this process.
    pub(crate) fn account(&self) -> Option<Account> {
        self.scratch.account()
    }

    /// Returns the file that all starts log to.
    pub fn log_path(&self) -> PathBuf {
        self.dir().join("log")
    }

    /// Returns the log of all starts.
    pub fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Returns true if the server was started and has not ended.
    pub fn is_running(&self) -> bool {
        self.pid().is_some()
    }

    /// Returns the process id, if the server runs.
    pub fn pid(&self) -> Option<u32> {
        let process = lock(&self.process);
        let running = process.as_ref().filter(|it| it.ended().is_none());
        running.map(Process::pid)
    }

    /// Sends a signal to the server.
    ///
    /// # Errors
    /// [`ThrowawayError::Stopped`]; or the signal cannot be sent.
    pub fn signal(&self, signal: Signal) -> Result<(), ThrowawayError> {
        let process = lock(&self.process);
        let process = process.as_ref().ok_or(ThrowawayError::Stopped)?;
        let sent = process.signal(signal);
        sent.map_err(ThrowawayError::io("signal the server"))
    }

    /// Sends a signal to the server, and waits for its end.
    ///
    /// # Errors
    /// As for [`signal`](Self::signal); [`ThrowawayError::NotStopped`] after a minute.
    pub fn end_by(&self, signal: Signal) -> Result<(), ThrowawayError> {
        self.signal(signal)?;
        let mut process = lock(&self.process);
        if process
            .as_ref()
            .is_some_and(|it| it.wait(STOP_LIMIT).is_none())
        {
            let (waited, log_tail) = (STOP_LIMIT, tail(&self.log_path()));
            return Err(ThrowawayError::NotStopped { waited, log_tail });
        }
        *process = None;
        Ok(())
    }
}
