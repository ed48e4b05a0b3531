//! Against a real Postgres. Where there is none these tests fail; that is not a reason to skip
//! them, but to install one.

use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use tokio::time::timeout;
use walrelay_lab::servers::{Postgres, Shutdown};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_walsender::{
    ConnInfo, CopyItem, Error, ErrorClass, Frame, ReplicationStream, Session, SessionKind,
    SlotOptions, StartReplication, StatusUpdate, quote_ident, quote_literal,
};

const LIMIT: Duration = Duration::from_secs(30);

/// A server with TLS and a role for every way of logging in, and its certificate.
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
    info(&format!(
        "host=127.0.0.1 port={port} user={user} password={password} dbname=postgres {rest}"
    ))
}

async fn sql(info: &ConnInfo) -> Result<Session, Error> {
    Session::connect(info, SessionKind::Sql, &[]).await
}

async fn one(session: &mut Session, statement: &str) -> String {
    let rows = session.query(statement).await.unwrap();
    rows.first().unwrap().get(0).unwrap().to_owned()
}

#[tokio::test]
async fn logging_in() {
    let (postgres, certificate) = server();
    let mut admin = sql(&info(&postgres.url())).await.unwrap();
    assert!(!admin.is_encrypted(), "it is a unix socket");
    let version = postgres.version().to_string();
    assert!(
        version.starts_with(&admin.server_version().major.to_string()),
        "{version}"
    );
    admin
        .query(
            "SET password_encryption = 'scram-sha-256';
             CREATE ROLE by_scram LOGIN PASSWORD 'sésame';
             CREATE ROLE by_word LOGIN PASSWORD 'starless';
             CREATE ROLE by_nothing LOGIN;
             SET password_encryption = 'md5';
             CREATE ROLE by_md5 LOGIN PASSWORD 'moonlit'",
        )
        .await
        .unwrap();

    let encrypted = format!(
        "sslmode=verify-full sslrootcert={}",
        certificate.path().display()
    );
    for (user, password, rest, is_encrypted) in [
        ("by_scram", "sésame", "sslmode=disable", false),
        ("by_scram", "sésame", "", true),
        (
            "by_scram",
            "sésame",
            "sslmode=require channel_binding=disable",
            true,
        ),
        (
            "by_scram",
            "sésame",
            &format!("{encrypted} channel_binding=require"),
            true,
        ),
        (
            "by_scram",
            "sésame",
            "sslmode=require require_auth=scram-sha-256",
            true,
        ),
        (
            "by_md5",
            "moonlit",
            "sslmode=disable require_auth=md5",
            false,
        ),
        (
            "by_word",
            "starless",
            &format!("{encrypted} require_auth=password"),
            true,
        ),
        ("by_nothing", "x", "require_auth=none", true),
    ] {
        let mut session = sql(&tcp(&postgres, user, password, rest)).await.unwrap();
        assert_eq!(session.is_encrypted(), is_encrypted, "{user} {rest}");
        assert_eq!(one(&mut session, "SELECT current_user").await, user);
        let pid = session.backend_pid().to_string();
        assert_eq!(one(&mut session, "SELECT pg_backend_pid()").await, pid);
        session.close().await;
    }

    for (user, password, rest, class, words) in [
        ("by_scram", "wrong", "", ErrorClass::AccessDenied, "28P01"),
        (
            "by_scram",
            "wrong",
            "sslmode=disable",
            ErrorClass::AccessDenied,
            "28P01",
        ),
        (
            "by_md5",
            "moonlit",
            "",
            ErrorClass::Configuration,
            "require_auth=md5",
        ),
        (
            "by_word",
            "starless",
            "",
            ErrorClass::Configuration,
            "require_auth=password",
        ),
        (
            "by_nothing",
            "x",
            "require_auth=!none",
            ErrorClass::Configuration,
            "none",
        ),
        (
            "by_scram",
            "sésame",
            "require_auth=md5",
            ErrorClass::Configuration,
            "SCRAM",
        ),
        (
            "by_word",
            "starless",
            "require_auth=password,scram-sha-256 sslmode=require channel_binding=require",
            ErrorClass::Configuration,
            "channel_binding",
        ),
        (
            "by_scram",
            "sésame",
            "dbname=absent",
            ErrorClass::Configuration,
            "3D000",
        ),
        (
            "by_scram",
            "sésame",
            "options='-c no_such_setting=1'",
            ErrorClass::Configuration,
            "42704",
        ),
    ] {
        // The database may be named by the row.
        let rest = if rest.starts_with("dbname") {
            let text = format!(
                "host=127.0.0.1 port={} user={user} password={password} {rest}",
                postgres.port()
            );
            info(&text)
        } else {
            tcp(&postgres, user, password, rest)
        };
        let error = sql(&rest).await.unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(
            !error.to_string().contains(password) || password == "x",
            "{error}"
        );
    }

    // Somebody else's certificate.
    let other = KeyPair::generate().unwrap();
    let other = CertificateParams::new(["localhost".to_owned()])
        .unwrap()
        .self_signed(&other)
        .unwrap();
    std::fs::write(certificate.path(), other.pem()).unwrap();
    let error = sql(&tcp(&postgres, "by_scram", "sésame", &encrypted))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Tls(_)), "{error}");
    assert_eq!(error.class(), ErrorClass::Configuration);

    // Not a standby, and nobody is at the other port.
    let standby = sql(&tcp(
        &postgres,
        "by_scram",
        "sésame",
        "target_session_attrs=standby",
    ))
    .await;
    assert!(matches!(standby.unwrap_err(), Error::WrongServer { .. }));
    for wanted in ["primary", "read-write", "prefer-standby"] {
        let rest = format!("target_session_attrs={wanted}");
        sql(&tcp(&postgres, "by_scram", "sésame", &rest))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn quoting_and_values() {
    let (postgres, _certificate) = server();
    let mut session = sql(&info(&postgres.url())).await.unwrap();
    for standard in ["on", "off"] {
        let mode = format!("SET standard_conforming_strings = {standard}");
        session.query(&mode).await.unwrap();
        for text in [
            "",
            "it's",
            r"back\slash",
            r"\'; DROP TABLE x; --",
            "Größe \u{1F600}",
            "\n\t\"",
        ] {
            let literal = quote_literal(text);
            // Without a space before it: it must not join the word in front.
            assert_eq!(one(&mut session, &format!("SELECT{literal}")).await, text);
            if !text.is_empty() {
                let select = format!("SELECT 1 AS {}", quote_ident(text));
                assert_eq!(session.query(&select).await.unwrap().columns(), [text]);
            }
        }
    }
    let rows = session
        .query("SELECT NULL, ''; SET search_path = ''")
        .await
        .unwrap();
    let row = rows.first().unwrap();
    assert_eq!((row.get(0), row.get(1)), (None, Some("")));
    let timestamp = "SELECT '2024-02-29 12:00+00'::timestamptz AT TIME ZONE 'UTC'";
    assert_eq!(one(&mut session, timestamp).await, "2024-02-29 12:00:00");
    assert_eq!(
        one(&mut session, "SELECT 0.1::float4::float8").await,
        "0.10000000149011612"
    );
    let error = session.query("SELECT 1/0").await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("22012"));
    assert_eq!(one(&mut session, "SELECT 1").await, "1");
    // COPY in both directions is no way to hang.
    assert!(
        session
            .query("COPY (SELECT 1) TO STDOUT")
            .await
            .unwrap()
            .is_empty()
    );
    session.query("CREATE TEMP TABLE t (a int)").await.unwrap();
    let error = session.query("COPY t FROM STDIN").await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("57014"));
    assert_eq!(one(&mut session, "SELECT 2").await, "2");
}

