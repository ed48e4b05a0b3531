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
    sync::{mpsc, watch},
    time::Instant,
};

use crate::{
    threads::{lock, run, spawn},
    wait::eventually,
};

/// How long a command may take to be carried out.
const LIMIT: Duration = Duration::from_secs(10);

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server behind the proxy.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// How a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// An orderly end of both ways.
    Fin,
    /// A reset.
    Reset,
}

/// What is in force. Every connection watches it.
#[derive(Debug, Clone)]
struct Rules {
    /// Where new connections lead.
    server: SocketAddr,
    /// Connections numbered below this are cut, in the way of the last cut.
    cut: (u64, Option<Cut>),
    stalled: [bool; 2],
    /// Connections numbered below this are dead without a word.
    forgotten: u64,
    delay: [Duration; 2],
    /// Which part of the chunks is late by how much, both ways.
    loss: (f64, Duration),
    /// At most so many bytes a second on each connection.
    rate: [Option<u32>; 2],
    /// Connections numbered below this are closed for writing in that direction.
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
    /// Draws which chunks are lost.
    luck: Mutex<fastrand::Rng>,
    /// After how many more bytes the connection that carries them is reset.
    reset_after: Mutex<[Option<u64>; 2]>,
}

/// A TCP proxy that misbehaves on command, for tests of what a network does.
///
/// Commands take effect before they return. Dropping it resets what is open.
#[derive(Debug)]
pub struct ChaosProxy {
    address: SocketAddr,
    rules: watch::Sender<Rules>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ChaosProxy {
    /// Listens at a free port of 127.0.0.1 and forwards to `server`, which need not be up yet: a
    /// client that comes while it is not is reset.
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

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The port clients connect to, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Leads new connections to another server, as an address does that moves. Those that are open stay
    /// where they are: [`cut`](Self::cut) them.
    #[track_caller]
    pub fn lead_to(&self, server: impl ToSocketAddrs) {
        let server = resolve(server);
        self.rules.send_modify(|rules| rules.server = server);
    }

    /// Cuts every connection there is. New ones are served.
    #[track_caller]
    pub fn cut(&self, how: Cut) {
        let below = self.accepted();
        self.rules
            .send_modify(|rules| rules.cut = (below, Some(how)));
        eventually(LIMIT, || {
            lock(&self.shared.open).iter().all(|id| *id >= below)
        });
    }

    /// Forwards nothing more in either direction. Connections stay open, new ones are accepted.
    pub fn stall(&self) {
        self.rules.send_modify(|rules| rules.stalled = [true; 2]);
    }

    /// Forwards nothing more in this direction.
    pub fn stall_direction(&self, direction: Direction) {
        self.rules
            .send_modify(|rules| rules.stalled[direction as usize] = true);
    }

    /// Ends stalling. What had been held back goes on.
    pub fn resume(&self) {
        self.rules.send_modify(|rules| rules.stalled = [false; 2]);
    }

    /// Forwards nothing more on every connection there is, not even its end, until it is cut: as a
    /// firewall does that has forgotten them. New ones are served.
    pub fn forget(&self) {
        let below = self.accepted();
        self.rules.send_modify(|rules| rules.forgotten = below);
    }

    /// Tells the receiver of this direction that no more comes, on every connection there is; the
    /// other direction goes on.
    #[track_caller]
    pub fn half_close(&self, direction: Direction) {
        let below = self.accepted();
        self.rules
            .send_modify(|rules| rules.half_closed[direction as usize] = below);
        eventually(LIMIT, || {
            let done = lock(&self.shared.half_closed);
            lock(&self.shared.open)
                .iter()
                .all(|id| *id >= below || done[direction as usize].contains(id))
        });
    }

    /// Each byte of this direction arrives this much later. Throughput stays, up to 4 MiB under way
    /// on a connection.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.rules
            .send_modify(|rules| rules.delay[direction as usize] = delay);
    }

    /// Forwards at most so many bytes a second in this direction on each connection, `None` for as many
    /// as there are: the receiver is slow, and the sender comes to wait for it.
    pub fn throttle(&self, direction: Direction, bytes_per_second: Option<u32>) {
        self.rules
            .send_modify(|rules| rules.rate[direction as usize] = bytes_per_second);
    }

    /// Loses this part of the chunks, of either direction, and sends them again after `timeout`, as TCP
    /// does with a packet that was lost; what comes behind on the same connection waits. A part of 0
    /// ends it.
    pub fn lose(&self, part: f64, timeout: Duration, seed: u64) {
        *lock(&self.shared.luck) = fastrand::Rng::with_seed(seed);
        self.rules.send_modify(|rules| rules.loss = (part, timeout));
    }

    /// Once: lets this many more bytes through in this direction, counted over all connections, then
    /// resets the one that carried the last of them. In the middle of a frame, with luck or reckoning.
    pub fn reset_after(&self, direction: Direction, bytes: u64) {
        lock(&self.shared.reset_after)[direction as usize] = Some(bytes);
    }

