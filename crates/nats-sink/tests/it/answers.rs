//! What a real server answers, and what the sink makes of it.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::support::{Server, factory, options, section, start};
use serde_json::json;
use walrelay_nats_sink::{NatsKind, NatsSection};
use walrelay_sink::{Disposition, EventPosition, Poison, Record, SinkOptions, StreamStart};
use walrelay_sink_client::TlsFiles;
use walrelay_sink_kind::SinkKind as _;
use walrelay_testkit::{Authority, Nats, OpenSink, PATIENCE, silence_is_shown};

/// A sink with its reports.
struct Relay {
    sink: OpenSink,
}

impl Relay {
    fn with(section: &NatsSection, options: &SinkOptions) -> Self {
        Self {
            sink: OpenSink::new(&mut factory(section, options), None),
        }
    }

    /// Sends the event of this number, which is its id, with one key for all.
    fn send(&mut self, subject: &str, number: u64) {
        let id = format!("{subject}-{number}");
        let record = Record {
            topic: subject,
            key: Some(b"secret-key"),
            value: Some(b"secret-value"),
            event_id: Some(id.as_bytes()),
            position: EventPosition::in_first_epoch(1, number),
            ..Record::default()
        };
        self.sink.send(&record);
    }

    /// Sends an event with this id, at another position.
    fn send_as(&mut self, subject: &str, id: &str, value: &str) {
        let position = EventPosition::in_first_epoch(9, 9);
        let record = Record {
            topic: subject,
            key: Some(b"secret-key"),
            value: Some(value.as_bytes()),
            event_id: Some(id.as_bytes()),
            position,
            ..Record::default()
        };
        self.sink.send(&record);
    }
}

/// The ids of a stream's events, in order.
fn stored(nats: &Nats, stream: &str) -> Vec<String> {
    let messages = nats.client().messages(stream, ">");
    let ids = messages
        .iter()
        .map(|message| message.headers["Nats-Msg-Id"].clone());
    ids.collect()
}

#[test]
fn a_server_that_answers_nothing_is_shown() {
    let server = Server::start();
    server.create("silence");
    for exclusive_stream in [None, Some("silence".to_owned())] {
        let section = NatsSection {
            exclusive_stream,
            ..section(server.nats.port())
        };
        let kind = NatsKind::new(&section, &options()).unwrap();
        silence_is_shown(&server, "silence", kind.factory(None));
    }
    server.nats.client().delete_stream("silence");
}

#[test]
fn a_full_stream_is_waited_for_and_nothing_passes_the_refused_event_of_a_key() {
    let server = Server::start();
    let subjects = ["full.a", "full.b"];
    let mut client = server.nats.client();
    client.create_stream("full", &subjects, &json!({}));
    let mut relay = Relay::with(&section(server.nats.port()), &options());
    relay.send("full.a", 0);
    relay.sink.delivered();
    for round in 0..3 {
        let full = json!({"discard": "new", "max_msgs": 1});
        client.update_stream("full", &subjects, &full);
        for number in 0..30 {
            let number = 1 + round * 30 + number;
            relay.send(subjects[number as usize % 2], number);
        }
        assert_eq!(relay.sink.waits_for("is full"), Disposition::Retryable);
        client.update_stream("full", &subjects, &json!({}));
        relay.sink.delivered();
    }
    let expected = (0..=90).map(|number| format!("{}-{number}", subjects[number % 2]));
    assert!(stored(&server.nats, "full").into_iter().eq(expected));
    relay.sink.close(PATIENCE);
    client.delete_stream("full");
}

#[test]
fn an_event_whose_id_is_that_of_another_one_in_the_stream_is_not_taken_for_delivered() {
    let server = Server::start();
    let mut client = server.nats.client();
    client.create_stream("ids", &["ids.a"], &json!({}));
    for _ in 0..2 {
        let mut relay = Relay::with(&section(server.nats.port()), &options());
        relay.send("ids.a", 0);
        // As a row that is sent again from its table.
        relay.send_as("ids.a", "ids.a-0", "secret-value");
        relay.sink.delivered();
        relay.sink.close(PATIENCE);
    }
    let mut relay = Relay::with(&section(server.nats.port()), &options());
    relay.send_as("ids.a", "ids.a-0", "secret-other");
    relay.sink.reports.wait_for(1);
    let error = relay.sink.reports.outcome(0).unwrap_err();
    assert_eq!(error.poison, Some(Poison::Rejected));
    assert!(!error.reason.contains("secret"), "{error}");
    relay.sink.close(PATIENCE);
    assert_eq!(stored(&server.nats, "ids"), ["ids.a-0"]);
    client.delete_stream("ids");
}

