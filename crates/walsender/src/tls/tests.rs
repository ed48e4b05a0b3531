//! Against servers in this process, with certificates made for the test.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ECDSA_P521_SHA512, PKCS_ED25519,
    PKCS_RSA_SHA256, PKCS_RSA_SHA384, PKCS_RSA_SHA512, SanType, SignatureAlgorithm, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::client::TlsStream;

use x509_parser::asn1_rs::{Any, FromDer};

use super::context::TlsContext;
use super::*;
use crate::conninfo::ConnInfo;

type Authority = CertifiedIssuer<'static, KeyPair>;
const BOTH: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12, &rustls::version::TLS13];

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed")
}

/// For `db.test` and `127.0.0.1`.
fn params() -> CertificateParams {
    let mut params = CertificateParams::new(vec!["db.test".to_owned()]).expect("a name");
    params
        .subject_alt_names
        .push(SanType::IpAddress([127, 0, 0, 1].into()));
    params
}

/// From the first day of one year to that of another.
fn valid(mut params: CertificateParams, from: i32, to: i32) -> CertificateParams {
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(to, 1, 1);
    params
}

struct Identity {
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

impl Identity {
    fn issued(params: &CertificateParams, issuer: &Authority) -> Self {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, issuer).expect("signed");
        Self {
            certificate: certificate.der().clone(),
            key,
        }
    }

    fn self_signed(params: &CertificateParams, algorithm: &'static SignatureAlgorithm) -> Self {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let certificate = params.self_signed(&key).expect("signed");
        Self {
            certificate: certificate.der().clone(),
            key,
        }
    }

    fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.serialize_der()).into()
    }

    fn server(&self) -> ServerConfig {
        self.server_of(BOTH)
    }

    fn server_of(&self, versions: &[&'static SupportedProtocolVersion]) -> ServerConfig {
        server_builder(versions)
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key_der())
            .expect("a server")
    }
}

fn server_builder(
    versions: &[&'static SupportedProtocolVersion],
) -> rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier> {
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(versions)
        .expect("versions")
}

/// Shows a certificate with whatever key, which rustls would otherwise refuse.
#[derive(Debug)]
struct Shows(Arc<CertifiedKey>);

impl Shows {
    fn server(
        certificate: CertificateDer<'static>,
        key: &PrivateKeyDer<'static>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ServerConfig {
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(key).expect("a key");
        let shown = Shows(Arc::new(CertifiedKey::new(vec![certificate], key)));
        server_builder(versions)
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(shown))
    }
}

impl ResolvesServerCert for Shows {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// A directory with files for connection strings.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// Writes a file and returns its path as text.
    fn put(&self, name: &str, content: &str, mode: u32) -> String {
        let path = self.0.path().join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).expect("a directory");
        }
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("mode");
        path.display().to_string()
    }

    fn put_certificate(&self, name: &str, certificate: &CertificateDer<'_>) -> String {
        self.put(name, &pem("CERTIFICATE", certificate), 0o644)
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut base64 = String::new();
    for (index, chunk) in der.chunks(3).enumerate() {
        if index % 16 == 0 {
            base64.push('\n');
        }
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            base64.push(if digit <= chunk.len() {
                char::from(ALPHABET[(bits >> (18 - 6 * digit) & 63) as usize])
            } else {
                '='
            });
        }
    }
    format!("-----BEGIN {label}-----{base64}\n-----END {label}-----\n")
}

fn info(parameters: &str) -> ConnInfo {
    format!("user=u {parameters}").parse().expect("parameters")
}

fn context(parameters: &str) -> Result<TlsContext, TlsError> {
    TlsContext::with_home(&info(parameters), None).map(|context| context.expect("not disabled"))
}

/// The context that verifies in this mode, by these roots.
fn with_root(mode: &str, root: &str) -> TlsContext {
    context(&format!("sslmode={mode} sslrootcert={root}")).expect("files")
}

type Streams = (
    TlsStream<DuplexStream>,
    tokio_rustls::server::TlsStream<DuplexStream>,
);

