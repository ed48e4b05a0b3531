//! TLS, logins and access control, with servers that require them.
//!
//! - [`kafka`]: every way to log in, wrong certificates, access that is granted late.
//! - [`tokens`]: OAUTHBEARER from a file and a command, renewed and repaired while the relay runs.
//! - [`postgres`]: TLS, SCRAM, client certificates, and wrong certificates.
//! - [`role`]: the role that `init` creates can relay, and nothing else.
//! - [`secrets`]: no output contains a secret.

mod forging;
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
use std::sync::{Arc, Mutex};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use walrelay_testkit::{Db, SecureKafka, lock, millis_now};

use crate::rig::{self, Rig, edit, insert_of, secure_kafka};

/// Postgres 15 with an outbox, and the secure broker. The tests read records through the broker's
/// plain listener.
struct Secured {
    broker: &'static SecureKafka,
    rig: Rig,
    db: Db,
}

impl Secured {
    fn new() -> Self {
        let broker = secure_kafka();
        let rig = Rig::with_kafka(15, &broker.kafka);
        fs::write(rig.path("ca.pem"), broker.authority.pem()).expect("written");
        let db = rig.db();
        Self { broker, rig, db }
    }

    /// A configuration for the broker at `address`, with these lines in and after `[sink.kafka]`.
    fn config(&self, address: &str, lines: &str) -> PathBuf {
        let ca = self.rig.path("ca.pem");
        let lines = format!(
            "\"broker.address.family\" = \"v4\"\n\"ssl.ca.location\" = \"{}\"\n{lines}",
            ca.display()
        );
        let path = self.rig.config_and(&lines);
        let bootstrap = |address: &str| format!("\"bootstrap.servers\" = \"{address}\"");
        edit(&path, &bootstrap(&self.rig.bootstrap), &bootstrap(address));
        path
    }

    fn secure(&self) -> String {
        self.broker.kafka.listener("SECURE")
    }

    fn insert(&self, number: u32) {
        self.insert_of("order", number);
    }

    fn insert_of(&self, kind: &str, number: u32) {
        insert_of(&self.db, kind, "key", number);
    }
}

/// Lines of `[sink.kafka]` for a login with a password.
fn login(mechanism: &str, user: &str, password: &str) -> String {
    format!(
        "\"security.protocol\" = \"SASL_SSL\"\n\"sasl.mechanism\" = \"{mechanism}\"\n\
         \"sasl.username\" = \"{user}\"\n\"sasl.password\" = \"{password}\"\n"
    )
}

/// Lines of `[sink.kafka]` for OAUTHBEARER, and the section after it.
fn bearer(section: &str) -> String {
    format!(
        "\"security.protocol\" = \"SASL_SSL\"\n\"sasl.mechanism\" = \"OAUTHBEARER\"\n\n\
         [sink.oauthbearer]\n{section}\n"
    )
}

/// An unsecured JWT that expires in `seconds`. The tests' broker accepts it.
fn jwt(subject: &str, seconds: i64) -> String {
    let now = millis_now() / 1000;
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let (from, to) = (now - 1, now + seconds);
    let claims = format!(r#"{{"sub":"{subject}","iat":{from},"exp":{to}}}"#);
    format!("{}.{}.", encode(r#"{"alg":"none"}"#), encode(&claims))
}

#[track_caller]
fn refused(output: &Output, id: &str, code: i32, words: &[&str]) -> String {
    let id = format!("[{id}]");
    rig::refused(output, code, &[&[&*id], words].concat())
}

/// Forwards connections to a server, and records what clients send.
struct Recorder {
    port: u16,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Recorder {
    /// Its threads end with the connections, the listening thread ends with the tests.
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
                    let mut heard = lock(&record);
                    heard.push(Vec::new());
                    heard.len() - 1
                };
                let record = Arc::clone(&record);
                let (from, to) = (client.try_clone(), server.try_clone());
                thread::spawn(move || {
                    pass(client, server, |bytes| {
                        lock(&record)[index].extend_from_slice(bytes);
                    });
                });
                if let (Ok(client), Ok(server)) = (from, to) {
                    thread::spawn(move || pass(server, client, |_| {}));
                }
            }
        });
        Self { port, heard }
    }

    /// The bytes that each connection has sent so far.
    fn heard(&self) -> Vec<Vec<u8>> {
        lock(&self.heard).clone()
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
    let mut windows = bytes.windows(text.len());
    windows.any(|part| part == text.as_bytes())
}
