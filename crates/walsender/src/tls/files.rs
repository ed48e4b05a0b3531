use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::{ExposeSecret, SecretSlice};

use super::TlsError;

/// All certificates of a PEM file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let (_, text) = read(path)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(text.expose_secret())
        .collect::<Result<_, _>>()
        .map_err(|reason| TlsError::Pem {
            path: path.to_owned(),
            reason,
        })?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(certificates)
}

/// The private key of a PEM file that nobody else can read.
///
/// The rule is libpq's (documentation, "Client Certificates"): no access for group and others, or
/// if root owns the file, none but reading for the group.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let (metadata, text) = read(path)?;
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    let mode = metadata.mode() & 0o7777;
    if mode & forbidden != 0 {
        return Err(TlsError::KeyPermissions {
            path: path.to_owned(),
            mode,
        });
    }
    let text = text.expose_secret();
    PrivateKeyDer::from_pem_slice(text).map_err(|reason| match reason {
        pem::Error::NoItemsFound if is_encrypted(text) => TlsError::KeyEncrypted {
            path: path.to_owned(),
        },
        pem::Error::NoItemsFound => TlsError::NoKey {
            path: path.to_owned(),
        },
        // The headers of the older kind of encryption (RFC 1421) are not base64.
        _ if is_encrypted(text) => TlsError::KeyEncrypted {
            path: path.to_owned(),
        },
        reason => TlsError::Pem {
            path: path.to_owned(),
            reason,
        },
    })
}

fn is_encrypted(pem: &[u8]) -> bool {
    let contains = |needle: &[u8]| pem.windows(needle.len()).any(|window| window == needle);
    contains(b"BEGIN ENCRYPTED PRIVATE KEY") || contains(b"Proc-Type: 4,ENCRYPTED")
}

/// The file and what is known of it, both of the same open file. Wiped from memory after use.
fn read(path: &Path) -> Result<(std::fs::Metadata, SecretSlice<u8>), TlsError> {
    let read = || -> io::Result<_> {
        // Before opening it: to open a pipe is to wait for somebody to write into it.
        if !std::fs::metadata(path)?.is_file() {
            let kind = io::ErrorKind::InvalidInput;
            return Err(io::Error::new(kind, "not a regular file"));
        }
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        // Enough at once for every sensible file, so that no copy of a key is left behind.
        let mut text = Vec::with_capacity(64 * 1024);
        file.read_to_end(&mut text)?;
        Ok((metadata, text.into()))
    };
    read().map_err(|source| TlsError::File {
        path: path.to_owned(),
        source,
    })
}
