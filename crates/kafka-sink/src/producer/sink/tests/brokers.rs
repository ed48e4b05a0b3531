//! A cluster that reports no brokers, as for a moment while its last broker stops.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;

use super::*;

/// Kafka's API key of a metadata request.
const METADATA: i16 = 3;
/// The first version of metadata with compact arrays and tags.
const FLEXIBLE: i16 = 9;
/// The most rounds without brokers. The defect depends on a race of two of librdkafka's threads, so
/// one round may not show it. After it has happened, librdkafka never looks for brokers again.
const TIMES: u64 = 40;
/// The test ends when the rebootstrap has found the cluster this often.
const OURS: u32 = 2;
/// A recovery that takes longer is by the rebootstrap (2.9 s), and not by librdkafka itself (1.9
/// s).
const OUR_TIME: Duration = Duration::from_millis(2_500);

/// A proxy between a client and a mock broker: in the metadata it is the only broker, or there is
/// none.
struct Proxy {
    address: SocketAddr,
    /// Whether the metadata have no broker.
    no_broker: Arc<AtomicBool>,
}

impl Proxy {
    fn start(cluster: &Cluster) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let no_broker = Arc::new(AtomicBool::new(false));
        let broker = cluster.bootstrap_servers();
        thread::spawn({
            let no_broker = Arc::clone(&no_broker);
            move || {
                for client in listener.incoming() {
                    let client = client.unwrap();
                    // Fails when the cluster, and with it the test, has ended.
                    let Ok(server) = TcpStream::connect(&broker) else {
                        return;
                    };
                    forward(client, server, address.port(), &no_broker);
                }
            }
        });
        Self { address, no_broker }
    }
}

/// Forwards both directions of a connection until either side closes it.
fn forward(client: TcpStream, server: TcpStream, port: u16, no_broker: &Arc<AtomicBool>) {
    // The correlation ids of metadata requests.
    let asked: Arc<Mutex<HashSet<[u8; 4]>>> = Arc::default();
    let (from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::spawn({
        let asked = Arc::clone(&asked);
        move || {
            let mut from_client = from_client;
            while let Ok(request) = frame(&mut from_client) {
                if request[..2] == METADATA.to_be_bytes() {
                    let version = i16::from_be_bytes([request[2], request[3]]);
                    assert!(version >= FLEXIBLE, "metadata of version {version}");
                    let id = request[4..8].try_into().unwrap();
                    asked.lock().unwrap().insert(id);
                }
                if write(&mut to_server, &request).is_err() {
                    break;
                }
            }
            // Fails if the connection is closed already.
            let _ = to_server.shutdown(std::net::Shutdown::Both);
        }
    });
    let no_broker = Arc::clone(no_broker);
    thread::spawn(move || {
        let (mut from_server, mut to_client) = (server, client);
        while let Ok(mut response) = frame(&mut from_server) {
            if asked.lock().unwrap().remove(&response[..4]) {
                response = with_brokers(&response, (!no_broker.load(SeqCst)).then_some(port));
            }
            if write(&mut to_client, &response).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(std::net::Shutdown::Both);
    });
}

fn frame(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn write(to: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    to.write_all(&(bytes.len() as u32).to_be_bytes())?;
    to.write_all(bytes)
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

/// librdkafka forgets all brokers, and may never look for new ones again
/// (confluentinc/librdkafka#5301).
#[test]
fn a_cluster_that_has_no_brokers_for_a_moment_is_found_again() {
    // Many partitions: librdkafka's work on them gives the broker's thread time for the race.
    let cluster = cluster(&[("t", 1_000)]);
    let proxy = Proxy::start(&cluster);
    let address = proxy.address.to_string();
    let through = [("bootstrap.servers", &*address)];
    let (mut sink, reports) = sink_of(&cluster, &through);
    let (mut sent, mut ours) = (0, 0);
    while sent < TIMES && ours < OURS {
        let started = Instant::now();
        send_seq(&mut sink, &reports, "t", b"k", sent);
        sent += 1;
        reports.wait_for(sent);
        ours += u32::from(started.elapsed() > OUR_TIME);
        proxy.no_broker.store(true, SeqCst);
        let _ = ffi::topic_states(sink.client(), LONG);
        proxy.no_broker.store(false, SeqCst);
    }
    close_delivered(sink, &reports, sent);
    let records = read(&cluster, &["t"], sent as usize);
    let seqs: Vec<u64> = records.iter().map(seq_in).collect();
    assert_eq!(seqs, (0..sent).collect::<Vec<_>>());
}
