//! A RabbitMQ server with its own epmd, as ordinary child processes.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use walrelay_throwaway::{ChildGuard, Process, Scratch, Signal, ThrowawayError, cache_dir};

use super::client::AmqpClient;
use crate::threads::lock;
use crate::wait::{PATIENCE, eventually};

/// Erlang starts slowly on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(240);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// A RabbitMQ server, which ends with its owner.
#[derive(Debug)]
pub struct RabbitMq {
    // Before `scratch`: drop the process first, then its directory.
    process: Mutex<Option<Process>>,
    /// The port mapper of Erlang, which would outlive the server otherwise.
    _epmd: ChildGuard,
    scratch: Scratch,
    tree: PathBuf,
    port: u16,
    distribution: u16,
    epmd: u16,
}

/// The variable of the environment that says `skip` where no RabbitMQ can be had.
const SETTING: &str = "WALRELAY_TEST_RABBITMQ";

/// The definitions of the users. The password of each is its name; its hash is the salt 1, 2, 3, 4
/// and SHA-256 of salt and password.
const USERS: &str = r#"{
    "users": [
        {"name": "guest", "tags": "administrator",
         "password_hash": "AQIDBEMMOXwY6PKx/JKP9PAqfsb4ozuD0Ta3pxxa9gEYBMmD",
         "hashing_algorithm": "rabbit_password_hashing_sha256"},
        {"name": "weak", "tags": "",
         "password_hash": "AQIDBE3ADeobBC8bTOTRuFPpL4upq90JVrBaIgEEQ1cplSjq",
         "hashing_algorithm": "rabbit_password_hashing_sha256"}
    ],
    "vhosts": [{"name": "/"}],
    "permissions": [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
        {"user": "weak", "vhost": "/", "configure": "", "write": "", "read": ".*"}
    ]
}
"#;

