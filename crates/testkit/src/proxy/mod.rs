use std::{
    collections::BTreeSet,
    io,
    net::{SocketAddr, ToSocketAddrs},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc as std_mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{Semaphore, mpsc, watch},
    time::Instant,
};

use crate::{
    threads::{lock, run, spawn},
    wait::{PATIENCE, eventually},
};

/// The most bytes that a connection holds in one direction.
const IN_FLIGHT_BYTES: usize = 4 << 20;

/// Direction of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The direction from the client to the server behind the proxy.
    ToServer,
    /// The direction from the server to the client.
    ToClient,
}

/// The way in which a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// An orderly end of both directions (FIN).
    Fin,
    /// A reset (RST).
    Reset,
}

/// The rules in force. Every connection watches them.
#[derive(Debug, Clone)]
struct Rules {
    /// Server of new connections.
    server: SocketAddr,
    /// Connections with a lower number are cut, in this way.
    cut: (u64, Cut),
    stalled: [bool; 2],
    /// Connections with a lower number forward nothing more, not even their end.
    forgotten: u64,
    delay: [Duration; 2],
    /// The share of chunks that are lost, and how much later they are sent again; both directions.
    loss: (f64, Duration),
    /// Most bytes per second on each connection.
    rate: [Option<u32>; 2],
    /// Connections with a lower number are closed for writing in that direction.
    half_closed: [u64; 2],
    refusing: bool,
    ending: bool,
}

#[derive(Debug, Default)]
struct Shared {
    bytes: [AtomicU64; 2],
    accepted: AtomicU64,
    listening: AtomicBool,
    open: Mutex<BTreeSet<u64>>,
    half_closed: Mutex<[BTreeSet<u64>; 2]>,
    /// Decides which chunks are lost.
    rng: Mutex<fastrand::Rng>,
    /// Number of bytes after which the connection that carries them is reset.
    reset_after: Mutex<[Option<u64>; 2]>,
}

/// A TCP proxy that misbehaves on command, to test faults of the network.
///
/// Bytes that it holds stand for bytes on the way, or in the sender's system: a reset by either side throws them
/// away, an orderly end does not. Commands take effect before they return. Dropping it resets the open connections.
#[derive(Debug)]
pub struct ChaosProxy {
    address: SocketAddr,
    rules: watch::Sender<Rules>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ChaosProxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `server`. The server need not be up yet:
    /// a client that connects meanwhile is reset.
    #[track_caller]
    pub fn start(server: impl ToSocketAddrs) -> Self {
        let server = resolve(server);
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let (rules, watching) = watch::channel(Rules::to(server));
        let shared = Arc::new(Shared::default());
        let (up, ready) = std_mpsc::sync_channel(1);
        let thread = spawn("proxy", {
            let shared = Arc::clone(&shared);
            move || run(accept(listener, address, watching, shared, up))
        });
        let () = ready.recv().expect("the proxy listens");
        Self {
            address,
            rules,
            shared,
            thread: Some(thread),
        }
    }

    /// Returns the address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the port that clients connect to, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Redirects new connections to another server, like an address that moves. Open connections
    /// stay with the former server: [`cut`](Self::cut) them.
    #[track_caller]
    pub fn lead_to(&self, server: impl ToSocketAddrs) {
        let server = resolve(server);
        self.set(|rules| rules.server = server);
    }

    fn set(&self, change: impl FnOnce(&mut Rules)) {
        self.rules.send_modify(change);
    }

    /// Cuts every open connection. New ones are served.
    #[track_caller]
    pub fn cut(&self, how: Cut) {
        let below = self.accepted();
        self.set(|rules| rules.cut = (below, how));
        eventually(PATIENCE, || {
            lock(&self.shared.open).iter().all(|id| *id >= below)
        });
    }

    /// Forwards nothing more in either direction. Connections stay open, new ones are accepted.
    pub fn stall(&self) {
        self.set(|rules| rules.stalled = [true; 2]);
    }

    /// Forwards nothing more in this direction.
    pub fn stall_direction(&self, direction: Direction) {
        self.set(|rules| rules.stalled[direction as usize] = true);
    }

    /// Ends the stall and forwards what was held back.
    pub fn resume(&self) {
        self.set(|rules| rules.stalled = [false; 2]);
    }

    /// Makes every open connection forward nothing more, not even its end, until it is cut, like a
    /// firewall that has lost its state. New connections are served.
    pub fn forget(&self) {
        let below = self.accepted();
        self.set(|rules| rules.forgotten = below);
    }

    /// Closes this direction of every open connection, so that the receiver reads its end. The
    /// other direction stays open.
    #[track_caller]
    pub fn half_close(&self, direction: Direction) {
        let below = self.accepted();
        self.set(|rules| rules.half_closed[direction as usize] = below);
        eventually(PATIENCE, || {
            let done = lock(&self.shared.half_closed);
            lock(&self.shared.open)
                .iter()
                .all(|id| *id >= below || done[direction as usize].contains(id))
        });
    }