/// Rows of COPY come one by one, the session is usable behind them, and an error among them is told.
#[tokio::test]
async fn copy_gives_rows() {
    let (postgres, _) = server();
    let info = info(&postgres.url());
    let session = sql(&info).await.unwrap();
    let long =
        "COPY (SELECT n, repeat('x', 1000), E'a\\tb\\n' FROM generate_series(1, 3000) n) TO STDOUT";
    let mut copy = session.copy_out(long).await.unwrap();
    let mut count = 0;
    loop {
        match copy.peek().unwrap() {
            None => {
                copy.read().await.unwrap();
                continue;
            }
            Some(CopyItem::End) => break,
            Some(CopyItem::Row(row)) => {
                count += 1;
                assert!(row.starts_with(format!("{count}\tx").as_bytes()));
                assert!(row.ends_with(b"x\ta\\tb\\n\n"));
            }
        }
        copy.consume();
    }
    assert_eq!(count, 3000);
    assert_eq!(copy.peek().unwrap(), Some(CopyItem::End));
    let mut session = copy.into_session();
    assert_eq!(one(&mut session, "SELECT 1").await, "1");

    // In the middle: what is left of the rows is thrown away.
    let mut copy = session.copy_out(long).await.unwrap();
    copy.read().await.unwrap();
    let mut session = copy.into_session();
    assert_eq!(one(&mut session, "SELECT 2").await, "2");

    let failing = "COPY (SELECT 1 / (2 - n) FROM generate_series(1, 2) n) TO STDOUT";
    let mut copy = session.copy_out(failing).await.unwrap();
    let error = loop {
        match copy.peek() {
            Ok(None) => drop(copy.read().await.unwrap()),
            Ok(Some(_)) => copy.consume(),
            Err(error) => break error,
        }
    };
    assert_eq!(error.sqlstate(), Some("22012"));
    let session = sql(&info).await.unwrap();
    let error = session
        .copy_out("COPY nothing TO STDOUT")
        .await
        .unwrap_err();
    assert_eq!(error.sqlstate(), Some("42P01"));
    let session = sql(&info).await.unwrap();
    let error = session.copy_out("SELECT 1").await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}