async fn handshake(
    context: &TlsContext,
    host: &str,
    server: ServerConfig,
) -> Result<Streams, TlsError> {
    let (near, far) = duplex(64 * 1024);
    let host = &info(&format!("host={host}")).hosts[0];
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let (client, server) = tokio::join!(context.handshake(host, near), acceptor.accept(far));
    let mut client = client?;
    let mut server = server.expect("the server agrees if the client does");
    client.write_all(b"ping").await.expect("sent");
    client.flush().await.expect("sent");
    let mut received = [0; 4];
    server.read_exact(&mut received).await.expect("received");
    assert_eq!(&received, b"ping");
    Ok((client, server))
}

async fn outcome(context: &TlsContext, host: &str, server: ServerConfig) -> &'static str {
    match handshake(context, host, server).await {
        Ok(_) => "ok",
        Err(TlsError::UnknownIssuer { .. }) => "unknown issuer",
        Err(TlsError::WrongHost { .. }) => "wrong host",
        Err(TlsError::Expired { .. }) => "expired",
        Err(TlsError::NotYetValid { .. }) => "not yet valid",
        Err(other) => panic!("{other:?}"),
    }
}

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
    // Host, certificate, and what comes of it when the chain is verified, and the name too.
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

/// A root file may hold several, in any order.
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
    // Without any subjectAltName.
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
            let server = Shows::server(shown.certificate.clone(), &thief.key_der(), &[version]);
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

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = u16::try_from(content.len()).expect("short").to_be_bytes();
    [&[tag, 0x82], &length[..], &content].concat()
}

/// The content of the first element, and what comes after the element.
fn open_der(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (rest, element) = Any::from_der(bytes).expect("an element");
    (element.data, rest)
}

/// The same certificate in version 1; its issuer's signature is no longer right.
fn version_1(certificate: &[u8]) -> CertificateDer<'static> {
    let (mut body, signature) = open_der(open_der(certificate).0);
    let mut kept = Vec::new();
    while !body.is_empty() {
        let (_, rest) = open_der(body);
        // Not the version nor the extensions, which have the context's tags 0 and 3.
        if !matches!(body[0], 0xA0 | 0xA3) {
            kept.push(&body[..body.len() - rest.len()]);
        }
        body = rest;
    }
    der(0x30, &[&der(0x30, &kept), signature]).into()
}

#[tokio::test]
async fn version_1_certificates_will_do_where_nothing_is_verified() {
    let identity = Identity::self_signed(&params(), &PKCS_ECDSA_P256_SHA256);
    let old = version_1(&identity.certificate);
    let require = context("sslmode=require").expect("no files");
    let tls13 = [&rustls::version::TLS13];
    let server = Shows::server(old.clone(), &identity.key_der(), &tls13);
    let (client, _) = handshake(&require, "db.test", server)
        .await
        .expect("accepted");
    assert_eq!(
        tls_server_end_point(&client).as_deref(),
        Some(digest(&aws_lc_rs::digest::SHA256, &old))
            .as_ref()
            .map(AsRef::as_ref)
    );
    // Where the chain is verified it is refused, with a remedy.
    let files = Files::new();
    let root = files.put_certificate("root.crt", &identity.certificate);
    let verifying = with_root("verify-ca", &root);
    let server = Shows::server(old.clone(), &identity.key_der(), &tls13);
    let refused = handshake(&verifying, "db.test", server).await;
    assert!(
        matches!(refused, Err(TlsError::Version1 { .. })),
        "{refused:?}"
    );
    // Also there only with its key.
    let thief = Identity::self_signed(&params(), &PKCS_ECDSA_P256_SHA256);
    let server = Shows::server(old, &thief.key_der(), &tls13);
    let refused = handshake(&require, "db.test", server).await;
    assert!(
        matches!(refused, Err(TlsError::Certificate { .. })),
        "{refused:?}"
    );
}

fn digest(
    algorithm: &'static aws_lc_rs::digest::Algorithm,
    data: &[u8],
) -> aws_lc_rs::digest::Digest {
    aws_lc_rs::digest::digest(algorithm, data)
}

