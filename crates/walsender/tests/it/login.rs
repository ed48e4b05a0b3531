//! Logging in, host lists and queries, with a server that follows a script.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use walrelay_walsender::{ConnInfo, Error, ErrorClass, ServerVersion, Session, SessionKind};

use crate::fake::{Fake, connect, error, info, listen, message, rows, start, welcome};

/// A connection attempt, and a server that does `serve` with it.
async fn attempt<F: Future<Output = ()>>(
    parameters: &str,
    serve: impl FnOnce(Fake) -> F,
) -> Result<Session, Error> {
    let (listener, port) = listen().await;
    let info = info(port, parameters);
    let serving = async { serve(Fake::accept(&listener).await).await };
    let (session, ()) = tokio::join!(connect(&info), serving);
    session
}

/// The error of an attempt that fails.
async fn refused<F: Future<Output = ()>>(parameters: &str, serve: impl FnOnce(Fake) -> F) -> Error {
    attempt(parameters, serve).await.unwrap_err()
}

/// An answer to a query, after which the server is ready for the next.
fn ready(mut answer: Vec<u8>) -> Vec<u8> {
    answer.extend(message(b'Z', b"I"));
    answer
}

/// An authentication request.
fn ask(kind: u32, rest: &[u8]) -> Vec<u8> {
    let mut body = kind.to_be_bytes().to_vec();
    body.extend_from_slice(rest);
    message(b'R', &body)
}

#[tokio::test]
async fn what_the_startup_packet_says() {
    let (listener, port) = listen().await;
    let info = info(port, "application_name=me options='-c a=b'");
    let settings = [("wal_sender_timeout", "5s")];
    for kind in [SessionKind::Replication, SessionKind::Sql] {
        let serving = async {
            let mut fake = Fake::accept(&listener).await;
            let startup = fake.startup().await;
            fake.send(&welcome(&[("server_version", "17.2"), ("TimeZone", "UTC")]))
                .await;
            startup
        };
        let (session, startup) = tokio::join!(Session::connect(&info, kind, &settings), serving);
        let session = session.unwrap();
        assert_eq!(session.backend_pid(), 42);
        let version = ServerVersion {
            major: 17,
            minor: 2,
        };
        assert_eq!(session.server_version(), version);
        assert_eq!(session.parameter("TimeZone"), Some("UTC"));
        assert_eq!(session.parameter("nothing"), None);
        assert!(!session.is_encrypted());
        assert_eq!(session.host(), &info.hosts[0]);
        let mut expected = vec![
            ("user", "u"),
            ("database", "d"),
            ("application_name", "me"),
            ("client_encoding", "UTF8"),
            ("client_min_messages", "warning"),
            ("DateStyle", "ISO"),
            ("IntervalStyle", "postgres"),
            ("extra_float_digits", "3"),
            ("bytea_output", "hex"),
            ("lc_monetary", "C"),
        ];
        if kind == SessionKind::Replication {
            expected.push(("replication", "database"));
        }
        expected.extend([("options", "-c a=b"), ("wal_sender_timeout", "5s")]);
        let startup: Vec<_> = startup
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(startup, expected);
    }
}

