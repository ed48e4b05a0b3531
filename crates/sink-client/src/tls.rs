//! TLS to the server: verification is always on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use walrelay_settings::{AlreadyReported, Reader, joined, path, section};
use walrelay_sink_kind::check::Check;
use x509_parser::prelude::{ASN1Time, FromDer as _, X509Certificate};

use crate::ConnectError;

section! {
/// The files of TLS that the section of a sink names. All are in PEM.
#[derive(Debug, Clone, Default)]
pub struct TlsFiles at "" {
    /// PEM file of certificates to trust, instead of those of the operating system.
    "ca_file" ca_file: Option<PathBuf> = path().optional();
    /// PEM file of the relay's certificate and its chain.
    "certificate_file" certificate_file: Option<PathBuf> = path().optional();
    /// PEM file of the certificate's private key.
    "key_file" key_file: Option<PathBuf> = path().optional();
}
}

impl TlsFiles {
    /// Checks that the section `at` has a key with its certificate, or none.
    ///
    /// # Errors
    /// If a problem was reported to `reader`.
    pub fn check_identity(&self, reader: &mut Reader<'_>, at: &str) -> Result<(), AlreadyReported> {
        let set = match (&self.certificate_file, &self.key_file) {
            (Some(_), None) => "certificate_file",
            (None, Some(_)) => "key_file",
            _ => return Ok(()),
        };
        let what = "`certificate_file` and `key_file` go together".to_owned();
        Err(reader.conflict(&joined(at, set), what))
    }

    /// Checks that the section `at`, whose `tls` is false, has none of these keys.
    ///
    /// # Errors
    /// If a problem was reported to `reader`.
    pub fn check_unused(
        reader: &mut Reader<'_>,
        at: &str,
        keys: &[&str],
    ) -> Result<(), AlreadyReported> {
        for key in keys.iter().map(|key| joined(at, key)) {
            if reader.has(&key) {
                return Err(reader.no_effect(&key, "while `tls` is false"));
            }
        }
        Ok(())
    }

    /// Reads the files and makes the TLS configuration.
    ///
    /// # Errors
    /// [`ConnectError::Settings`] if a file cannot be used, or no certificate is trusted.
    pub fn client_config(&self) -> Result<ClientConfig, ConnectError> {
        let mut roots = RootCertStore::empty();
        match &self.ca_file {
            Some(file) => {
                for certificate in certificates(file)? {
                    roots
                        .add(certificate)
                        .map_err(|error| wrong(file, &error))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if roots.is_empty() {
            return Err(ConnectError::Settings(
                "there are no trusted certificates".to_owned(),
            ));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| ConnectError::Settings(error.to_string()))?
            .with_root_certificates(roots);
        let config = match (&self.certificate_file, &self.key_file) {
            (Some(certificate), Some(key)) => {
                let secret =
                    PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
                builder
                    .with_client_auth_cert(certificates(certificate)?, secret)
                    .map_err(|error| wrong(certificate, &error))?
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(config)
    }

    /// Returns the [`expiry_warning`] of the certificate.
    pub fn expiry_warning(&self) -> Option<Check> {
        self.certificate_file.as_deref().and_then(expiry_warning)
    }
}

/// Returns a warning of a client's certificate that has expired, or does so within two weeks; `None` if it is
/// valid for longer, or cannot be read.
pub fn expiry_warning(file: &Path) -> Option<Check> {
    const SOON: i64 = 14 * 24 * 3_600;
    let leaf = certificates(file).ok()?.into_iter().next()?;
    let (_, leaf) = X509Certificate::from_der(&leaf).ok()?;
    let end = leaf.validity().not_after;
    let left = end.timestamp() - ASN1Time::now().timestamp();
    let verb = match left {
        ..=0 => "has expired: it ended",
        1..SOON => "expires soon: it ends",
        _ => return None,
    };
    let what = format!("the certificate in {} {verb} on {end}", file.display());
    let remedy = "have a new one issued, and replace this file and that of its key";
    Some(Check::warn(what, remedy))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let read = CertificateDer::pem_file_iter(file).map_err(|error| wrong(file, &error))?;
    let read: Vec<_> = read
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(file, &error))?;
    if read.is_empty() {
        return Err(wrong(file, &"there is no certificate in it"));
    }
    Ok(read)
}

fn wrong(file: &Path, error: &dyn std::fmt::Display) -> ConnectError {
    ConnectError::Settings(format!("{}: {error}", file.display()))
}