#[tokio::test]
async fn the_end_point_is_hashed_as_the_certificate_is_signed() {
    use aws_lc_rs::digest::{SHA256, SHA384, SHA512};
    let context = context("sslmode=require").expect("no files");
    for (signature, hash) in [
        (&PKCS_ECDSA_P256_SHA256, Some(&SHA256)),
        (&PKCS_ECDSA_P384_SHA384, Some(&SHA384)),
        (&PKCS_ECDSA_P521_SHA512, Some(&SHA512)),
        (&PKCS_RSA_SHA256, Some(&SHA256)),
        (&PKCS_RSA_SHA384, Some(&SHA384)),
        (&PKCS_RSA_SHA512, Some(&SHA512)),
        (&PKCS_ED25519, None),
    ] {
        let identity = Identity::self_signed(&params(), signature);
        for version in BOTH {
            let server = identity.server_of(&[version]);
            let (client, _) = handshake(&context, "db.test", server).await.expect("TLS");
            let expected = hash.map(|hash| digest(hash, &identity.certificate).as_ref().to_vec());
            assert_eq!(tls_server_end_point(&client), expected, "{signature:?}");
        }
    }
    // By the issuer's signature, not by the certificate's own key.
    let mut params_of_issuer = CertificateParams::default();
    params_of_issuer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("a key");
    let issuer = CertifiedIssuer::self_signed(params_of_issuer, key).expect("signed");
    let identity = Identity::issued(&params(), &issuer);
    let (client, _) = handshake(&context, "db.test", identity.server())
        .await
        .expect("TLS");
    assert_eq!(
        tls_server_end_point(&client),
        Some(digest(&SHA384, &identity.certificate).as_ref().to_vec())
    );
}

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
        // PKCS#8 is version, algorithm and the older form in an octet string.
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
    // Without one, the server's alert is what the error says.
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
fn files_that_will_not_do_are_named() {
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
            // The file is in the message, the key is not.
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
    // Root may let a group read a key, nobody else may.
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
async fn without_a_root_file_that_of_the_home_directory_counts() {
    let files = Files::new();
    let home = files.0.path();
    let trusted = authority("trusted");
    let good = Identity::issued(&params(), &trusted);
    let strange = Identity::issued(&params(), &authority("other"));
    let at_home = |parameters: &str| {
        TlsContext::with_home(&info(parameters), Some(home)).map(|context| context.expect("TLS"))
    };
    // There is none yet.
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

#[tokio::test]
async fn what_is_no_tls_host_or_no_tls_server() {
    let disabled = TlsContext::new(&info("sslmode=disable")).expect("nothing to fail");
    assert!(disabled.is_none());
    let require = context("sslmode=require").expect("no files");
    let (near, far) = duplex(1024);
    let socket = &info("host=/tmp").hosts[0];
    let refused = require.handshake(socket, near).await;
    assert!(matches!(refused, Err(TlsError::UnixSocket { .. })));

    // The other side goes away.
    drop(far);
    let host = &info("host=db.test").hosts[0];
    let (near, far) = duplex(1024);
    drop(far);
    match require.handshake(host, near).await {
        Err(error @ TlsError::Handshake { .. }) => assert!(error.is_transient()),
        other => panic!("{other:?}"),
    }
    // The other side speaks something else.
    let (near, mut far) = duplex(1024);
    far.write_all(b"E\0\0\0\x20SFATAL\0VFATAL\0and so on\0")
        .await
        .expect("sent");
    match require.handshake(host, near).await {
        Err(TlsError::Protocol { .. }) => {}
        other => panic!("{other:?}"),
    }

    // A name that no certificate can hold matters only where the name matters.
    let files = Files::new();
    let trusted = authority("trusted");
    let root = files.put_certificate("root.crt", trusted.der());
    let good = Identity::issued(&params(), &trusted);
    let full = with_root("verify-full", &root);
    let refused = handshake(&full, "a..b", good.server()).await;
    assert!(matches!(refused, Err(TlsError::HostName { .. })));
    assert_eq!(outcome(&require, "a..b", good.server()).await, "ok");
}

proptest::proptest! {
    /// Certificates with some bytes changed or cut off.
    #[test]
    fn no_certificate_makes_it_panic(
        changes in proptest::collection::vec((0_usize..600, 0_u8..=255), 0..4),
        length in 0_usize..600,
    ) {
        static CERTIFICATE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
            Identity::self_signed(&params(), &PKCS_ECDSA_P256_SHA256).certificate.to_vec()
        });
        let mut certificate = CERTIFICATE.clone();
        for (at, byte) in changes {
            if let Some(place) = certificate.get_mut(at) {
                *place = byte;
            }
        }
        certificate.truncate(length);
        let certificate = certificate.into();
        let _ = end_point::of_certificate(&certificate);
        let _ = verify::verify_validity(&certificate, rustls::pki_types::UnixTime::now());
    }
}
