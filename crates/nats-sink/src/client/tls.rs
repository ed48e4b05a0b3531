//! TLS to the server: verification is always on.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::error::NatsError;

/// Makes the TLS configuration. `ca_file`: the trusted certificates, else those of the operating
/// system. `client`: the files of the client's certificate and key.
pub(crate) fn config(
    ca_file: Option<&Path>,
    client: Option<(&Path, &Path)>,
) -> Result<Arc<ClientConfig>, NatsError> {
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
        return Err(NatsError::Tls(
            "there are no trusted certificates".to_owned(),
        ));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| NatsError::Tls(error.to_string()))?
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
    Ok(Arc::new(config))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, NatsError> {
    let read = CertificateDer::pem_file_iter(file).map_err(|error| wrong(file, &error))?;
    let read: Vec<_> = read
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(file, &error))?;
    if read.is_empty() {
        return Err(wrong(file, &"there is no certificate in it"));
    }
    Ok(read)
}

fn wrong(file: &Path, error: &dyn std::fmt::Display) -> NatsError {
    NatsError::Tls(format!("{}: {error}", file.display()))
}