/// The subject of a repeat changes in the stream, or in the configuration, and a row of a snapshot that
/// starts again has another position. Each of these is the event all the same.
#[test]
fn a_repeat_under_another_subject_is_delivered_and_stored_once() {
    let server = Server::start();
    let mut client = server.nats.client();
    let transform = json!({"src": "mapped.*", "dest": "elsewhere.{{wildcard(1)}}"});
    for more in [json!({}), json!({"subject_transform": transform})] {
        client.create_stream("mapped", &["mapped.*"], &more);
        let wal = start("walrelay", 1);
        let snapshot = StreamStart {
            snapshot: true,
            ..start("walrelay", 1)
        };
        // The subject, and the position of the first row.
        for (start, subject, lsn) in [
            (&wal, "mapped.a", 1),
            (&wal, "mapped.a", 1),
            (&wal, "mapped.b", 1),
            (&snapshot, "mapped.a", 2),
        ] {
            let section = section(server.nats.port());
            let mut sink = OpenSink::new(&mut factory(&section, &options()), Some(start));
            for row in 0..20 {
                let id = format!("id-{row}");
                sink.send(&Record {
                    topic: subject,
                    key: Some(b"secret-key"),
                    value: Some(b"secret-value"),
                    event_id: Some(id.as_bytes()),
                    position: EventPosition::in_first_epoch(lsn, row),
                    ..Record::default()
                });
            }
            sink.delivered();
            sink.close(PATIENCE);
        }
        // Without the key, and the subject that was published to.
        let headers = "Nats-Msg-Id: mapped.a-99\r\nwalrelay.position: 0/1 99\r\n";
        client.publish("mapped.a", headers, b"secret-value");
        let mut relay = Relay::with(&section(server.nats.port()), &options());
        relay.send("mapped.a", 99);
        relay.sink.delivered();
        relay.sink.close(PATIENCE);
        let expected = (0..20).map(|row| format!("id-{row}"));
        let expected = expected.chain(["mapped.a-99".to_owned()]);
        assert!(stored(&server.nats, "mapped").into_iter().eq(expected));
        client.delete_stream("mapped");
    }
}

#[test]
fn a_stream_that_comes_later_is_waited_for() {
    let server = Server::start();
    let options = SinkOptions {
        retry_for: Duration::from_secs(600),
        ..options()
    };
    let mut relay = Relay::with(&section(server.nats.port()), &options);
    for number in 0..20 {
        relay.send("later.x", number);
    }
    assert_eq!(
        relay.sink.waits_for("no stream has"),
        Disposition::Retryable
    );
    let mut client = server.nats.client();
    client.create_stream("later", &["later.*"], &json!({}));
    relay.sink.delivered();
    let expected = (0..20).map(|number| format!("later.x-{number}"));
    assert!(stored(&server.nats, "later").into_iter().eq(expected));
    relay.sink.close(PATIENCE);
    client.delete_stream("later");
}

#[test]
fn a_message_above_the_servers_limit_is_oversize_and_not_sent() {
    let server = Server::start();
    let mut client = server.nats.client();
    client.create_stream("large", &["large"], &json!({}));
    let section = NatsSection {
        max_message_size: 8 << 20,
        ..section(server.nats.port())
    };
    let mut relay = Relay::with(&section, &options());
    let value = vec![b'x'; 1_100_000];
    let record = Record {
        topic: "large",
        value: Some(&value),
        ..Record::default()
    };
    relay.sink.send(&record);
    relay.sink.reports.wait_for(1);
    let error = relay.sink.reports.outcome(0).unwrap_err();
    assert_eq!(error.poison, Some(Poison::Oversize), "{error}");
    assert!(error.reason.contains("max_payload"), "{error}");
    relay.sink.close(PATIENCE);
    client.delete_stream("large");
}

/// Users: one with all rights, one that may publish to some subjects only, one by an NKEY.
const USERS: &str = r#"
authorization { users: [
  { user: all, password: all }
  { user: weak, password: secret-word, permissions: {
      publish: ["weak.ok", "none.ok"], subscribe: ["_INBOX.>"] } }
  { nkey: UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4 }
] }"#;
/// The seed of that NKEY, from the documentation of NKEYs.
const SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY\n";

