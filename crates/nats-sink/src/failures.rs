//! The errors of a connection as `walrelay` prints them.

use walrelay_sink::{Chain, FailureClass, SinkFailure, ToFailure};
use walrelay_sink_client::ConnectError;

use crate::NatsError;

impl ToFailure for NatsError {
    fn to_failure(&self) -> SinkFailure {
        let (id, class, what, remedy) = match self {
            Self::Denied { .. } => (
                "nats-access",
                FailureClass::Denied,
                "NATS refuses the relay",
                "correct username, password, token, credentials_file or certificate_file in [sink.nats]",
            ),
            Self::Connect(ConnectError::Settings(_)) | Self::Credentials { .. } => (
                "nats-settings",
                FailureClass::Configuration,
                "[sink.nats] cannot be used",
                "correct hosts, credentials_file, ca_file, certificate_file or key_file in [sink.nats]; \
                 certificates and keys are in PEM",
            ),
            Self::Connect(ConnectError::Certificate(fault)) => (
                "nats-tls",
                FailureClass::Configuration,
                "TLS to NATS fails",
                fault.remedy,
            ),
            Self::Connect(ConnectError::Handshake { .. }) | Self::TlsMismatch { .. } => (
                "nats-tls",
                FailureClass::Configuration,
                "TLS to NATS fails",
                "see that tls in [sink.nats] is as the server has it, that hosts have the names in the \
                 server's certificate, and that ca_file has its authority",
            ),
            _ => (
                "nats-unreachable",
                FailureClass::Unavailable,
                "NATS cannot be reached",
                "check hosts and tls in [sink.nats], and that the server runs",
            ),
        };
        SinkFailure::new(id, class, what)
            .caused_by(Chain(self).to_string())
            .remedy(remedy)
    }
}
