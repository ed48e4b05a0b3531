//! Tests of the login methods.

use rcgen::{CertificateParams, KeyPair};
use walrelay_throwaway::Postgres;
use walrelay_walsender::{ConnInfo, Error, ErrorClass};

use super::{info, one, server, sql, tcp};

#[tokio::test]
async fn each_login_method_of_a_server_works() {
    let (postgres, certificate) = server();
    create_roles(&postgres).await;
    let encrypted = format!(
        "sslmode=verify-full sslrootcert={}",
        certificate.path().display()
    );
    assert_logins_succeed(&postgres, &encrypted).await;
    assert_logins_fail(&postgres).await;
    assert_target_session_attrs(&postgres).await;
    assert_odd_passwords(&postgres).await;

    // The root certificate is another server's.
    let other = KeyPair::generate().unwrap();
    let other = CertificateParams::new(["localhost".to_owned()])
        .unwrap()
        .self_signed(&other)
        .unwrap();
    std::fs::write(certificate.path(), other.pem()).unwrap();
    let untrusted = role(&postgres, "by_scram", &encrypted);
    let error = sql(&untrusted).await.unwrap_err();
    assert!(matches!(error, Error::Tls(_)), "{error}");
    assert_eq!(error.class(), ErrorClass::Configuration);
}

/// Creates a role for each login method, over the unix socket.
async fn create_roles(postgres: &Postgres) {
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
}

fn password_of(name: &str) -> &str {
    match name {
        "by_word" => "starless",
        "by_nothing" => "x",
        "by_md5" => "moonlit",
        "impostor" => "wrong",
        _ => "sésame",
    }
}

/// Creates the connection string of one of the roles. The impostor is `by_scram` with a wrong
/// password.
fn role(postgres: &Postgres, name: &str, rest: &str) -> ConnInfo {
    let user = if name == "impostor" { "by_scram" } else { name };
    tcp(postgres, user, password_of(name), rest)
}

/// Asserts that each role can log in. `encrypted`: parameters that verify the server's certificate.
async fn assert_logins_succeed(postgres: &Postgres, encrypted: &str) {
    let bound = format!("{encrypted} channel_binding=require");
    let by_word = format!("{encrypted} require_auth=password");
    for (user, rest, is_encrypted) in [
        ("by_scram", "sslmode=disable", false),
        ("by_scram", "", true),
        ("by_scram", "sslmode=require channel_binding=disable", true),
        ("by_scram", &bound, true),
        (
            "by_scram",
            "sslmode=require require_auth=scram-sha-256",
            true,
        ),
        ("by_md5", "sslmode=disable require_auth=md5", false),
        ("by_word", &by_word, true),
        ("by_nothing", "require_auth=none", true),
    ] {
        let mut session = sql(&role(postgres, user, rest)).await.unwrap();
        assert_eq!(session.is_encrypted(), is_encrypted, "{user} {rest}");
        assert_eq!(one(&mut session, "SELECT current_user").await, user);
        let pid = session.backend_pid().to_string();
        assert_eq!(one(&mut session, "SELECT pg_backend_pid()").await, pid);
        session.close().await;
    }
}

async fn assert_logins_fail(postgres: &Postgres) {
    use ErrorClass::{AccessDenied, Configuration};
    let unbindable = "require_auth=password,scram-sha-256 sslmode=require channel_binding=require";
    for (name, rest, class, words) in [
        ("impostor", "", AccessDenied, "28P01"),
        ("impostor", "sslmode=disable", AccessDenied, "28P01"),
        ("by_md5", "", Configuration, "require_auth=md5"),
        ("by_word", "", Configuration, "require_auth=password"),
        ("by_nothing", "require_auth=!none", Configuration, "none"),
        ("by_scram", "require_auth=md5", Configuration, "SCRAM"),
        ("by_word", unbindable, Configuration, "channel_binding"),
        ("by_scram", "dbname=absent", Configuration, "3D000"),
        (
            "by_scram",
            "options='-c no_such_setting=1'",
            Configuration,
            "42704",
        ),
    ] {
        let error = sql(&role(postgres, name, rest)).await.unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
        let password = password_of(name);
        assert!(!text.contains(password) || password == "x", "{text}");
    }
}

/// Postgres prepares passwords by SASLprep, and takes those as they are that it does not allow: one of
/// which nothing is left, or one with characters that came after Unicode 3.2.
async fn assert_odd_passwords(postgres: &Postgres) {
    let mut admin = sql(&info(&postgres.url())).await.unwrap();
    let newer = "\u{1f100}";
    for password in [
        "\u{ad}",
        "\u{ad}\u{200d}\u{ad}",
        "a\u{ad}b",
        "\u{aa}",
        newer,
        &newer.repeat(17),
        "\u{2135}x",
    ] {
        let create = format!(
            "SET password_encryption = 'scram-sha-256'; DROP ROLE IF EXISTS odd; \
             CREATE ROLE odd LOGIN PASSWORD '{password}'"
        );
        admin.query(&create).await.unwrap();
        let mut session = sql(&tcp(postgres, "odd", password, "sslmode=disable"))
            .await
            .unwrap_or_else(|error| panic!("{password:?}: {error}"));
        assert_eq!(one(&mut session, "SELECT current_user").await, "odd");
        session.close().await;
    }
}

/// Asserts what each `target_session_attrs` does where the only server is a primary.
async fn assert_target_session_attrs(postgres: &Postgres) {
    let standby = sql(&role(postgres, "by_scram", "target_session_attrs=standby")).await;
    assert!(matches!(standby.unwrap_err(), Error::WrongServer { .. }));
    for wanted in ["primary", "read-write", "prefer-standby"] {
        let rest = format!("target_session_attrs={wanted}");
        sql(&role(postgres, "by_scram", &rest)).await.unwrap();
    }
}
