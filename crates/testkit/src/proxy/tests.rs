use std::{
    io::{Read as _, Write as _},
    net::{self, Shutdown},
    thread,
    time::Instant,
};

use super::*;
use crate::wait::PATIENCE;

/// Returns a connection through a proxy: the client's side and the server's side.
fn pair() -> (ChaosProxy, net::TcpListener, net::TcpStream, net::TcpStream) {
    let listener = net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let proxy = ChaosProxy::start(listener.local_addr().unwrap());
    let (client, server) = again(&proxy, &listener);
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (proxy, listener, client, server)
}

fn read(stream: &mut net::TcpStream, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Returns whether nothing has arrived after the proxy, which has one thread, has served ten
/// connections that were made later.
fn silent(stream: &mut net::TcpStream, proxy: &ChaosProxy, listener: &net::TcpListener) -> bool {
    for _ in 0..10 {
        again(proxy, listener);
    }
    stream.set_nonblocking(true).unwrap();
    let read = stream.read(&mut [0]).map_err(|error| error.kind());
    stream.set_nonblocking(false).unwrap();
    read == Err(io::ErrorKind::WouldBlock)
}

/// Returns a new connection through the proxy, which the server must accept.
fn again(proxy: &ChaosProxy, listener: &net::TcpListener) -> (net::TcpStream, net::TcpStream) {
    let client = net::TcpStream::connect(proxy.address()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server)
}

/// Sends bytes, which must arrive.
#[track_caller]
fn pass(from: &mut net::TcpStream, to: &mut net::TcpStream, bytes: &[u8]) {
    from.write_all(bytes).unwrap();
    assert_eq!(read(to, bytes.len()), bytes);
}

#[test]
fn it_forwards_counts_and_passes_on_the_end() {
    let (proxy, _listener, mut client, mut server) = pair();
    pass(&mut client, &mut server, b"question");
    pass(&mut server, &mut client, b"answer");
    assert_eq!(proxy.bytes(Direction::ToServer), 8);
    assert_eq!(proxy.bytes(Direction::ToClient), 6);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    pass(&mut server, &mut client, b"!");
    drop(server);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    eventually(PATIENCE, || proxy.open() == 0);
}

#[test]
fn a_megabyte_passes_whole() {
    let (_proxy, _listener, mut client, mut server) = pair();
    let sent: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
    let copy = sent.clone();
    let writer = thread::spawn(move || {
        client.write_all(&copy).unwrap();
        client
    });
    assert_eq!(read(&mut server, sent.len()), sent);
    writer.join().unwrap();
}

#[test]
fn cuts_end_what_is_open_and_serve_what_comes() {
    for how in [Cut::Fin, Cut::Reset] {
        let (proxy, listener, mut client, mut server) = pair();
        proxy.cut(how);
        assert_eq!(proxy.open(), 0);
        for stream in [&mut client, &mut server] {
            match (how, stream.read(&mut [0])) {
                (Cut::Fin, Ok(0)) => {}
                (Cut::Reset, Err(e)) if e.kind() == io::ErrorKind::ConnectionReset => {}
                (_, other) => panic!("{how:?}: {other:?}"),
            }
        }
        let (mut client, mut server) = again(&proxy, &listener);
        pass(&mut client, &mut server, b"x");
        assert_eq!(proxy.accepted(), 2);
    }
}

#[test]
fn a_stall_holds_back_and_loses_nothing() {
    let (proxy, listener, mut client, mut server) = pair();
    proxy.stall_direction(Direction::ToServer);
    client.write_all(b"held").unwrap();
    assert!(silent(&mut server, &proxy, &listener));
    pass(&mut server, &mut client, b"free");
    proxy.stall();
    server.write_all(b"held").unwrap();
    assert!(silent(&mut client, &proxy, &listener));
    proxy.resume();
    assert_eq!(read(&mut server, 4), b"held");
    assert_eq!(read(&mut client, 4), b"held");
    proxy.stall();
    client.write_all(b"lost").unwrap();
    proxy.cut(Cut::Reset); // a stalled connection can be cut
    assert_eq!(proxy.open(), 0);
}

#[test]
fn what_is_forgotten_is_silent_and_new_connections_are_served() {
    let (proxy, listener, mut client, mut server) = pair();
    proxy.forget();
    client.write_all(b"lost").unwrap();
    assert!(silent(&mut server, &proxy, &listener));
    // The end of the connection is not forwarded either.
    drop(server);
    assert!(silent(&mut client, &proxy, &listener));
    let (mut second, mut server) = again(&proxy, &listener);
    pass(&mut second, &mut server, b"new");
    proxy.cut(Cut::Reset);
    assert_eq!(proxy.open(), 0);
}

#[test]
fn a_half_close_leaves_the_other_way_open() {
    let (proxy, _listener, mut client, mut server) = pair();
    proxy.half_close(Direction::ToClient);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    server.write_all(b"into the void").unwrap();
    pass(&mut client, &mut server, b"still heard");
    assert_eq!(proxy.bytes(Direction::ToClient), 0);
}

#[test]
fn a_delay_delays_one_way() {
    let (proxy, _listener, mut client, mut server) = pair();
    proxy.delay(Direction::ToServer, Duration::from_millis(150));
    let begun = Instant::now();
    pass(&mut client, &mut server, b"late");
    assert!(begun.elapsed() >= Duration::from_millis(150));
    // The patience ends before a delay of an hour.
    proxy.delay(Direction::ToServer, Duration::from_secs(3_600));
    pass(&mut server, &mut client, b"soon");
}

#[test]
fn a_reset_comes_after_so_many_bytes() {
    let (proxy, _listener, mut client, mut server) = pair();
    proxy.reset_after(Direction::ToServer, 10);
    pass(&mut client, &mut server, b"seven..");
    assert!(proxy.reset_pending(Direction::ToServer));
    client.write_all(b"three and more").unwrap();
    let mut rest = Vec::new();
    let error = server.read_to_end(&mut rest).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(proxy.bytes(Direction::ToServer), 10);
    assert!(rest.len() <= 3, "{rest:?}");
    assert!(!proxy.reset_pending(Direction::ToServer));
}

#[test]
fn refusing_leaves_what_is_open() {
    let (proxy, listener, mut client, mut server) = pair();
    proxy.refuse(true);
    let error = net::TcpStream::connect(proxy.address()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    pass(&mut client, &mut server, b"x");
    proxy.refuse(false);
    let _client = net::TcpStream::connect(proxy.address()).unwrap();
    listener.accept().unwrap();
}

#[test]
fn without_a_server_a_client_is_reset() {
    let nothing = crate::ReservedAddress::bind();
    let proxy = ChaosProxy::start(nothing.address());
    let mut client = net::TcpStream::connect(proxy.address()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn what_is_lost_comes_late_and_in_order() {
    let (proxy, _listener, mut client, mut server) = pair();
    proxy.lose(1.0, Duration::from_millis(150), 1);
    let begun = Instant::now();
    pass(&mut client, &mut server, b"late");
    assert!(begun.elapsed() >= Duration::from_millis(150));
    proxy.lose(0.0, Duration::ZERO, 1);
    pass(&mut client, &mut server, b"soon");
}

#[test]
fn a_slow_receiver_holds_the_sender_back() {
    let (proxy, _listener, mut client, mut server) = pair();
    proxy.throttle(Direction::ToServer, Some(100_000));
    // A chunk that is being read when the rule changes is not limited, so send one first.
    client.write_all(&[0; 100]).unwrap();
    read(&mut server, 100);
    let begun = Instant::now();
    client.write_all(&vec![1; 30_000]).unwrap();
    assert_eq!(read(&mut server, 30_000), vec![1; 30_000]);
    assert!(begun.elapsed() >= Duration::from_millis(200));
    proxy.throttle(Direction::ToServer, None);
    client.write_all(&vec![2; 30_000]).unwrap();
    assert_eq!(read(&mut server, 30_000), vec![2; 30_000]);
}

/// A client that resets a stalled connection takes back its bytes, however many writes they were; one that closes
/// it in order does not.
#[test]
fn a_reset_throws_away_the_held_bytes_and_an_end_does_not() {
    for reset in [true, false] {
        let (proxy, _listener, mut client, mut server) = pair();
        proxy.stall();
        for _ in 0..500 {
            client.set_nodelay(true).unwrap();
            client.write_all(b"held").unwrap();
        }
        if reset {
            client.set_nonblocking(true).unwrap();
            run(async {
                let client = TcpStream::from_std(client).unwrap();
                client.set_zero_linger().unwrap();
            });
            eventually(PATIENCE, || proxy.open() == 0);
        } else {
            drop(client);
        }
        proxy.resume();
        let mut bytes = Vec::new();
        let end = server.read_to_end(&mut bytes);
        assert_eq!(
            (end.is_err(), bytes.len()),
            (reset, if reset { 0 } else { 2_000 })
        );
    }
}