#[test]
fn users_log_in_and_a_missing_right_is_an_error_of_the_configuration() {
    if !Nats::is_wanted() {
        return;
    }
    let nats = Nats::start_with(USERS);
    let mut client = nats.client_as("all", "all");
    client.create_stream("weak", &["weak.*"], &json!({}));
    let user = |password: &str| NatsSection {
        username: Some("weak".to_owned()),
        password: Some(password.into()),
        ..section(nats.port())
    };

    let mut relay = Relay::with(&user("wrong-secret-word"), &options());
    relay.send("weak.ok", 0);
    let disposition = relay.sink.waits_for("refuses the login");
    assert_eq!(disposition, Disposition::Configuration);
    relay.sink.close(Duration::ZERO);

    let mut relay = Relay::with(&user("secret-word"), &options());
    relay.send("weak.ok", 0);
    relay.sink.delivered();
    // The user may not ask which streams have a subject, so an event without one is no poison.
    relay.send("none.ok", 1);
    assert_eq!(
        relay.sink.waits_for("JetStream does not say"),
        Disposition::Retryable
    );
    relay.sink.close(Duration::ZERO);

    let mut relay = Relay::with(&user("secret-word"), &options());
    relay.send("weak.no", 0);
    relay.sink.reports.wait_for(1);
    let error = relay.sink.reports.outcome(0).unwrap_err();
    assert_eq!(
        (error.disposition, error.poison),
        (Disposition::Configuration, None)
    );
    assert!(error.reason.contains("may not publish"), "{error}");
    assert!(!error.reason.contains("weak"), "{error}");
    relay.sink.close(Duration::ZERO);

    let dir = tempfile::tempdir().unwrap();
    let seed = dir.path().join("seed");
    fs::write(&seed, SEED).unwrap();
    let by_key = NatsSection {
        credentials_file: Some(seed),
        ..section(nats.port())
    };
    let mut relay = Relay::with(&by_key, &options());
    relay.send("weak.a", 5);
    relay.sink.delivered();
    relay.sink.close(PATIENCE);
    assert_eq!(client.messages("weak", ">").len(), 2);
}

#[test]
fn events_go_by_tls_and_a_server_without_it_is_refused() {
    if !Nats::is_wanted() {
        return;
    }
    let authority = Authority::new("nats");
    let issued = authority.server("localhost");
    let own = authority.client("walrelay");
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
    // The client of the tests speaks no TLS.
    let nats = Nats::start_with(&format!(
        "allow_non_tls: true\ntls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", \
         verify: true }}",
        certificate.display(),
        key.display(),
        ca.display()
    ));
    let mut client = nats.client();
    client.create_stream("tls", &["tls"], &json!({}));
    let with = |host: &str, ca: &Path| NatsSection {
        hosts: vec![format!("{host}:{}", nats.port())],
        tls: true,
        files: TlsFiles {
            ca_file: Some(ca.to_owned()),
            certificate_file: Some(write("own.pem", &own.certificate)),
            key_file: Some(write("own-key.pem", &own.key)),
        },
        ..section(nats.port())
    };
    let mut relay = Relay::with(&with("localhost", &ca), &options());
    for number in 0..50 {
        relay.send("tls", number);
    }
    relay.sink.delivered();
    assert_eq!(stored(&nats, "tls").len(), 50);
    relay.sink.close(PATIENCE);
    let other = write("other.pem", &Authority::new("other").pem());
    for (host, ca, words) in [
        ("localhost", &other, "no trusted authority"),
        ("127.0.0.1", &ca, "is not for this host name"),
    ] {
        let mut relay = Relay::with(&with(host, ca), &options());
        relay.send("tls", 100);
        relay.sink.waits_for(words);
        relay.sink.close(Duration::ZERO);
    }
    let expired = authority.expired_client("walrelay");
    let own = NatsSection {
        files: TlsFiles {
            ca_file: Some(ca.clone()),
            certificate_file: Some(write("expired.pem", &expired.certificate)),
            key_file: Some(write("expired-key.pem", &expired.key)),
        },
        ..with("localhost", &ca)
    };
    let mut relay = Relay::with(&own, &options());
    relay.send("tls", 100);
    relay.sink.waits_for("refuses the certificate of the relay");
    relay.sink.close(Duration::ZERO);
    let plain = Nats::shared();
    let elsewhere = NatsSection {
        hosts: vec![format!("localhost:{}", plain.port())],
        ..with("localhost", &ca)
    };
    let mut relay = Relay::with(&elsewhere, &options());
    relay.send("tls", 100);
    let disposition = relay.sink.waits_for("does not offer TLS");
    assert_eq!(disposition, Disposition::Configuration);
    relay.sink.close(Duration::ZERO);
}

fn readable(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
