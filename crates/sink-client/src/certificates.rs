//! The words for a certificate of a server that is refused.

use std::io;

use rustls::CertificateError as Problem;
use walrelay_sink::CertificateFault;

/// Returns what is wrong with the certificate of the server at this address, if that is why the
/// handshake of TLS failed.
pub fn certificate_fault(address: &str, failed: &io::Error) -> Option<CertificateFault> {
    let error = failed.get_ref()?.downcast_ref()?;
    let rustls::Error::InvalidCertificate(problem) = error else {
        return None;
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
            "was issued by no authority that is trusted here".to_owned(),
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
            (Problem::UnknownIssuer, "no authority that is trusted here"),
            (Problem::Revoked, "is refused"),
        ] {
            let fault = of(rustls::Error::InvalidCertificate(problem)).expect(words);
            assert!(fault.what.contains(words), "{fault}");
        }
        assert_eq!(of(rustls::Error::HandshakeNotComplete), None);
        assert_eq!(
            certificate_fault("b:5671", &io::Error::other("reset")),
            None
        );
    }
}