    /// Whether a reset that [`reset_after`](Self::reset_after) ordered is still to come.
    pub fn reset_pending(&self, direction: Direction) -> bool {
        lock(&self.shared.reset_after)[direction as usize].is_some()
    }

    /// Refuses new connections, as a machine does on which nothing listens; or serves them again.
    /// Those that are open stay.
    #[track_caller]
    pub fn refuse(&self, refuse: bool) {
        self.rules.send_modify(|rules| rules.refusing = refuse);
        eventually(LIMIT, || {
            self.shared.listening.load(Ordering::SeqCst) != refuse
        });
    }

    /// How many bytes were forwarded in this direction.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.shared.bytes[direction as usize].load(Ordering::SeqCst)
    }

    /// How many connections were accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        lock(&self.shared.open).len()
    }
}

impl Drop for ChaosProxy {
    fn drop(&mut self) {
        self.rules.send_modify(|rules| rules.ending = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Rules {
    fn to(server: SocketAddr) -> Self {
        Self {
            server,
            cut: (0, None),
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
            // Tokio sets SO_REUSEADDR. A stranger may have the port for a moment: try again.
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
                    // The number and the entry in one step, for whoever cuts "all there are".
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
        // Not interrupted by a cut: a socket dropped while it connects ends with FIN, not reset.
        let connected = tokio::time::timeout(LIMIT / 2, TcpStream::connect(server)).await;
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
                    // Closing with bytes unread would send a reset after all.
                    let mut unread = [0; 4096];
                    while matches!(stream.try_read(&mut unread), Ok(n) if n > 0) {}
                }
            }
        }
    }

    async fn until_cut(&self) -> Cut {
        let mut rules = self.rules.clone();
        loop {
            {
                let now = rules.borrow_and_update();
                if now.ending {
                    return Cut::Reset;
                }
                if let (below, Some(how)) = now.cut
                    && self.id < below
                {
                    return how;
                }
            }
            if rules.changed().await.is_err() {
                return Cut::Reset;
            }
        }
    }

    /// Forwards one direction until its end, which is passed on. An error means: reset.
    async fn pump(
        &self,
        direction: Direction,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
    ) -> io::Result<()> {
        let way = direction as usize;
        // 64 chunks of 64 KiB under way, each due at its own time.
        let (queue, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(64);
        let mut rules = self.rules.clone();
        let read = async move {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                let rate = rules.borrow_and_update().rate[way];
                let most = rate.map_or(buffer.len(), |_| 4 * 1024);
                let read = from.read(&mut buffer[..most]).await;
                let Some(n) = read.as_ref().ok().copied().filter(|n| *n > 0) else {
                    self.unless_forgotten().await;
                    return read.map(drop);
                };
                if let Some(rate) = rate {
                    // Before the next read, so that it is the sender who waits.
                    let pause = Duration::from_secs_f64(n as f64 / f64::from(rate.max(1)));
                    tokio::time::sleep(pause).await;
                }
                let at = {
                    let now = rules.borrow_and_update();
                    let (part, timeout) = now.loss;
                    let lost = part > 0.0 && lock(&self.shared.luck).f64() < part;
                    let late = if lost { timeout } else { Duration::ZERO };
                    Instant::now() + now.delay[way] + late
                };
                if queue.send((at, buffer[..n].to_vec())).await.is_err() {
                    // Half closed: read on, so that the sender does not notice.
                }
            }
        };
        let write = async {
            let mut half_closed = pin!(self.until_half_closed(way));
            loop {
                let chunk = tokio::select! {
                    biased;
                    () = &mut half_closed => None,
                    chunk = async {
                        let (at, chunk) = due.recv().await?;
                        tokio::time::sleep_until(at).await;
                        self.until_flowing(way).await;
                        Some(chunk)
                    } => chunk,
                };
                let Some(chunk) = chunk else { break };
                self.forward(way, &chunk, &mut to).await?;
            }
            to.shutdown().await?;
            lock(&self.shared.half_closed)[way].insert(self.id);
            due.close();
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
        // Before they go: whoever has received them finds them counted.
        self.shared.bytes[way].fetch_add(part.len() as u64, Ordering::SeqCst);
        to.write_all(part).await?;
        if reset {
            Err(io::ErrorKind::ConnectionReset.into())
        } else {
            Ok(())
        }
    }

    async fn until_flowing(&self, way: usize) {
        let mut rules = self.rules.clone();
        // A closed channel means the proxy ends, which `until_cut` sees.
        let flowing = |rules: &Rules| !rules.stalled[way] && self.id >= rules.forgotten;
        let _ = rules.wait_for(flowing).await;
    }

    /// For ever if the connection is forgotten.
    async fn unless_forgotten(&self) {
        let mut rules = self.rules.clone();
        let _ = rules.wait_for(|rules| self.id >= rules.forgotten).await;
    }

    async fn until_half_closed(&self, way: usize) {
        let mut rules = self.rules.clone();
        let half_closed = |rules: &Rules| self.id < rules.half_closed[way];
        if rules.wait_for(half_closed).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests;
