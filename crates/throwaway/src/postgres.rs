use std::{
    fmt, fs,
    path::PathBuf,
    process::Command,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{
    Port, PostgresBinaries, Process, Scratch, Signal, ThrowawayError, Version,
    files::{append_settings, prepare_environment, setting_line, write_private},
    process::tail,
    sync::lock,
};

pub(crate) const SUPERUSER: &str = "postgres";

/// The time that a server may take to become ready.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The time that a stop may take.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The ways to stop a server, as in `pg_ctl stop --mode`.
/// <https://www.postgresql.org/docs/current/server-shutdown.html>
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Ends all sessions and stops in order. Walsenders send the remaining WAL and wait until a
    /// client that still reads has confirmed it.
    Fast,
    /// Stops at once; the next start recovers from the WAL.
    Immediate,
}

/// A throwaway Postgres server, running or stopped.
///
/// Its methods take `&self`, so that one thread may stop it while others use it. Dropping it stops
/// it at once and removes its directory.
pub struct Postgres {
    // Before `scratch`: drop the server first, then its directory.
    process: Mutex<Option<Process>>,
    pub(crate) scratch: Scratch,
    pub(crate) binaries: PostgresBinaries,
    password: String,
    port: Port,
}

impl Postgres {
    pub(crate) fn first_start(
        binaries: PostgresBinaries,
        scratch: Scratch,
        password: String,
    ) -> Result<Self, ThrowawayError> {
        let server = Self {
            process: Mutex::new(None),
            scratch,
            binaries,
            password,
            port: Port::free().map_err(ThrowawayError::io("find a free port"))?,
        };
        let process = server.launch()?;
        *server.process() = Some(process);
        Ok(server)
    }

