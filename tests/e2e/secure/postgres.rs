use std::fs;

use walrelay_testkit::{Authority, Db, eventually, servers};

use super::{Recorder, contains, refused};
use crate::rig::{PATIENCE, Rig, assert_lacks, insert, output_with, said};

const PASSWORD: &str = "postgres-hunter2";

/// Postgres 15 that requires TLS, with the trusted certificates in files.
struct Encrypted {
    rig: Rig,
    authority: Authority,
    db: Db,
}

impl Encrypted {
    fn new() -> Self {
        let authority = Authority::new("testkit authority");
        let issued = authority.server("localhost");
        let postgres = servers::builder(15)
            .setting("ssl", "on")
            .setting("ssl_ca_file", "ca.crt")
            .file("ca.crt", authority.pem())
            .file("server.crt", issued.certificate)
            .file("server.key", issued.key)
            .hba("hostssl all certified 127.0.0.1/32 cert")
            .hba("hostssl all relay 127.0.0.1/32 scram-sha-256")
            .hba("hostnossl all all all reject")
            .start()
            .expect("Postgres starts");
        let rig = Rig::on(postgres).outbox();
        let db = rig.db();
        db.batch(&format!(
            "CREATE ROLE relay LOGIN REPLICATION PASSWORD '{PASSWORD}'; \
             CREATE ROLE certified LOGIN REPLICATION"
        ));
        rig.create_slot();
        fs::write(rig.path("ca.pem"), authority.pem()).expect("written");
        Self { rig, authority, db }
    }

    /// URL of `user`, with a password if it has one, at this machine under the name `host`.
    fn url(&self, user: &str, host: &str, parameters: &str) -> String {
        format!(
            "postgres://{user}@{host}:{}/postgres?hostaddr=127.0.0.1&sslrootcert={}&{parameters}",
            self.rig.postgres.port(),
            self.rig.path("ca.pem").display()
        )
    }

    fn relay_at(&self, host: &str, parameters: &str) -> String {
        self.url(&format!("relay:{PASSWORD}"), host, parameters)
    }
}

#[track_caller]
fn both_refuse(rig: &Rig, url: &str, id: &str, code: i32, words: &[&str]) {
    let config = rig.config_with(url, "");
    for command in ["run", "check"] {
        let error = refused(&output_with(command, &config, &[]), id, code, words);
        assert_lacks(&error, &[PASSWORD]);
    }
}

/// SCRAM, SCRAM with channel binding, and a client certificate: one relay after another.
#[test]
fn events_arrive_by_each_login() {
    let encrypted = Encrypted::new();
    let rig = &encrypted.rig;
    let client = encrypted.authority.client("certified");
    fs::write(rig.path("client.pem"), client.certificate).expect("written");
    let key = rig.path("client.key");
    fs::write(&key, client.key).expect("written");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&key, private).expect("private");
    let certified = format!(
        "sslmode=verify-full&sslcert={}&sslkey={}",
        rig.path("client.pem").display(),
        key.display()
    );
    let urls = [
        encrypted.relay_at("localhost", "sslmode=verify-full"),
        encrypted.relay_at("localhost", "sslmode=verify-full&channel_binding=require"),
        encrypted.url("certified", "localhost", &certified),
    ];
    let mut number = 0;
    for url in &urls {
        let relay = rig.streaming(&rig.config_with(url, ""));
        // Both connections of the relay are encrypted.
        let plain = "SELECT count(*) FROM pg_stat_activity a LEFT JOIN pg_stat_ssl USING (pid) \
                     WHERE a.usename IN ('relay', 'certified') AND ssl IS NOT TRUE";
        assert_eq!(encrypted.db.value::<i64>(plain), 0);
        for _ in 0..10 {
            number += 1;
            insert(&encrypted.db, number);
        }
        rig.caught_up();
        let log = relay.ends_well();
        assert_lacks(&log, &[PASSWORD]);
    }
    rig.verdict().assert_counts(30, 0);
}

#[test]
fn faults_of_postgres_access_are_told_apart() {
    let encrypted = Encrypted::new();
    let rig = &encrypted.rig;
    let full = "sslmode=verify-full";
    let elsewhere = encrypted.relay_at("elsewhere.example", full);
    let words = ["is not for this name", "localhost"];
    both_refuse(rig, &elsewhere, "postgres-tls", 78, &words);
    let url = encrypted.relay_at("localhost", full);
    let trusted = rig.path("ca.pem");
    let ours = fs::read(&trusted).expect("a certificate");
    fs::write(&trusted, Authority::new("another").pem()).expect("written");
    let words = ["issued by none of the authorities"];
    both_refuse(rig, &url, "postgres-tls", 78, &words);
    fs::write(&trusted, ours).expect("written");
    let wrong = encrypted.url("relay:wrong-password", "localhost", full);
    both_refuse(rig, &wrong, "password", 77, &["28P01"]);
    let clear = encrypted.relay_at("localhost", "sslmode=disable");
    both_refuse(rig, &clear, "access", 77, &["pg_hba.conf"]);
    // The server requires a client certificate, and gets none.
    let uncertified = encrypted.url("certified", "localhost", full);
    both_refuse(rig, &uncertified, "access", 77, &["certificate"]);

    let expired = encrypted.authority.expired_server("localhost");
    for (name, text) in [
        ("server.crt", expired.certificate),
        ("server.key", expired.key),
    ] {
        let written = rig.postgres.write_file(name, text.as_bytes());
        written.expect("written");
    }
    rig.postgres.reload_settings().expect("reloaded");
    let config = rig.config_with(&url, "");
    // The postmaster logs the reload before it has finished.
    eventually(PATIENCE, || {
        let checked = output_with("check", &config, &[]);
        said(&checked).contains("certificate expired")
    });
    both_refuse(rig, &url, "postgres-tls", 78, &["certificate expired"]);
}

/// A server without TLS is asked for TLS, and gets nothing else.
#[test]
fn nothing_is_sent_in_clear_to_a_server_without_tls() {
    let rig = Rig::new(15);
    let recorder = Recorder::before(rig.postgres.port());
    fs::write(rig.path("ca.pem"), Authority::new("any").pem()).expect("written");
    for mode in ["require", "verify-ca", "verify-full"] {
        let url = format!(
            "postgres://relay:{PASSWORD}@localhost:{}/postgres?hostaddr=127.0.0.1&sslmode={mode}&sslrootcert={}",
            recorder.port,
            rig.path("ca.pem").display()
        );
        let words = ["does not offer TLS", "sslmode=prefer", "sslmode=disable"];
        both_refuse(&rig, &url, "postgres-tls", 78, &words);
    }
    let heard = recorder.heard();
    assert!(heard.len() >= 6, "{} connections", heard.len());
    for bytes in heard {
        // SSLRequest: its length, and its code, 80877103.
        assert_eq!(bytes, [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]);
        assert!(!contains(&bytes, "relay"));
    }
}