impl RabbitMq {
    /// Returns true if tests with RabbitMQ are to run. Otherwise says that they do not.
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
        static SHARED: LazyLock<RabbitMq> = LazyLock::new(RabbitMq::start);
        &SHARED
    }

    /// Lends the server that one test of this process has at a time, and may stop, kill or pause.
    pub fn in_turn() -> RabbitMqInTurn {
        let mut server = lock(&IN_TURN);
        if server.as_ref().is_none_or(|server| !server.answers()) {
            // The former one first, because it holds memory.
            *server = None;
            *server = Some(Self::start());
        }
        RabbitMqInTurn(server)
    }

    /// Starts a server with the users `guest`, who may do all, and `weak`, who may only read, and
    /// without data, and waits until it takes connections.
    pub fn start() -> Self {
        let tree = cache_dir().join("rabbitmq");
        assert!(
            tree.join(".complete").is_file(),
            "RabbitMQ is needed, and not in {}: run scripts/fetch-rabbitmq.sh (make test does), or \
             set {SETTING}=skip",
            tree.display()
        );
        let mut tries = 0;
        loop {
            match Self::on_free_ports(&tree) {
                Ok(server) => return server,
                // Another process may have taken a port meanwhile.
                Err(ThrowawayError::Ended { .. }) if tries < 5 => tries += 1,
                Err(error) => panic!("RabbitMQ does not start: {error}"),
            }
        }
    }

    fn on_free_ports(tree: &Path) -> Result<Self, ThrowawayError> {
        let scratch = Scratch::new("walrelay-rabbitmq-", None).expect("a directory for RabbitMQ");
        let [port, distribution, epmd] = free_ports();
        let settings = format!(
            "listeners.tcp.default = 127.0.0.1:{port}\nlog.console = true\nlog.file = false\n\
             disk_free_limit.absolute = 50MB\nvm_memory_high_watermark.absolute = 512MB\n\
             load_definitions = {}\n",
            scratch.path().join("users.json").display()
        );
        fs::write(scratch.path().join("users.json"), USERS).expect("users.json");
        fs::write(scratch.path().join("rabbitmq.conf"), settings).expect("rabbitmq.conf");
        fs::write(scratch.path().join("enabled_plugins"), "[].\n").expect("enabled_plugins");
        let mut mapper = Command::new(tree.join("usr/lib/erlang/bin/epmd"));
        mapper
            .env("ERL_EPMD_PORT", epmd.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mapper = ChildGuard::spawn(&mut mapper).expect("epmd");
        eventually(PATIENCE, || TcpStream::connect(("127.0.0.1", epmd)).is_ok());
        let new = Self {
            process: Mutex::new(None),
            _epmd: mapper,
            scratch,
            tree: tree.to_owned(),
            port,
            distribution,
            epmd,
        };
        new.run()?;
        Ok(new)
    }

    /// Returns the port of AMQP, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connects a client.
    pub fn client(&self) -> AmqpClient {
        AmqpClient::connect(self.port)
    }

    fn answers(&self) -> bool {
        lock(&self.process).is_some() && TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }

    /// Starts the server after [`kill`](Self::kill), with the same data.
    pub fn start_again(&self) {
        let started = self.run();
        started.unwrap_or_else(|error| panic!("RabbitMQ does not start again: {error}"));
    }

    fn run(&self) -> Result<(), ThrowawayError> {
        let mut command = self.command("rabbitmq-server");
        let log = self.log_path();
        let started = || self.log().matches("Server startup complete").count();
        let before = started();
        let process = Process::spawn(&mut command, &self.scratch, &log, Signal::Kill)?;
        process.wait_ready(START_LIMIT, || started() > before)?;
        *lock(&self.process) = Some(process);
        Ok(())
    }

    /// Ends the server by SIGKILL.
    pub fn kill(&self) {
        let process = lock(&self.process).take().expect("the server runs");
        process.signal(Signal::Kill).expect("SIGKILL");
        process.wait(STOP_LIMIT).expect("the server ends");
    }

    /// Waits until a quorum queue of the virtual host `/` outlives [`kill`](Self::kill).
    ///
    /// RabbitMQ 3.10 writes the name of a new quorum queue's Raft server to `names.dets` some time
    /// after the queue is declared, and by then confirms its messages. Killed before, it starts an
    /// empty queue of that name.
    pub fn outlives_kill(&self, quorum_queue: &str) {
        let node = format!("t{}@localhost", self.port);
        let names = self.scratch.path().join("mnesia").join(&node);
        let names = names.join("quorum").join(&node).join("names.dets");
        // The tag of a binary follows the name.
        let entry = format!("%2F_{quorum_queue}m");
        eventually(PATIENCE, || {
            let names = fs::read(&names).unwrap_or_default();
            let mut parts = names.windows(entry.len());
            parts.any(|part| part == entry.as_bytes())
        });
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

    /// Runs `rabbitmqctl` with these arguments.
    pub fn control(&self, arguments: &[&str]) {
        let output = self.command("rabbitmqctl").args(arguments).output();
        let output = output.expect("rabbitmqctl can be run");
        assert!(
            output.status.success(),
            "rabbitmqctl {arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Returns what the server has logged.
    pub fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    fn command(&self, program: &str) -> Command {
        let dir = self.scratch.path();
        let erlang = self.tree.join("usr/lib/erlang/bin");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program_path(&self.tree, program));
        command
            .env("PATH", format!("{}:{path}", erlang.display()))
            .env("HOME", dir)
            .env("RABBITMQ_NODENAME", format!("t{}@localhost", self.port))
            .env("RABBITMQ_MNESIA_BASE", dir.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", dir.join("logs"))
            .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
            .env("RABBITMQ_CONF_ENV_FILE", dir.join("none"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("enabled_plugins"))
            // The script then becomes the server, so that signals reach it.
            .env("RABBITMQ_ALLOW_INPUT", "1")
            .env("RABBITMQ_PID_FILE", dir.join("pid"))
            .env("RABBITMQ_DIST_PORT", self.distribution.to_string())
            .env("ERL_EPMD_PORT", self.epmd.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-noinput +S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
            )
            .current_dir(dir)
            .stdin(Stdio::null());
        command
    }
}

static IN_TURN: Mutex<Option<RabbitMq>> = Mutex::new(None);

/// The server of [`RabbitMq::in_turn`]. The next test gets it as it is at the end of a test that
/// passed.
#[derive(Debug)]
pub struct RabbitMqInTurn(MutexGuard<'static, Option<RabbitMq>>);

impl Deref for RabbitMqInTurn {
    type Target = RabbitMq;

    fn deref(&self) -> &RabbitMq {
        self.0.as_ref().expect("it is there until the drop")
    }
}

impl Drop for RabbitMqInTurn {
    fn drop(&mut self) {
        if thread::panicking() {
            *self.0 = None;
        } else if lock(&self.process).is_some() {
            // Does nothing unless the test has paused it.
            self.resume();
        }
    }
}

fn program_path(tree: &Path, program: &str) -> PathBuf {
    let lib = tree.join("usr/lib/rabbitmq/lib");
    let versions = fs::read_dir(lib).expect("RabbitMQ's directory");
    let server = versions.flatten().next().expect("a version of RabbitMQ");
    server.path().join("sbin").join(program)
}

fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("its address").port())
}
