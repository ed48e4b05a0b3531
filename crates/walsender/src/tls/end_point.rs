use aws_lc_rs::digest::{self, Algorithm, SHA224, SHA256, SHA384, SHA512};
use rustls::pki_types::CertificateDer;

use super::TlsStream;
use super::der::Certificate;

/// The channel binding data `tls-server-end-point` for SCRAM-SHA-256-PLUS: the hash of the server's
/// certificate, by the hash of the certificate's own signature, or SHA-256 if that is MD5 or SHA-1.
///
/// `None` if the signature has no single hash (Ed25519) or one that is not known here. Postgres
/// cannot compute it for such certificates either and does not offer channel binding.
///
/// Source: RFC 5929, section 4.1; `pgtls_get_peer_certificate_hash` in libpq.
pub fn tls_server_end_point<S>(stream: &TlsStream<S>) -> Option<Vec<u8>> {
    let (_, session) = stream.get_ref();
    of_certificate(session.peer_certificates()?.first()?)
}

fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (algorithm, pss_hash) = Certificate::parse(certificate)?.signature_algorithm()?;
    let hash = hash_of(algorithm, pss_hash)?;
    Some(digest::digest(hash, certificate).as_ref().to_vec())
}

/// The object identifiers in their DER form.
fn hash_of(algorithm: &[u8], pss_hash: Option<&[u8]>) -> Option<&'static Algorithm> {
    /// 1.2.840.113549.1.1, PKCS #1.
    const RSA: &[u8] = &[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01];
    /// 1.2.840.10045.4, ECDSA signatures (X9.62, RFC 5758).
    const ECDSA: &[u8] = &[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04];
    /// 2.16.840.1.101.3.4.2, the hashes of NIST.
    const NIST_HASH: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02];

    if let Some(arc) = algorithm.strip_prefix(RSA) {
        return match arc {
            // MD5 (4) and SHA-1 (5) count as SHA-256.
            [4 | 5 | 11] => Some(&SHA256),
            [12] => Some(&SHA384),
            [13] => Some(&SHA512),
            [14] => Some(&SHA224),
            // RSASSA-PSS; without a hash in its parameters that is SHA-1.
            [10] => match pss_hash {
                None => Some(&SHA256),
                Some(hash) => match hash.strip_prefix(NIST_HASH)? {
                    [1] => Some(&SHA256),
                    [2] => Some(&SHA384),
                    [3] => Some(&SHA512),
                    [4] => Some(&SHA224),
                    _ => None,
                },
            },
            _ => None,
        };
    }
    match algorithm.strip_prefix(ECDSA)? {
        // SHA-1 (1) counts as SHA-256.
        [1] | [3, 2] => Some(&SHA256),
        [3, 1] => Some(&SHA224),
        [3, 3] => Some(&SHA384),
        [3, 4] => Some(&SHA512),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_signature_algorithm() {
        let rsa = |last| [&[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 1, 1][..], &[last]].concat();
        let ecdsa = |last: &[u8]| [&[0x2A, 0x86, 0x48, 0xCE, 0x3D, 4][..], last].concat();
        let nist = |last| [&[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2][..], &[last]].concat();
        for (algorithm, pss_hash, expected) in [
            (rsa(4), None, Some(&SHA256)), // MD5
            (rsa(5), None, Some(&SHA256)), // SHA-1
            (rsa(2), None, None),          // MD2
            (rsa(11), None, Some(&SHA256)),
            (rsa(12), None, Some(&SHA384)),
            (rsa(13), None, Some(&SHA512)),
            (rsa(14), None, Some(&SHA224)),
            (rsa(10), None, Some(&SHA256)), // PSS with SHA-1
            (rsa(10), Some(nist(1)), Some(&SHA256)),
            (rsa(10), Some(nist(2)), Some(&SHA384)),
            (rsa(10), Some(nist(3)), Some(&SHA512)),
            (rsa(10), Some(nist(4)), Some(&SHA224)),
            (rsa(10), Some(nist(8)), None),     // SHA3-256
            (ecdsa(&[1]), None, Some(&SHA256)), // SHA-1
            (ecdsa(&[3, 1]), None, Some(&SHA224)),
            (ecdsa(&[3, 2]), None, Some(&SHA256)),
            (ecdsa(&[3, 3]), None, Some(&SHA384)),
            (ecdsa(&[3, 4]), None, Some(&SHA512)),
            (ecdsa(&[3, 9]), None, None),
            (vec![0x2B, 0x65, 0x70], None, None), // Ed25519
        ] {
            let hash = hash_of(&algorithm, pss_hash.as_deref());
            assert_eq!(hash, expected, "{algorithm:?} {pss_hash:?}");
        }
    }
}
