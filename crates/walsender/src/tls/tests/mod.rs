//! Tests against servers in this process, with certificates that are generated for the test.

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

mod chains;
mod credentials;
mod end_points;

type Authority = CertifiedIssuer<'static, KeyPair>;
const BOTH: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12, &rustls::version::TLS13];

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed")
}

/// Parameters of a certificate for `db.test` and `127.0.0.1`.
fn params() -> CertificateParams {
    let mut params = CertificateParams::new(vec!["db.test".to_owned()]).expect("a name");
    params
        .subject_alt_names
        .push(SanType::IpAddress([127, 0, 0, 1].into()));
    params
}

/// Sets the validity: from the first day of one year to the first day of another.
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

/// Presents a certificate with a key that need not belong to it; rustls would refuse that
/// otherwise.
#[derive(Debug)]
struct AnyKey(Arc<CertifiedKey>);

impl AnyKey {
    fn server(
        certificate: CertificateDer<'static>,
        key: &PrivateKeyDer<'static>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ServerConfig {
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(key).expect("a key");
        let shown = AnyKey(Arc::new(CertifiedKey::new(vec![certificate], key)));
        server_builder(versions)
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(shown))
    }
}

impl ResolvesServerCert for AnyKey {
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

/// Creates a context with this mode and these root certificates.
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

/// Opens a DER element; returns the content of the first one and the bytes after it.
fn open_der(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (rest, element) = Any::from_der(bytes).expect("an element");
    (element.data, rest)
}
