//! A Redis server, alone or as a node of a cluster.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use redis::Value;
use walrelay_throwaway::{Port, ServerProcess, ThrowawayError, cache_dir};

use super::client::RedisClient;
use crate::authority::Issued;
use crate::server::{ServerKind, SharedServers, TestServer};

pub(super) const START_LIMIT: Duration = Duration::from_secs(60);

/// The milliseconds after which a node that does not answer counts as gone.
const NODE_TIMEOUT: &str = "2000";

/// The variable of the environment that says `skip` where no Redis can be had, or names the program of
/// another server, such as Valkey's.
const SETTING: &str = "WALRELAY_TEST_REDIS";

/// A Redis server that writes each command to its disk before it answers.
pub type Redis = TestServer<RedisServer>;

/// The parts of a [`Redis`].
#[derive(Debug)]
pub struct RedisServer {
    process: ServerProcess,
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
    /// Starts a server without data.
    pub(super) fn start_as(role: Role<'_>) -> Self {
        Self::started(RedisServer::start_as(role))
    }

    /// Returns the port for other nodes of the cluster.
    pub(super) fn bus_port(&self) -> u16 {
        let node = self.0.node.as_ref().expect("a node of a cluster");
        node.bus_port.number()
    }

    /// Returns the port by which other nodes know it.
    pub(super) fn port_for_nodes(&self) -> u16 {
        self.tls_port().unwrap_or(self.port())
    }

    /// Returns the port for clients with TLS; `None`: there is no TLS.
    pub fn tls_port(&self) -> Option<u16> {
        self.0.node.as_ref()?.tls_port.as_ref().map(Port::number)
    }

    /// Connects a client.
    pub fn client(&self) -> RedisClient {
        RedisClient::connect(self.port())
    }
}

impl RedisServer {
    fn start_as(role: Role<'_>) -> Result<Self, ThrowawayError> {
        let process = ServerProcess::new("walrelay-redis-", None)?;
        let [port, bus_port, tls_port] = [(); 3].map(|()| Port::free().expect("a free port"));
        if let Role::Node(Some(certificate)) = role {
            certificate.write(process.dir(), tls_port.number());
        }
        let node = match role {
            Role::Alone => None,
            Role::Node(certificate) => Some(Node {
                bus_port,
                tls_port: certificate.map(|_| tls_port),
            }),
        };
        let server = Self {
            process,
            port,
            node,
        };
        server.start_again()?;
        Ok(server)
    }
}

impl ServerKind for RedisServer {
    const NAME: &'static str = "Redis";
    const SETTING: &'static str = SETTING;
    const SCRIPT: &'static str = "scripts/fetch-redis.sh";

    fn start() -> Result<Self, ThrowawayError> {
        Self::start_as(Role::Alone)
    }

    fn start_again(&self) -> Result<(), ThrowawayError> {
        let dir = self.process.dir();
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
            .current_dir(dir);
        if let Some(Node { bus_port, .. }) = &self.node {
            command
                .args(["--cluster-enabled", "yes"])
                .args(["--cluster-port", &bus_port.to_string()])
                .args(["--cluster-node-timeout", NODE_TIMEOUT])
                .args(["--cluster-replica-validity-factor", "0"])
                .args(["--cluster-allow-replica-migration", "no"]);
        }
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
        TcpStream::connect(("127.0.0.1", self.port())).is_ok()
            && RedisClient::connect(self.port()).run("PING")
                == Value::SimpleString("PONG".to_owned())
    }

    fn servers() -> &'static SharedServers<Self> {
        static SERVERS: SharedServers<RedisServer> = SharedServers::new();
        &SERVERS
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
