//! A proxy between a client and the only broker of a mock cluster. It counts requests by their API
//! key and withholds responses until the test releases them, so that a test need not presume how
//! long a request takes.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use super::{Cluster, eventually};

/// An API key of Kafka's protocol.
pub(crate) type ApiKey = i16;
pub(crate) const PRODUCE: ApiKey = 0;
pub(crate) const LIST_OFFSETS: ApiKey = 2;
const METADATA: ApiKey = 3;
const FIND_COORDINATOR: ApiKey = 10;
pub(crate) const INIT_PRODUCER_ID: ApiKey = 22;
/// The first version of metadata with compact arrays and tags.
const FLEXIBLE: i16 = 9;

/// The client's only way to the broker: in the metadata the proxy is the only broker, or there is
/// none.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<ProxyState>,
    changed: Condvar,
}

#[derive(Default)]
struct ProxyState {
    /// True if the metadata have no broker.
    without_broker: bool,
    /// The throttle time in responses to produce requests, in milliseconds.
    throttle_ms: u32,
    /// API keys whose responses are withheld, with the number of those that pass yet.
    withheld: BTreeMap<ApiKey, u64>,
    connections: u64,
    /// The clients' ends of all connections, also of closed ones.
    clients: Vec<TcpStream>,
    requests: BTreeMap<ApiKey, Requests>,
    /// The ends of connections with produce requests that a client has closed.
    ends: Vec<io::ErrorKind>,
    ended: bool,
}

/// The requests with one API key.
#[derive(Default, Clone, Copy)]
struct Requests {
    sent: u64,
    unanswered: u64,
    most_unanswered: u64,
}

/// The requests of a connection that have no response yet: API keys by correlation id.
type Unanswered = Mutex<HashMap<[u8; 4], ApiKey>>;

impl Proxy {
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let broker: SocketAddr = cluster.bootstrap_servers().parse().expect("one broker");
        thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                for client in listener.incoming() {
                    if shared.lock().ended {
                        return;
                    }
                    let client = client.unwrap();
                    {
                        let mut state = shared.lock();
                        state.connections += 1;
                        state.clients.push(client.try_clone().unwrap());
                    }
                    // Fails when the cluster has ended.
                    if let Ok(server) = TcpStream::connect(broker) {
                        forward(client, server, [address.port(), broker.port()], &shared);
                    }
                }
            }
        });
        Self { address, shared }
    }

    /// Returns the value of `bootstrap.servers`.
    pub(crate) fn servers(&self) -> String {
        self.address.to_string()
    }

    /// Sets whether the metadata have no broker.
    pub(crate) fn set_without_broker(&self, without: bool) {
        self.shared.lock().without_broker = without;
    }

    /// Sets the throttle time in responses to produce requests. The proxy itself does not throttle.
    pub(crate) fn set_throttle(&self, throttle_ms: u32) {
        self.shared.lock().throttle_ms = throttle_ms;
    }

    /// Withholds the responses to these requests, and the later responses of their connections.
    pub(crate) fn withhold(&self, key: ApiKey) {
        self.shared.lock().withheld.insert(key, 0);
    }

    /// Forwards one response that [`withhold`](Self::withhold) keeps back.
    pub(crate) fn release_one(&self, key: ApiKey) {
        *self.shared.lock().withheld.entry(key).or_default() += 1;
        self.shared.changed.notify_all();
    }

    /// Forwards the responses that [`withhold`](Self::withhold) keeps back.
    pub(crate) fn release(&self, key: ApiKey) {
        self.shared.lock().withheld.remove(&key);
        self.shared.changed.notify_all();
    }

    /// Closes all connections, as a broker closes idle ones. Further ones are accepted.
    pub(crate) fn close_connections(&self) {
        for client in self.shared.lock().clients.drain(..) {
            // Fails if the connection is closed already.
            let _ = client.shutdown(Shutdown::Both);
        }
    }

    /// Returns the number of accepted connections.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.lock().connections
    }

    /// Returns how connections with produce requests ended that a client has closed: `UnexpectedEof`
    /// if in order.
    pub(crate) fn ends(&self) -> Vec<io::ErrorKind> {
        self.shared.lock().ends.clone()
    }

    fn counts(&self, key: ApiKey) -> Requests {
        let state = self.shared.lock();
        state.requests.get(&key).copied().unwrap_or_default()
    }

    pub(crate) fn requests(&self, key: ApiKey) -> u64 {
        self.counts(key).sent
    }

    /// Returns the most requests that had no response at the same time.
    pub(crate) fn most_unanswered(&self, key: ApiKey) -> u64 {
        self.counts(key).most_unanswered
    }

    /// Waits until this many requests have no response.
    #[track_caller]
    pub(crate) fn wait_unanswered(&self, key: ApiKey, count: u64) {
        eventually("requests without a response", || {
            self.counts(key).unanswered >= count
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap()
    }

    fn count_request(&self, key: ApiKey) {
        let mut state = self.lock();
        let requests = state.requests.entry(key).or_default();
        requests.sent += 1;
        requests.unanswered += 1;
        requests.most_unanswered = requests.most_unanswered.max(requests.unanswered);
    }

    fn count_response(&self, key: ApiKey) {
        let mut state = self.lock();
        state.requests.entry(key).or_default().unanswered -= 1;
    }

    /// Waits while the responses to these requests are withheld.
    fn wait_released(&self, key: ApiKey) {
        let withheld =
            |state: &mut ProxyState| state.withheld.get(&key) == Some(&0) && !state.ended;
        let mut state = self.changed.wait_while(self.lock(), withheld).unwrap();
        if let Some(passing) = state.withheld.get_mut(&key) {
            *passing = passing.saturating_sub(1);
        }
    }
}

/// Forwards both directions of a connection until either side closes it. `ports`: the proxy's and
/// the broker's.
fn forward(client: TcpStream, server: TcpStream, ports: [u16; 2], shared: &Arc<Shared>) {
    let unanswered = Arc::<Unanswered>::default();
    let (from_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::spawn({
        let (unanswered, shared) = (Arc::clone(&unanswered), Arc::clone(shared));
        move || forward_requests(from_client, to_server, &unanswered, &shared)
    });
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        forward_responses(server, client, ports, &unanswered, &shared);
        // The connection has ended.
        for key in unanswered.lock().unwrap().drain().map(|(_, key)| key) {
            shared.count_response(key);
        }
    });
}