    /// Starts the server after [`stop`](Self::stop) or [`kill`](Self::kill), on the same port with
    /// the same data.
    ///
    /// # Errors
    /// [`ThrowawayError::Running`]; or as for [`Builder::start`](super::Builder::start).
    pub fn start_again(&self) -> Result<(), ThrowawayError> {
        let mut process = self.process();
        let running = |process: &Process| process.ended().is_none();
        if process.as_ref().is_some_and(running) {
            return Err(ThrowawayError::Running);
        }
        let deadline = Instant::now() + START_LIMIT;
        loop {
            // One obstacle is temporary: children of a killed server still hold its shared memory.
            let before = fs::metadata(self.log_path()).map_or(0, |meta| meta.len());
            match self.launch() {
                Ok(started) => {
                    *process = Some(started);
                    return Ok(());
                }
                Err(ThrowawayError::Ended { .. })
                    if Instant::now() < deadline && self.obstacle_passes(before) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn obstacle_passes(&self, log_from: u64) -> bool {
        let log = fs::read(self.log_path()).unwrap_or_default();
        let new = String::from_utf8_lossy(log.get(log_from as usize..).unwrap_or_default());
        let obstacles = ["pre-existing shared memory block", "lock file"];
        obstacles.iter().any(|words| new.contains(words))
    }

    fn launch(&self) -> Result<Process, ThrowawayError> {
        let sockets = format!("unix_socket_directories={}", self.socket_dir().display());
        let mut command = Command::new(self.binaries.program("postgres"));
        command
            .arg("-D")
            .arg(self.data_dir())
            .args(["-p", &self.port.to_string()])
            .args(["-c", "listen_addresses=127.0.0.1", "-c", &sockets]);
        prepare_environment(&mut command, self.scratch.path());
        // SIGQUIT, not SIGINT: after SIGINT (fast shutdown) the server would wait for a relay that
        // still reads, and nobody needs these data any more.
        let process = Process::spawn(&mut command, &self.scratch, &self.log_path(), Signal::Quit)?;
        let pid_file = self.data_dir().join("postmaster.pid");
        process.wait_ready(START_LIMIT, || {
            fs::read_to_string(&pid_file)
                .is_ok_and(|text| is_ready(&text, process.pid(), self.port()))
        })?;
        Ok(process)
    }

    /// Stops the server and waits for its end. The data stay. For a stopped server it does nothing.
    ///
    /// # Errors
    /// [`ThrowawayError::NotStopped`] after a minute.
    pub fn stop(&self, how: Shutdown) -> Result<(), ThrowawayError> {
        self.end_by(match how {
            Shutdown::Fast => Signal::Int,
            Shutdown::Immediate => Signal::Quit,
        })
    }

    /// Sends SIGKILL to the postmaster, as the kernel does when memory runs out. Its children
    /// notice and end by themselves a moment later.
    ///
    /// # Errors
    /// [`ThrowawayError::Io`] if the server cannot be signalled.
    pub fn kill(&self) -> Result<(), ThrowawayError> {
        self.end_by(Signal::Kill)
    }

    fn end_by(&self, signal: Signal) -> Result<(), ThrowawayError> {
        let mut slot = self.process();
        let Some(process) = slot.as_ref() else {
            return Ok(());
        };
        process
            .signal(signal)
            .map_err(ThrowawayError::io("signal the server"))?;
        if process.wait(STOP_LIMIT).is_none() {
            let (waited, log_tail) = (STOP_LIMIT, self.log_tail());
            return Err(ThrowawayError::NotStopped { waited, log_tail });
        }
        *slot = None;
        Ok(())
    }

    /// Makes the server read its configuration again (SIGHUP). Returns when the postmaster has
    /// begun to read; sessions follow before their next command.
    ///
    /// # Errors
    /// [`ThrowawayError::Stopped`]; [`ThrowawayError::NotReady`] if the server does not log the
    /// reload within 30 s.
    pub fn reload_settings(&self) -> Result<(), ThrowawayError> {
        let slot = self.process();
        let process = slot.as_ref().ok_or(ThrowawayError::Stopped)?;
        let reloads = || {
            let log = fs::read(self.log_path()).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            log.matches("received SIGHUP").count()
        };
        let before = reloads();
        process
            .signal(Signal::Hup)
            .map_err(ThrowawayError::io("signal the server"))?;
        process.wait_ready(START_LIMIT, || reloads() > before)
    }

    /// Appends a line to `postgresql.conf`. It takes effect at the next
    /// [`reload_settings`](Self::reload_settings) or start, depending on the setting. Port and
    /// addresses cannot be changed.
    ///
    /// # Errors
    /// [`ThrowawayError::Invalid`] for a name or value that cannot be written.
    pub fn change_setting(&self, name: &str, value: &str) -> Result<(), ThrowawayError> {
        append_settings(&self.data_dir(), &setting_line(name, value)?)
    }

    /// Creates or replaces a file in the data directory that only the server may read, such as
    /// `pg_hba.conf` or a certificate.
    ///
    /// # Errors
    /// [`ThrowawayError::Io`].
    pub fn write_file(&self, name: &str, contents: &[u8]) -> Result<(), ThrowawayError> {
        let path = self.data_dir().join(name);
        write_private(&path, contents, self.scratch.account())
            .map_err(ThrowawayError::io(format!("write {name}")))
    }

    /// Returns the URL of the superuser and the database `postgres` by the Unix socket. It contains
    /// the password.
    pub fn url(&self) -> String {
        self.url_for(SUPERUSER, Some(&self.password), "postgres")
    }

    /// Returns the URL of the superuser and the database `postgres` by TCP.
    pub fn url_tcp(&self) -> String {
        self.url_tcp_for(SUPERUSER, Some(&self.password), "postgres")
    }

    /// Returns the URL of any role and database, by the Unix socket.
    pub fn url_for(&self, user: &str, password: Option<&str>, database: &str) -> String {
        format!(
            "postgresql://{}@/{}?host={}&port={}",
            credentials(user, password),
            encode(database),
            encode(&self.socket_dir().to_string_lossy()),
            self.port
        )
    }

    /// Returns the URL of any role and database, by TCP.
    pub fn url_tcp_for(&self, user: &str, password: Option<&str>, db: &str) -> String {
        let (login, port, db) = (credentials(user, password), self.port(), encode(db));
        format!("postgresql://{login}@127.0.0.1:{port}/{db}")
    }

    /// Returns the password of the superuser.
    pub fn superuser_password(&self) -> &str {
        &self.password
    }

    /// Returns the directory of the Unix socket.
    pub fn socket_dir(&self) -> PathBuf {
        self.scratch.path().join("s")
    }

    /// Returns the port, which the name of the Unix socket contains too.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the data directory. It belongs to the account that the server runs as.
    pub fn data_dir(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    /// Returns the process id of the postmaster, if it runs.
    pub fn pid(&self) -> Option<u32> {
        let process = self.process();
        let running = process.as_ref().filter(|process| process.ended().is_none());
        running.map(Process::pid)
    }

    /// Returns the version of the server.
    pub fn version(&self) -> Version {
        self.binaries.version()
    }

    /// Returns the server's log file, of all its starts.
    pub fn log_path(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    /// Returns the last 40 lines of the log file.
    pub fn log_tail(&self) -> String {
        tail(&self.log_path())
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        lock(&self.process)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("version", &self.version())
            .field("dir", &self.scratch.path())
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(process) = self.process().take() {
            // SIGQUIT first: the postmaster then ends its children. Dropping the process sends
            // SIGKILL.
            let _ = process.signal(Signal::Quit);
            let _ = process.wait(Duration::from_secs(10));
        }
    }
}

/// Returns whether `postmaster.pid` says that this very process accepts connections at this port.
/// Lines: pid, data directory, start time, port, socket directory, address, shared memory, status
/// (`src/include/utils/pidfile.h`).
fn is_ready(pid_file: &str, pid: u32, port: u16) -> bool {
    let lines: Vec<&str> = pid_file.lines().map(str::trim_end).collect();
    lines.len() >= 8
        && lines[0] == pid.to_string()
        && lines[3] == port.to_string()
        && lines[7] == "ready"
}

fn credentials(user: &str, password: Option<&str>) -> String {
    match password {
        Some(password) => format!("{}:{}", encode(user), encode(password)),
        None => encode(user),
    }
}

/// All characters but the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_that_of_this_process_at_this_port() {
        let file = "77\n/d/data\n1700000000\n4711\n/d/s\n127.0.0.1\n  123 456\nready   \n";
        assert!(is_ready(file, 77, 4711));
        assert!(!is_ready(file, 78, 4711));
        assert!(!is_ready(file, 77, 4712));
        assert!(!is_ready(&file.replace("ready   ", "starting"), 77, 4711));
        assert!(!is_ready("77\n/d/data\n", 77, 4711));
        assert!(!is_ready("", 77, 4711));
    }

    #[test]
    fn urls_are_encoded() {
        assert_eq!(encode("/tmp/a b"), "%2Ftmp%2Fa%20b");
        assert_eq!(
            credentials("o'neil", Some("p@ss:/é")),
            "o%27neil:p%40ss%3A%2F%C3%A9"
        );
    }
}
