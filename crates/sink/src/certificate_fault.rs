use std::fmt;

/// The reason why a sink's client refuses the certificate of a server: the server cannot be used until
/// somebody acts, so this is named in place of a missing answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFault {
    /// A description with the address of the server: `the certificate of b:9093 has expired`.
    pub what: String,
    /// The remedy for the operator.
    pub remedy: &'static str,
}

impl fmt::Display for CertificateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}
