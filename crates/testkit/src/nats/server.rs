//! A NATS server, alone or in a cluster.

use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use walrelay_throwaway::{Port, ServerProcess, ThrowawayError, cache_dir};

use super::client::NatsClient;
use crate::server::{ServerKind, SharedServers, TestServer};

const START_LIMIT: Duration = Duration::from_secs(60);

/// The variable of the environment that says `skip` where no NATS can be had, or names the program.
const SETTING: &str = "WALRELAY_TEST_NATS";
/// The version that `scripts/fetch-nats.sh` fetches.
const VERSION: &str = "2.15.1";

/// A NATS server with JetStream, whose streams are in files: they outlive SIGKILL, as the operating
/// system has what the server has written.
pub type Nats = TestServer<NatsServer>;

/// The parts of a [`Nats`].
#[derive(Debug)]
pub struct NatsServer {
    process: ServerProcess,
    port: Port,
    /// The name among the servers of a cluster.
    name: String,
    /// Lines of the configuration besides those of every server.
    more: String,
}

impl Nats {
    /// Starts a server without data and with more lines of configuration, such as those of users.
    pub fn start_with(more: &str) -> Self {
        Self::start_as("test", more)
    }

    /// Starts a server of this name on a free port.
    pub(super) fn start_as(name: &str, more: &str) -> Self {
        Self::started(NatsServer::start_as(name, more))
    }

    /// Connects a client.
    pub fn client(&self) -> NatsClient {
        NatsClient::connect(self.port())
    }

    /// Connects a client as a user.
    pub fn client_as(&self, user: &str, password: &str) -> NatsClient {
        NatsClient::connect_as(self.port(), user, password)
    }
}

impl NatsServer {
    fn start_as(name: &str, more: &str) -> Result<Self, ThrowawayError> {
        let server = Self {
            process: ServerProcess::new("walrelay-nats-", None)?,
            port: Port::free().expect("a free port"),
            name: name.to_owned(),
            more: more.to_owned(),
        };
        server.start_again()?;
        Ok(server)
    }
}

impl ServerKind for NatsServer {
    const NAME: &'static str = "NATS";
    const SETTING: &'static str = SETTING;
    const SCRIPT: &'static str = "scripts/fetch-nats.sh";

    fn start() -> Result<Self, ThrowawayError> {
        Self::start_as("test", "")
    }

    fn start_again(&self) -> Result<(), ThrowawayError> {
        let dir = self.process.dir();
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
        command.arg("-c").arg(&file).current_dir(dir);
        let is_ready = || self.takes_connections();
        self.process.start(&mut command, START_LIMIT, is_ready)
    }

    fn process(&self) -> &ServerProcess {
        &self.process
    }

    fn port(&self) -> u16 {
        self.port.number()
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

    fn servers() -> &'static SharedServers<Self> {
        static SERVERS: SharedServers<NatsServer> = SharedServers::new();
        &SERVERS
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