fn start(slot: &str) -> StartReplication {
    StartReplication {
        slot: slot.to_owned(),
        start: Lsn::ZERO,
        publications: vec!["it's a \"pub\"".to_owned()],
        messages: true,
        proto_version: 1,
    }
}

async fn replication(info: &ConnInfo) -> Session {
    let settings = [("wal_sender_timeout", "7s")];
    Session::connect(info, SessionKind::Replication, &settings)
        .await
        .unwrap()
}

/// Reads until the commit of a transaction; how many inserts there were, and its end.
async fn transaction(stream: &mut ReplicationStream) -> (u64, Lsn) {
    let mut inserts = 0;
    let reading = async {
        loop {
            while let Some(frame) = stream.peek().unwrap() {
                let mut end = None;
                if let Frame::XLogData { body, .. } = frame {
                    match body[0] {
                        b'I' => inserts += 1,
                        // Flags, commit LSN, end LSN.
                        b'C' => end = Some(u64::from_be_bytes(body[10..18].try_into().unwrap())),
                        _ => {}
                    }
                }
                stream.consume();
                if let Some(end) = end {
                    return Lsn::new(end);
                }
            }
            stream.read().await.unwrap();
        }
    };
    let end = timeout(LIMIT, reading).await.expect("a transaction");
    (inserts, end)
}

fn confirm(end: Lsn) -> StatusUpdate {
    let end = CommitEnd::from_commit_message(end);
    StatusUpdate {
        written: end.lsn(),
        flushed: end,
        applied: end,
        clock_us_since_2000: 0,
        reply_requested: true,
    }
}

/// Waits until the slot stands at `end`.
async fn confirmed(control: &mut Session, slot: &str, end: Lsn) {
    let question = format!(
        "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = {}",
        quote_literal(slot)
    );
    let waiting = async {
        while one(control, &question).await.parse::<Lsn>().unwrap() != end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, waiting).await.expect("the slot follows");
}

