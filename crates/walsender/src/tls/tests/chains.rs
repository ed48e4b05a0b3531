//! Tests which server certificate is trusted in which mode, and the texts of errors.

use super::*;

#[tokio::test]
async fn each_mode_verifies_what_it_says() {
    let files = Files::new();
    let (trusted, other) = (authority("trusted"), authority("other"));
    let root = files.put(
        "root.crt",
        &(other_pem() + &pem("CERTIFICATE", trusted.der())),
        0o644,
    );
    let good = Identity::issued(&params(), &trusted);
    let expired = Identity::issued(&valid(params(), 2001, 2002), &trusted);
    let early = Identity::issued(&valid(params(), 2900, 2901), &trusted);
    let strange = Identity::issued(&params(), &other);
    // Host, certificate, the outcome if only the chain is verified, and if the name is verified,
    // too.
    let cases = [
        ("db.test", &good, "ok", "ok"),
        ("127.0.0.1", &good, "ok", "ok"),
        ("DB.test", &good, "ok", "ok"),
        ("other.test", &good, "ok", "wrong host"),
        ("127.0.0.2", &good, "ok", "wrong host"),
        ("::1", &good, "ok", "wrong host"),
        ("db.test", &expired, "expired", "expired"),
        ("db.test", &early, "not yet valid", "not yet valid"),
        ("db.test", &strange, "unknown issuer", "unknown issuer"),
    ];
    for mode in ["prefer", "require", "verify-ca", "verify-full"] {
        let context = with_root(mode, &root);
        for (host, identity, chain, full) in &cases {
            let expected = if mode == "verify-full" { full } else { chain };
            let outcome = outcome(&context, host, identity.server()).await;
            assert_eq!(outcome, *expected, "{mode} {host}");
        }
    }
    for mode in ["prefer", "require"] {
        let context = context(&format!("sslmode={mode}")).expect("no files");
        for (host, identity, _, _) in &cases {
            assert_eq!(outcome(&context, host, identity.server()).await, "ok");
        }
    }
}

/// Creates a certificate that is not the issuer, for a root file, which may contain several
/// certificates in any order.
fn other_pem() -> String {
    pem("CERTIFICATE", authority("one more").der())
}

