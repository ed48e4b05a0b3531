//! Three NATS servers as ordinary child processes, whose streams have three replicas.

use std::time::Duration;

use serde_json::{Value, json};
use walrelay_throwaway::Port;

use super::client::{NatsClient, NatsMessage};
use super::server::Nats;
use crate::wait::{PATIENCE, eventually, eventually_some};

const SERVERS: usize = 3;
/// The longest wait for one answer: a server may wait for an election.
const ANSWER: Duration = Duration::from_secs(1);

/// A cluster of three servers. They end with their owner.
#[derive(Debug)]
pub struct NatsCluster {
    servers: Vec<Nats>,
    /// The ports of their routes.
    _routes: [Port; SERVERS],
}

impl NatsCluster {
    /// Starts the servers, and waits until they have elected a leader.
    pub fn start() -> Self {
        let ports = [(); SERVERS].map(|()| Port::free().expect("a free port"));
        let routes = ports.iter().map(|port| format!("nats://127.0.0.1:{port}"));
        let routes: Vec<String> = routes.collect();
        let start = |(number, port): (usize, &Port)| {
            let more = format!(
                "cluster {{ name: test, listen: \"127.0.0.1:{port}\", routes: [{}] }}",
                routes.join(", ")
            );
            Nats::start_as(&name(number), &more)
        };
        let cluster = Self {
            servers: ports.iter().enumerate().map(start).collect(),
            _routes: ports,
        };
        cluster.settled();
        cluster
    }

    /// Returns a server.
    pub fn server(&self, number: usize) -> &Nats {
        &self.servers[number]
    }

    /// Connects a client to a server that runs.
    pub fn client(&self) -> NatsClient {
        let mut servers = self.servers.iter();
        let running = servers.find(|server| server.answers());
        running.expect("a server runs").client()
    }

    /// Creates a stream of three replicas, which has its name as its subject.
    pub fn create_stream(&self, name: &str, more: &Value) {
        let mut more = more.clone();
        more["num_replicas"] = json!(SERVERS);
        self.client().create_stream(name, &[name], &more);
        self.leader(name);
    }

    /// Waits until a stream has a leader. Returns the number of its server.
    pub fn leader(&self, stream: &str) -> usize {
        let info = eventually_some(PATIENCE, || self.info(stream));
        let leader = info["cluster"]["leader"].as_str().unwrap_or_default();
        let mut numbers = 0..SERVERS;
        let found = numbers.find(|number| name(*number) == leader);
        found.expect("the name of a server")
    }

    /// Reads all messages of a stream, from a replica that has them all.
    pub fn messages(&self, stream: &str) -> Vec<NatsMessage> {
        eventually_some(PATIENCE, || {
            let info = self.info(stream)?;
            let messages = self.client().messages(stream, ">");
            (info["state"]["messages"] == messages.len()).then_some(messages)
        })
    }

    /// Waits until the servers have a leader, and each stream has one.
    pub fn settled(&self) {
        eventually(PATIENCE, || {
            let names = self.api("STREAM.NAMES");
            let names = names.filter(|it| it.get("error").is_none());
            names.is_some_and(|names| {
                let streams = names["streams"].as_array().into_iter().flatten();
                let mut streams = streams.filter_map(Value::as_str);
                streams.all(|stream| self.info(stream).is_some())
            })
        });
    }

    /// Returns what the leader of a stream says of it; `None` if there is none.
    fn info(&self, stream: &str) -> Option<Value> {
        let info = self.api(&format!("STREAM.INFO.{stream}"))?;
        info.get("error").is_none().then_some(info)
    }

    fn api(&self, call: &str) -> Option<Value> {
        self.client().api_within(call, &json!({}), ANSWER)
    }
}

fn name(number: usize) -> String {
    format!("server-{number}")
}
