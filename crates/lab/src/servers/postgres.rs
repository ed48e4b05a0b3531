use std::{
    fmt, fs,
    fs::OpenOptions,
    io::Write as _,
    net::TcpListener,
    path::PathBuf,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{
    PostgresBinaries, Process, Scratch, Signal, ThrowawayError, Version,
    files::{prepare_environment, setting_line, write_private},
    process::tail,
};

pub(super) const SUPERUSER: &str = "postgres";

/// How long a server may take to become ready.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long a stop may take. A smart one waits for every session, so it may be long in vain.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The ways to stop a server, as in `pg_ctl stop --mode`.
/// <https://www.postgresql.org/docs/current/server-shutdown.html>
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// When the last session has ended of itself.
    Smart,
    /// Sessions are ended, the rest is orderly. Walsenders send what there is and wait for a client
    /// that still reads to confirm it.
    Fast,
    /// At once; the next start recovers from the WAL.
    Immediate,
}

/// A running, or stopped, Postgres server of one's own.
///
/// Its methods take `&self`, so that one thread may stop it while others use it. Dropping it stops
/// it at once and removes its directory.
pub struct Postgres {
    // Before `scratch`: the server goes first, then its directory.
    process: Mutex<Option<Process>>,
    pub(super) scratch: Scratch,
    pub(super) binaries: PostgresBinaries,
    password: String,
    port: u16,
    pub(super) tcp: bool,
}

