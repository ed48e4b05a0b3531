//! Tests of slots and replication streams.

use std::time::Duration;

use tokio::time::timeout;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_throwaway::{Postgres, Shutdown};
use walrelay_walsender::{
    ConnInfo, CreatedSlot, Error, ErrorClass, Frame, ReplicationStream, Session, SessionKind,
    SlotOptions, StartReplication, StatusUpdate, quote_literal,
};

use super::{info, one, server, sql, tcp};
use crate::PATIENCE;

fn start(slot: &str) -> StartReplication {
    StartReplication {
        slot: slot.to_owned(),
        start: Lsn::ZERO,
        publication: "it's a \"pub\"".to_owned(),
        messages: true,
    }
}

async fn replication(info: &ConnInfo) -> Session {
    // The server must not end a session of a busy machine, which sends no updates for a while.
    let settings = [("wal_sender_timeout", "7min")];
    Session::connect(info, SessionKind::Replication, &settings)
        .await
        .unwrap()
}

/// Creates a slot without options.
async fn create(session: &mut Session, slot: &str) -> Result<CreatedSlot, Error> {
    session
        .create_logical_slot(slot, SlotOptions::default())
        .await
}

/// Starts streaming over a new session.
async fn start_stream(info: &ConnInfo, slot: &str) -> Result<ReplicationStream, Error> {
    replication(info)
        .await
        .start_replication(&start(slot))
        .await
}

/// Reads until the commit of a transaction. Returns the number of inserts and the commit's end.
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
    let end = timeout(PATIENCE, reading).await.expect("a transaction");
    (inserts, end)
}

/// Reads and confirms until the stream fails. Returns the error.
async fn failure(stream: &mut ReplicationStream) -> Error {
    let failing = failure_without_limit(stream);
    timeout(PATIENCE, failing).await.expect("the stream fails")
}

async fn failure_without_limit(stream: &mut ReplicationStream) -> Error {
    loop {
        if let Err(error) = stream.read().await {
            return error;
        }
        loop {
            match stream.peek() {
                Ok(Some(Frame::Keepalive { wal_end, .. })) => {
                    // A stopping server waits until its WAL is confirmed.
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

/// Waits until the slot's confirmed position is `end`.
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
    timeout(PATIENCE, waiting).await.expect("the slot follows");
}

/// Creates a slot, streams, confirms and drops the slot, over `info`.
async fn streams(postgres: &Postgres, info: &ConnInfo, slot: &str) {
    let mut control = sql(&self::info(&postgres.url())).await.unwrap();
    let mut session = replication(info).await;
    assert_eq!(one(&mut session, "SHOW wal_sender_timeout").await, "7min");
    let identity = session.identify_system().await.unwrap();
    assert_eq!(identity.timeline, 1);
    let system = "SELECT system_identifier FROM pg_control_system()";
    assert_eq!(identity.system_id, one(&mut control, system).await);
    let created = create(&mut session, slot).await.unwrap();
    assert!(created.consistent_point >= identity.flushed);
    let again = create(&mut session, slot).await;
    assert_eq!(again.unwrap_err().sqlstate(), Some("42710"));

    let mut stream = session.start_replication(&start(slot)).await.unwrap();

    // Another session cannot read the slot meanwhile.
    let error = start_stream(info, slot).await.unwrap_err();
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

    // The last update is taken, and the slot is free at once.
    stream.queue_status(confirm(end));
    timeout(PATIENCE, stream.finish()).await.unwrap().unwrap();
    confirmed(&mut control, slot, end).await;
    let stream = start_stream(info, slot).await.unwrap();
    timeout(PATIENCE, stream.finish()).await.unwrap().unwrap();

    let drop = format!("SELECT pg_drop_replication_slot({})", quote_literal(slot));
    control.query(&drop).await.unwrap();
    let error = start_stream(info, slot).await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("42704"));
    assert_eq!(error.class(), ErrorClass::Configuration);
}

#[tokio::test]
async fn a_slot_is_created_streamed_and_dropped() {
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

    // A temporary slot is dropped with its session.
    let mut session = replication(&plain).await;
    let options = SlotOptions {
        temporary: true,
        ..SlotOptions::default()
    };
    session.create_logical_slot("gone", options).await.unwrap();
    session.close().await;
    let left = "SELECT count(*) FROM pg_replication_slots";
    let waiting = async { while one(&mut control, left).await != "0" {} };
    timeout(PATIENCE, waiting).await.expect("the slot is gone");

    // A failover slot, if the version supports it.
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
        assert!(matches!(error, Error::FailoverTooOld { .. }), "{error}");
    }
    session.close().await;

    // The server stops during a stream: a retryable error, of any form.
    let mut session = replication(&plain).await;
    create(&mut session, "kept").await.unwrap();
    let mut stream = session.start_replication(&start("kept")).await.unwrap();
    drop(control);
    let (stopped, failure) = tokio::join!(
        tokio::task::spawn_blocking(move || postgres.stop(Shutdown::Fast).map(|()| postgres)),
        timeout(PATIENCE, failure(&mut stream))
    );
    let _postgres = stopped.unwrap().unwrap();
    let failure = failure.unwrap();
    assert_eq!(failure.class(), ErrorClass::ServerUnavailable, "{failure}");
    let error = sql(&plain).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::ServerUnavailable, "{error}");
}

#[tokio::test]
async fn servers_without_the_needed_configuration() {
    let postgres = Postgres::builder()
        .setting("wal_level", "replica")
        .setting("max_replication_slots", "1")
        .start()
        .expect("the tests need the binaries of a Postgres server (Debian: postgresql)");
    let socket = info(&postgres.url());
    let mut session = replication(&socket).await;
    let error = create(&mut session, "s").await.unwrap_err();
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
async fn an_invalidated_slot() {
    let postgres = Postgres::builder()
        .setting("max_slot_wal_keep_size", "1MB")
        .setting("min_wal_size", "32MB")
        .fast()
        .start()
        .expect("the tests need the binaries of a Postgres server (Debian: postgresql)");
    let socket = info(&postgres.url());
    let mut session = replication(&socket).await;
    create(&mut session, "left").await.unwrap();
    let losing = async {
        let status = "SELECT wal_status FROM pg_replication_slots";
        while one(&mut session, status).await != "lost" {
            let message = "SELECT pg_logical_emit_message(false, 'x', 'y')";
            session.query(message).await.unwrap();
            session.query("SELECT pg_switch_wal()").await.unwrap();
            session.query("CHECKPOINT").await.unwrap();
        }
    };
    timeout(PATIENCE, losing)
        .await
        .expect("the slot is invalidated");
    let error = session.start_replication(&start("left")).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::WalGone, "{error}");
    assert!(!error.is_retryable());
}
