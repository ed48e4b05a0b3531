//! The words for a certificate that is refused: of a server, or of the relay.

use std::io;

use rustls::{AlertDescription as Alert, CertificateError as Problem};
use walrelay_sink::CertificateFault;

/// Returns what is wrong with the certificate of the server at this address, or with that of the relay in
/// the server's view, if that is why TLS failed.
pub fn certificate_fault(address: &str, failed: &io::Error) -> Option<CertificateFault> {
    let problem = match failed.get_ref()?.downcast_ref()? {
        rustls::Error::InvalidCertificate(problem) => problem,
        rustls::Error::AlertReceived(alert) => return client_fault(address, *alert),
        _ => return None,
    };
    let (what, remedy) = match problem {
        Problem::Expired | Problem::ExpiredContext { .. } => (
            "has expired".to_owned(),
            "give the server a new certificate",
        ),
        Problem::NotValidYet | Problem::NotValidYetContext { .. } => (
            "is not valid yet".to_owned(),
            "see whether the clock of this machine, or of the one that issued it, is wrong",
        ),
        Problem::NotValidForName => (not_for_this_name(&[]), RENAME),
        Problem::NotValidForNameContext { presented, .. } => (not_for_this_name(presented), RENAME),
        Problem::UnknownIssuer => (
            "was issued by no trusted authority".to_owned(),
            "name the file with the authority's certificate in ca_file",
        ),
        other => (
            format!("is refused: {other}"),
            "give the server another certificate",
        ),
    };
    Some(CertificateFault {
        what: format!("the certificate of {address} {what}"),
        remedy,
    })
}

/// Returns why the server at this address refuses the relay's certificate, if the alert says so. With
/// TLS 1.3 it comes after the handshake, in the place of the first answer.
fn client_fault(address: &str, alert: Alert) -> Option<CertificateFault> {
    const RENEW: &str = "have a new certificate issued, and replace certificate_file and key_file";
    let (why, remedy) = match alert {
        Alert::CertificateExpired => ("it has expired, or is not valid yet", RENEW),
        Alert::CertificateRevoked => ("it was revoked", RENEW),
        Alert::UnknownCA => (
            "the server does not trust its authority",
            "give the server the authority's certificate, or name a certificate of an authority that it trusts in \
             certificate_file",
        ),
        Alert::CertificateRequired => {
            return Some(CertificateFault {
                what: format!("{address} demands a certificate of the relay"),
                remedy: "name its files in certificate_file and key_file",
            });
        }
        Alert::BadCertificate | Alert::UnsupportedCertificate | Alert::CertificateUnknown => (
            "the server does not say why",
            "see its log, and check certificate_file",
        ),
        _ => return None,
    };
    Some(CertificateFault {
        what: format!("{address} refuses the certificate of the relay: {why}"),
        remedy,
    })
}

const RENAME: &str = "configure a name of the server that its certificate holds, or have one issued that holds this \
     name as subjectAltName";

/// Writes that a certificate is for other names. `presented`: the names that it is for, as rustls
/// writes them: `DnsName("b.example")`.
fn not_for_this_name(presented: &[String]) -> String {
    let names = match presented {
        [] => String::new(),
        names => format!(", but for {}", names.join(", ")),
    };
    format!("is not for this host name{names}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_of_a_certificate_has_its_words_and_other_errors_have_none() {
        let of = |error: rustls::Error| certificate_fault("b:5671", &io::Error::other(error));
        for (problem, words) in [
            (Problem::Expired, "the certificate of b:5671 has expired"),
            (Problem::NotValidYet, "is not valid yet"),
            (Problem::NotValidForName, "is not for this host name"),
            (Problem::UnknownIssuer, "no trusted authority"),
            (Problem::Revoked, "is refused"),
        ] {
            let fault = of(rustls::Error::InvalidCertificate(problem)).expect(words);
            assert!(fault.what.contains(words), "{fault}");
        }
        for (alert, words, remedy) in [
            (
                Alert::CertificateExpired,
                "it has expired",
                "certificate_file",
            ),
            (Alert::UnknownCA, "not trust its authority", "the authority"),
            (
                Alert::CertificateRequired,
                "demands a certificate",
                "key_file",
            ),
            (Alert::BadCertificate, "refuses the certificate", "its log"),
        ] {
            let fault = of(rustls::Error::AlertReceived(alert)).expect(words);
            assert!(fault.what.contains("b:5671"), "{fault}");
            assert!(fault.what.contains(words), "{fault}");
            assert!(fault.remedy.contains(remedy), "{}", fault.remedy);
        }
        let other = rustls::Error::AlertReceived(Alert::HandshakeFailure);
        assert_eq!(of(other), None);
        assert_eq!(of(rustls::Error::HandshakeNotComplete), None);
        assert_eq!(
            certificate_fault("b:5671", &io::Error::other("reset")),
            None
        );
    }
}
