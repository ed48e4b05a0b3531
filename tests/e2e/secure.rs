//! TLS, logins and access control, against servers that insist on them.
//!
//! - [`kafka`]: every way to log in, certificates that are wrong, access that is granted late.
//! - [`tokens`]: OAUTHBEARER from a file and a command, renewed and mended while the relay runs.
//! - [`postgres`]: TLS, SCRAM, client certificates, and certificates that are wrong.
//! - [`role`]: the role that `init` makes can relay, and nothing else.
//! - [`secrets`]: no secret is in any output.

mod kafka;
mod postgres;
mod role;
mod secrets;
mod tokens;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Output;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use walrelay_testkit::{Db, SecureKafka, millis_now, servers};

use crate::rig::{Rig, said};

/// The broker that the tests of this module share. It goes when the last of them does.
fn secure_kafka() -> Arc<SecureKafka> {
    static KAFKA: Mutex<Weak<SecureKafka>> = Mutex::new(Weak::new());
    let mut shared = KAFKA.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let kafka = Arc::new(SecureKafka::start());
        *shared = Arc::downgrade(&kafka);
        kafka
    })
}

/// Postgres 15 with an outbox, and a configuration for the secure broker. What is read back comes by
/// the broker's plain listener.
struct Secured {
    broker: Arc<SecureKafka>,
    rig: Rig,
    db: Db,
}

impl Secured {
    fn new() -> Self {
        let broker = secure_kafka();
        let rig = Rig::with(servers::postgres(15), broker.kafka.bootstrap_servers());
        rig.workload().create_tables();
        fs::write(rig.path("ca.pem"), broker.authority.pem()).expect("written");
        let db = Db::connect(&rig.postgres.url());
        Self { broker, rig, db }
    }

    /// A configuration for the broker at `address`, with these lines in `[sink.kafka]` and after.
    fn config(&self, address: &str, lines: &str) -> PathBuf {
        self.config_for(&self.rig.postgres.url(), address, lines)
    }

    fn config_for(&self, url: &str, address: &str, lines: &str) -> PathBuf {
        let ca = self.rig.path("ca.pem");
        let lines = format!(
            "\"broker.address.family\" = \"v4\"\n\"ssl.ca.location\" = \"{}\"\n{lines}",
            ca.display()
        );
        let path = self.rig.config_with(url, &lines);
        let text = fs::read_to_string(&path).expect("the configuration");
        let plain = format!("\"bootstrap.servers\" = \"{}\"", self.rig.bootstrap);
        assert!(text.contains(&plain), "{text}");
        let text = text.replace(&plain, &format!("\"bootstrap.servers\" = \"{address}\""));
        fs::write(&path, text).expect("written");
        path
    }

    fn secure(&self) -> String {
        self.broker.kafka.listener("SECURE")
    }

    fn insert(&self, number: u32) {
        self.insert_of("order", number);
    }

    fn insert_of(&self, kind: &str, number: u32) {
        self.db.batch(&format!(
            "INSERT INTO outbox VALUES \
             (gen_random_uuid(), '{kind}', 'key', 'T', '{{\"number\": {number}}}')"
        ));
    }
}

/// Lines for `[sink.kafka]`.
fn login(mechanism: &str, user: &str, password: &str) -> String {
    format!(
        "\"security.protocol\" = \"SASL_SSL\"\n\"sasl.mechanism\" = \"{mechanism}\"\n\
         \"sasl.username\" = \"{user}\"\n\"sasl.password\" = \"{password}\"\n"
    )
}

/// The same, and the section after.
fn bearer(section: &str) -> String {
    format!(
        "\"security.protocol\" = \"SASL_SSL\"\n\"sasl.mechanism\" = \"OAUTHBEARER\"\n\n\
         [sink.oauthbearer]\n{section}\n"
    )
}

/// An unsecured JWT, which the tests' broker takes, that ends in `seconds`.
fn jwt(subject: &str, seconds: i64) -> String {
    let now = millis_now() / 1000;
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let claims = format!(
        r#"{{"sub":"{subject}","iat":{},"exp":{}}}"#,
        now - 1,
        now + seconds
    );
    format!("{}.{}.", encode(r#"{"alg":"none"}"#), encode(&claims))
}

#[track_caller]
fn refused(output: &Output, id: &str, code: i32, words: &[&str]) {
    let error = said(output);
    assert!(error.contains(&format!("[{id}]")), "not {id}: {error}");
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(
        error.contains(" help: ") || error.contains("\nhelp: "),
        "no remedy: {error}"
    );
    for word in words {
        assert!(error.contains(word), "{word:?} is missing: {error}");
    }
}

/// Passes connections on to a server, and keeps what clients send.
struct Recorder {
    port: u16,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Recorder {
    /// Its threads end with the connections; the one that listens ends with the tests.
    fn before(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let heard: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let record = Arc::clone(&heard);
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
                    continue;
                };
                let index = {
                    let mut heard = record.lock().unwrap_or_else(PoisonError::into_inner);
                    heard.push(Vec::new());
                    heard.len() - 1
                };
                let record = Arc::clone(&record);
                let (from, to) = (client.try_clone(), server.try_clone());
                thread::spawn(move || {
                    pass(client, server, |bytes| {
                        let mut heard = record.lock().unwrap_or_else(PoisonError::into_inner);
                        heard[index].extend_from_slice(bytes);
                    });
                });
                if let (Ok(client), Ok(server)) = (from, to) {
                    thread::spawn(move || pass(server, client, |_| {}));
                }
            }
        });
        Self { port, heard }
    }

    /// What each connection has sent so far.
    fn heard(&self) -> Vec<Vec<u8>> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.clone()
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut look: impl FnMut(&[u8])) {
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer)
        && count > 0
    {
        look(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}