/// The passwords must not go out unless the connection string says so.
#[tokio::test]
async fn cleartext_and_md5_only_where_allowed() {
    for (request, word, method) in [
        (ask(3, &[]), "password", "cleartext"),
        (ask(5, b"salt"), "md5", "MD5"),
    ] {
        let error = refused("password=secret", async |mut fake: Fake| {
            fake.startup().await;
            fake.send(&request).await;
            assert_eq!(fake.receive().await, None, "the password must not go out");
        })
        .await;
        let text = error.to_string();
        assert!(matches!(error, Error::AuthMethodRefused { .. }), "{text}");
        assert_eq!(error.class(), ErrorClass::Configuration);
        assert!(text.contains(method), "{text}");
        assert!(text.contains(&format!("require_auth={word}")), "{text}");

        let allowed = format!("password=secret require_auth={word}");
        attempt(&allowed, async |mut fake: Fake| {
            fake.startup().await;
            fake.send(&request).await;
            let (tag, body) = fake.receive().await.unwrap();
            assert_eq!(tag, b'p');
            match word {
                "password" => assert_eq!(body, b"secret\0"),
                _ => assert!(body.starts_with(b"md5") && body.len() == 36),
            }
            fake.send(&welcome(&[("server_version", "15")])).await;
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn no_authentication_where_one_is_required() {
    let serve = async |mut fake: Fake| {
        fake.startup().await;
        fake.send(&welcome(&[("server_version", "15")])).await;
    };
    attempt("", serve).await.unwrap();
    let error = refused("require_auth=scram-sha-256", serve).await;
    assert!(matches!(error, Error::AuthMethodRefused { .. }), "{error}");
    let error = refused(
        "channel_binding=require sslmode=prefer",
        async |mut fake: Fake| {
            fake.untagged().await;
            fake.send(b"N").await;
            fake.startup().await;
            fake.send(&welcome(&[("server_version", "15")])).await;
        },
    )
    .await;
    assert!(matches!(error, Error::ChannelBinding { .. }), "{error}");
}

#[tokio::test]
async fn channel_binding_cannot_be_had_without_encryption() {
    let parameters = "password=x channel_binding=require sslmode=prefer";
    let error = refused(parameters, async |mut fake: Fake| {
        fake.untagged().await;
        fake.send(b"N").await;
        fake.startup().await;
        fake.send(&ask(10, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0"))
            .await;
        assert_eq!(fake.receive().await, None);
    })
    .await;
    assert!(matches!(error, Error::ChannelBinding { .. }), "{error}");
}

/// A server that does not know the password must not be believed.
#[tokio::test]
async fn a_server_that_skips_its_proof() {
    let error = refused("password=x", async |mut fake: Fake| {
        fake.startup().await;
        fake.send(&ask(10, b"SCRAM-SHA-256\0\0")).await;
        fake.receive().await.unwrap();
        fake.send(&welcome(&[("server_version", "15")])).await;
    })
    .await;
    assert!(matches!(error, Error::Scram { .. }), "{error}");

    // It answers the challenge, but its proof is nonsense.
    for proof in [&b"v=AAAA"[..], b"e=other-error", b"\xFF"] {
        let error = refused("password=x", async |mut fake: Fake| {
            fake.startup().await;
            fake.send(&ask(10, b"SCRAM-SHA-256\0\0")).await;
            let (_, first) = fake.receive().await.unwrap();
            let first = String::from_utf8_lossy(&first).into_owned();
            let (_, nonce) = first.split_once("r=").unwrap();
            let challenge = format!("r={nonce}x,s=c2FsdA==,i=1");
            fake.send(&ask(11, challenge.as_bytes())).await;
            fake.receive().await.unwrap();
            fake.send(&ask(12, proof)).await;
            fake.send(&welcome(&[("server_version", "15")])).await;
        })
        .await;
        assert!(matches!(error, Error::Scram { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::Configuration);
    }
}

#[tokio::test]
async fn no_password_to_give() {
    let error = refused("", async |mut fake: Fake| {
        fake.startup().await;
        fake.send(&ask(10, b"SCRAM-SHA-256\0\0")).await;
        assert_eq!(fake.receive().await, None);
    })
    .await;
    assert!(matches!(error, Error::PasswordMissing { .. }), "{error}");
}

#[tokio::test]
async fn answers_to_the_request_for_tls() {
    let answers: [(&[u8], &str, ErrorClass); 4] = [
        (b"N", "does not offer TLS", ErrorClass::Configuration),
        (b"SR\0\0\0\x08\0\0\0\0", "interfering", ErrorClass::Protocol),
        (
            b"EMtoo many clients\0",
            "with an error",
            ErrorClass::ServerUnavailable,
        ),
        (b"H", "not Postgres'", ErrorClass::Protocol),
    ];
    for (answer, words, class) in answers {
        let error = refused("sslmode=require", async |mut fake: Fake| {
            assert_eq!(fake.untagged().await, 80_877_103_u32.to_be_bytes());
            fake.send(answer).await;
            assert_eq!(fake.receive().await, None);
        })
        .await;
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.class(), class, "{error}");
    }
    let session = attempt("sslmode=prefer", async |mut fake: Fake| {
        fake.untagged().await;
        fake.send(b"N").await;
        fake.login().await;
    })
    .await
    .unwrap();
    assert!(!session.is_encrypted());
}

#[tokio::test]
async fn a_giant_message_before_the_login_is_refused() {
    let error = refused("", async |mut fake: Fake| {
        fake.startup().await;
        fake.send(&[b'E', 0x10, 0, 0, 0]).await;
        assert_eq!(fake.receive().await, None);
    })
    .await;
    assert_eq!(error.class(), ErrorClass::Protocol, "{error}");
}

/// A connection string with these ports at 127.0.0.1.
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

/// A port at which nobody listens.
async fn closed_port() -> u16 {
    listen().await.1
}

#[tokio::test]
async fn the_next_host_is_tried() {
    let (starting, starting_port) = listen().await;
    let (good, good_port) = listen().await;
    let info = hosts(&[closed_port().await, starting_port, good_port], "");
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
    let untried = tokio::time::timeout(Duration::from_millis(50), second.accept()).await;
    assert!(untried.is_err(), "the second host was tried");
}

#[tokio::test]
async fn all_hosts_are_named_with_their_reasons() {
    let closed = closed_port().await;
    let (silent, silent_port) = listen().await;
    let info = hosts(&[closed, silent_port], "connect_timeout=1");
    let before = Instant::now();
    let error = connect(&info).await.unwrap_err();
    assert!(before.elapsed() < Duration::from_secs(10));
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
    // Which of (standby, primary, read-only primary) each asks for.
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

    // No standby anywhere: the second round takes what there is.
    let info = hosts(&[port], "target_session_attrs=prefer-standby");
    let serving = async {
        let _first = login_as(&primary, "off", "off").await;
        login_as(&primary, "off", "off").await
    };
    let (session, _) = tokio::join!(connect(&info), serving);
    session.unwrap();
}

/// A pooler may not pass the parameters on; then the server is asked.
#[tokio::test]
async fn target_session_attrs_by_asking() {
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

async fn session() -> (Session, Fake) {
    let (listener, port) = listen().await;
    let info = info(port, "");
    let serving = async {
        let mut fake = Fake::accept(&listener).await;
        fake.login().await;
        fake
    };
    let (session, fake) = tokio::join!(connect(&info), serving);
    (session.unwrap(), fake)
}

#[tokio::test]
async fn rows_of_the_last_statement_that_had_any() {
    let (mut session, mut fake) = session().await;
    let serving = async {
        let mut bytes = rows(&["old"], &[&[Some("x")]]);
        bytes.extend(rows(
            &["a", "b"],
            &[&[Some("1"), None], &[Some(""), Some("ö")]],
        ));
        bytes.extend(message(b'S', b"TimeZone\0Europe/Berlin\0"));
        bytes.extend(message(b'C', b"SET\0"));
        bytes.extend(message(b'Z', b"I"));
        fake.receive().await.unwrap();
        fake.send(&bytes).await;
    };
    let (found, ()) = tokio::join!(session.query("several"), serving);
    let found = found.unwrap();
    assert_eq!(found.columns(), ["a", "b"]);
    assert_eq!(found.len(), 2);
    let values: Vec<_> = found
        .iter()
        .map(|row| {
            (
                row.get("a"),
                row.get(1),
                row.get("b"),
                row.get(2),
                row.get("c"),
            )
        })
        .collect();
    assert_eq!(
        values,
        [
            (Some("1"), None, None, None, None),
            (Some(""), Some("ö"), Some("ö"), None, None)
        ]
    );
    assert_eq!(session.parameter("TimeZone"), Some("Europe/Berlin"));
    assert!(
        !format!("{found:?} {:?}", found.first()).contains('ö'),
        "Debug shows values"
    );
}

/// Several statements take one round trip: all are there before the first answer is sent.
#[tokio::test]
async fn statements_that_are_sent_together_are_answered_one_by_one() {
    let (mut session, mut fake) = session().await;
    let serving = async {
        for sql in ["one", "two", "three"] {
            let sent = format!("{sql}\0").into_bytes();
            assert_eq!(fake.receive().await, Some((b'Q', sent)));
        }
        for (column, values) in [("a", &[Some("1")][..]), ("b", &[]), ("c", &[None])] {
            let lines: Vec<&[Option<&str>]> = values.iter().map(std::slice::from_ref).collect();
            fake.send(&ready(rows(&[column], &lines))).await;
        }
        fake
    };
    let statements = ["one", "two", "three"];
    let (found, mut fake) = tokio::join!(session.query_all(&statements), serving);
    let found = found.unwrap();
    let columns: Vec<_> = found
        .iter()
        .map(|rows| (rows.columns(), rows.len()))
        .collect();
    let expected: [(&[String], usize); 3] = [
        (&["a".to_owned()], 1),
        (&["b".to_owned()], 0),
        (&["c".to_owned()], 1),
    ];
    assert_eq!(columns, expected);

    // The first fails: the answers to the others are thrown away before the next command.
    let serving = async {
        for _ in 0..2 {
            fake.receive().await.unwrap();
        }
        let mut bytes = error("ERROR", "42P01", "no such table");
        bytes.extend(message(b'Z', b"I"));
        bytes.extend(rows(&["late"], &[&[Some("x")]]));
        bytes.extend(message(b'Z', b"I"));
        fake.send(&bytes).await;
        fake
    };
    let (result, mut fake) = tokio::join!(session.query_all(&["bad", "good"]), serving);
    assert_eq!(result.unwrap_err().class(), ErrorClass::Configuration);
    let serving = async {
        fake.receive().await.unwrap();
        fake.send(&ready(rows(&["next"], &[]))).await;
    };
    let (found, ()) = tokio::join!(session.query("next"), serving);
    assert_eq!(found.unwrap().columns(), ["next"]);
}

#[tokio::test]
async fn a_session_survives_an_error_and_a_dropped_query() {
    let (mut session, mut fake) = session().await;
    let serving = async {
        fake.receive().await.unwrap();
        fake.send(&ready(error("ERROR", "42P01", "no such table")))
            .await;
        fake
    };
    let (result, mut fake) = tokio::join!(session.query("one"), serving);
    let refusal = result.unwrap_err();
    assert_eq!(refusal.class(), ErrorClass::Configuration);
    assert_eq!(refusal.server().unwrap().message, "no such table");

    // Dropped while the answer is half there: between the names of the columns and the first row.
    let description = rows(&["dropped"], &[]).len() - message(b'C', b"SELECT 1\0").len();
    let half = async {
        fake.receive().await.unwrap();
        fake.send(&rows(&["dropped"], &[])[..description]).await;
        // The query gets its turn to read it.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        _ = session.query("two") => unreachable!("its answer is not complete"),
        () = half => {}
    }
    let serving = async {
        fake.send(&rows(&["dropped"], &[&[Some("x")]])[description..])
            .await;
        fake.send(&message(b'Z', b"I")).await;
        assert_eq!(fake.receive().await, Some((b'Q', b"three\0".to_vec())));
        fake.send(&ready(rows(&["kept"], &[]))).await;
        fake
    };
    let (found, mut fake) = tokio::join!(session.query("three"), serving);
    assert_eq!(found.unwrap().columns(), ["kept"]);

    // NUL never reaches the server.
    let nul = session.query("SELECT '\0'").await.unwrap_err();
    assert!(matches!(nul, Error::Nul { .. }), "{nul}");

    let serving = async {
        fake.receive().await.unwrap();
        fake.send(&message(b'G', &[0, 0, 0])).await;
        assert_eq!(fake.receive().await.unwrap().0, b'f');
        let failed = error("ERROR", "57014", "COPY from stdin failed");
        fake.send(&ready(failed)).await;
        fake
    };
    let (result, mut fake) = tokio::join!(session.query("COPY t FROM STDIN"), serving);
    assert_eq!(result.unwrap_err().sqlstate(), Some("57014"));

    session.close().await;
    assert_eq!(fake.receive().await, Some((b'X', Vec::new())));
    assert_eq!(fake.receive().await, None);
}

#[tokio::test]
async fn a_fatal_error_is_the_reason_not_the_closed_connection() {
    let (mut session, mut fake) = session().await;
    let serving = async {
        fake.receive().await.unwrap();
        fake.send(&error("FATAL", "57P02", "terminating connection"))
            .await;
        drop(fake);
    };
    let (result, ()) = tokio::join!(session.query("one"), serving);
    assert_eq!(result.unwrap_err().sqlstate(), Some("57P02"));
    assert!(session.query("two").await.unwrap_err().is_retryable());
}

#[tokio::test]
async fn a_refused_start_says_why_and_says_good_bye() {
    let (session, mut fake) = session().await;
    let serving = async {
        fake.receive().await.unwrap();
        fake.send(&ready(error(
            "ERROR",
            "55006",
            "replication slot \"s\" is active for PID 7",
        )))
        .await;
        assert_eq!(fake.receive().await, Some((b'X', Vec::new())));
    };
    let start = start();
    let (result, ()) = tokio::join!(session.start_replication(&start), serving);
    assert_eq!(result.unwrap_err().class(), ErrorClass::SlotInUse);
}
