//! Tests of login with a scripted server.

use std::future::Future;

use walrelay_walsender::{Error, ErrorClass, ServerVersion, Session, SessionKind};

use crate::fake::{Fake, connect, info, listen, message, welcome};

/// Attempts a connection to a server that runs `serve`.
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

/// Makes an attempt that fails, and returns its error.
async fn refused<F: Future<Output = ()>>(parameters: &str, serve: impl FnOnce(Fake) -> F) -> Error {
    attempt(parameters, serve).await.unwrap_err()
}

/// Encodes an authentication request.
fn ask(kind: u32, rest: &[u8]) -> Vec<u8> {
    let mut body = kind.to_be_bytes().to_vec();
    body.extend_from_slice(rest);
    message(b'R', &body)
}

#[tokio::test]
async fn the_startup_packet_contains_the_parameters() {
    let (listener, port) = listen().await;
    let info = info(port, "application_name=me options='-c a=b'");
    let settings = [("wal_sender_timeout", "5s")];
    for kind in [SessionKind::Replication, SessionKind::Sql] {
        let serving = async {
            let mut fake = Fake::accept(&listener).await;
            let startup = fake.startup().await;
            fake.send(&welcome(&[("server_version", "16.2"), ("TimeZone", "UTC")]))
                .await;
            startup
        };
        let (session, startup) = tokio::join!(Session::connect(&info, kind, &settings), serving);
        let session = session.unwrap();
        assert_eq!(session.backend_pid(), 42);
        let version = ServerVersion {
            major: 16,
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
            ("default_transaction_isolation", "read committed"),
            ("DateStyle", "ISO"),
            ("IntervalStyle", "postgres"),
            ("extra_float_digits", "3"),
            ("bytea_output", "hex"),
            ("lc_monetary", "C"),
            ("row_security", "off"),
            ("statement_timeout", "0"),
            ("lock_timeout", "0"),
            ("idle_in_transaction_session_timeout", "0"),
            ("idle_session_timeout", "0"),
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

/// Otherwise an impostor could ask for the password.
#[tokio::test]
async fn cleartext_and_md5_passwords_are_sent_only_if_allowed() {
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
async fn a_login_without_authentication_fails_if_one_is_required() {
    let serve = async |mut fake: Fake| {
        fake.login().await;
    };
    attempt("", serve).await.unwrap();
    let error = refused("require_auth=scram-sha-256", serve).await;
    assert!(matches!(error, Error::AuthMethodRefused { .. }), "{error}");
    let error = refused(
        "channel_binding=require sslmode=prefer",
        async |mut fake: Fake| {
            fake.untagged().await;
            fake.send(b"N").await;
            fake.login().await;
        },
    )
    .await;
    assert!(matches!(error, Error::ChannelBinding { .. }), "{error}");
}

#[tokio::test]
async fn channel_binding_needs_encryption() {
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

/// Such a server may be an impostor.
#[tokio::test]
async fn a_server_without_a_proof_of_the_password_is_refused() {
    let error = refused("password=x", async |mut fake: Fake| {
        fake.startup().await;
        fake.send(&ask(10, b"SCRAM-SHA-256\0\0")).await;
        fake.answer(&welcome(&[("server_version", "15")])).await;
    })
    .await;
    assert!(matches!(error, Error::Scram { .. }), "{error}");

    // The server sends a challenge, but its proof is wrong.
    for proof in [&b"v=AAAA"[..], b"e=other-error", b"\xFF"] {
        let error = refused("password=x", async |mut fake: Fake| {
            challenge(&mut fake, "4096").await;
            fake.answer(&ask(12, proof)).await;
            fake.send(&welcome(&[("server_version", "15")])).await;
        })
        .await;
        assert!(matches!(error, Error::Scram { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::Configuration);
    }
}

/// Sends the challenge of SCRAM with this number of iterations, after the startup.
async fn challenge(fake: &mut Fake, iterations: &str) {
    fake.startup().await;
    fake.send(&ask(10, b"SCRAM-SHA-256\0\0")).await;
    let (_, first) = fake.receive().await.unwrap();
    let first = String::from_utf8_lossy(&first).into_owned();
    let (_, nonce) = first.split_once("r=").unwrap();
    let challenge = format!("r={nonce}x,s=c2FsdA==,i={iterations}");
    fake.send(&ask(11, challenge.as_bytes())).await;
}

/// With few iterations, whoever poses as the server can guess the password from the answer; with very
/// many the client computes for hours.
#[tokio::test]
async fn a_challenge_with_too_few_or_too_many_iterations_gets_no_answer() {
    for count in ["1", "4095", "1000001", "2147483647"] {
        let error = refused("password=x", async |mut fake: Fake| {
            challenge(&mut fake, count).await;
            assert_eq!(fake.receive().await, None, "the client answers");
        })
        .await;
        assert!(error.to_string().contains("iterations"), "{error}");
        assert_eq!(error.class(), ErrorClass::Configuration);
    }
}

#[tokio::test]
async fn a_missing_password_is_an_error() {
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
        (
            b"SR\0\0\0\x08\0\0\0\0",
            "unencrypted data",
            ErrorClass::Protocol,
        ),
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

/// A process of a server whose postmaster is killed while it waits for the startup message ends so.
#[tokio::test]
async fn a_server_that_ends_after_it_declined_tls_is_tried_again() {
    let error = refused("sslmode=prefer", async |mut fake: Fake| {
        fake.untagged().await;
        let fields =
            b"SFATAL\0C57P01\0Mterminating connection due to unexpected postmaster exit\0\0";
        let mut answer = b"NE".to_vec();
        answer.extend((4 + fields.len() as u32).to_be_bytes());
        answer.extend(fields);
        fake.send(&answer).await;
        fake.startup().await;
    })
    .await;
    assert_eq!(error.sqlstate(), Some("57P01"), "{error}");
    assert_eq!(error.class(), ErrorClass::ServerUnavailable);
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
