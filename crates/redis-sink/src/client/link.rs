//! The connections of a sink: that to its server, or those to the masters of a cluster.

use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use walrelay_sink::{OpenRequest, SinkStats};
use walrelay_sink_client::{ConnectError, Connected};

use super::cluster::{Address, SlotMap, slot};
use super::error::RedisError;
use super::refusal::Refusal;
use super::resp::{Reply, put_command};
use super::{Connection, Login, connect, not_ready};

/// The most bytes of a buffer that is kept.
const KEPT_BYTES: usize = 4 << 20;

/// The place of a stream: streams of one place can be written by one transaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServerSlot {
    /// The number of the server.
    pub(crate) server: usize,
    /// The hash slot; 0 if there is no cluster.
    pub(crate) slot: u16,
}

/// Connections to all servers that are needed, by number. Without a cluster there is one server, which
/// has the number 0.
pub(crate) struct Link {
    servers: Vec<Server>,
    cluster: Option<View>,
    /// The number of the server that has answered or failed last, as far as it matters.
    shown: usize,
    /// A server has said that the map is out of date.
    stale: bool,
    /// Where servers that answer nothing are noted; `None`: nowhere.
    stats: Option<Arc<SinkStats>>,
}

/// The cluster as one of its nodes sees it. The numbers of servers are those of the map's masters.
struct View {
    login: Arc<Login>,
    map: SlotMap,
}

struct Server {
    name: String,
    /// `None`: nothing has needed it yet.
    connection: Option<Connection>,
    /// Commands that are not sent yet, and the number of their replies.
    out: Vec<u8>,
    expected: usize,
    /// It has been asked since [`Link::take_asked`].
    asked: bool,
}

impl Connected for Link {
    fn address(&self) -> &str {
        self.name(self.shown)
    }
}

impl Link {
    /// Connects to the first host that answers, beginning with that of the number `first`, and logs in.
    /// In a cluster, other nodes are connected to when they are needed.
    pub(crate) async fn connect(login: &Arc<Login>, first: usize) -> Result<Self, RedisError> {
        if login.cluster.is_none() {
            return Ok(Self::one(connect(login, first).await?));
        }
        Self::connect_to_cluster(login, None, first).await
    }

    /// Makes the link of one server that has all streams.
    pub(crate) fn one(connection: Connection) -> Self {
        Self {
            servers: vec![Server::new(connection.address.clone(), Some(connection))],
            cluster: None,
            shown: 0,
            stale: false,
            stats: None,
        }
    }

    async fn connect_to_cluster(
        login: &Arc<Login>,
        asked: Option<Address>,
        first: usize,
    ) -> Result<Self, RedisError> {
        let cluster = login.cluster.as_ref();
        let none = || ConnectError::Settings("no cluster is configured".to_owned());
        let seen = cluster
            .ok_or_else(none)?
            .look_up(login, asked, first)
            .await?;
        let mut connection = Some(seen.connection);
        let server = |(number, (host, port)): (usize, &Address)| {
            let is_seen = (host, port) == (&seen.address.0, &seen.address.1);
            let open = connection.take_if(|_| is_seen);
            (number, Server::new(format!("{host}:{port}"), open))
        };
        let masters = seen.map.masters().iter().map(|master| &master.address);
        let servers: Vec<(usize, Server)> = masters.enumerate().map(server).collect();
        let open = servers
            .iter()
            .find(|(_, server)| server.connection.is_some());
        Ok(Self {
            shown: open.map_or(0, |(number, _)| *number),
            servers: servers.into_iter().map(|(_, server)| server).collect(),
            cluster: Some(View {
                login: Arc::clone(login),
                map: seen.map,
            }),
            stale: false,
            stats: None,
        })
    }

    /// Makes servers that answer nothing be noted.
    pub(crate) fn watch(&mut self, stats: &Arc<SinkStats>) {
        self.stats = Some(Arc::clone(stats));
    }

    /// Reads the map of the cluster again, from the server that was [noted](Self::note_moved) if it
    /// answers. Connections to servers that are still masters stay open.
    pub(crate) async fn renew(&mut self) -> Result<(), RedisError> {
        self.stale = false;
        let Some(View { login, map }) = &self.cluster else {
            return Ok(());
        };
        let asked = map.masters().get(self.shown);
        let asked = asked.map(|master| master.address.clone());
        let mut renewed = Self::connect_to_cluster(&Arc::clone(login), asked, 0).await?;
        for server in self.servers.drain(..) {
            let mut same = renewed.servers.iter_mut();
            if let Some(same) = same.find(|renewed| renewed.name == server.name)
                && server.connection.is_some()
            {
                same.connection = server.connection;
            }
        }
        renewed.stats = self.stats.take();
        *self = renewed;
        Ok(())
    }

    /// Notes that a server has refused a request.
    pub(crate) fn note_refusal(&mut self, server: usize) {
        self.shown = server;
    }

    /// Notes that a server does not serve a slot that the map says it has, or not for now.
    pub(crate) fn note_moved(&mut self, server: usize) {
        self.shown = server;
        self.stale = true;
    }

    /// Returns true if the map is to be [renewed](Self::renew).
    pub(crate) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Returns the map of the cluster; `None` if there is one server.
    pub(crate) fn map(&self) -> Option<&SlotMap> {
        Some(&self.cluster.as_ref()?.map)
    }