/// The whole way, over `info`.
async fn streams(postgres: &Postgres, info: &ConnInfo, slot: &str) {
    let mut control = sql(&self::info(&postgres.url())).await.unwrap();
    let mut session = replication(info).await;
    assert_eq!(one(&mut session, "SHOW wal_sender_timeout").await, "7s");
    let identity = session.identify_system().await.unwrap();
    assert_eq!(identity.dbname.as_deref(), Some("postgres"));
    assert_eq!(identity.timeline, 1);
    let system = "SELECT system_identifier FROM pg_control_system()";
    assert_eq!(identity.system_id, one(&mut control, system).await);
    let created = session
        .create_logical_slot(slot, SlotOptions::default())
        .await
        .unwrap();
    assert_eq!(
        (created.name.as_str(), created.plugin.as_str()),
        (slot, "pgoutput")
    );
    assert!(created.consistent_point >= identity.flushed);
    let again = session
        .create_logical_slot(slot, SlotOptions::default())
        .await;
    assert_eq!(again.unwrap_err().sqlstate(), Some("42710"));

    let mut stream = session.start_replication(&start(slot)).await.unwrap();

    // Somebody else wants the slot meanwhile.
    let error = replication(info)
        .await
        .start_replication(&start(slot))
        .await
        .unwrap_err();
    assert_eq!(error.sqlstate(), Some("55006"));
    assert_eq!(error.class(), ErrorClass::SlotInUse);

    let insert = "INSERT INTO outbox SELECT n, repeat('x', 200) FROM generate_series(1, 5000) n";
    control.query(insert).await.unwrap();
    let (inserts, end) = transaction(&mut stream).await;
    assert_eq!(inserts, 5000);
    stream.queue_status(confirm(end));
    stream.flush().await.unwrap();
    confirmed(&mut control, slot, end).await;

    // One value of 20 MB in one frame.
    let insert = "INSERT INTO outbox VALUES (0, repeat('y', 20000000))";
    control.query(insert).await.unwrap();
    let (inserts, end) = transaction(&mut stream).await;
    assert_eq!(inserts, 1);

    // The last word counts, and the slot is free at once.
    stream.queue_status(confirm(end));
    timeout(LIMIT, stream.finish()).await.unwrap().unwrap();
    confirmed(&mut control, slot, end).await;
    let stream = replication(info)
        .await
        .start_replication(&start(slot))
        .await
        .unwrap();
    timeout(LIMIT, stream.finish()).await.unwrap().unwrap();

    let drop = format!("SELECT pg_drop_replication_slot({})", quote_literal(slot));
    control.query(&drop).await.unwrap();
    let error = replication(info)
        .await
        .start_replication(&start(slot))
        .await
        .unwrap_err();
    assert_eq!(error.sqlstate(), Some("42704"));
    assert_eq!(error.class(), ErrorClass::Configuration);
}

