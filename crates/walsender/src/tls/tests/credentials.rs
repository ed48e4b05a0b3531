//! Tests of files: client certificates, keys and root certificates.

use super::*;

#[tokio::test]
async fn client_certificates_are_shown_in_every_form_of_key() {
    let files = Files::new();
    let (servers, clients) = (authority("servers"), authority("clients"));
    let server = Identity::issued(&params(), &servers);
    let accepting = |versions| {
        let mut roots = RootCertStore::empty();
        roots.add(clients.der().clone()).expect("a root");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        server_builder(versions)
            .with_client_cert_verifier(verifier.build().expect("a verifier"))
            .with_single_cert(vec![server.certificate.clone()], server.key_der())
            .expect("a server")
    };
    for (algorithm, old_form) in [
        (&PKCS_ECDSA_P256_SHA256, "EC PRIVATE KEY"),
        (&PKCS_RSA_SHA256, "RSA PRIVATE KEY"),
    ] {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let params = CertificateParams::new(vec!["me".to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &clients).expect("signed");
        let certificate = certificate.der();
        let pkcs8 = key.serialize_der();
        // PKCS#8 contains version, algorithm, and the older form in an octet string.
        let (version, _) = open_der(&pkcs8);
        let (_, algorithm) = open_der(version);
        let (_, octets) = open_der(algorithm);
        let (old, _) = open_der(octets);
        for (label, key) in [("PRIVATE KEY", &pkcs8[..]), (old_form, old)] {
            let cert = files.put_certificate("client.crt", certificate);
            let key = files.put("client.key", &pem(label, key), 0o600);
            let context = context(&format!("sslmode=require sslcert={cert} sslkey={key}"))
                .unwrap_or_else(|error| panic!("{label}: {error:?}"));
            let (_, server) = handshake(&context, "db.test", accepting(BOTH))
                .await
                .expect("TLS");
            let shown = server
                .get_ref()
                .1
                .peer_certificates()
                .expect("a certificate");
            assert_eq!(shown, std::slice::from_ref(certificate), "{label}");
        }
    }
    // Without a client certificate the error is the server's alert.
    let none = context("sslmode=require").expect("no files");
    let refused = handshake(&none, "db.test", accepting(&[&rustls::version::TLS12])).await;
    match refused {
        Err(TlsError::Protocol {
            source: rustls::Error::AlertReceived(_),
            ..
        }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn unusable_files_are_named() {
    let files = Files::new();
    let clients = authority("clients");
    let (me, you) = (
        Identity::issued(&params(), &clients),
        Identity::issued(&params(), &clients),
    );
    let cert = files.put_certificate("me.crt", &me.certificate);
    let key_pem = pem("PRIVATE KEY", &me.key.serialize_der());
    let key = files.put("me.key", &key_pem, 0o600);
    let refused = |parameters: &str| match context(parameters) {
        Ok(_) => panic!("{parameters}"),
        Err(error) => {
            // The message contains the file's path, but not the key.
            let shown = format!("{error} {error:?}");
            assert!(
                shown.contains(&files.0.path().display().to_string()),
                "{shown}"
            );
            assert!(!shown.contains(&key_pem[40..60]), "{shown}");
            assert!(!error.is_transient());
            error
        }
    };
    let with_key = |key: &str| refused(&format!("sslcert={cert} sslkey={key}"));
    let kind = |error: TlsError| match error {
        TlsError::File { .. } => "unreadable",
        TlsError::NoKey { .. } => "no key",
        TlsError::NoCertificate { .. } => "no certificate",
        TlsError::Pem { .. } => "not PEM",
        TlsError::RootCertificate { number: 1, .. } => "certificate 1",
        TlsError::KeyEncrypted { .. } => "encrypted",
        TlsError::ClientKeyPair {
            source: rustls::Error::InconsistentKeys(_),
            ..
        } => "inconsistent",
        other => panic!("{other:?}"),
    };
    let of_key = |key: &str| kind(with_key(key));
    let of_root = |root: &str| kind(refused(&format!("sslrootcert={root}")));

    context(&format!("sslcert={cert} sslkey={key}")).expect("good");
    for mode in [0o644, 0o604, 0o660, 0o650] {
        let open = files.put("open.key", &key_pem, mode);
        match with_key(&open) {
            error @ TlsError::KeyPermissions { mode: found, .. } => {
                assert_eq!(found, mode);
                assert!(
                    error.to_string().contains(&format!("{mode:04o}")),
                    "{error}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    // Only a key that root owns may be readable by the group.
    let shared = files.put("shared.key", &key_pem, 0o640);
    if fs::metadata(&shared).expect("a file").uid() == 0 {
        context(&format!("sslcert={cert} sslkey={shared}")).expect("root's");
    } else {
        assert!(matches!(with_key(&shared), TlsError::KeyPermissions { .. }));
    }

    let absent = files.0.path().join("absent").display().to_string();
    let directory = files.0.path().display().to_string();
    let empty = files.put("empty", "", 0o600);
    let garbage = files.put("garbage.crt", &pem("CERTIFICATE", b"not DER"), 0o600);
    for (root, expected) in [
        (&absent, "unreadable"),
        (&directory, "unreadable"),
        (&empty, "no certificate"),
        (&key, "no certificate"),
        (&garbage, "certificate 1"),
    ] {
        assert_eq!(of_root(root), expected, "{root}");
    }
    assert_eq!(of_key(&absent), "unreadable");
    assert_eq!(of_key(&empty), "no key");
    let other = pem("PRIVATE KEY", &you.key.serialize_der());
    let encrypted = pem("ENCRYPTED PRIVATE KEY", b"x");
    let old_form = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
                    DEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
    for (content, expected) in [
        (&key_pem[..key_pem.len() - 30], "not PEM"),
        (&key_pem.replace('M', "!"), "not PEM"),
        (&other, "inconsistent"),
        (&encrypted, "encrypted"),
        (old_form, "encrypted"),
    ] {
        let path = files.put("wrong.key", content, 0o600);
        assert_eq!(of_key(&path), expected, "{content}");
    }
}

#[tokio::test]
async fn without_sslrootcert_the_file_in_the_home_directory_is_used() {
    let files = Files::new();
    let home = files.0.path();
    let trusted = authority("trusted");
    let good = Identity::issued(&params(), &trusted);
    let strange = Identity::issued(&params(), &authority("other"));
    let at_home = |parameters: &str| {
        TlsContext::with_home(&info(parameters), Some(home)).map(|context| context.expect("TLS"))
    };
    // The home directory has no root file yet.
    assert!(matches!(
        at_home("sslmode=verify-ca"),
        Err(TlsError::NoRootCertificates)
    ));
    let require = at_home("sslmode=require").expect("no files");
    assert_eq!(outcome(&require, "db.test", strange.server()).await, "ok");
    for parameters in ["sslmode=verify-full", "sslrootcert=system"] {
        match at_home(parameters) {
            Ok(context) => {
                let error = handshake(&context, "db.test", good.server()).await;
                let error = error.expect_err("nobody's root");
                assert!(error.to_string().contains("operating system"), "{error}");
            }
            Err(error) => assert!(matches!(error, TlsError::EmptySystemStore { .. })),
        }
    }
    files.put_certificate(".postgresql/root.crt", trusted.der());
    for (mode, of_strange) in [
        ("prefer", "ok"),
        ("require", "unknown issuer"),
        ("verify-ca", "unknown issuer"),
        ("verify-full", "unknown issuer"),
    ] {
        let context = at_home(&format!("sslmode={mode}")).expect("files");
        assert_eq!(outcome(&context, "db.test", good.server()).await, "ok");
        let outcome = outcome(&context, "db.test", strange.server()).await;
        assert_eq!(outcome, of_strange, "{mode}");
    }
}
