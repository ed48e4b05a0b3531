//! A NATS server as an ordinary child process.

use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use walrelay_throwaway::{Port, Process, Scratch, Signal, ThrowawayError, cache_dir};

use super::client::NatsClient;
use crate::threads::lock;

const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The variable of the environment that says `skip` where no NATS can be had, or names the program.
const SETTING: &str = "WALRELAY_TEST_NATS";
/// The version that `scripts/fetch-nats.sh` fetches.
const VERSION: &str = "2.15.1";

/// Returns the started servers, or panics.
#[track_caller]
pub(super) fn started<T>(start: Result<T, ThrowawayError>) -> T {
    start.unwrap_or_else(|error| {
        panic!(
            "NATS does not start: {error}; scripts/fetch-nats.sh fetches it (make test does), \
             {SETTING}=skip leaves its tests out"
        )
    })
}

/// A NATS server with JetStream, whose streams are in files: they outlive SIGKILL, as the operating
/// system has what the server has written. It ends with its owner.
#[derive(Debug)]
pub struct Nats {
    // Before `scratch`: drop the process first, then its directory.
    process: Mutex<Option<Process>>,
    scratch: Scratch,
    port: Port,
    /// The name among the servers of a cluster.
    name: String,
    /// Lines of the configuration besides those of every server.
    more: String,
}

impl Nats {
    /// Returns true if tests with NATS are to run. Otherwise says that they do not.
    #[expect(
        clippy::print_stderr,
        reason = "the log of the tests says what was left out"
    )]
    pub fn is_wanted() -> bool {
        let skip = std::env::var_os(SETTING).is_some_and(|value| value == "skip");
        if skip {
            eprintln!("skipped: {SETTING} is \"skip\"");
        }
        !skip
    }

    /// Returns the server that tests of this process share. Nobody stops it.
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<Nats> = LazyLock::new(Nats::start);
        &SHARED
    }

    /// Lends the server that one test of this process has at a time, and may stop, kill or pause.
    pub fn in_turn() -> NatsInTurn {
        let mut server = lock(&IN_TURN);
        if server.as_ref().is_none_or(|server| !server.answers()) {
            *server = Some(Self::start());
        }
        NatsInTurn(server)
    }

    /// Starts a server without data, and waits until it answers.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts a server without data and with more lines of configuration, such as those of users.
    pub fn start_with(more: &str) -> Self {
        started(Self::start_as("test", more))
    }

    /// Starts a server of this name on a free port.
    pub(super) fn start_as(name: &str, more: &str) -> Result<Self, ThrowawayError> {
        let scratch = Scratch::new("walrelay-nats-", None).expect("a directory for NATS");
        let new = Self {
            process: Mutex::new(None),
            scratch,
            port: Port::free().expect("a free port"),
            name: name.to_owned(),
            more: more.to_owned(),
        };
        new.run()?;
        Ok(new)
    }

    /// Returns the port, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the process id of the server, which runs.
    pub fn pid(&self) -> u32 {
        let process = lock(&self.process);
        process.as_ref().expect("the server runs").pid()
    }

    /// Connects a client.
    pub fn client(&self) -> NatsClient {
        NatsClient::connect(self.port())
    }

    /// Connects a client with more members of `CONNECT`, such as `user` and `pass`.
    pub fn client_as(&self, login: serde_json::Value) -> NatsClient {
        NatsClient::connect_as(self.port(), login)
    }

    /// Starts the server after [`kill`](Self::kill), with the same data.
    pub fn start_again(&self) {
        let started = self.run();
        started.unwrap_or_else(|error| panic!("NATS does not start again: {error}"));
    }

    fn run(&self) -> Result<(), ThrowawayError> {
        let dir = self.scratch.path();
        let config = format!(
            "listen: 127.0.0.1:{}\nserver_name: {}\nmax_payload: 1MB\n\
             jetstream {{ store_dir: \"{}\", max_file: 2GB, max_mem: 64MB }}\n{}\n",
            self.port,
            self.name,
            dir.join("store").display(),
            self.more
        );
        let file = dir.join("nats.conf");
        fs::write(&file, config).expect("a file");
        let mut command = program();
        command
            .arg("-c")
            .arg(&file)
            .current_dir(dir)
            .stdin(Stdio::null());
        let log = dir.join("log");
        let process = Process::spawn(&mut command, &self.scratch, &log, Signal::Kill)?;
        process.wait_ready(START_LIMIT, || self.takes_connections())?;
        *lock(&self.process) = Some(process);
        Ok(())
    }

    /// Ends the server by SIGKILL.
    pub fn kill(&self) {
        let process = lock(&self.process).take().expect("the server runs");
        process.signal(Signal::Kill).expect("SIGKILL");
        process.wait(STOP_LIMIT).expect("the server ends");
    }

    /// Stops the server by SIGSTOP: it answers nothing.
    pub fn pause(&self) {
        self.signal(Signal::Stop);
    }

    /// Lets the server go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal(Signal::Cont);
    }

    fn signal(&self, signal: Signal) {
        let process = lock(&self.process);
        let process = process.as_ref().expect("the server runs");
        process.signal(signal).expect("a signal");
    }

    /// Returns what the server has logged.
    pub fn log(&self) -> String {
        let log = fs::read(self.scratch.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    pub(super) fn answers(&self) -> bool {
        lock(&self.process).is_some() && self.takes_connections()
    }

    fn takes_connections(&self) -> bool {
        // Its first line comes when it takes clients, and JetStream has its streams by then.
        let greeting = TcpStream::connect(("127.0.0.1", self.port())).and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            let mut start = [0; 4];
            stream.read_exact(&mut start)?;
            Ok(start)
        });
        greeting.is_ok_and(|start| &start == b"INFO")
    }
}

static IN_TURN: Mutex<Option<Nats>> = Mutex::new(None);

/// The server of [`Nats::in_turn`]. The next test gets it as it is at the end of a test that passed.
#[derive(Debug)]
pub struct NatsInTurn(MutexGuard<'static, Option<Nats>>);

impl Deref for NatsInTurn {
    type Target = Nats;

    fn deref(&self) -> &Nats {
        self.0.as_ref().expect("it is there until the drop")
    }
}

impl Drop for NatsInTurn {
    fn drop(&mut self) {
        if thread::panicking() {
            *self.0 = None;
        } else if lock(&self.process).is_some() {
            // Does nothing unless the test has paused it.
            self.resume();
        }
    }
}

/// Returns the program: that of `scripts/fetch-nats.sh`, else that of the machine.
fn program() -> Command {
    if let Some(program) = std::env::var_os(SETTING) {
        return Command::new(program);
    }
    let fetched: PathBuf = cache_dir().join(format!("nats-{VERSION}/nats-server"));
    if fetched.is_file() {
        return Command::new(fetched);
    }
    Command::new("nats-server")
}
