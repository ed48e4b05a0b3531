//! A cluster that says it has no brokers, as one does for a moment while its last broker stops.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;

use super::*;

/// Kafka's API key of a metadata request, and the first version with compact arrays and tags.
const METADATA: i16 = 3;
const FLEXIBLE: i16 = 9;
/// How often the cluster has no brokers, at most. One time need not be enough: it matters which of two of
/// librdkafka's threads is first. Once it was the wrong one, it looks for brokers no more.
const TIMES: u64 = 40;
/// So often is it found again by what we do, and then that is shown. It takes 2.9 s, and 1.9 if librdkafka
/// does it.
const OURS: u32 = 2;
const OUR_TIME: Duration = Duration::from_millis(2_500);

/// Between a client and a mock broker: its metadata name the go-between as the only broker, or none.
struct GoBetween {
    address: SocketAddr,
    nobody: Arc<AtomicBool>,
}

impl GoBetween {
    fn start(cluster: &Cluster) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let nobody = Arc::new(AtomicBool::new(false));
        let broker = cluster.bootstrap_servers();
        thread::spawn({
            let nobody = Arc::clone(&nobody);
            move || {
                for client in listener.incoming() {
                    let client = client.unwrap();
                    // The cluster has ended, and the test with it.
                    let Ok(server) = TcpStream::connect(&broker) else {
                        return;
                    };
                    pass(client, server, address.port(), &nobody);
                }
            }
        });
        Self { address, nobody }
    }
}

/// Both directions of a connection, until either side ends it.
fn pass(client: TcpStream, server: TcpStream, port: u16, nobody: &Arc<AtomicBool>) {
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
            // Either may be gone already.
            let _ = to_server.shutdown(std::net::Shutdown::Both);
        }
    });
    let nobody = Arc::clone(nobody);
    thread::spawn(move || {
        let (mut from_server, mut to_client) = (server, client);
        while let Ok(mut response) = frame(&mut from_server) {
            if asked.lock().unwrap().remove(&response[..4]) {
                response = with_brokers(&response, (!nobody.load(SeqCst)).then_some(port));
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

/// A metadata response whose only broker listens at `port`, or that has none. Its layout is that of
/// `MetadataResponse.json` in Kafka's sources: correlation id, tags, throttle time, and then an array of
/// node id, host, port, rack and tags. Lengths are one more than they are, in one byte here.
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

/// librdkafka forgets all brokers then, and may forget to look for new ones for good
/// (confluentinc/librdkafka#5301).
#[test]
fn a_cluster_that_has_no_brokers_for_a_moment_is_found_again() {
    // Many partitions, for what librdkafka does with them gives the thread of the broker its time.
    let cluster = cluster(&[("t", 1_000)]);
    let between = GoBetween::start(&cluster);
    let address = between.address.to_string();
    let through = [("bootstrap.servers", &*address)];
    let (mut sink, reports) = sink_with(&cluster, KafkaOptions::default(), &through);
    let (mut sent, mut ours) = (0, 0);
    while sent < TIMES && ours < OURS {
        let value = sent.to_string();
        let started = Instant::now();
        send(
            &mut sink,
            &reports,
            &record("t", b"k", value.as_bytes()),
            sent,
        );
        sent += 1;
        reports.wait_for(sent);
        ours += u32::from(started.elapsed() > OUR_TIME);
        between.nobody.store(true, SeqCst);
        let _ = ffi::topic_states(sink.client(), LONG);
        between.nobody.store(false, SeqCst);
    }
    close_delivered(sink, &reports, sent);
    let records = read(&cluster, &["t"], sent as usize);
    let seqs: Vec<u64> = records.iter().map(seq_in).collect();
    assert_eq!(seqs, (0..sent).collect::<Vec<_>>());
}