    /// Delays each byte of this direction. Throughput stays the same up to 4 MiB in flight on a
    /// connection.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.set(|rules| rules.delay[direction as usize] = delay);
    }

    /// Limits each connection in this direction to this many bytes per second; `None` for no limit.
    /// The sender then waits for a slow receiver.
    pub fn throttle(&self, direction: Direction, bytes_per_second: Option<u32>) {
        self.set(|rules| rules.rate[direction as usize] = bytes_per_second);
    }

    /// Loses this share of the chunks in both directions and sends them again after `timeout`, as
    /// TCP does with a lost packet; later chunks of the connection wait. A share of 0 ends it.
    pub fn lose(&self, part: f64, timeout: Duration, seed: u64) {
        *lock(&self.shared.rng) = fastrand::Rng::with_seed(seed);
        self.set(|rules| rules.loss = (part, timeout));
    }

    /// Resets one connection, once: the one that carries the last of this many more bytes in this
    /// direction, counted over all connections. The number can be chosen to hit the middle of a
    /// frame.
    pub fn reset_after(&self, direction: Direction, bytes: u64) {
        lock(&self.shared.reset_after)[direction as usize] = Some(bytes);
    }

    /// Returns whether a reset that [`reset_after`](Self::reset_after) ordered has not happened
    /// yet.
    pub fn reset_pending(&self, direction: Direction) -> bool {
        lock(&self.shared.reset_after)[direction as usize].is_some()
    }

    /// Refuses new connections, like a machine on which nothing listens, or serves them again. Open
    /// connections stay.
    #[track_caller]
    pub fn refuse(&self, refuse: bool) {
        self.set(|rules| rules.refusing = refuse);
        eventually(PATIENCE, || {
            self.shared.listening.load(Ordering::SeqCst) != refuse
        });
    }

    /// Returns the number of bytes forwarded in this direction.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.shared.bytes[direction as usize].load(Ordering::SeqCst)
    }

    /// Returns the number of connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Returns the number of connections open now.
    pub fn open(&self) -> usize {
        lock(&self.shared.open).len()
    }
}

