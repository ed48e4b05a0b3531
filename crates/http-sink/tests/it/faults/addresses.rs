//! The address of a request: the URL that a row decides, and the certificates of both sides.

use std::path::PathBuf;

use walrelay_sink_client::TlsFiles;

use super::*;

#[test]
fn tls_verifies_the_server_and_has_the_configured_version() {
    let authority = Authority::new("test");
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    for (version, protocol) in [(HttpVersion::One, "http/1.1"), (HttpVersion::Two, "h2")] {
        let mut tls = (*authority.server("localhost").server_config()).clone();
        tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let server = Server::reacting(version, Some(Arc::new(tls)), |_, _| Reaction::Store(200));
        let url = format!("https://localhost:{}/x", server.address().port());
        let files = |ca_file| TlsFiles {
            ca_file,
            ..TlsFiles::default()
        };
        let trusting = config(&url, version, ROOMY).with_tls(&files(Some(ca.clone())));
        let mut sending = Sending::new(trusting.unwrap());
        sending.send("k", "v", 0);
        assert_eq!(sending.report(0), Ok(()));
        let expired = authority.expired_server("localhost").server_config();
        let expired = Server::reacting(version, Some(expired), |_, _| Reaction::Store(200));
        let of_expired = format!("https://localhost:{}/x", expired.address().port());
        for (url, ca, words) in [
            (&url, None, "no trusted authority"),
            (&of_expired, Some(ca.clone()), "has expired"),
        ] {
            let refusing = config(url, version, ROOMY).with_tls(&files(ca)).unwrap();
            let mut sending = Sending::new(refusing);
            sending.send("k", "v", 0);
            eventually(PATIENCE, || sending.sink.waiting_for().is_some());
            let obstacle = sending.sink.waiting_for().unwrap();
            assert_eq!(obstacle.disposition, Disposition::Configuration);
            assert!(obstacle.what.contains(words), "{obstacle:?}");
        }
        assert_eq!(server.received().len(), 1);
        assert_eq!(expired.received().len(), 0);
    }
}

#[test]
fn the_relay_shows_its_certificate_to_a_server_that_asks_for_one() {
    let authority = Authority::new("test");
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let ca = file("ca.pem", &authority.pem());
    let client = authority.client("relay");
    let identity = (
        file("client.pem", &client.certificate),
        file("client.key", &client.key),
    );
    let tls = authority.server("localhost").server_config_for(&authority);
    let server = Server::reacting(HttpVersion::One, Some(tls), |_, _| Reaction::Store(200));
    let url = format!("https://localhost:{}/x", server.address().port());
    let sending = |identity: Option<(PathBuf, PathBuf)>| {
        let (certificate_file, key_file) = identity.unzip();
        let files = TlsFiles {
            ca_file: Some(ca.clone()),
            certificate_file,
            key_file,
        };
        let config = config(&url, HttpVersion::One, ROOMY).with_tls(&files);
        let mut sending = Sending::new(config.unwrap());
        sending.send("k", "v", 0);
        sending
    };
    let mut refused = sending(None);
    eventually(PATIENCE, || refused.sink.waiting_for().is_some());
    assert_eq!(server.received().len(), 0);
    assert_eq!(sending(Some(identity)).report(0), Ok(()));
}

#[test]
fn a_host_that_an_event_chooses_may_not_have_a_private_address() {
    let server = Server::start(HttpVersion::One);
    let url = format!("http://{{topic}}:{}/", server.address().port());
    for allowed in [false, true] {
        let mut config = config(&url, HttpVersion::One, ROOMY);
        config.allow_private = allowed;
        let mut sending = Sending::new(config);
        let record = Record {
            topic: "localhost",
            value: Some(b"v"),
            ..Record::default()
        };
        sending.sink.try_send(&record, 0).expect("accepted");
        let report = sending.report(0);
        let poison = report.err().map(|error| error.poison);
        assert_eq!(poison, (!allowed).then_some(Some(Poison::Unroutable)));
    }
    assert_eq!(server.received().len(), 1);
}

#[test]
fn the_row_decides_the_url() {
    let server = Server::start(HttpVersion::One);
    let url = format!("http://{}/{{tenant}}/{{topic}}", server.address());
    let mut sending = Sending::new(config(&url, HttpVersion::One, ROOMY));
    let of_row = format!("http://{}/a%2Fb/{{topic}}", server.address());
    let record = Record {
        topic: "t",
        routing_key: Some(&of_row),
        value: Some(b"v"),
        ..Record::default()
    };
    sending.sink.try_send(&record, 0).expect("accepted");
    assert_eq!(sending.report(0), Ok(()));
    assert_eq!(server.received()[0].path, "/a%2Fb/t");
    let without = Record {
        routing_key: None,
        ..record
    };
    let Err(SendError::Refused(error)) = sending.sink.try_send(&without, 1) else {
        panic!("it has no URL");
    };
    assert_eq!(error.poison, Some(Poison::Unroutable));
}
