//! What a real server answers, and what the sink makes of it.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use crate::support::{Server, options, section, trusting};
use walrelay_redis_sink::{Ids, RedisKind, RedisSection};
use walrelay_sink::{AnySinkFactory, Disposition, EventPosition, Record, SinkOptions};
use walrelay_sink_kind::SinkKind as _;
use walrelay_testkit::{
    Authority, OpenSink, PATIENCE, Redis, RedisClient, RedisReply, eventually, silence_is_shown,
};

/// A sink with its reports.
struct Relay {
    sink: OpenSink,
}

impl Relay {
    fn new(factory: &mut AnySinkFactory) -> Self {
        Self {
            sink: OpenSink::new(factory, None),
        }
    }

    fn start(server: &Server) -> Self {
        Self::new(&mut server.factory_with(&options()))
    }

    fn with(section: &RedisSection) -> Self {
        let kind = RedisKind::new(section, &options()).unwrap();
        Self::new(&mut kind.factory(None).0)
    }

    /// Sends the event of this number: its id is the number, and so is its row.
    fn send(&mut self, stream: &str, lsn: u64, number: u64) {
        let position = EventPosition::in_first_epoch(lsn, number);
        self.sink.send_event(stream, "key", position);
    }
}

/// The ids of a stream's events, in order.
fn stored(server: &Server, stream: &str) -> Vec<u64> {
    let entries = server.redis.client().entries(stream);
    let id = |entry: &walrelay_testkit::StreamEntry| entry.text("id").unwrap().parse().unwrap();
    entries.iter().map(id).collect()
}

#[test]
fn nothing_passes_an_event_for_which_there_was_no_memory() {
    for ids in [Ids::Position, Ids::Server] {
        let server = Server::start(ids);
        let stream = format!("memory-{ids:?}");
        let mut client = server.redis.client();
        let mut relay = Relay::start(&server);
        relay.send(&stream, 1, 0);
        relay.sink.delivered();
        for round in 0..5 {
            client.done("CONFIG SET maxmemory 1mb");
            for number in 0..300 {
                relay.send(&stream, 1, 1 + 300 * round + number);
            }
            let disposition = relay.sink.waits_for("no memory");
            assert_eq!(disposition, Disposition::Retryable);
            client.done("CONFIG SET maxmemory 0");
            relay.sink.delivered();
        }
        assert!(stored(&server, &stream).into_iter().eq(0..=1_500));
        relay.sink.close(PATIENCE);
        client.run_words(&["DEL", &stream]);
    }
}

#[test]
fn what_a_displaced_relay_sends_late_is_not_stored_again() {
    let server = Server::start(Ids::Position);
    let stream = "late";
    let mut displaced = Relay::start(&server);
    for number in 0..10 {
        displaced.send(stream, 1, number);
    }
    displaced.sink.delivered();
    let mut relay = Relay::start(&server);
    for number in 5..20 {
        relay.send(stream, 1, number);
    }
    relay.sink.delivered();
    for number in 10..15 {
        displaced.send(stream, 1, number);
    }
    displaced.sink.delivered();
    assert!(stored(&server, stream).into_iter().eq(0..20));
    let ids = server.redis.client().entries(stream);
    assert_eq!(ids[19].id, "1-19");
    assert_eq!(ids[19].text("position"), Some("0/1 19"));
    // And goes on where it is the first.
    displaced.send(stream, 2, 20);
    displaced.sink.delivered();
    assert!(stored(&server, stream).into_iter().eq(0..=20));
}

#[test]
fn an_event_that_was_deleted_is_appended_with_those_behind_it() {
    let server = Server::start(Ids::Position);
    let stream = "deleted";
    let mut relay = Relay::start(&server);
    for number in 0..10 {
        relay.send(stream, 1, number);
    }
    relay.sink.delivered();
    server.redis.client().run("XDEL deleted 1-3");
    let mut relay = Relay::start(&server);
    for number in 2..10 {
        relay.send(stream, 1, number);
    }
    for number in 10..12 {
        relay.send(stream, 2, number);
    }
    relay.sink.delivered();
    let expected = [0, 1, 2].into_iter().chain(4..10).chain(3..12);
    assert!(stored(&server, stream).into_iter().eq(expected));
}

