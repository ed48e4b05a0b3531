use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::{ExposeSecret, SecretSlice};

use super::error::TlsError;
use crate::secret_file;

/// Reads all certificates of a PEM file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let (_, text) = read(path)?;
    let path = path.to_owned();
    let certificates = CertificateDer::pem_slice_iter(text.expose_secret());
    match certificates.collect::<Result<Vec<_>, _>>() {
        Err(reason) => Err(TlsError::Pem { path, reason }),
        Ok(none) if none.is_empty() => Err(TlsError::NoCertificate { path }),
        Ok(certificates) => Ok(certificates),
    }
}

/// Reads the private key of a PEM file. Its permissions are checked.
///
/// The rule is libpq's (documentation, "Client Certificates"): no access for group and others,
/// except that the group may read a file that root owns.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let (metadata, text) = read(path)?;
    let path = path.to_owned();
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    let mode = metadata.mode() & 0o7777;
    if mode & forbidden != 0 {
        return Err(TlsError::KeyPermissions { path, mode });
    }
    let text = text.expose_secret();
    PrivateKeyDer::from_pem_slice(text).map_err(|reason| match reason {
        // Check first, because the headers of the older encryption (RFC 1421) are invalid base64.
        _ if is_encrypted(text) => TlsError::KeyEncrypted { path },
        pem::Error::NoItemsFound => TlsError::NoKey { path },
        reason => TlsError::Pem { path, reason },
    })
}

fn is_encrypted(pem: &[u8]) -> bool {
    let contains = |needle: &[u8]| pem.windows(needle.len()).any(|window| window == needle);
    contains(b"BEGIN ENCRYPTED PRIVATE KEY") || contains(b"Proc-Type: 4,ENCRYPTED")
}

fn read(path: &Path) -> Result<(Metadata, SecretSlice<u8>), TlsError> {
    let path = path.to_owned();
    secret_file::read(&path).map_err(|source| TlsError::File { path, source })
}
