//! Tests of the hash of the server's certificate for channel binding, and of certificates of
//! version 1.

use super::*;

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = u16::try_from(content.len()).expect("short").to_be_bytes();
    [&[tag, 0x82], &length[..], &content].concat()
}

/// Converts a certificate to version 1; the issuer's signature is not valid any more.
fn version_1(certificate: &[u8]) -> CertificateDer<'static> {
    let (mut body, signature) = open_der(open_der(certificate).0);
    let mut kept = Vec::new();
    while !body.is_empty() {
        let (_, rest) = open_der(body);
        // Leave out version and extensions, which have the context-specific tags 0 and 3.
        if !matches!(body[0], 0xA0 | 0xA3) {
            kept.push(&body[..body.len() - rest.len()]);
        }
        body = rest;
    }
    der(0x30, &[&der(0x30, &kept), signature]).into()
}

#[tokio::test]
async fn version_1_certificates_are_accepted_if_nothing_is_verified() {
    let identity = Identity::self_signed(&params(), &PKCS_ECDSA_P256_SHA256);
    let old = version_1(&identity.certificate);
    let require = context("sslmode=require").expect("no files");
    let tls13 = [&rustls::version::TLS13];
    let server = AnyKey::server(old.clone(), &identity.key_der(), &tls13);
    let (client, _) = handshake(&require, "db.test", server)
        .await
        .expect("accepted");
    assert_eq!(
        tls_server_end_point(&client).as_deref(),
        Some(digest(&aws_lc_rs::digest::SHA256, &old))
            .as_ref()
            .map(AsRef::as_ref)
    );
    // If the chain is verified, the certificate is refused, with a remedy.
    let files = Files::new();
    let root = files.put_certificate("root.crt", &identity.certificate);
    let verifying = with_root("verify-ca", &root);
    let server = AnyKey::server(old.clone(), &identity.key_der(), &tls13);
    let refused = handshake(&verifying, "db.test", server).await;
    assert!(
        matches!(refused, Err(TlsError::Version1 { .. })),
        "{refused:?}"
    );
    // Without verification of the chain, too, the server must have the key.
    let thief = Identity::self_signed(&params(), &PKCS_ECDSA_P256_SHA256);
    let server = AnyKey::server(old, &thief.key_der(), &tls13);
    let refused = handshake(&require, "db.test", server).await;
    assert!(
        matches!(refused, Err(TlsError::Certificate { .. })),
        "{refused:?}"
    );
}

fn digest(
    algorithm: &'static aws_lc_rs::digest::Algorithm,
    data: &[u8],
) -> aws_lc_rs::digest::Digest {
    aws_lc_rs::digest::digest(algorithm, data)
}

#[tokio::test]
async fn the_end_point_is_hashed_as_the_certificate_is_signed() {
    use aws_lc_rs::digest::{SHA256, SHA384, SHA512};
    let context = context("sslmode=require").expect("no files");
    for (signature, hash) in [
        (&PKCS_ECDSA_P256_SHA256, Some(&SHA256)),
        (&PKCS_ECDSA_P384_SHA384, Some(&SHA384)),
        (&PKCS_ECDSA_P521_SHA512, Some(&SHA512)),
        (&PKCS_RSA_SHA256, Some(&SHA256)),
        (&PKCS_RSA_SHA384, Some(&SHA384)),
        (&PKCS_RSA_SHA512, Some(&SHA512)),
        (&PKCS_ED25519, None),
    ] {
        let identity = Identity::self_signed(&params(), signature);
        for version in BOTH {
            let server = identity.server_of(&[version]);
            let (client, _) = handshake(&context, "db.test", server).await.expect("TLS");
            let expected = hash.map(|hash| digest(hash, &identity.certificate).as_ref().to_vec());
            assert_eq!(tls_server_end_point(&client), expected, "{signature:?}");
        }
    }
    // The hash function is that of the issuer's signature, not of the certificate's own key.
    let mut params_of_issuer = CertificateParams::default();
    params_of_issuer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("a key");
    let issuer = CertifiedIssuer::self_signed(params_of_issuer, key).expect("signed");
    let identity = Identity::issued(&params(), &issuer);
    let (client, _) = handshake(&context, "db.test", identity.server())
        .await
        .expect("TLS");
    assert_eq!(
        tls_server_end_point(&client),
        Some(digest(&SHA384, &identity.certificate).as_ref().to_vec())
    );
}

proptest::proptest! {
    /// Certificates with some bytes changed or cut off.
    #[test]
    fn no_certificate_makes_it_panic(
        changes in proptest::collection::vec((0_usize..600, 0_u8..=255), 0..4),
        length in 0_usize..600,
    ) {
        static CERTIFICATE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
            Identity::self_signed(&params(), &PKCS_ECDSA_P256_SHA256).certificate.to_vec()
        });
        let mut certificate = CERTIFICATE.clone();
        for (at, byte) in changes {
            if let Some(place) = certificate.get_mut(at) {
                *place = byte;
            }
        }
        certificate.truncate(length);
        let certificate = certificate.into();
        let _ = end_point::certificate_hash(&certificate);
        let _ = verify::verify_validity(&certificate, rustls::pki_types::UnixTime::now());
    }
}
