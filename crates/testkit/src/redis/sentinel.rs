//! A master, a replica and a Sentinel, each an ordinary child process.

use std::collections::HashMap;
use std::fs;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use walrelay_throwaway::{Port, ServerProcess, ThrowawayError};

use super::client::RedisClient;
use super::server::{Redis, START_LIMIT, program};
use crate::wait::{PATIENCE, eventually, eventually_some};

/// The name of the master of every [`RedisGroup`].
const MASTER: &str = "mymaster";

/// Facts about a server by their names.
type Facts = HashMap<String, String>;

/// Two Redis servers and a Sentinel, which makes one of them the master. They end with their owner.
#[derive(Debug)]
pub struct RedisGroup {
    servers: [Redis; 2],
    _sentinel: ServerProcess,
    sentinel_port: Port,
    /// The server that was killed or paused last.
    down: AtomicUsize,
}

impl RedisGroup {
    /// Starts the servers, and waits until the Sentinel could promote the replica.
    pub fn start() -> Self {
        let servers = [Redis::start(), Redis::start()];
        let replica_of = format!("REPLICAOF 127.0.0.1 {}", servers[0].port());
        servers[1].client().done(&replica_of);
        let (sentinel, sentinel_port) = run(servers[0].port())
            .unwrap_or_else(|error| panic!("Sentinel does not start: {error}"));
        let group = Self {
            servers,
            _sentinel: sentinel,
            sentinel_port,
            down: AtomicUsize::new(0),
        };
        // Otherwise it needs more than ten seconds to see what has changed.
        for (period, millis) in [("info-period", 200), ("publish-period", 200)] {
            let debug = format!("SENTINEL DEBUG {period} {millis}");
            group.sentinel().done(&debug);
        }
        group.settled();
        group
    }

    /// Returns the port of the Sentinel, on 127.0.0.1.
    pub fn sentinel_port(&self) -> u16 {
        self.sentinel_port.number()
    }

    /// Connects a client to the Sentinel.
    pub fn sentinel(&self) -> RedisClient {
        RedisClient::connect(self.sentinel_port())
    }

    /// Returns the server that the Sentinel names as the master.
    pub fn master(&self) -> &Redis {
        &self.servers[self.number_of_master()]
    }

    /// Returns the server that the Sentinel does not name.
    pub fn replica(&self) -> &Redis {
        &self.servers[1 - self.number_of_master()]
    }

    fn number_of_master(&self) -> usize {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
        let (_, port): (String, u16) = self.sentinel().query(&words);
        let mut servers = self.servers.iter();
        let number = servers.position(|server| server.port() == port);
        number.expect("one of the two")
    }

    /// Ends the master by SIGKILL.
    pub fn kill_master(&self) {
        let number = self.number_of_master();
        self.down.store(number, SeqCst);
        self.servers[number].kill();
    }

    /// Waits until the Sentinel has made the other server the master.
    pub fn failed_over(&self) {
        let down = self.down.load(SeqCst);
        eventually(PATIENCE, || self.number_of_master() != down);
    }

    /// Starts the server that was killed, and waits until it is a replica, or the master again.
    pub fn start_again(&self) {
        self.servers[self.down.load(SeqCst)].start_again();
        self.settled();
    }

    /// Stops the master by SIGSTOP: it answers nothing.
    pub fn pause_master(&self) {
        let number = self.number_of_master();
        self.down.store(number, SeqCst);
        self.servers[number].pause();
    }

    /// Lets it go on, and waits until it is a replica, or the master again.
    pub fn resume(&self) {
        self.servers[self.down.load(SeqCst)].resume();
        self.settled();
    }

    /// Waits until the replica has what the master has, and the Sentinel knows.
    fn settled(&self) {
        eventually_some(PATIENCE, || {
            let master = self.number_of_master();
            let [master, replica] = [master, 1 - master].map(|number| {
                let info = self.servers[number].client().replication();
                info.unwrap_or_default()
            });
            let known: Facts = self.sentinel().query(&["SENTINEL", "MASTER", MASTER]);
            let replicas: Vec<Facts> = self.sentinel().query(&["SENTINEL", "REPLICAS", MASTER]);
            let flags = |facts: Option<&Facts>| facts.and_then(|it| it.get("flags")).cloned();
            let settled = master.contains("role:master")
                && master.contains("state=online")
                && replica.contains("master_link_status:up")
                && flags(Some(&known)).as_deref() == Some("master")
                && flags(replicas.first()).as_deref() == Some("slave");
            settled.then_some(())
        });
    }
}

/// Starts a Sentinel that watches the master at this port. Returns it with its port.
fn run(master: u16) -> Result<(ServerProcess, Port), ThrowawayError> {
    let process = ServerProcess::new("walrelay-redis-", None)?;
    let port = Port::free().expect("a free port");
    let dir = process.dir();
    let file = dir.join("sentinel.conf");
    let settings = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {MASTER} 127.0.0.1 {master} 1\n\
         sentinel down-after-milliseconds {MASTER} 500\nsentinel failover-timeout {MASTER} 2000\n",
        dir.display()
    );
    fs::write(&file, settings).expect("a file for Sentinel");
    let mut command = program();
    command.arg(&file).arg("--sentinel").current_dir(dir);
    process.start(&mut command, START_LIMIT, || {
        TcpStream::connect(("127.0.0.1", port.number())).is_ok()
    })?;
    Ok((process, port))
}
