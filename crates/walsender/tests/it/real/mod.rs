//! Tests against a real Postgres, which must be installed: they are not skipped without one, but
//! fail.

mod login;
mod replication;
mod statements;

use rcgen::{CertificateParams, KeyPair};
use walrelay_throwaway::Postgres;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

/// Starts a server with TLS and `pg_hba.conf` lines for each login method, and returns its
/// certificate.
fn server() -> (Postgres, tempfile::NamedTempFile) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let postgres = Postgres::builder()
        .setting("ssl", "on")
        .setting("ssl_cert_file", "walsender.crt")
        .setting("ssl_key_file", "walsender.key")
        .setting("max_wal_senders", "10")
        .setting("max_replication_slots", "10")
        .file("walsender.crt", certificate.pem())
        .file("walsender.key", key.serialize_pem())
        .hba("host all by_md5 127.0.0.1/32 md5")
        .hba("host all by_word 127.0.0.1/32 password")
        .hba("host all by_nothing 127.0.0.1/32 trust")
        .fast()
        .start()
        .expect("the tests need the binaries of a Postgres server (Debian: postgresql)");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), certificate.pem()).unwrap();
    (postgres, file)
}

fn info(text: &str) -> ConnInfo {
    text.parse().unwrap()
}

fn tcp(postgres: &Postgres, user: &str, password: &str, rest: &str) -> ConnInfo {
    let port = postgres.port();
    let dbname = if rest.contains("dbname") {
        ""
    } else {
        "dbname=postgres"
    };
    info(&format!(
        "host=127.0.0.1 port={port} user={user} password={password} {dbname} {rest}"
    ))
}

async fn sql(info: &ConnInfo) -> Result<Session, Error> {
    Session::connect(info, SessionKind::Sql, &[]).await
}

async fn one(session: &mut Session, statement: &str) -> String {
    let rows = session.query(statement).await.unwrap();
    rows.first().unwrap().get(0).unwrap().to_owned()
}