impl Postgres {
    pub(super) fn first_start(
        binaries: PostgresBinaries,
        scratch: Scratch,
        password: String,
        tcp: bool,
    ) -> Result<Self, ThrowawayError> {
        let mut server = Self {
            process: Mutex::new(None),
            scratch,
            binaries,
            password,
            port: 5432,
            tcp,
        };
        // Between our looking for a free port and the server's taking it, another may come first.
        let mut tries = 0;
        loop {
            if tcp {
                server.port = free_port().map_err(ThrowawayError::io("find a free port"))?;
            }
            match server.launch() {
                Err(ThrowawayError::Ended { log_tail, .. })
                    if log_tail.contains("Address already in use") && tries < 10 =>
                {
                    tries += 1;
                    let _ = fs::remove_file(server.log_path());
                }
                Err(error) => return Err(error),
                Ok(process) => {
                    *server.process() = Some(process);
                    return Ok(server);
                }
            }
        }
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill), on the same port, with the
    /// same data.
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
            // Two things pass: children of a killed server that have not noticed yet hold its shared
            // memory, and somebody's outgoing connection may hold the port.
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
        let obstacles = [
            "Address already in use",
            "pre-existing shared memory block",
            "lock file",
        ];
        obstacles.iter().any(|words| new.contains(words))
    }

    fn launch(&self) -> Result<Process, ThrowawayError> {
        let addresses = if self.tcp { "127.0.0.1" } else { "" };
        let sockets = self.socket_dir();
        let mut command = Command::new(self.binaries.program("postgres"));
        command
            .arg("-D")
            .arg(self.data_dir())
            .args(["-p", &self.port.to_string()])
            .args(["-c", &format!("listen_addresses={addresses}")])
            .args([
                "-c",
                &format!("unix_socket_directories={}", sockets.display()),
            ]);
        prepare_environment(&mut command, self.scratch.path());
        // SIGQUIT, not SIGINT: after a fast shutdown's SIGINT the server would wait for a relay that
        // still reads, and nobody needs these data any more.
        let process = Process::spawn(&mut command, &self.scratch, &self.log_path(), Signal::Quit)?;
        let pid_file = self.data_dir().join("postmaster.pid");
        process.wait_ready(START_LIMIT, || {
            fs::read_to_string(&pid_file)
                .is_ok_and(|text| is_ready(&text, process.pid(), self.port))
        })?;
        Ok(process)
    }

    /// Stops it and waits for its end. The data stay. A server that has stopped stays so.
    ///
    /// # Errors
    /// [`ThrowawayError::NotStopped`] after a minute.
    pub fn stop(&self, how: Shutdown) -> Result<(), ThrowawayError> {
        self.end_by(match how {
            Shutdown::Smart => Signal::Term,
            Shutdown::Fast => Signal::Int,
            Shutdown::Immediate => Signal::Quit,
        })
    }

    /// SIGKILL to the postmaster, as the kernel does when memory runs out. Its children notice and
    /// end by themselves an instant later.
    ///
    /// # Errors
    /// [`ThrowawayError::Io`] if it cannot be signalled.
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

    /// Has the server read its configuration again (SIGHUP). Returns when the postmaster has begun
    /// to; sessions follow before their next command.
    ///
    /// # Errors
    /// [`ThrowawayError::Stopped`]; [`ThrowawayError::NotReady`] if it does not say so within
    /// 30 s.
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

    /// Appends a line to `postgresql.conf`. It counts from the next
    /// [`reload_settings`](Self::reload_settings) or start, as the setting itself allows. Port and
    /// addresses stay as they are.
    ///
    /// # Errors
    /// [`ThrowawayError::Invalid`] for a name or value that cannot be written.
    pub fn change_setting(&self, name: &str, value: &str) -> Result<(), ThrowawayError> {
        let line = setting_line(name, value)?;
        OpenOptions::new()
            .append(true)
            .open(self.data_dir().join("postgresql.conf"))
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(ThrowawayError::io("write postgresql.conf"))
    }

    /// Replaces, or makes, a file in the data directory that only the server may read, such as
    /// `pg_hba.conf` or a certificate.
    ///
    /// # Errors
    /// [`ThrowawayError::Io`].
    pub fn write_file(&self, name: &str, contents: &[u8]) -> Result<(), ThrowawayError> {
        let path = self.data_dir().join(name);
        write_private(&path, contents, self.scratch.account())
            .map_err(ThrowawayError::io(format!("write {name}")))
    }

    /// A URL for the superuser and the database `postgres` by the Unix socket. Contains the
    /// password.
    pub fn url(&self) -> String {
        self.url_for(SUPERUSER, Some(&self.password), "postgres")
    }

    /// The same by TCP; `None` if the server does not listen there.
    pub fn url_tcp(&self) -> Option<String> {
        self.url_tcp_for(SUPERUSER, Some(&self.password), "postgres")
    }

    /// A URL for any role and database, by the Unix socket.
    pub fn url_for(&self, user: &str, password: Option<&str>, database: &str) -> String {
        format!(
            "postgresql://{}@/{}?host={}&port={}",
            credentials(user, password),
            encode(database),
            encode(&self.socket_dir().to_string_lossy()),
            self.port
        )
    }

    /// The same by TCP; `None` if the server does not listen there.
    pub fn url_tcp_for(&self, user: &str, password: Option<&str>, db: &str) -> Option<String> {
        let (login, port, db) = (credentials(user, password), self.port, encode(db));
        self.tcp
            .then(|| format!("postgresql://{login}@127.0.0.1:{port}/{db}"))
    }

    /// The superuser's password.
    pub fn superuser_password(&self) -> &str {
        &self.password
    }

    /// Where the Unix socket lies.
    pub fn socket_dir(&self) -> PathBuf {
        self.scratch.path().join("s")
    }

    /// The port, which names the Unix socket too.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The data directory. It belongs to the account the server runs as.
    pub fn data_dir(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    /// The postmaster's process id, if it runs.
    pub fn pid(&self) -> Option<u32> {
        let process = self.process();
        let running = process.as_ref().filter(|process| process.ended().is_none());
        running.map(Process::pid)
    }

    /// The server's version.
    pub fn version(&self) -> Version {
        self.binaries.version()
    }

    /// The server's log, of all its starts.
    pub fn log_path(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    /// The last 40 lines of the log.
    pub fn log_tail(&self) -> String {
        tail(&self.log_path())
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("version", &self.version())
            .field("dir", &self.scratch.path())
            .field("port", &self.port)
            .field("tcp", &self.tcp)
            .finish_non_exhaustive()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(process) = self.process().take() {
            // SIGQUIT first: the postmaster takes its children along. Then, by dropping, SIGKILL.
            let _ = process.signal(Signal::Quit);
            let _ = process.wait(Duration::from_secs(10));
        }
    }
}

/// A port nobody listens at just now.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Whether `postmaster.pid` says that this very process is ready for connections at this port.
/// Lines: pid, data directory, start time, port, socket directory, address, shared memory, status.
/// (`src/include/utils/pidfile.h`)
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

/// The unreserved characters of RFC 3986 stay.
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
