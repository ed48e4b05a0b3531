//! Certificates for tests.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// An authority that issues certificates, and that one side of a test trusts.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its private key, in PKCS#8.
    pub key: String,
}

/// What a certificate is to be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Valid,
    Over,
}

impl Authority {
    /// A new one.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name = common_name(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key can be made");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate can be made");
        Self { issuer }
    }

    /// Its own certificate, in PEM: what is to be trusted.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// For a server of this host name.
    pub fn server(&self, host: &str) -> Issued {
        let names = vec![host.to_owned()];
        let purpose = ExtendedKeyUsagePurpose::ServerAuth;
        self.issue(names, host, purpose, Life::Valid)
    }

    /// For a server of this host name, and it ended years ago.
    pub fn expired_server(&self, host: &str) -> Issued {
        let names = vec![host.to_owned()];
        let purpose = ExtendedKeyUsagePurpose::ServerAuth;
        self.issue(names, host, purpose, Life::Over)
    }

    /// For a client of this common name.
    pub fn client(&self, name: &str) -> Issued {
        let purpose = ExtendedKeyUsagePurpose::ClientAuth;
        self.issue(Vec::new(), name, purpose, Life::Valid)
    }

    fn issue(
        &self,
        names: Vec<String>,
        name: &str,
        purpose: ExtendedKeyUsagePurpose,
        life: Life,
    ) -> Issued {
        let mut params = CertificateParams::new(names).expect("names of hosts");
        params.distinguished_name = common_name(name);
        params.extended_key_usages = vec![purpose];
        if life == Life::Over {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
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

impl Issued {
    /// For a server of the test's own that speaks TLS with it.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        let certificates = CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .expect("a certificate");
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .expect("a certificate with its key");
        Arc::new(config)
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// Without the key.
impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").finish_non_exhaustive()
    }
}