fn forward_requests(mut from: TcpStream, mut to: TcpStream, open: &Unanswered, shared: &Shared) {
    let mut has_records = false;
    loop {
        let request = match frame(&mut from) {
            Ok(request) => request,
            Err(error) => {
                if has_records {
                    shared.lock().ends.push(error.kind());
                }
                break;
            }
        };
        let number = |at: usize| i16::from_be_bytes([request[at], request[at + 1]]);
        let (key, version) = (number(0), number(2));
        assert!(
            key != METADATA || version >= FLEXIBLE,
            "metadata of version {version}"
        );
        has_records |= key == PRODUCE;
        let id = request[4..8].try_into().unwrap();
        shared.count_request(key);
        open.lock().unwrap().insert(id, key);
        if write(&mut to, &request).is_err() {
            break;
        }
    }
    // Fails if the connection is closed already.
    let _ = to.shutdown(Shutdown::Both);
}

fn forward_responses(
    mut from: TcpStream,
    mut to: TcpStream,
    [own, broker]: [u16; 2],
    open: &Unanswered,
    shared: &Shared,
) {
    while let Ok(mut response) = frame(&mut from) {
        let key = open.lock().unwrap().remove(&response[..4]);
        if let Some(key) = key {
            shared.wait_released(key);
            match key {
                METADATA => {
                    let without = shared.lock().without_broker;
                    response = with_brokers(&response, (!without).then_some(own));
                }
                // An error of a produce request can name the leader's address (KIP-951).
                FIND_COORDINATOR | PRODUCE => {
                    response = with_port(&response, broker, own);
                    let throttle_ms = shared.lock().throttle_ms;
                    if key == PRODUCE && throttle_ms > 0 {
                        set_throttle_time(&mut response, throttle_ms);
                    }
                }
                _ => {}
            }
            shared.count_response(key);
        }
        if write(&mut to, &response).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn frame(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn write(to: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    to.write_all(&[&(bytes.len() as u32).to_be_bytes()[..], bytes].concat())
}

/// Replaces the port of the only broker in a metadata response, or removes the broker. The layout
/// is that of `MetadataResponse.json` in Kafka's sources: correlation id, tags, throttle time, and
/// then an array of node id, host, port, rack and tags. Lengths are encoded plus one, here in one
/// byte.
fn with_brokers(response: &[u8], port: Option<u16>) -> Vec<u8> {
    let array = 4 + 1 + 4;
    assert_eq!((response[4], response[array]), (0, 2), "tags, brokers");
    let host = array + 1 + 4;
    let port_at = host + usize::from(response[host]);
    let rack = port_at + 4;
    let end = rack + usize::from(response[rack]).max(1) + 1;
    let mut bytes = response[..array].to_vec();
    if let Some(port) = port {
        bytes.extend(&response[array..port_at]);
        bytes.extend(u32::from(port).to_be_bytes());
        bytes.extend(&response[rack..end]);
    } else {
        bytes.push(1);
    }
    bytes.extend(&response[end..]);
    bytes
}

/// Sets the throttle time of a produce response, whose end it is, before an empty list of tags.
fn set_throttle_time(response: &mut [u8], throttle_ms: u32) {
    let at = response.len() - 5;
    assert_eq!(response[at..], [0; 5], "throttle time, tags");
    response[at..at + 4].copy_from_slice(&throttle_ms.to_be_bytes());
}

/// Replaces the first port `from` in a response by `to`.
fn with_port(response: &[u8], from: u16, to: u16) -> Vec<u8> {
    let from = u32::from(from).to_be_bytes();
    let mut bytes = response.to_vec();
    // The correlation id is not searched.
    if let Some(at) = bytes[4..].windows(4).position(|window| window == from) {
        bytes[4 + at..8 + at].copy_from_slice(&u32::from(to).to_be_bytes());
    }
    bytes
}