#[tokio::test]
async fn streaming() {
    let (postgres, _certificate) = server();
    let mut control = sql(&info(&postgres.url())).await.unwrap();
    control
        .query(
            r#"CREATE TABLE outbox (id int, payload text);
               ALTER TABLE outbox ALTER payload SET STORAGE external;
               CREATE PUBLICATION "it's a ""pub""" FOR TABLE outbox"#,
        )
        .await
        .unwrap();
    let password = postgres.superuser_password();
    streams(&postgres, &info(&postgres.url()), "by_unix").await;
    let plain = tcp(&postgres, "postgres", password, "sslmode=disable");
    streams(&postgres, &plain, "by_tcp").await;
    let rest = "sslmode=require channel_binding=require";
    let encrypted = tcp(&postgres, "postgres", password, rest);
    streams(&postgres, &encrypted, "by_tls").await;

    // A temporary slot goes with its session.
    let mut session = replication(&plain).await;
    let options = SlotOptions {
        temporary: true,
        ..SlotOptions::default()
    };
    session.create_logical_slot("gone", options).await.unwrap();
    session.close().await;
    let left = "SELECT count(*) FROM pg_replication_slots";
    let waiting = async { while one(&mut control, left).await != "0" {} };
    timeout(LIMIT, waiting).await.expect("the slot is gone");

    // One for failover, where there is such a thing.
    let mut session = replication(&plain).await;
    let options = SlotOptions {
        failover: true,
        ..SlotOptions::default()
    };
    let created = session.create_logical_slot("moves", options).await;
    if session.server_version().major >= 17 {
        created.unwrap();
        let failover = "SELECT failover FROM pg_replication_slots WHERE slot_name = 'moves'";
        assert_eq!(one(&mut control, failover).await, "t");
    } else {
        let error = created.unwrap_err();
        assert!(matches!(error, Error::TooOld { needs: 17, .. }), "{error}");
    }
    session.close().await;

    // The server stops under a stream: an error that passes, whatever its form.
    let mut session = replication(&plain).await;
    session
        .create_logical_slot("kept", SlotOptions::default())
        .await
        .unwrap();
    let mut stream = session.start_replication(&start("kept")).await.unwrap();
    drop(control);
    let (stopped, failure) = tokio::join!(
        tokio::task::spawn_blocking(move || postgres.stop(Shutdown::Fast).map(|()| postgres)),
        timeout(LIMIT, async {
            loop {
                if let Err(error) = stream.read().await {
                    return error;
                }
                loop {
                    match stream.peek() {
                        Ok(Some(Frame::Keepalive { wal_end, .. })) => {
                            // What a walsender waits for before it lets its server stop.
                            stream.consume();
                            stream.queue_status(confirm(wal_end));
                        }
                        Ok(Some(_)) => stream.consume(),
                        Ok(None) => break,
                        Err(error) => return error,
                    }
                }
                if let Err(error) = stream.flush().await {
                    return error;
                }
            }
        })
    );
    let _postgres = stopped.unwrap().unwrap();
    let failure = failure.unwrap();
    assert_eq!(failure.class(), ErrorClass::ServerUnavailable, "{failure}");
    let error = sql(&plain).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::ServerUnavailable, "{error}");
}

#[tokio::test]
async fn servers_that_are_not_set_up() {
    let postgres = Postgres::builder()
        .setting("wal_level", "replica")
        .setting("max_replication_slots", "1")
        .start()
        .expect("the tests need the binaries of a Postgres server (Debian: postgresql)");
    let socket = info(&postgres.url());
    let mut session = replication(&socket).await;
    let error = session
        .create_logical_slot("s", SlotOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.sqlstate(), Some("55000"));
    assert_eq!(error.class(), ErrorClass::Configuration, "{error}");

    session.query("CREATE ROLE nobody LOGIN").await.unwrap();
    let nobody = info(&postgres.url_for("nobody", None, "postgres"));
    let error = Session::connect(&nobody, SessionKind::Replication, &[])
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::AccessDenied, "{error}");

    let absent = info(&format!(
        "host={} user=postgres",
        postgres.socket_dir().join("x").display()
    ));
    let error = sql(&absent).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::ServerUnavailable, "{error}");
}

#[tokio::test]
async fn a_slot_that_was_left_behind() {
    let postgres = Postgres::builder()
        .setting("max_slot_wal_keep_size", "1MB")
        .setting("min_wal_size", "32MB")
        .fast()
        .start()
        .expect("the tests need the binaries of a Postgres server (Debian: postgresql)");
    let socket = info(&postgres.url());
    let mut session = replication(&socket).await;
    session
        .create_logical_slot("left", SlotOptions::default())
        .await
        .unwrap();
    let losing = async {
        let status = "SELECT wal_status FROM pg_replication_slots";
        while one(&mut session, status).await != "lost" {
            let message = "SELECT pg_logical_emit_message(false, 'x', 'y')";
            session.query(message).await.unwrap();
            session.query("SELECT pg_switch_wal()").await.unwrap();
            session.query("CHECKPOINT").await.unwrap();
        }
    };
    timeout(LIMIT, losing)
        .await
        .expect("the slot is invalidated");
    let error = session.start_replication(&start("left")).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::WalGone, "{error}");
    assert!(!error.is_retryable());
}