#[test]
fn the_next_relay_goes_on_with_a_repeat() {
    let server = Server::start(Ids::Position);
    let stream = "repeated";
    let mut relay = Relay::start(&server);
    for number in 0..5 {
        relay.send(stream, 1, number);
    }
    relay.sink.delivered();
    server.redis.client().run("XDEL repeated 1-1");
    let mut relay = Relay::start(&server);
    for number in 1..3 {
        relay.send(stream, 1, number);
    }
    relay.sink.delivered();
    relay.sink.close(PATIENCE);
    let mut relay = Relay::start(&server);
    for number in 3..5 {
        relay.send(stream, 1, number);
    }
    relay.sink.delivered();
    assert_eq!(stored(&server, stream), [0, 2, 3, 4, 1, 2, 3, 4]);
}

#[test]
fn another_event_with_the_same_id_is_not_taken_for_this_one() {
    let server = Server::start(Ids::Position);
    let mut client = server.redis.client();
    client.run("XADD taken 1-1 id 77 key key payload value");
    let mut relay = Relay::start(&server);
    for number in 0..3 {
        relay.send("taken", 1, number);
    }
    relay.sink.delivered();
    assert_eq!(stored(&server, "taken"), [77, 0, 1, 2]);
}

#[test]
fn a_server_that_becomes_a_replica_is_waited_for() {
    let server = Server::start(Ids::Position);
    let mut client = server.redis.client();
    let mut relay = Relay::start(&server);
    relay.send("replica", 1, 0);
    relay.sink.delivered();
    client.done("REPLICAOF 127.0.0.1 1");
    for number in 1..50 {
        relay.send("replica", 1, number);
    }
    assert_eq!(relay.sink.waits_for("replica"), Disposition::Retryable);
    client.done("REPLICAOF NO ONE");
    relay.sink.delivered();
    assert!(stored(&server, "replica").into_iter().eq(0..50));
}

/// The core sends a transaction again that was cut off, as a whole, while its first rows wait.
#[test]
fn a_transaction_that_is_sent_again_while_it_is_queued_is_stored_once() {
    let server = Server::start(Ids::Position);
    let stream = "queued-twice";
    let mut relay = Relay::start(&server);
    relay.send(stream, 1, 0);
    relay.sink.delivered();
    server.redis.pause();
    for number in (1..4).chain(1..6) {
        relay.send(stream, 2, number);
    }
    relay.send(stream, 3, 6);
    server.redis.resume();
    relay.sink.delivered();
    assert!(stored(&server, stream).into_iter().eq(0..7));
    let entries = server.redis.client().entries(stream);
    assert_eq!(entries[6].id, "3-6");
}

#[test]
fn entries_that_are_found_on_a_replica_are_not_delivered() {
    let server = Server::start(Ids::Position);
    let stream = "found-on-a-replica";
    let mut relay = Relay::start(&server);
    for number in 0..10 {
        relay.send(stream, 1, number);
    }
    relay.sink.delivered();
    let replica = Redis::start();
    let mut client = replica.client();
    client.done(&format!("REPLICAOF 127.0.0.1 {}", server.redis.port()));
    eventually(PATIENCE, || client.length(stream) == 10);
    let mut relay = Relay::with(&section(replica.port(), Ids::Position));
    for number in 0..10 {
        relay.send(stream, 1, number);
    }
    let disposition = relay.sink.waits_for("the server is a replica");
    assert_eq!(disposition, Disposition::Retryable);
    assert!(relay.sink.reports.is(|state| state.outcomes.is_empty()));
    client.done("REPLICAOF NO ONE");
    relay.sink.delivered();
    assert!(stored(&server, stream).into_iter().eq(0..10));
    assert_eq!(client.length(stream), 10, "found");
}

