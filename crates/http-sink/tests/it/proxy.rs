//! What the sink does behind a proxy: with a tunnel for `https`, and without one for `http`.

#![allow(clippy::expect_used, reason = "a test may panic")]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::{Reaction, Server, config};
use walrelay_http_sink::{HttpConfig, HttpSinkFactory, HttpVersion, Proxy};
use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, Record, Sink as _, SinkFactory as _, SinkStats, lock,
};
use walrelay_sink_client::TlsFiles;
use walrelay_testkit::conformance::Bounds;
use walrelay_testkit::{Authority, Reports};

const ROOMY: Bounds = Bounds {
    records: 10,
    bytes: 1 << 20,
};

/// A proxy that leads to one server, and answers `CONNECT` with a status.
struct ScriptedProxy {
    address: SocketAddr,
    /// The first line of each connection.
    asked: Arc<Mutex<Vec<String>>>,
}

impl ScriptedProxy {
    fn start(server: SocketAddr, status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&asked);
        // Ends with the process.
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), seen) = (client, Arc::clone(&seen)) else {
                    return;
                };
                thread::spawn(move || carry(client, server, status, &seen));
            }
        });
        Self { address, asked }
    }

    fn add_to(&self, mut config: HttpConfig) -> HttpConfig {
        let proxy = Proxy::parse(&format!("http://{}", self.address));
        config.proxy = Some(proxy.expect("a proxy"));
        config
    }
}

/// Carries one connection. A client that goes away ends it.
fn carry(
    mut client: TcpStream,
    server: SocketAddr,
    status: &str,
    asked: &Mutex<Vec<String>>,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    let line = text.lines().next()?.to_owned();
    let is_tunnel = line.starts_with("CONNECT ");
    lock(asked).push(line);
    if is_tunnel {
        client
            .write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes())
            .ok()?;
        if !status.starts_with('2') {
            return None;
        }
    }
    let mut upstream = TcpStream::connect(server).ok()?;
    if !is_tunnel {
        upstream.write_all(&head).ok()?;
    }
    let (mut from, mut to) = (upstream.try_clone().ok()?, client.try_clone().ok()?);
    thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    let _ = std::io::copy(&mut client, &mut upstream);
    let _ = upstream.shutdown(Shutdown::Both);
    None
}

/// Sends one event.
fn sent(config: HttpConfig) -> Result<(), DeliveryError> {
    let reports = Arc::<Reports>::default();
    let mut factory = HttpSinkFactory::new(config, Arc::<SinkStats>::default());
    let created = factory.create(None, Arc::clone(&reports) as Arc<dyn Deliveries>);
    let mut sink = created.expect("a sink");
    let record = Record {
        topic: "t",
        value: Some(b"v"),
        ..Record::default()
    };
    sink.try_send(&record, 0).expect("accepted");
    reports.outcome(0)
}

#[test]
fn http_is_sent_to_the_proxy_with_the_whole_url() {
    let server = Server::start(HttpVersion::One);
    let proxy = ScriptedProxy::start(server.address(), "200 OK");
    let url = "http://events.example/hooks/{topic}";
    assert_eq!(
        sent(proxy.add_to(config(url, HttpVersion::One, ROOMY))),
        Ok(())
    );
    let expected = "POST http://events.example/hooks/t HTTP/1.1";
    assert_eq!(*lock(&proxy.asked), [expected]);
    assert_eq!(server.received()[0].header("host"), Some("events.example"));
}

#[test]
fn https_goes_through_a_tunnel_and_the_certificate_is_that_of_the_server() {
    let authority = Authority::new("test");
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    for (version, protocol) in [(HttpVersion::One, "http/1.1"), (HttpVersion::Two, "h2")] {
        let mut tls = (*authority.server("events.example").server_config()).clone();
        tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let server = Server::reacting(version, Some(Arc::new(tls)), |_, _| Reaction::Store(200));
        let proxy = ScriptedProxy::start(server.address(), "200 Connection established");
        let config = config("https://events.example/x", version, ROOMY);
        let files = TlsFiles {
            ca_file: Some(ca.clone()),
            ..TlsFiles::default()
        };
        let config = config.with_tls(&files).unwrap();
        assert_eq!(sent(proxy.add_to(config)), Ok(()));
        let expected = "CONNECT events.example:443 HTTP/1.1";
        assert_eq!(*lock(&proxy.asked), [expected]);
        assert_eq!(server.bodies(), ["v"]);
    }
}

#[test]
fn a_proxy_that_refuses_the_relay_stops_it_with_and_without_a_tunnel() {
    let refusing = Server::reacting(HttpVersion::One, None, |_, _| {
        Reaction::Answer(407, Vec::new())
    });
    let status = "407 Proxy Authentication Required";
    let proxy = ScriptedProxy::start(refusing.address(), status);
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, Authority::new("test").pem()).unwrap();
    let files = TlsFiles {
        ca_file: Some(ca),
        ..TlsFiles::default()
    };
    for url in ["http://events.example/", "https://events.example/"] {
        let config = config(url, HttpVersion::One, ROOMY);
        let config = config.with_tls(&files).unwrap();
        let error = sent(proxy.add_to(config)).unwrap_err();
        assert_eq!(
            (error.disposition, error.poison),
            (Disposition::Configuration, None),
            "{url}"
        );
        assert!(error.reason.contains("correct proxy"), "{error}");
    }
    assert_eq!(lock(&proxy.asked).len(), 2);
}
