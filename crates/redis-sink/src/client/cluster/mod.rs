//! Redis Cluster: the nodes, and which of them serves a stream.

mod slots;

use std::sync::Mutex;
use std::time::Duration;

use walrelay_sink::lock;
use walrelay_sink_client::Servers;

use super::error::{ProtocolError, RedisError};
use super::refusal::{Refusal, meaning};
use super::resp::{Reply, put_command};
use super::{Connection, Login};

pub(crate) use slots::{Address, SlotMap, slot};

/// A cluster as it was seen last.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// All nodes: the hosts of the configuration may be gone.
    known: Mutex<Vec<Address>>,
}

/// A connection to a node, and its view of the cluster.
pub(super) struct Seen {
    pub(super) connection: Connection,
    pub(super) address: Address,
    pub(super) map: SlotMap,
}

impl Cluster {
    /// Connects to the first node that answers, and reads its map of slots. `asked`: the node that is
    /// asked before all others. `first`: the number of the host that follows.
    pub(super) async fn look_up(
        &self,
        login: &Login,
        asked: Option<Address>,
        first: usize,
    ) -> Result<Seen, RedisError> {
        let mut hosts = login.servers.hosts.clone();
        let known = lock(&self.known).clone();
        hosts.extend(
            known
                .into_iter()
                .filter(|host| !login.servers.hosts.contains(host)),
        );
        let count = hosts.len().max(1);
        hosts.rotate_left(first % count);
        hosts.splice(0..0, asked);
        let servers = Servers {
            hosts,
            ..login.servers.clone()
        };
        let look_up = async |host: &str, port| {
            let mut connection = Connection::open(&servers, host, port).await?;
            connection.log_in(login).await?;
            let map = read_map(&mut connection, host, servers.timeout).await?;
            Ok(Seen {
                connection,
                address: (host.to_owned(), port),
                map,
            })
        };
        let seen: Result<Seen, RedisError> = servers.connect(0, look_up).await;
        let seen = seen?;
        *lock(&self.known) = seen.map.nodes().cloned().collect();
        Ok(seen)
    }
}

async fn read_map(
    connection: &mut Connection,
    host: &str,
    limit: Duration,
) -> Result<SlotMap, RedisError> {
    let mut out = Vec::new();
    put_command(&mut out, &["CLUSTER", "SLOTS"]);
    let replies = connection.call(&out, 1, limit).await?;
    let error = |reason: &str| RedisError::Cluster {
        address: connection.address.clone(),
        reason: reason.to_owned(),
    };
    match replies.first() {
        Some(Reply::Error(text)) if text.starts_with(b"ERR This instance has cluster support") => {
            Err(error("the server is no node of a cluster"))
        }
        Some(Reply::Error(text)) if meaning(text) == Refusal::Denied => {
            Err(error("the user may not use CLUSTER SLOTS"))
        }
        Some(Reply::Error(text)) => Err(connection.refused(text)),
        Some(reply) => {
            let map = SlotMap::parse(reply, host).map_err(|error| connection.protocol(error))?;
            if map.masters().is_empty() {
                return Err(connection.not_ready(
                    b"CLUSTERDOWN",
                    Refusal::Reconnect("the node knows no slot of a cluster"),
                ));
            }
            Ok(map)
        }
        None => Err(connection.protocol(ProtocolError("no reply"))),
    }
}