/// Events that the server has and its replica has not count as delivered by no relay, whether it has
/// written them itself or found them.
#[test]
fn a_replica_is_waited_for_by_the_relay_that_writes_and_by_the_next() {
    for ids in [Ids::Position, Ids::Server] {
        let server = Server::start(ids);
        let stream = format!("waits-{ids:?}");
        let replica = Redis::start();
        let master = format!("REPLICAOF 127.0.0.1 {}", server.redis.port());
        replica.client().done(&master);
        let mut client = server.redis.client();
        eventually(PATIENCE, || replica_is_online(&mut client));
        let section = RedisSection {
            wait_replicas: 1,
            ..section(server.redis.port(), ids)
        };
        let mut relay = Relay::with(&section);
        for number in 0..10 {
            relay.send(&stream, 1, number);
        }
        relay.sink.delivered();
        assert_eq!(replica.client().length(&stream), 10);
        replica.pause();
        for number in 10..20 {
            relay.send(&stream, 1, number);
        }
        let disposition = relay.sink.waits_for("0 of 1 replicas");
        assert_eq!(disposition, Disposition::Retryable);
        assert!(relay.sink.reports.is(|state| state.outcomes.len() == 10));
        if ids == Ids::Server {
            replica.resume();
            relay.sink.delivered();
            assert!(stored(&server, &stream).into_iter().eq(0..20), "once");
            continue;
        }
        relay.sink.close(Duration::ZERO);
        let mut relay = Relay::with(&section);
        for number in 0..12 {
            relay.send(&stream, 1, number);
        }
        relay.sink.waits_for("0 of 1 replicas");
        assert!(relay.sink.reports.is(|state| state.outcomes.is_empty()));
        replica.resume();
        relay.sink.delivered();
        assert_eq!(replica.client().length(&stream), client.length(&stream));
        let all = stored(&server, &stream).into_iter();
        assert!(all.zip(0..).all(|(stored, number)| stored == number));
    }
}

