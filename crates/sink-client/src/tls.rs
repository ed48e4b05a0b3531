//! TLS to the server: verification is always on.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use walrelay_sink_kind::check::Check;
use x509_parser::prelude::{ASN1Time, FromDer as _, X509Certificate};

use crate::ConnectError;

/// Makes the TLS configuration. `ca_file`: the trusted certificates, else those of the operating
/// system. `client`: the files of the client's certificate and key. All are in PEM.
///
/// # Errors
/// [`ConnectError::Settings`] if a file cannot be used, or no certificate is trusted.
pub fn client_config(
    ca_file: Option<&Path>,
    client: Option<(&Path, &Path)>,
) -> Result<ClientConfig, ConnectError> {
    let mut roots = RootCertStore::empty();
    match ca_file {
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
    let config = match client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
            builder
                .with_client_auth_cert(certificates(certificate)?, secret)
                .map_err(|error| wrong(certificate, &error))?
        }
    };
    Ok(config)
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