    /// Returns host and port of each server.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().map(|server| &*server.name)
    }

    /// Returns host and port of a server.
    pub(crate) fn name(&self, server: usize) -> &str {
        self.servers.get(server).map_or("", |server| &server.name)
    }

    /// Finds the place of a stream.
    pub(crate) fn place(&self, stream: &str) -> Result<ServerSlot, RedisError> {
        let Some(View { map, .. }) = &self.cluster else {
            return Ok(ServerSlot::default());
        };
        let slot = slot(stream.as_bytes());
        let server = map.master_of(slot).ok_or_else(|| {
            let why = Refusal::Reconnect("no node of the cluster serves the slot of a stream");
            not_ready(self.address(), b"CLUSTERDOWN", why)
        })?;
        Ok(ServerSlot { server, slot })
    }

    /// Returns the connection to the server that has a stream.
    pub(crate) async fn connection_for(
        &mut self,
        stream: &str,
    ) -> Result<&mut Connection, RedisError> {
        let ServerSlot { server, .. } = self.place(stream)?;
        self.open(server).await
    }

    /// Connects to a server, unless there is a connection. Returns it.
    pub(crate) async fn open(&mut self, number: usize) -> Result<&mut Connection, RedisError> {
        let Server {
            connection, name, ..
        } = &mut self.servers[number];
        if let (None, Some(View { login, map })) = (&connection, &self.cluster) {
            self.shown = number;
            let (host, port) = &map.masters()[number].address;
            let stats = self.stats.as_ref();
            let open = stats.map(|stats| OpenRequest::new(stats, name));
            let mut opened = Connection::open(&login.servers, host, *port).await?;
            opened.log_in(login).await?;
            if let Some(open) = open {
                open.answered();
            }
            *connection = Some(opened);
        }
        connection.as_mut().ok_or_else(|| not_connected(name))
    }

    /// Appends a command for a server, which has one reply.
    pub(crate) fn put(&mut self, server: usize, command: &[&str]) {
        put_command(self.out(server), command);
        self.expect(server, 1);
    }

    /// Returns the buffer of the commands for a server. [`expect`](Self::expect) says how many replies
    /// they have.
    pub(crate) fn out(&mut self, server: usize) -> &mut Vec<u8> {
        let server = &mut self.servers[server];
        if server.expected == 0 {
            server.out.clear();
        }
        &mut server.out
    }

    /// Notes that the buffer has commands with this number of replies more.
    pub(crate) fn expect(&mut self, server: usize, replies: usize) {
        self.servers[server].expected += replies;
    }

    /// Sends the contents of the buffers, to all servers at once, and reads the replies. After an error, or
    /// if it is cancelled, the link cannot be used any more.
    pub(crate) async fn call(
        &mut self,
        limit: Duration,
    ) -> Vec<(usize, Result<Vec<Reply>, RedisError>)> {
        let stats = self.stats.as_ref();
        let asked = self.servers.iter_mut().enumerate();
        let asked = asked.filter(|(_, server)| server.expected > 0);
        let calls = asked.map(|(number, server)| async move {
            let open = stats.map(|stats| OpenRequest::new(stats, &server.name));
            let answer = server.call(limit).await;
            if let (Some(open), Ok(_)) = (open, &answer) {
                open.answered();
            }
            (number, answer)
        });
        let answered = all(calls).await;
        let failed = answered.iter().find(|(_, answer)| answer.is_err());
        if let Some((number, _)) = failed {
            self.shown = *number;
        }
        answered
    }

    /// Does the same, and returns the replies if all servers have answered.
    pub(crate) async fn call_all(
        &mut self,
        limit: Duration,
    ) -> Result<Vec<std::vec::IntoIter<Reply>>, RedisError> {
        let mut replies: Vec<_> = self
            .servers
            .iter()
            .map(|_| Vec::new().into_iter())
            .collect();
        for (server, answer) in self.call(limit).await {
            replies[server] = answer?.into_iter();
        }
        Ok(replies)
    }

    /// Returns the names of the servers that were asked since the last time.
    pub(crate) fn take_asked(&mut self) -> impl Iterator<Item = &str> {
        let servers = self.servers.iter_mut();
        servers.filter_map(|server| std::mem::take(&mut server.asked).then_some(&*server.name))
    }

    /// Waits until a server ends its connection. Can be cancelled.
    pub(crate) async fn ended(&mut self) -> RedisError {
        let open = self.servers.iter_mut().enumerate();
        let open = open.filter_map(|(number, server)| Some((number, server.connection.as_mut()?)));
        let wait = |(number, connection): (usize, _)| async move {
            let connection: &mut Connection = connection;
            (number, connection.ended().await)
        };
        let mut waits: Vec<_> = open.map(|connection| Box::pin(wait(connection))).collect();
        let (number, error) = poll_fn(|context| {
            let mut ended = waits.iter_mut().map(|wait| wait.as_mut().poll(context));
            ended.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await;
        drop(waits);
        self.shown = number;
        error
    }
}

impl Server {
    fn new(name: String, connection: Option<Connection>) -> Self {
        Self {
            name,
            connection,
            out: Vec::new(),
            expected: 0,
            asked: false,
        }
    }

    async fn call(&mut self, limit: Duration) -> Result<Vec<Reply>, RedisError> {
        let expected = std::mem::take(&mut self.expected);
        self.asked = true;
        let Some(connection) = &mut self.connection else {
            return Err(not_connected(&self.name));
        };
        let answer = connection.call(&self.out, expected, limit).await;
        if self.out.capacity() > KEPT_BYTES {
            self.out = Vec::new();
        }
        answer
    }
}

fn not_connected(name: &str) -> RedisError {
    let address = name.to_owned();
    let source = io::ErrorKind::NotConnected.into();
    ConnectError::Io { address, source }.into()
}

/// Awaits all of them at once.
async fn all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        let mut is_pending = false;
        for (future, done) in &mut futures {
            if done.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(output) => *done = Some(output),
                    Poll::Pending => is_pending = true,
                }
            }
        }
        if is_pending {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    futures.into_iter().filter_map(|(_, done)| done).collect()
}