impl Drop for ChaosProxy {
    fn drop(&mut self) {
        self.set(|rules| rules.ending = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Rules {
    fn to(server: SocketAddr) -> Self {
        Self {
            server,
            cut: (0, Cut::Reset),
            stalled: [false; 2],
            forgotten: 0,
            delay: [Duration::ZERO; 2],
            loss: (0.0, Duration::ZERO),
            rate: [None; 2],
            half_closed: [0; 2],
            refusing: false,
            ending: false,
        }
    }
}

#[track_caller]
fn resolve(server: impl ToSocketAddrs) -> SocketAddr {
    server
        .to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .expect("the server's address can be resolved")
}

async fn accept(
    listener: std::net::TcpListener,
    address: SocketAddr,
    mut rules: watch::Receiver<Rules>,
    shared: Arc<Shared>,
    up: std_mpsc::SyncSender<()>,
) {
    listener
        .set_nonblocking(true)
        .expect("a listener can be made non-blocking");
    let mut listener = Some(TcpListener::from_std(listener).expect("the runtime takes a listener"));
    shared.listening.store(true, Ordering::SeqCst);
    let _ = up.send(());
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let now = rules.borrow_and_update().clone();
        if now.ending {
            break;
        }
        if now.refusing {
            listener = None;
        } else if listener.is_none() {
            // Tokio sets SO_REUSEADDR. Another process may have the port for a moment, so try
            // again.
            listener = TcpListener::bind(address).await.ok();
        }
        shared.listening.store(listener.is_some(), Ordering::SeqCst);
        while connections.try_join_next().is_some() {}
        tokio::select! {
            _ = rules.changed() => {}
            Some(accepted) = async {
                match &listener {
                    Some(listener) => Some(listener.accept().await),
                    None if now.refusing => None,
                    None => {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        Some(Err(io::ErrorKind::AddrInUse.into()))
                    }
                }
            } => {
                let Ok((client, _)) = accepted else { continue };
                let connection = {
                    // Take the number and add the entry under one lock: commands for "every open
                    // connection" compare both.
                    let mut open = lock(&shared.open);
                    let id = shared.accepted.fetch_add(1, Ordering::SeqCst);
                    open.insert(id);
                    Connection { id, rules: rules.clone(), shared: Arc::clone(&shared) }
                };
                let server = rules.borrow().server;
                connections.spawn(connection.serve(client, server));
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

struct Connection {
    id: u64,
    rules: watch::Receiver<Rules>,
    shared: Arc<Shared>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        lock(&self.shared.open).remove(&self.id);
    }
}

impl Connection {
    async fn serve(self, mut client: TcpStream, server: SocketAddr) {
        // A cut does not interrupt this: a socket that is dropped while it connects would end with
        // FIN, not with a reset.
        let connected = tokio::time::timeout(PATIENCE / 2, TcpStream::connect(server)).await;
        let Ok(Ok(mut server)) = connected else {
            let _ = client.set_zero_linger();
            return;
        };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let how = {
            let (client_in, client_out) = client.split();
            let (server_in, server_out) = server.split();
            tokio::select! {
                how = self.until_cut() => how,
                done = async {
                    tokio::try_join!(
                        self.pump(Direction::ToServer, client_in, server_out),
                        self.pump(Direction::ToClient, server_in, client_out),
                    )
                } => if done.is_ok() { Cut::Fin } else { Cut::Reset },
            }
        };
        for mut stream in [client, server] {
            match how {
                Cut::Reset => {
                    let _ = stream.set_zero_linger();
                }
                Cut::Fin => {
                    let _ = stream.shutdown().await;
                    // Closing with unread bytes would send a reset.
                    let mut unread = [0; 4096];
                    while matches!(stream.try_read(&mut unread), Ok(n) if n > 0) {}
                }
            }
        }
    }

    async fn until_cut(&self) -> Cut {
        let mut rules = self.rules.clone();
        let is_cut = |rules: &Rules| rules.ending || self.id < rules.cut.0;
        match rules.wait_for(is_cut).await {
            Ok(rules) if !rules.ending => rules.cut.1,
            _ => Cut::Reset,
        }
    }

    /// Waits for such rules; for ever if the proxy ends before, which `until_cut` notices.
    async fn until(&self, such: impl FnMut(&Rules) -> bool) {
        if self.rules.clone().wait_for(such).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Forwards one direction until its end, and then the end itself. An error means reset.
    async fn pump(
        &self,
        direction: Direction,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
    ) -> io::Result<()> {
        let way = direction as usize;
        // Chunks in flight, each due at its own time. Their bytes are bounded, not their number: a stalled
        // connection with many small chunks must still notice a reset, which the sender's system sends at once.
        let (queue, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(IN_FLIGHT_BYTES);
        let room = Semaphore::new(IN_FLIGHT_BYTES);
        let room = &room;
        let mut rules = self.rules.clone();
        let read = async move {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                let rate = rules.borrow_and_update().rate[way];
                let most = rate.map_or(buffer.len(), |_| 4 * 1024);
                let read = from.read(&mut buffer[..most]).await;
                let Some(n) = read.as_ref().ok().copied().filter(|n| *n > 0) else {
                    self.until(|rules| self.id >= rules.forgotten).await;
                    return read.map(drop);
                };
                if let Some(rate) = rate {
                    // Sleep before the next read, so that the sender has to wait.
                    let pause = Duration::from_secs_f64(n as f64 / f64::from(rate.max(1)));
                    tokio::time::sleep(pause).await;
                }
                let at = {
                    let now = rules.borrow_and_update();
                    let (part, timeout) = now.loss;
                    let lost = part > 0.0 && lock(&self.shared.rng).f64() < part;
                    let late = if lost { timeout } else { Duration::ZERO };
                    Instant::now() + now.delay[way] + late
                };
                // Half closed, the room is closed too: continue to read, so that the sender does not notice.
                if let Ok(taken) = room.acquire_many(n as u32).await {
                    taken.forget();
                    let _ = queue.send((at, buffer[..n].to_vec())).await;
                }
            }
        };
        let write = async {
            let mut half_closed = pin!(self.until(|rules| self.id < rules.half_closed[way]));
            let flowing = |rules: &Rules| !rules.stalled[way] && self.id >= rules.forgotten;
            loop {
                let chunk = tokio::select! {
                    biased;
                    () = &mut half_closed => None,
                    chunk = async {
                        let (at, chunk) = due.recv().await?;
                        tokio::time::sleep_until(at).await;
                        self.until(flowing).await;
                        Some(chunk)
                    } => chunk,
                };
                let Some(chunk) = chunk else { break };
                self.forward(way, &chunk, &mut to).await?;
                room.add_permits(chunk.len());
            }
            to.shutdown().await?;
            lock(&self.shared.half_closed)[way].insert(self.id);
            due.close();
            room.close();
            Ok(())
        };
        tokio::try_join!(read, write).map(|_| ())
    }

    async fn forward(&self, way: usize, chunk: &[u8], to: &mut WriteHalf<'_>) -> io::Result<()> {
        let (part, reset) = {
            let mut budget = lock(&self.shared.reset_after);
            match budget[way] {
                Some(left) if left <= chunk.len() as u64 => {
                    budget[way] = None;
                    (&chunk[..left as usize], true)
                }
                Some(left) => {
                    budget[way] = Some(left - chunk.len() as u64);
                    (chunk, false)
                }
                None => (chunk, false),
            }
        };
        // Count before sending: a receiver finds its bytes counted.
        self.shared.bytes[way].fetch_add(part.len() as u64, Ordering::SeqCst);
        to.write_all(part).await?;
        if reset {
            Err(io::ErrorKind::ConnectionReset.into())
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