#[tokio::test]
async fn errors_say_what_is_wrong_and_where() {
    let files = Files::new();
    let trusted = authority("trusted");
    let root = files.put_certificate("root.crt", trusted.der());
    let full = with_root("verify-full", &root);
    let good = Identity::issued(&params(), &trusted);
    let error = handshake(&full, "a.test", good.server())
        .await
        .expect_err("name");
    let message = error.to_string();
    assert!(message.starts_with("a.test:5432: "), "{message}");
    assert!(message.contains("db.test"), "{message}");
    assert!(!error.is_transient());
    let strange = Identity::issued(&params(), &authority("other"));
    let error = handshake(&full, "db.test", strange.server())
        .await
        .expect_err("issuer");
    assert!(error.to_string().contains(&root), "{error}");
    let old = Identity::issued(&valid(params(), 2001, 2002), &trusted);
    match handshake(&full, "db.test", old.server()).await {
        Err(error @ TlsError::Expired { not_after, .. }) => {
            let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_009_843_200);
            assert_eq!(not_after, Some(end));
            assert!(error.to_string().contains("days ago"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // A certificate without subjectAltName.
    let nameless = Identity::issued(&CertificateParams::default(), &trusted);
    let error = handshake(&full, "db.test", nameless.server())
        .await
        .expect_err("no name");
    assert!(error.to_string().contains("no subjectAltName"), "{error}");
}

#[tokio::test]
async fn an_intermediate_authority_is_followed() {
    let files = Files::new();
    let root = authority("root");
    let mut below = CertificateParams::default();
    below.distinguished_name.push(DnType::CommonName, "below");
    below.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let key = KeyPair::generate().expect("a key");
    let below = CertifiedIssuer::signed_by(below, key, &root).expect("signed");
    let leaf = Identity::issued(&params(), &below);
    let path = files.put_certificate("root.crt", root.der());
    let context = with_root("verify-full", &path);
    let server = |chain: Vec<CertificateDer<'static>>| {
        server_builder(BOTH)
            .with_no_client_auth()
            .with_single_cert(chain, leaf.key_der())
            .expect("a server")
    };
    let alone = server(vec![leaf.certificate.clone()]);
    assert_eq!(outcome(&context, "db.test", alone).await, "unknown issuer");
    let chain = server(vec![leaf.certificate.clone(), below.der().clone()]);
    assert_eq!(outcome(&context, "db.test", chain).await, "ok");
}

/// The documentation's quick start: the server's self-signed certificate is the clients' root.
#[tokio::test]
async fn a_certificate_that_is_its_own_authority_is_pinned() {
    let files = Files::new();
    for is_ca in [IsCa::NoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
        let mut params = params();
        params.is_ca = is_ca;
        let own = Identity::self_signed(&params, &PKCS_ECDSA_P256_SHA256);
        let root = files.put_certificate("root.crt", &own.certificate);
        for (mode, host, expected) in [
            ("verify-ca", "other.test", "ok"),
            ("verify-full", "db.test", "ok"),
            ("verify-full", "other.test", "wrong host"),
        ] {
            let context = with_root(mode, &root);
            assert_eq!(outcome(&context, host, own.server()).await, expected);
        }
        let again = Identity::self_signed(&params, &PKCS_ECDSA_P256_SHA256);
        let context = with_root("verify-ca", &root);
        assert_eq!(
            outcome(&context, "db.test", again.server()).await,
            "unknown issuer"
        );
    }
    for (not_before, not_after, expected) in
        [(2001, 2002, "expired"), (2900, 2901, "not yet valid")]
    {
        let mut params = valid(params(), not_before, not_after);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = Identity::self_signed(&params, &PKCS_ECDSA_P256_SHA256);
        let root = files.put_certificate("root.crt", &own.certificate);
        let context = with_root("verify-ca", &root);
        assert_eq!(outcome(&context, "db.test", own.server()).await, expected);
    }
}

#[tokio::test]
async fn a_certificate_without_its_key_is_refused_in_every_mode() {
    let files = Files::new();
    let trusted = authority("trusted");
    let root = files.put_certificate("root.crt", trusted.der());
    let shown = Identity::issued(&params(), &trusted);
    let thief = Identity::issued(&params(), &trusted);
    for parameters in [
        "sslmode=prefer".to_owned(),
        "sslmode=require".to_owned(),
        format!("sslmode=verify-ca sslrootcert={root}"),
        format!("sslmode=verify-full sslrootcert={root}"),
    ] {
        let context = context(&parameters).expect("files");
        for version in BOTH {
            let server = AnyKey::server(shown.certificate.clone(), &thief.key_der(), &[version]);
            match handshake(&context, "db.test", server).await {
                Err(TlsError::Certificate { source, .. }) => assert_eq!(
                    source,
                    rustls::Error::InvalidCertificate(rustls::CertificateError::BadSignature)
                ),
                other => panic!("{parameters}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn without_a_tls_host_or_a_tls_server_the_handshake_fails() {
    let disabled = TlsContext::new(&info("sslmode=disable")).expect("nothing to fail");
    assert!(disabled.is_none());
    let require = context("sslmode=require").expect("no files");
    let (near, far) = duplex(1024);
    let socket = &info("host=/tmp").hosts[0];
    let refused = require.handshake(socket, near).await;
    assert!(matches!(refused, Err(TlsError::UnixSocket { .. })));

    // The server closes the connection.
    drop(far);
    let host = &info("host=db.test").hosts[0];
    let (near, far) = duplex(1024);
    drop(far);
    match require.handshake(host, near).await {
        Err(error @ TlsError::Handshake { .. }) => assert!(error.is_transient()),
        other => panic!("{other:?}"),
    }
    // The server does not speak TLS.
    let (near, mut far) = duplex(1024);
    far.write_all(b"E\0\0\0\x20SFATAL\0VFATAL\0and so on\0")
        .await
        .expect("sent");
    match require.handshake(host, near).await {
        Err(TlsError::Protocol { .. }) => {}
        other => panic!("{other:?}"),
    }

    // A name that no certificate can contain is an error only if the name is verified.
    let files = Files::new();
    let trusted = authority("trusted");
    let root = files.put_certificate("root.crt", trusted.der());
    let good = Identity::issued(&params(), &trusted);
    let full = with_root("verify-full", &root);
    let refused = handshake(&full, "a..b", good.server()).await;
    assert!(matches!(refused, Err(TlsError::HostName { .. })));
    assert_eq!(outcome(&require, "a..b", good.server()).await, "ok");
}
