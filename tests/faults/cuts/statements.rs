//! A proxy before Postgres that counts the statements of one process, and stops at one of them.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::lock;

/// The time that the last statement has to be executed: a slot may wait for a transaction for ever.
const EXECUTION: Duration = Duration::from_secs(5);

/// Whether the statement at which the proxy stops reaches the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// It does not.
    Before,
    /// The server executes it, and its answer is lost.
    After,
}

/// Tags of messages ("Message Formats", Postgres documentation).
const QUERY: u8 = b'Q';
const READY: u8 = b'Z';
const COPY_BOTH: u8 = b'W';

struct State {
    /// Statements so far.
    seen: u64,
    /// When the statement of the cut was seen.
    at: Option<Instant>,
    /// Nothing is forwarded any more.
    stopped: bool,
    /// The statement of the cut.
    statement: String,
    sockets: Vec<TcpStream>,
}

struct Shared {
    server: SocketAddr,
    number: u64,
    cut: Cut,
    state: Mutex<State>,
    ended: AtomicBool,
}

/// Forwards to Postgres until the statement with this number, counted from 1 over all connections.
/// From then on nothing is forwarded, in neither direction; connections stay open until it is dropped.
pub(crate) struct StatementProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<thread::JoinHandle<()>>,
}

impl StatementProxy {
    pub(crate) fn start(server_port: u16, number: u64, cut: Cut) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            server: SocketAddr::from(([127, 0, 0, 1], server_port)),
            number,
            cut,
            state: Mutex::new(State {
                seen: 0,
                at: None,
                stopped: false,
                statement: String::new(),
                sockets: Vec::new(),
            }),
            ended: AtomicBool::new(false),
        });
        let accepting = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                for client in listener.incoming() {
                    if shared.ended.load(Ordering::SeqCst) {
                        return;
                    }
                    if let Ok(client) = client {
                        // A process that is killed leaves connections that end in errors.
                        let _ = shared.serve(client);
                    }
                }
            }
        });
        Self {
            address,
            shared,
            accepting: Some(accepting),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the statement at which it has stopped, once the server has executed it, or not got it.
    pub(crate) fn stopped(&self) -> Option<String> {
        let state = lock(&self.shared.state);
        let late = state.at.is_some_and(|at| at.elapsed() > EXECUTION);
        (state.stopped || late).then(|| state.statement.clone())
    }
}

impl Drop for StatementProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        for socket in lock(&self.shared.state).sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(self.server)?;
        for socket in [&client, &server] {
            socket.set_nodelay(true)?;
            lock(&self.state).sockets.push(socket.try_clone()?);
        }
        // The server's answer to the statement of the cut comes over this connection.
        let is_cut = Arc::<AtomicBool>::default();
        let (from_client, to_client) = (client.try_clone()?, client);
        let (from_server, to_server) = (server.try_clone()?, server);
        let (shared, answered) = (Arc::clone(self), Arc::clone(&is_cut));
        thread::spawn(move || {
            if shared.forward(from_client, &to_server, &is_cut).is_err() {
                let _ = to_server.shutdown(Shutdown::Both);
            }
        });
        let shared = Arc::clone(self);
        thread::spawn(move || {
            if shared.answer(from_server, &to_client, &answered).is_err() {
                let _ = to_client.shutdown(Shutdown::Both);
            }
            if answered.load(Ordering::SeqCst) {
                lock(&shared.state).stopped = true;
            }
        });
        Ok(())
    }

    /// Forwards what the client sends. Returns when nothing is to be forwarded any more.
    fn forward(
        &self,
        client: TcpStream,
        mut server: &TcpStream,
        is_cut: &AtomicBool,
    ) -> io::Result<()> {
        let mut client = BufReader::new(client);
        // The first message has no tag. TLS is off, so it is the start-up.
        server.write_all(&message(&mut client, 0)?)?;
        loop {
            let message = message(&mut client, 1)?;
            let mut state = lock(&self.state);
            if message[0] == QUERY && !state.stopped && state.at.is_none() {
                state.seen += 1;
                if state.seen == self.number {
                    let text = message.get(5..message.len() - 1).unwrap_or_default();
                    state.statement = String::from_utf8_lossy(text).chars().take(160).collect();
                    match self.cut {
                        Cut::Before => state.stopped = true,
                        Cut::After => {
                            state.at = Some(Instant::now());
                            is_cut.store(true, Ordering::SeqCst);
                            server.write_all(&message)?;
                            return Ok(());
                        }
                    }
                }
            }
            if state.stopped || state.at.is_some() {
                return Ok(());
            }
            drop(state);
            server.write_all(&message)?;
        }
    }

    /// Forwards what the server answers, but for the answer to the statement of the cut, of which it
    /// returns the end.
    fn answer(
        &self,
        server: TcpStream,
        mut client: &TcpStream,
        is_cut: &AtomicBool,
    ) -> io::Result<()> {
        let mut server = BufReader::new(server);
        loop {
            let message = message(&mut server, 1)?;
            if is_cut.load(Ordering::SeqCst) {
                if matches!(message[0], READY | COPY_BOTH) {
                    return Ok(());
                }
                continue;
            }
            let state = lock(&self.state);
            if state.stopped || state.at.is_some() {
                return Ok(());
            }
            drop(state);
            client.write_all(&message)?;
        }
    }
}

/// Reads a message with a tag of this many bytes and its length.
fn message(from: &mut impl Read, tag: usize) -> io::Result<Vec<u8>> {
    let mut message = vec![0; tag + 4];
    from.read_exact(&mut message)?;
    let length = [
        message[tag],
        message[tag + 1],
        message[tag + 2],
        message[tag + 3],
    ];
    let length = u32::from_be_bytes(length) as usize;
    message.resize(tag + length.max(4), 0);
    from.read_exact(&mut message[tag + 4..])?;
    Ok(message)
}
