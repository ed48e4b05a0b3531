//! Tests of host lists and `target_session_attrs` with a scripted server.

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use walrelay_walsender::{ConnInfo, Error, ErrorClass};

use crate::PATIENCE;
use crate::fake::{Fake, connect, error, listen, ready, rows, welcome};

/// Creates a connection string with 127.0.0.1 at each of these ports.
fn hosts(ports: &[u16], parameters: &str) -> ConnInfo {
    let hosts = vec!["127.0.0.1"; ports.len()].join(",");
    let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
    format!(
        "host={hosts} port={} user=u sslmode=disable {parameters}",
        ports.join(",")
    )
    .parse()
    .unwrap()
}

/// A port on which no server listens, and which no other test gets.
const CLOSED_PORT: u16 = 1;

#[tokio::test]
async fn the_next_host_is_tried() {
    let (starting, starting_port) = listen().await;
    let (good, good_port) = listen().await;
    let info = hosts(&[CLOSED_PORT, starting_port, good_port], "");
    let serving = async {
        let mut fake = Fake::accept(&starting).await;
        fake.startup().await;
        fake.send(&error(
            "FATAL",
            "57P03",
            "the database system is starting up",
        ))
        .await;
        Fake::accept(&good).await.login().await;
    };
    let (session, ()) = tokio::join!(connect(&info), serving);
    assert_eq!(session.unwrap().host(), &info.hosts[2]);
}

#[tokio::test]
async fn a_refused_login_ends_the_search() {
    let (first, first_port) = listen().await;
    let (second, second_port) = listen().await;
    let info = hosts(&[first_port, second_port], "");
    let serving = async {
        let mut fake = Fake::accept(&first).await;
        fake.startup().await;
        fake.send(&error("FATAL", "28P01", "password authentication failed"))
            .await;
    };
    let (session, ()) = tokio::join!(connect(&info), serving);
    let error = session.unwrap_err();
    assert_eq!(error.sqlstate(), Some("28P01"));
    assert_eq!(error.class(), ErrorClass::AccessDenied);
    // The first connection to the second host is one that is made now.
    let own = TcpStream::connect(("127.0.0.1", second_port))
        .await
        .unwrap();
    let (_, first_client) = second.accept().await.unwrap();
    let own = own.local_addr().unwrap();
    assert_eq!(first_client, own, "the second host was tried");
}

#[tokio::test]
async fn all_hosts_are_named_with_their_reasons() {
    let closed = CLOSED_PORT;
    let (silent, silent_port) = listen().await;
    // The kernel refuses the first connection at once; the second one always takes the timeout.
    let info = hosts(&[closed, silent_port], "connect_timeout=3");
    let ended = timeout(PATIENCE, connect(&info)).await;
    let error = ended.expect("each host has a timeout").unwrap_err();
    drop(silent);
    let text = error.to_string();
    assert!(
        text.contains(&format!("127.0.0.1:{closed}: connecting")),
        "{text}"
    );
    assert!(
        text.contains(&format!("127.0.0.1:{silent_port}: no session within")),
        "{text}"
    );
    assert!(error.is_retryable());

    // A single attempt is not wrapped.
    let error = connect(&hosts(&[closed], "")).await.unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::ServerUnavailable);
}

async fn login_as(listener: &TcpListener, in_hot_standby: &str, read_only: &str) -> Fake {
    let mut fake = Fake::accept(listener).await;
    fake.startup().await;
    fake.send(&welcome(&[
        ("server_version", "15.1"),
        ("in_hot_standby", in_hot_standby),
        ("default_transaction_read_only", read_only),
    ]))
    .await;
    fake
}

#[tokio::test]
async fn target_session_attrs() {
    // The index of the server that is chosen: 0 is a standby, 1 a primary.
    for (wanted, chosen) in [
        ("any", 0),
        ("primary", 1),
        ("read-write", 1),
        ("standby", 0),
        ("prefer-standby", 0),
        ("read-only", 0),
    ] {
        let (standby, standby_port) = listen().await;
        let (primary, primary_port) = listen().await;
        let ports = [standby_port, primary_port];
        let info = hosts(&ports, &format!("target_session_attrs={wanted}"));
        let serving = async {
            let first = login_as(&standby, "on", "off").await;
            if chosen == 1 {
                login_as(&primary, "off", "off").await;
            }
            first
        };
        let (session, _) = tokio::join!(connect(&info), serving);
        assert_eq!(session.unwrap().host(), &info.hosts[chosen], "{wanted}");
    }

    let (primary, port) = listen().await;
    for (wanted, read_only, found) in [
        ("standby", "off", "on a primary"),
        ("read-write", "on", "read-only"),
        ("read-only", "off", "read-write"),
    ] {
        let info = hosts(&[port], &format!("target_session_attrs={wanted}"));
        let serving = async {
            let mut fake = login_as(&primary, "off", read_only).await;
            assert_eq!(fake.receive().await.unwrap().0, b'X');
        };
        let (session, ()) = tokio::join!(connect(&info), serving);
        let error = session.unwrap_err();
        assert!(error.to_string().contains(found), "{error}");
        assert!(error.is_retryable());
    }

    // Without a standby, the second round accepts any server.
    let info = hosts(&[port], "target_session_attrs=prefer-standby");
    let serving = async {
        let _first = login_as(&primary, "off", "off").await;
        login_as(&primary, "off", "off").await
    };
    let (session, _) = tokio::join!(connect(&info), serving);
    session.unwrap();
}

/// A connection pooler may not report the parameters; then queries are sent.
#[tokio::test]
async fn target_session_attrs_by_queries() {
    let (listener, port) = listen().await;
    let info = hosts(&[port], "target_session_attrs=read-write");
    let serving = async {
        let mut fake = Fake::accept(&listener).await;
        fake.login().await;
        for (question, answer) in [
            ("SELECT pg_catalog.pg_is_in_recovery()\0", "f"),
            ("SHOW transaction_read_only\0", "off"),
        ] {
            assert_eq!(fake.receive().await, Some((b'Q', question.into())));
            fake.send(&ready(rows(&["x"], &[&[Some(answer)]]))).await;
        }
    };
    let (session, ()) = tokio::join!(connect(&info), serving);
    session.unwrap();
}
