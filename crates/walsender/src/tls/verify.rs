use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate, X509Version};

use super::error::{TlsError, Version1};

/// The trusted certificates.
#[derive(Debug)]
pub(super) struct Trust {
    store: RootCertStore,
    /// The certificates of the root file. A server that presents one of them is trusted, too:
    /// Postgres' documentation ("Creating Certificates") copies a self-signed server certificate to
    /// the clients, but `webpki` refuses the certificate of an authority as that of a server.
    pinned: Vec<CertificateDer<'static>>,
}

impl Trust {
    pub(super) fn in_file(
        path: &Path,
        pinned: Vec<CertificateDer<'static>>,
    ) -> Result<Self, TlsError> {
        let mut store = RootCertStore::empty();
        for (index, certificate) in pinned.iter().enumerate() {
            let added = store.add(certificate.clone());
            added.map_err(|source| TlsError::RootCertificate {
                path: path.to_owned(),
                number: index + 1,
                source,
            })?;
        }
        Ok(Self { store, pinned })
    }

    /// Loads the certificates of the operating system. Unusable ones are left out, because every
    /// store has some.
    pub(super) fn from_system() -> Result<Self, TlsError> {
        let loaded = rustls_native_certs::load_native_certs();
        let mut store = RootCertStore::empty();
        let (usable, _unusable) = store.add_parsable_certificates(loaded.certs);
        if usable == 0 {
            let source = loaded.errors.into_iter().next();
            return Err(TlsError::EmptySystemStore { source });
        }
        let pinned = Vec::new();
        Ok(Self { store, pinned })
    }
}

/// Verifies the server's certificate as `sslmode` demands.
#[derive(Debug)]
pub(super) struct Verifier {
    pub(super) algorithms: WebPkiSupportedAlgorithms,
    /// `None`: verify only that the server has the key of its certificate.
    pub(super) trust: Option<Trust>,
    /// True if a trusted certificate must also be for the host's name.
    pub(super) verifies_name: bool,
}

impl Verifier {
    fn verify_chain(
        &self,
        trust: &Trust,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        if trust.pinned.iter().any(|pinned| pinned == certificate) {
            return verify_validity(certificate, now);
        }
        let fields = parse(certificate)?;
        if fields.version() == X509Version::V1 {
            return Err(CertificateError::Other(OtherError(Arc::new(Version1))).into());
        }
        let verified = verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(certificate)?,
            &trust.store,
            intermediates,
            now,
            self.algorithms.all,
        );
        match verified {
            // `webpki` reports a self-signed certificate by an error about its extensions, or about
            // its signature if a trusted certificate has the same name. In both cases no trusted
            // authority signed it.
            Err(Error::InvalidCertificate(
                CertificateError::Other(_) | CertificateError::BadSignature,
            )) if fields.issuer().as_raw() == fields.subject().as_raw() => {
                Err(CertificateError::UnknownIssuer.into())
            }
            other => other,
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(trust) = &self.trust {
            self.verify_chain(trust, end_entity, intermediates, now)?;
            if self.verifies_name {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // `webpki` supports only version 3. If only the key is verified, version 1 is sufficient,
        // too: its key verifies the signature. `openssl x509 -req` created version 1 until
        // recently.
        if let (None, Ok(parsed)) = (&self.trust, parse(certificate))
            && parsed.version() == X509Version::V1
        {
            return verify_tls13_signature_with_raw_key(
                message,
                &SubjectPublicKeyInfoDer::from(parsed.public_key().raw),
                signature,
                &self.algorithms,
            );
        }
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Error> {
    let parsed = X509Certificate::from_der(certificate);
    let (_, parsed) = parsed.map_err(|_| CertificateError::BadEncoding)?;
    Ok(parsed)
}

pub(super) fn verify_validity(
    certificate: &CertificateDer<'_>,
    now: UnixTime,
) -> Result<(), Error> {
    let parsed = parse(certificate)?;
    let not_before = unix_time(parsed.validity().not_before);
    let not_after = unix_time(parsed.validity().not_after);
    let time = now;
    if now < not_before {
        return Err(CertificateError::NotValidYetContext { time, not_before }.into());
    }
    if now > not_after {
        return Err(CertificateError::ExpiredContext { time, not_after }.into());
    }
    Ok(())
}

/// Converts a time; times before 1970 become 1970.
fn unix_time(time: ASN1Time) -> UnixTime {
    let seconds = u64::try_from(time.timestamp()).unwrap_or(0);
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}
