//! Certificates for tests.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;

/// A certificate authority, which clients or servers of a test trust.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The private key, in PKCS#8.
    pub key: String,
}

impl Authority {
    /// Creates an authority with a new key.
    pub fn new(name: &str) -> Self {
        let mut params = params(Vec::new(), name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key can be made");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate can be made");
        Self { issuer }
    }

    /// Returns the authority's own certificate in PEM, for those that are to trust it.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Issues a certificate for a server of this host name.
    pub fn server(&self, host: &str) -> Issued {
        self.issue(&server_params(host))
    }

    /// Issues a certificate for a server of this host name that expired years ago.
    pub fn expired_server(&self, host: &str) -> Issued {
        let mut params = server_params(host);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.issue(&params)
    }

    /// Issues a certificate for a client of this common name.
    pub fn client(&self, name: &str) -> Issued {
        self.issue(&client_params(name))
    }

    /// Issues a certificate for a client of this common name that expired years ago.
    pub fn expired_client(&self, name: &str) -> Issued {
        let mut params = client_params(name);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.issue(&params)
    }

    /// Issues a certificate for a server of this host name that is a client of its like, as a node of
    /// a cluster is.
    pub fn node(&self, host: &str) -> Issued {
        let mut params = server_params(host);
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ClientAuth);
        self.issue(&params)
    }

    fn issue(&self, params: &CertificateParams) -> Issued {
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params
            .signed_by(&key, &self.issuer)
            .expect("a certificate can be made");
        Issued {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

fn client_params(name: &str) -> CertificateParams {
    let mut params = params(Vec::new(), name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn server_params(host: &str) -> CertificateParams {
    let mut params = params(vec![host.to_owned()], host);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params
}

fn params(hosts: Vec<String>, common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(hosts).expect("names of hosts");
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params
}

impl Issued {
    /// Returns the configuration of a TLS server of the test's own with this certificate, which asks for
    /// a certificate of this authority.
    pub fn server_config_for(&self, authority: &Authority) -> Arc<ServerConfig> {
        let mut roots = rustls::RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(authority.pem().as_bytes());
        roots
            .add(root.expect("a certificate"))
            .expect("an authority");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        self.config_with(Some(verifier.build().expect("a verifier")))
    }

    /// Returns the configuration of a TLS server of the test's own with this certificate.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.config_with(None)
    }

    fn config_with(&self, verifier: Option<Arc<dyn ClientCertVerifier>>) -> Arc<ServerConfig> {
        let certificates = CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .expect("a certificate");
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions");
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let config = builder
            .with_single_cert(certificates, key)
            .expect("a certificate with its key");
        Arc::new(config)
    }
}

/// Omits the key.
impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").finish_non_exhaustive()
    }
}