fn replica_is_online(client: &mut RedisClient) -> bool {
    match client.run("INFO replication") {
        RedisReply::BulkString(info) => String::from_utf8_lossy(&info).contains("state=online"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_without_waitaof_shows_it_and_one_that_has_it_is_waited_for() {
    let server = Server::start(Ids::Position);
    let section = RedisSection {
        wait_fsync: true,
        ..section(server.redis.port(), Ids::Position)
    };
    let mut relay = Relay::with(&section);
    relay.send("fsync", 1, 0);
    relay.sink.reports.wait_for(1);
    let known = server.redis.client().run("WAITAOF 0 0 1");
    let failures = relay.sink.reports.failures();
    if matches!(known, RedisReply::Array(_)) {
        assert_eq!(failures, []);
        return;
    }
    let [error] = &*failures else {
        panic!("{failures:?}");
    };
    assert_eq!(error.disposition, Disposition::Configuration);
    assert!(error.reason.contains("lacks a command"), "{error}");
}

#[test]
fn a_server_that_answers_nothing_is_shown() {
    let server = Server::start(Ids::Position);
    let kind = RedisKind::new(&section(server.redis.port(), Ids::Position), &options());
    silence_is_shown(&server, "silence", kind.unwrap().factory(None));
}

#[test]
fn a_login_that_is_refused_and_a_missing_right_show_as_configuration() {
    let server = Server::start(Ids::Position);
    let mut client = server.redis.client();
    client.done("ACL SETUSER weak on >secret-word ~allowed +ping +xadd +multi +exec +xinfo");
    let with = |user: &str, password: &str| RedisSection {
        username: Some(user.to_owned()),
        password: Some(password.into()),
        ..section(server.redis.port(), Ids::Position)
    };
    let mut relay = Relay::with(&with("weak", "wrong"));
    relay.send("allowed", 1, 0);
    let disposition = relay.sink.waits_for("WRONGPASS");
    assert_eq!(disposition, Disposition::Configuration);
    relay.sink.close(Duration::ZERO);

    let mut relay = Relay::with(&with("weak", "secret-word"));
    relay.send("allowed", 1, 0);
    relay.sink.delivered();
    client.done("ACL SETUSER weak -xadd");
    relay.send("allowed", 1, 1);
    relay.sink.reports.wait_for(2);
    let failures = relay.sink.reports.failures();
    let [error] = &*failures else {
        panic!("{failures:?}");
    };
    assert_eq!(error.disposition, Disposition::Configuration);
    assert_eq!(error.poison, None);
    assert!(error.reason.contains("NOPERM"), "{error}");
    client.run("ACL DELUSER weak");
}

#[test]
fn the_certificate_of_the_server_is_verified() {
    let server = Server::start(Ids::Position);
    let mut client = server.redis.client();
    let authority = Authority::new("ca");
    let issued = authority.server("localhost");
    let folder = tempfile::tempdir().unwrap();
    readable(folder.path(), 0o755);
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        readable(&path, 0o644);
        path
    };
    let ca = write("ca.pem", &authority.pem());
    let certificate = write("certificate.pem", &issued.certificate);
    let key = write("key.pem", &issued.key);
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    client.done(&format!(
        "CONFIG SET tls-cert-file {} tls-key-file {} tls-ca-cert-file {} tls-auth-clients no \
         tls-port {port}",
        certificate.display(),
        key.display(),
        ca.display()
    ));
    let with = |host: &str, ca: &std::path::Path| RedisSection {
        hosts: vec![format!("{host}:{port}")],
        tls: true,
        files: trusting(ca),
        ..section(port, Ids::Position)
    };
    let mut relay = Relay::with(&with("localhost", &ca));
    for number in 0..100 {
        relay.send("tls", 1, number);
    }
    relay.sink.delivered();
    assert!(stored(&server, "tls").into_iter().eq(0..100));
    let other = write("other.pem", &Authority::new("other").pem());
    for (host, ca, words) in [
        ("localhost", &other, "no trusted authority"),
        ("127.0.0.1", &ca, "is not for this host name"),
    ] {
        let mut relay = Relay::with(&with(host, ca));
        relay.send("tls", 1, 100);
        relay.sink.waits_for(words);
        relay.sink.close(Duration::ZERO);
    }
    let expired = authority.expired_server("localhost");
    client.done(&format!(
        "CONFIG SET tls-cert-file {} tls-key-file {}",
        write("expired.pem", &expired.certificate).display(),
        write("expired-key.pem", &expired.key).display(),
    ));
    let mut relay = Relay::with(&with("localhost", &ca));
    relay.send("tls", 1, 100);
    relay
        .sink
        .waits_for(&format!("the certificate of localhost:{port} has expired"));
    relay.sink.close(Duration::ZERO);
    client.done("CONFIG SET tls-port 0");
}

fn readable(path: &std::path::Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_transaction_has_more_than_one_buffer() {
    let server = Server::start(Ids::Position);
    let mut factory = server.factory_with(&SinkOptions {
        max_in_flight_bytes: 512 << 20,
        ..options()
    });
    let mut relay = Relay::new(&mut factory);
    let value = vec![b'\r'; crate::support::MAX_MESSAGE as usize - "large".len() - "key".len()];
    for number in 0..20 {
        let record = Record {
            topic: "large",
            key: Some(b"key"),
            value: Some(&value),
            position: EventPosition::in_first_epoch(1, number),
            ..Record::default()
        };
        relay.sink.send(&record);
    }
    relay.sink.delivered();
    // Their entries are read back, as they have no id: key and payload are compared.
    let mut again = Relay::new(&mut factory);
    for number in 0..20 {
        let record = Record {
            topic: "large",
            key: Some(b"key"),
            value: Some(&value),
            position: EventPosition::in_first_epoch(1, number),
            ..Record::default()
        };
        again.sink.send(&record);
    }
    again.sink.delivered();
    let entries = server.redis.client().entries("large");
    assert_eq!(entries.len(), 20);
    assert!(entries.iter().all(|entry| entry.fields["payload"] == value));
    server.redis.client().run("DEL large");
}
