//! The TLS settings of a connection string, and the handshake.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::error::TlsError;
use super::files;
use super::verify::{Trust, Verifier};
use crate::conninfo::{ConnInfo, Host, HostAddr, RootCert, SslMode};

/// The TLS configuration for all hosts of a connection string: root certificates, the client's
/// certificate, what to verify. Cheap to clone.
///
/// Files are read once, when the context is created; create a new one to use renewed certificates.
///
/// What is verified:
///
/// | `sslmode`     | the certificate's issuer and validity | the host's name or address |
/// |---------------|---------------------------------------|----------------------------|
/// | `prefer`      | if `sslrootcert` is given             | no                         |
/// | `require`     | if there are root certificates        | no                         |
/// | `verify-ca`   | yes                                   | no                         |
/// | `verify-full` | yes                                   | yes                        |
///
/// The root certificates are those in the file `sslrootcert`, or with `sslrootcert=system` those of
/// the operating system. Without the parameter they are those in `~/.postgresql/root.crt`, as in
/// libpq, if that file exists. Otherwise `verify-full` uses those of the operating system (libpq
/// would fail), and `verify-ca` fails, because anybody can get a public certificate for *some*
/// name. A server whose own valid certificate is in the file is trusted, too, so that self-signed
/// certificates can be used.
///
/// # Invariants
/// - Every mode verifies the handshake's signature, so that the server has the private key of its
///   certificate. Otherwise channel binding would bind to nothing.
/// - A certificate that fails verification is an error, also with `prefer`: there is no silent
///   fallback to an unencrypted connection after the server has agreed to TLS.
/// - A root certificate file in the connection string must exist. libpq does not verify at all if
///   it is missing and the mode is `prefer` or `require`.
/// - The cryptography provider is passed explicitly; the process-wide default is not changed.
/// - Of the environment only the home directory is read, and what `rustls-native-certs` reads
///   (`SSL_CERT_FILE`, `SSL_CERT_DIR`).
///
/// Differences from libpq: host names are compared with the certificate's subjectAltName, never
/// with its common name (RFC 6125); a client certificate is used only if `sslcert` names one;
/// revocation lists are not supported.
#[derive(Debug, Clone)]
pub(crate) struct TlsContext {
    config: Arc<ClientConfig>,
    verifies_name: bool,
    /// The source of the trusted certificates, for error messages.
    roots: Option<Arc<str>>,
}

impl TlsContext {
    /// Reads the files that `info` names. Returns `None` for `sslmode=disable`.
    ///
    /// # Errors
    /// If a file is missing, unreadable or without a certificate or key; if others have access to
    /// the key; if the key does not belong to its certificate; if there are no root certificates
    /// although the mode demands verification.
    pub(crate) fn new(info: &ConnInfo) -> Result<Option<Self>, TlsError> {
        Self::with_home(info, std::env::home_dir().as_deref())
    }

    pub(super) fn with_home(
        info: &ConnInfo,
        home: Option<&Path>,
    ) -> Result<Option<Self>, TlsError> {
        if info.ssl_mode == SslMode::Disable {
            return Ok(None);
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let (trust, roots) = trust(info, home)?.unzip();
        let verifies_name = info.ssl_mode == SslMode::VerifyFull;
        let verifier = Verifier {
            algorithms: provider.signature_verification_algorithms,
            trust,
            verifies_name,
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|source| TlsError::Provider { source })?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match (&info.ssl_cert, &info.ssl_key) {
            (Some(cert), Some(key)) => builder
                .with_client_auth_cert(files::certificates(cert)?, files::private_key(key)?)
                .map_err(|source| TlsError::ClientKeyPair {
                    certificate: cert.clone(),
                    key: key.clone(),
                    source,
                })?,
            _ => builder.with_no_client_auth(),
        };
        // A server of another protocol with the same certificate refuses this ALPN (against
        // ALPACA). libpq sends it since version 17; older servers ignore it.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        // No resumption, so that every connection verifies the server's certificate. Postgres does
        // not offer it anyway.
        config.resumption = Resumption::disabled();
        Ok(Some(Self {
            config: Arc::new(config),
            verifies_name,
            roots: roots.map(Into::into),
        }))
    }

    /// Performs the handshake over `stream`, after the server has answered `S` to an SSLRequest.
    /// There is no timeout.
    ///
    /// # Errors
    /// [`TlsError`]. If the server refuses the client's certificate, TLS 1.2 reports that here, but
    /// TLS 1.3 only at the first read from the stream.
    pub(crate) async fn handshake<S>(
        &self,
        host: &Host,
        stream: S,
    ) -> Result<TlsStream<S>, TlsError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = self.server_name(host)?;
        let connector = TlsConnector::from(Arc::clone(&self.config));
        // Boxed, because the state of a handshake takes kilobytes in the futures of all callers.
        Box::pin(connector.connect(name, stream))
            .await
            .map_err(|error| TlsError::from_handshake(host, self.roots.as_deref(), error))
    }

    fn server_name(&self, host: &Host) -> Result<ServerName<'static>, TlsError> {
        let HostAddr::Tcp(name) = &host.address else {
            let host = host.to_string();
            return Err(TlsError::UnixSocket { host });
        };
        let host = host.to_string();
        match ServerName::try_from(name.clone()) {
            Ok(name) => Ok(name),
            Err(_) if self.verifies_name => Err(TlsError::HostName { host }),
            // No certificate can contain this name, but the mode does not verify it. With an
            // address instead no name is sent to the server.
            Err(_) => Ok(ServerName::from(IpAddr::from(Ipv4Addr::UNSPECIFIED))),
        }
    }
}

/// Loads the trusted certificates; returns them and their source, or `None` if the server's
/// certificate is not verified.
fn trust(info: &ConnInfo, home: Option<&Path>) -> Result<Option<(Trust, String)>, TlsError> {
    let of_home = || {
        let Some(home) = home else { return Ok(None) };
        let path = home.join(".postgresql/root.crt");
        match path.try_exists() {
            Ok(exists) => Ok(exists.then_some(path)),
            Err(source) => Err(TlsError::File { path, source }),
        }
    };
    let of_file = |path: &Path| {
        let trust = Trust::in_file(path, files::certificates(path)?)?;
        Ok(Some((trust, path.display().to_string())))
    };
    let from_system = || {
        let described = "the operating system's certificate store";
        Ok(Some((Trust::from_system()?, described.to_owned())))
    };
    match (&info.ssl_root_cert, info.ssl_mode) {
        (Some(RootCert::File(path)), _) => of_file(path),
        (Some(RootCert::System), _) => from_system(),
        (None, SslMode::Disable | SslMode::Prefer) => Ok(None),
        (None, mode) => match (of_home()?, mode) {
            (Some(path), _) => of_file(&path),
            (None, SslMode::VerifyFull) => from_system(),
            (None, SslMode::VerifyCa) => Err(TlsError::NoRootCertificates),
            (None, _) => Ok(None),
        },
    }
}
