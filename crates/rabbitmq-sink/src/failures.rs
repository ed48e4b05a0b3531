//! The errors of a connection as `walrelay` prints them.

use walrelay_sink::{Chain, FailureClass, SinkFailure, ToFailure};
use walrelay_sink_client::ConnectError;

use crate::RabbitmqError;

impl ToFailure for RabbitmqError {
    fn to_failure(&self) -> SinkFailure {
        let (id, class, what, remedy) = match self {
            Self::Denied { .. } => (
                "rabbitmq-access",
                FailureClass::Denied,
                "RabbitMQ refuses the relay",
                "correct username, password and vhost in [sink.rabbitmq], and see that the user may \
                 use the virtual host",
            ),
            Self::Connect(ConnectError::Settings(_)) => (
                "rabbitmq-settings",
                FailureClass::Configuration,
                "[sink.rabbitmq] cannot be used",
                "correct hosts, ca_file, certificate_file or key_file in [sink.rabbitmq]; files are in PEM",
            ),
            Self::Connect(ConnectError::Certificate(fault)) => (
                "rabbitmq-tls",
                FailureClass::Configuration,
                "TLS to RabbitMQ fails",
                fault.remedy,
            ),
            Self::Connect(ConnectError::Handshake { .. }) => (
                "rabbitmq-tls",
                FailureClass::Configuration,
                "TLS to RabbitMQ fails",
                "see that hosts in [sink.rabbitmq] have the names in the server's certificate, that \
                 ca_file has its authority, and that the port is one of TLS",
            ),
            Self::Declare { .. } => (
                "rabbitmq-declare",
                FailureClass::Configuration,
                "RabbitMQ does not declare what [sink.rabbitmq] declare asks for",
                "give the user the right to configure and bind it, or declare it yourself and set \
                 declare = false",
            ),
            _ => (
                "rabbitmq-unreachable",
                FailureClass::Unavailable,
                "RabbitMQ cannot be reached",
                "check hosts and tls in [sink.rabbitmq], and that the server runs",
            ),
        };
        SinkFailure::new(id, class, what)
            .caused_by(Chain(self).to_string())
            .remedy(remedy)
    }
}
