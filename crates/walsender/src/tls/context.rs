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

/// Everything about TLS that does not depend on the single host: root certificates, the client's
/// certificate, what to verify. Cheap to clone.
///
/// Files are read once, when it is made; make a new one to take up renewed certificates.
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
/// libpq, if that file exists; otherwise `verify-full` takes those of the operating system (libpq
/// would fail) and `verify-ca` fails, since everybody can get a public certificate for *some* name. A
/// server whose own valid certificate stands in the file is trusted too: self-signed ones are used so.
///
/// # Invariants
/// - Every mode verifies the handshake's signature, so that the server has the private key of its
///   certificate. Otherwise channel binding would bind to nothing.
/// - A certificate that fails is an error, in `prefer` too: encryption is never given up silently
///   after the server has agreed to it.
/// - A root certificate file that is named must exist. libpq does not verify at all if it is absent
///   and the mode is `prefer` or `require`.
/// - The cryptography provider is passed explicitly; the process-wide default is left alone.
/// - The only environment read is the home directory, and what `rustls-native-certs` reads
///   (`SSL_CERT_FILE`, `SSL_CERT_DIR`).
///
/// Unlike libpq: names of hosts are those of the certificate's subjectAltName, never its common name
/// (RFC 6125); a client certificate is used only when `sslcert` names one; no revocation lists.
#[derive(Debug, Clone)]
pub(crate) struct TlsContext {
    config: Arc<ClientConfig>,
    verifies_name: bool,
    /// Where the trusted certificates come from, for messages.
    roots: Option<Arc<str>>,
}

impl TlsContext {
    /// Reads the files that `info` names; `None` if it says `sslmode=disable`.
    ///
    /// # Errors
    /// A file that is absent, unreadable, empty of what it should hold, or (the key) accessible to
    /// others; a key that does not belong to its certificate; no root certificates although
    /// verification is asked for.
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
        // So that a server of another protocol on the same certificate refuses us (ALPACA); libpq
        // sends it since version 17, older servers ignore it.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        // Every connection sees and verifies the server's certificate. Postgres offers no
        // resumption anyway.
        config.resumption = Resumption::disabled();
        Ok(Some(Self {
            config: Arc::new(config),
            verifies_name,
            roots: roots.map(Into::into),
        }))
    }

    /// Makes `stream` an encrypted one, after the server has answered `S` to an SSLRequest.
    ///
    /// It has no timeout of its own.
    ///
    /// # Errors
    /// [`TlsError`]. A server that refuses the client's certificate says so here in TLS 1.2, but in
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
        // On the heap: the state of a handshake is kilobytes, and callers nest futures.
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
            // A name that no certificate can hold, where the name does not matter. With an address
            // in its place no name is sent to the server.
            Err(_) => Ok(ServerName::from(IpAddr::from(Ipv4Addr::UNSPECIFIED))),
        }
    }
}

/// The certificates to trust and where they are from; `None` if the certificate is not verified.
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
    let of_system = || {
        let described = "the operating system's certificate store";
        Ok(Some((Trust::of_system()?, described.to_owned())))
    };
    match (&info.ssl_root_cert, info.ssl_mode) {
        (Some(RootCert::File(path)), _) => of_file(path),
        (Some(RootCert::System), _) => of_system(),
        (None, SslMode::Disable | SslMode::Prefer) => Ok(None),
        (None, mode) => match (of_home()?, mode) {
            (Some(path), _) => of_file(&path),
            (None, SslMode::VerifyFull) => of_system(),
            (None, SslMode::VerifyCa) => Err(TlsError::NoRootCertificates),
            (None, _) => Ok(None),
        },
    }
}
