//! A Redis server as an ordinary child process.

use std::fs;
use std::net::TcpStream;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use walrelay_throwaway::{Port, Process, Scratch, Signal, ThrowawayError, cache_dir};

use super::client::{RedisClient, RedisReply};
use crate::authority::Issued;
use crate::threads::lock;

pub(super) const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The milliseconds after which a node that does not answer counts as gone.
const NODE_TIMEOUT: &str = "2000";

/// The variable of the environment that says `skip` where no Redis can be had, or names the program of
/// another server, such as Valkey's.
const SETTING: &str = "WALRELAY_TEST_REDIS";

/// A Redis server that writes each command to its disk before it answers. It ends with its owner.
#[derive(Debug)]
pub struct Redis {
    // Before `scratch`: drop the process first, then its directory.
    process: Mutex<Option<Process>>,
    scratch: Scratch,
    port: Port,
    /// `None`: it is no node of a cluster.
    node: Option<Node>,
}

/// The ports of a node of a cluster besides the one for clients without TLS.
#[derive(Debug)]
struct Node {
    /// The port for other nodes.
    bus_port: Port,
    /// The port for clients with TLS. Between the nodes there is TLS, too.
    tls_port: Option<Port>,
}

/// The use of a server.
#[derive(Clone, Copy)]
pub(super) enum Role<'a> {
    /// A server of its own.
    Alone,
    /// A node of a cluster of which it knows no other node; with a certificate it speaks TLS.
    Node(Option<&'a NodeCertificate<'a>>),
}

/// A certificate of all nodes of a cluster.
pub(super) struct NodeCertificate<'a> {
    pub(super) host: &'a str,
    pub(super) issued: Issued,
    pub(super) authority: String,
}

impl Redis {
    /// Returns true if tests with Redis are to run. Otherwise says that they do not.
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
        static SHARED: LazyLock<Redis> = LazyLock::new(Redis::start);
        &SHARED
    }

    /// Lends the server that one test of this process has at a time, and may stop, kill or pause.
    pub fn in_turn() -> RedisInTurn {
        let mut server = lock(&IN_TURN);
        if server.as_ref().is_none_or(|server| !server.answers()) {
            *server = Some(Self::start());
        }
        RedisInTurn(server)
    }

    /// Starts a server without data, and waits until it answers.
    pub fn start() -> Self {
        Self::start_as(Role::Alone)
    }

    /// Starts a server without data.
    pub(super) fn start_as(role: Role<'_>) -> Self {
        Self::try_start(role).unwrap_or_else(|error| {
            panic!(
                "Redis does not start: {error}; scripts/fetch-redis.sh fetches it (make test does), \
                 {SETTING}=skip leaves its tests out"
            )
        })
    }

    fn try_start(role: Role<'_>) -> Result<Self, ThrowawayError> {
        let scratch = Scratch::new("walrelay-redis-", None).expect("a directory for Redis");
        let [port, bus_port, tls_port] = [(); 3].map(|()| Port::free().expect("a free port"));
        if let Role::Node(Some(certificate)) = role {
            certificate.write(scratch.path(), tls_port.number());
        }
        let node = match role {
            Role::Alone => None,
            Role::Node(certificate) => Some(Node {
                bus_port,
                tls_port: certificate.map(|_| tls_port),
            }),
        };
        let new = Self {
            process: Mutex::new(None),
            scratch,
            port,
            node,
        };
        new.run()?;
        Ok(new)
    }

    /// Returns the port, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the port for other nodes of the cluster.
    pub(super) fn bus_port(&self) -> u16 {
        let node = self.node.as_ref().expect("a node of a cluster");
        node.bus_port.number()
    }

    /// Returns the port by which other nodes know it.
    pub(super) fn port_for_nodes(&self) -> u16 {
        self.tls_port().unwrap_or(self.port())
    }

    /// Returns the port for clients with TLS; `None`: there is no TLS.
    pub fn tls_port(&self) -> Option<u16> {
        self.node.as_ref()?.tls_port.as_ref().map(Port::number)
    }

    /// Returns the process id of the server, which runs.
    pub fn pid(&self) -> u32 {
        let process = lock(&self.process);
        process.as_ref().expect("the server runs").pid()
    }

    /// Connects a client.
    pub fn client(&self) -> RedisClient {
        RedisClient::connect(self.port())
    }

    /// Starts the server after [`kill`](Self::kill), with the same data.
    pub fn start_again(&self) {
        let started = self.run();
        started.unwrap_or_else(|error| panic!("Redis does not start again: {error}"));
    }

    fn run(&self) -> Result<(), ThrowawayError> {
        let dir = self.scratch.path();
        let mut command = program();
        // Read before the arguments.
        let settings = dir.join(SETTINGS);
        if settings.exists() {
            command.arg(settings);
        }
        command
            .args(["--port", &self.port.to_string()])
            .args(["--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "always"])
            .arg("--dir")
            .arg(dir)
            .current_dir(dir)
            .stdin(Stdio::null());
        if let Some(Node { bus_port, .. }) = &self.node {
            command
                .args(["--cluster-enabled", "yes"])
                .args(["--cluster-port", &bus_port.to_string()])
                .args(["--cluster-node-timeout", NODE_TIMEOUT])
                .args(["--cluster-replica-validity-factor", "0"])
                .args(["--cluster-allow-replica-migration", "no"]);
        }
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
        TcpStream::connect(("127.0.0.1", self.port())).is_ok()
            && self.client().run("PING") == RedisReply::Line("PONG".to_owned())
    }
}

/// The file of the settings that are no arguments.
const SETTINGS: &str = "settings.conf";

impl NodeCertificate<'_> {
    /// Writes the certificate and the settings of a node that speaks TLS.
    fn write(&self, folder: &Path, tls_port: u16) {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).expect("a file");
            path.display().to_string()
        };
        let authority = write("ca.pem", &self.authority);
        let certificate = write("certificate.pem", &self.issued.certificate);
        let key = write("key.pem", &self.issued.key);
        let settings = format!(
            "tls-port {tls_port}\ntls-cluster yes\ntls-auth-clients no\n\
             tls-ca-cert-file {authority}\ntls-cert-file {certificate}\ntls-key-file {key}\n\
             cluster-announce-hostname {}\ncluster-preferred-endpoint-type hostname\n",
            self.host
        );
        write(SETTINGS, &settings);
    }
}

static IN_TURN: Mutex<Option<Redis>> = Mutex::new(None);

/// The server of [`Redis::in_turn`]. The next test gets it as it is at the end of a test that passed.
#[derive(Debug)]
pub struct RedisInTurn(MutexGuard<'static, Option<Redis>>);

impl Deref for RedisInTurn {
    type Target = Redis;

    fn deref(&self) -> &Redis {
        self.0.as_ref().expect("it is there until the drop")
    }
}

impl Drop for RedisInTurn {
    fn drop(&mut self) {
        if thread::panicking() {
            *self.0 = None;
        } else if lock(&self.process).is_some() {
            // Does nothing unless the test has paused it.
            self.resume();
        }
    }
}

/// Returns the program: that of `scripts/fetch-redis.sh`, else that of the machine.
pub(super) fn program() -> Command {
    if let Some(program) = std::env::var_os(SETTING) {
        return Command::new(program);
    }
    let tree: PathBuf = cache_dir().join("redis");
    if !tree.join(".complete").is_file() {
        return Command::new("redis-server");
    }
    let mut command = Command::new(tree.join("usr/bin/redis-server"));
    command.env("LD_LIBRARY_PATH", tree.join("libraries"));
    command
}
