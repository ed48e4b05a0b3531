use aws_lc_rs::digest::{self, Algorithm, SHA224, SHA256, SHA384, SHA512};
use rustls::pki_types::CertificateDer;
use tokio_rustls::client::TlsStream;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::signature_algorithm::RsaSsaPssParams;

/// Computes the channel binding data `tls-server-end-point` for SCRAM-SHA-256-PLUS: the hash of the
/// server's certificate. The hash function is that of the certificate's signature, or SHA-256
/// instead of MD5 or SHA-1.
///
/// `None` if the signature has no single hash function (Ed25519) or an unknown one. Postgres cannot
/// compute the hash of such a certificate either, and does not offer channel binding.
///
/// Source: RFC 5929, section 4.1; `pgtls_get_peer_certificate_hash` in libpq.
pub(crate) fn tls_server_end_point<S>(stream: &TlsStream<S>) -> Option<Vec<u8>> {
    let (_, session) = stream.get_ref();
    certificate_hash(session.peer_certificates()?.first()?)
}

/// Hashes the certificate with the function of its signature; `None` if there is no such function.
pub(super) fn certificate_hash(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let signature = &parsed.signature_algorithm;
    let pss = signature.parameters.as_ref();
    let pss = pss.and_then(|parameters| RsaSsaPssParams::try_from(parameters).ok());
    let pss_hash = pss.as_ref().and_then(RsaSsaPssParams::hash_algorithm);
    let pss_hash = pss_hash.map(|hash| hash.algorithm.to_id_string());
    let hash = hash_of(&signature.algorithm.to_id_string(), pss_hash.as_deref())?;
    Some(digest::digest(hash, certificate).as_ref().to_vec())
}

/// Hash functions by signature algorithm; SHA-256 replaces MD5 and SHA-1.
const SIGNATURES: &[(&str, &Algorithm)] = &[
    // PKCS #1.
    ("1.2.840.113549.1.1.4", &SHA256), // MD5
    ("1.2.840.113549.1.1.5", &SHA256), // SHA-1
    ("1.2.840.113549.1.1.11", &SHA256),
    ("1.2.840.113549.1.1.12", &SHA384),
    ("1.2.840.113549.1.1.13", &SHA512),
    ("1.2.840.113549.1.1.14", &SHA224),
    (RSASSA_PSS, &SHA256), // SHA-1, the default of its parameters
    // ECDSA.
    ("1.2.840.10045.4.1", &SHA256), // SHA-1
    ("1.2.840.10045.4.3.1", &SHA224),
    ("1.2.840.10045.4.3.2", &SHA256),
    ("1.2.840.10045.4.3.3", &SHA384),
    ("1.2.840.10045.4.3.4", &SHA512),
];

/// RSASSA-PSS has its hash function in its parameters (RFC 4055, 3.1).
const RSASSA_PSS: &str = "1.2.840.113549.1.1.10";
const PSS_HASHES: &[(&str, &Algorithm)] = &[
    ("2.16.840.1.101.3.4.2.1", &SHA256),
    ("2.16.840.1.101.3.4.2.2", &SHA384),
    ("2.16.840.1.101.3.4.2.3", &SHA512),
    ("2.16.840.1.101.3.4.2.4", &SHA224),
];

fn hash_of(algorithm: &str, pss_hash: Option<&str>) -> Option<&'static Algorithm> {
    let (table, name) = match pss_hash {
        Some(hash) if algorithm == RSASSA_PSS => (PSS_HASHES, hash),
        _ => (SIGNATURES, algorithm),
    };
    let (_, hash) = table.iter().find(|(known, _)| *known == name)?;
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_signature_algorithm() {
        let rsa = |last: &str| format!("1.2.840.113549.1.1.{last}");
        let ecdsa = |last: &str| format!("1.2.840.10045.4.{last}");
        let nist = |last: &str| Some(format!("2.16.840.1.101.3.4.2.{last}"));
        for (algorithm, pss_hash, expected) in [
            (rsa("4"), None, Some(&SHA256)), // MD5
            (rsa("5"), None, Some(&SHA256)), // SHA-1
            (rsa("2"), None, None),          // MD2
            (rsa("11"), None, Some(&SHA256)),
            (rsa("12"), None, Some(&SHA384)),
            (rsa("13"), None, Some(&SHA512)),
            (rsa("14"), None, Some(&SHA224)),
            (rsa("10"), None, Some(&SHA256)), // PSS with SHA-1
            (rsa("10"), nist("1"), Some(&SHA256)),
            (rsa("10"), nist("2"), Some(&SHA384)),
            (rsa("10"), nist("3"), Some(&SHA512)),
            (rsa("10"), nist("4"), Some(&SHA224)),
            (rsa("10"), nist("8"), None),      // SHA3-256
            (ecdsa("1"), None, Some(&SHA256)), // SHA-1
            (ecdsa("3.1"), None, Some(&SHA224)),
            (ecdsa("3.2"), None, Some(&SHA256)),
            (ecdsa("3.3"), None, Some(&SHA384)),
            (ecdsa("3.4"), None, Some(&SHA512)),
            (ecdsa("3.9"), None, None),
            ("1.3.101.112".to_owned(), None, None), // Ed25519
        ] {
            let hash = hash_of(&algorithm, pss_hash.as_deref());
            assert_eq!(hash, expected, "{algorithm} {pss_hash:?}");
        }
    }
}
