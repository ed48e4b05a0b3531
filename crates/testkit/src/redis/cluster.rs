//! A Redis Cluster of ordinary child processes.

use redis::Value;

use super::client::RedisClient;
use super::server::{NodeCertificate, Redis, Role};
use crate::authority::Authority;
use crate::wait::{PATIENCE, eventually};

/// The number of masters.
const MASTERS: usize = 3;
/// The number of slots of every cluster.
const SLOTS: usize = 16_384;

/// Three masters, each with one replica or none. They end with their owner.
#[derive(Debug)]
pub struct RedisCluster {
    /// The first three begin as masters, and the others as their replicas, in the same order.
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts the nodes, and waits until each knows all others.
    pub fn start(with_replicas: bool) -> Self {
        let count = if with_replicas { 2 * MASTERS } else { MASTERS };
        Self::start_as(count, Role::Node(None))
    }

    /// Starts three masters that speak TLS, too, with a certificate for this host name alone, which
    /// they announce.
    pub fn start_with_tls(authority: &Authority, host: &str) -> Self {
        let certificate = NodeCertificate {
            host,
            issued: authority.node(host),
            authority: authority.pem(),
        };
        let cluster = Self::start_as(MASTERS, Role::Node(Some(&certificate)));
        let name = format!(",{host} ");
        eventually(PATIENCE, || {
            cluster.nodes.iter().all(|node| {
                let nodes = node.client().text("CLUSTER NODES");
                nodes.matches(&name).count() == MASTERS
            })
        });
        cluster
    }

    fn start_as(count: usize, role: Role<'_>) -> Self {
        let nodes: Vec<Redis> = (0..count).map(|_| Redis::start_as(role)).collect();
        for (number, node) in nodes.iter().enumerate() {
            let mut client = node.client();
            client.done(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
            if number < MASTERS {
                let first = SLOTS * number / MASTERS;
                let last = SLOTS * (number + 1) / MASTERS - 1;
                client.done(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            }
            let port = nodes[0].port_for_nodes();
            let bus_port = nodes[0].bus_port();
            if number > 0 {
                client.done(&format!("CLUSTER MEET 127.0.0.1 {port} {bus_port}"));
            }
        }
        let cluster = Self { nodes };
        for replica in MASTERS..count {
            let replicate = format!("CLUSTER REPLICATE {}", cluster.id(replica - MASTERS));
            // Until it knows its master.
            eventually(PATIENCE, || {
                cluster.client(replica).run(&replicate) == Value::Okay
            });
        }
        cluster.settled();
        cluster
    }

    /// Returns a node.
    pub fn node(&self, number: usize) -> &Redis {
        &self.nodes[number]
    }

    /// Connects a client to a node.
    pub fn client(&self, number: usize) -> RedisClient {
        self.nodes[number].client()
    }

    /// Returns the id of a node.
    pub fn id(&self, number: usize) -> String {
        self.client(number).text("CLUSTER MYID")
    }

    /// Returns the slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        let mut client = self.running().client();
        client.query(&["CLUSTER", "KEYSLOT", key])
    }

    /// Returns the number of the node that serves the slot of a key, as a node says that runs.
    pub fn owner(&self, key: &str) -> usize {
        self.owner_as_seen_by(self.running(), key)
    }

    /// Connects a client to the node that serves the slot of a key.
    pub fn client_of(&self, key: &str) -> RedisClient {
        self.client(self.owner(key))
    }

    fn owner_as_seen_by(&self, node: &Redis, key: &str) -> usize {
        let slot = i64::from(self.slot(key));
        let ranges: Vec<Vec<Value>> = node.client().query(&["CLUSTER", "SLOTS"]);
        let port = ranges.iter().find_map(|range| {
            let [
                Value::Int(first),
                Value::Int(last),
                Value::Array(master),
                ..,
            ] = &**range
            else {
                panic!("no range: {range:?}");
            };
            (*first..=*last).contains(&slot).then(|| master[1].clone())
        });
        let mut ports = self.nodes.iter().map(|it| Value::Int(it.port().into()));
        let port = port.expect("the slot is served");
        ports.position(|it| it == port).expect("a node")
    }

    fn running(&self) -> &Redis {
        self.nodes
            .iter()
            .find(|node| node.answers())
            .expect("a node runs")
    }

    /// Waits until all nodes that run agree that another node than this one serves the key.
    pub fn failed_over(&self, key: &str, from: usize) {
        let running: Vec<&Redis> = self.nodes.iter().filter(|it| it.answers()).collect();
        eventually(PATIENCE, || {
            let owner = |node: &&Redis| self.owner_as_seen_by(node, key);
            running
                .iter()
                .all(|node| owner(node) != from && is_fine(node))
        });
    }

    /// Waits until each node sees all others, and each replica has what its master has.
    pub fn settled(&self) {
        let links = format!("cluster_known_nodes:{}\r", self.nodes.len());
        eventually(PATIENCE, || {
            self.nodes.iter().all(|node| {
                let mut client = node.client();
                let nodes = client.text("CLUSTER NODES");
                let info = client.text("CLUSTER INFO");
                let replication = client.replication().unwrap_or_default();
                is_fine(node)
                    && info.contains(&links)
                    && !nodes.contains("fail")
                    && !nodes.contains("handshake")
                    && (replication.contains("role:master")
                        || replication.contains("master_link_status:up"))
            })
        });
        // A replica counts for its master.
        eventually(PATIENCE, || {
            let masters = self.nodes.iter().filter_map(|node| {
                let replication = node.client().replication().unwrap_or_default();
                replication.contains("role:master").then_some(replication)
            });
            let wanted = usize::from(self.nodes.len() > MASTERS);
            let online = masters.map(|it| it.matches("state=online").count());
            let online: Vec<usize> = online.collect();
            online.len() == MASTERS && online.iter().all(|it| *it == wanted)
        });
    }

    /// Begins to move the slot of a key to another node.
    pub fn begin_move(&self, key: &str, to: usize) {
        let (slot, from) = (self.slot(key), self.owner(key));
        let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.id(from));
        self.client(to).done(&importing);
        let migrating = format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.id(to));
        self.client(from).done(&migrating);
    }

    /// Moves a key to the node that its slot is being moved to.
    pub fn move_key(&self, key: &str, to: usize) {
        let port = self.nodes[to].port_for_nodes();
        let migrate = format!("MIGRATE 127.0.0.1 {port} {key} 0 60000");
        self.client_of(key).done(&migrate);
    }

    /// Ends the move of a slot.
    pub fn end_move(&self, key: &str, to: usize) {
        let (slot, from, id) = (self.slot(key), self.owner(key), self.id(to));
        let node = format!("CLUSTER SETSLOT {slot} NODE {id}");
        self.client(to).done(&node);
        self.client(from).done(&node);
    }
}

fn is_fine(node: &Redis) -> bool {
    node.client()
        .text("CLUSTER INFO")
        .contains("cluster_state:ok")
}
