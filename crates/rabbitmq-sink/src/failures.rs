//! The errors of a connection as `walrelay` prints them.

use walrelay_failure::{Chain, Exit, Failure, FailureWords, ToFailure};
use walrelay_sink_client::{ClientError as _, ConnectError};
use walrelay_sink_kind::topics::SentTo;

use crate::RabbitmqError;
use crate::client::stream::StreamError;

impl ToFailure for RabbitmqError {
    fn to_failure(&self) -> Failure {
        self.words().failure(self)
    }
}

impl RabbitmqError {
    /// Returns the words for the error, which `check` and the running relay share.
    pub(crate) fn table(&self) -> FailureWords {
        let (id, exit, what, remedy) = match self {
            // The text of `rabbit_reader` for the limits of virtual hosts, users and nodes.
            Self::Denied { text, .. } if text.contains("limit (") => (
                "rabbitmq-limit",
                Exit::Denied,
                "RabbitMQ lets in no more connections",
                "close unneeded connections, or raise the limit that the cause names: rabbitmqctl \
                 set_vhost_limits, set_user_limits, or connection_max of the node",
            ),
            Self::Denied { .. } => (
                "rabbitmq-access",
                Exit::Denied,
                "RabbitMQ refuses the relay",
                "correct username, password and vhost in [sink.rabbitmq], and see that the user may \
                 use the virtual host",
            ),
            Self::Connect(ConnectError::Settings(_)) => (
                "rabbitmq-settings",
                Exit::Config,
                "[sink.rabbitmq] cannot be used",
                "correct hosts, ca_file, certificate_file or key_file in [sink.rabbitmq]; files are in PEM",
            ),
            Self::Connect(ConnectError::Certificate(fault)) => (
                "rabbitmq-tls",
                Exit::Config,
                "TLS to RabbitMQ fails",
                fault.remedy,
            ),
            Self::Connect(ConnectError::Handshake { .. }) => (
                "rabbitmq-tls",
                Exit::Config,
                "TLS to RabbitMQ fails",
                "see that hosts in [sink.rabbitmq] have the names in the server's certificate, that \
                 ca_file has its authority, and that the port is one of TLS",
            ),
            Self::Declare { .. } => (
                "rabbitmq-declare",
                Exit::Config,
                "RabbitMQ does not declare what [sink.rabbitmq] declare asks for",
                "give the user the right to configure and bind it, or declare it yourself and set \
                 declare = false",
            ),
            Self::Protocol { .. } => (
                "rabbitmq-protocol",
                Exit::Config,
                "the server at hosts does not speak as RabbitMQ does",
                "see that hosts in [sink.rabbitmq] name the port of AMQP, which is usually 5672, or 5671 with tls = true; 15672 is that of \
                 the management interface",
            ),
            Self::Closed { .. } => (
                "rabbitmq-unreachable",
                Exit::Unavailable,
                "RabbitMQ has ended the connection",
                "see the cause, and the log of RabbitMQ: the relay connects again",
            ),
            _ => (
                "rabbitmq-unreachable",
                Exit::Unavailable,
                "RabbitMQ cannot be reached",
                "check hosts and tls in [sink.rabbitmq], and that the server runs; its port is usually 5672, or 5671 \
                 with tls = true, and never that of the management interface (15672)",
            ),
        };
        FailureWords {
            id,
            exit,
            what,
            remedy,
        }
    }
}

/// A change of a stream while it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It was deleted, and perhaps recreated.
    Deleted,
    /// It dropped messages that were not read.
    Dropped {
        /// The offset of the first one of them.
        next: i64,
        /// The first offset that the stream has.
        first: i64,
    },
}

/// Returns the words for a stream that cannot be read.
pub(crate) fn stream_failure(stream: &str, error: &StreamError) -> Failure {
    let (id, exit, remedy) = match error {
        StreamError::Connection(error) => return error.to_failure(),
        StreamError::NoStream(_) => (
            "rabbitmq-no-stream",
            Exit::Config,
            "name a queue whose type is stream: rabbitmqctl list_queues name type",
        ),
        StreamError::Version(_) => (
            "rabbitmq-no-stream",
            Exit::Config,
            "use RabbitMQ 3.10 or newer",
        ),
        StreamError::Ended(_) => return changed(stream, Change::Deleted),
        StreamError::Refused { code: 403, .. } => (
            "rabbitmq-stream",
            Exit::Denied,
            "give the user of [sink.rabbitmq] the right to read the queue",
        ),
        StreamError::NoReplica(_) => (
            "rabbitmq-stream",
            Exit::Unavailable,
            "name in hosts of [sink.rabbitmq] a node that has a replica of the stream: rabbitmqctl list_queues name \
             members",
        ),
        _ => (
            "rabbitmq-stream",
            Exit::Unavailable,
            "see that the server runs, and that the stream has a leader",
        ),
    };
    let what = format!("the stream {stream} cannot be read");
    Failure::new(id, exit, what)
        .caused_by(Chain(error).to_string())
        .remedy(remedy)
}

/// Returns the words for a stream that is not the one that was begun.
pub(crate) fn changed(stream: &str, change: Change) -> Failure {
    let (what, remedy) = match change {
        Change::Deleted => (
            format!("the stream {stream} was deleted or recreated while it was read"),
            "see who deletes the stream of RabbitMQ, and run the command again",
        ),
        Change::Dropped { next, first } => (
            format!(
                "the stream {stream} dropped messages while it was read: those from offset {next} to {first} are gone"
            ),
            "raise its limit of size or age, or read it from a later time on",
        ),
    };
    Failure::new("rabbitmq-stream", Exit::Config, what).remedy(remedy)
}

/// Returns the words for rows of which it is not known whether they are in a stream.
pub(crate) fn bindings_failure(stream: &str, sent_to: &SentTo, why: &str) -> Failure {
    let exchange = &sent_to.topic;
    let what = format!(
        "it is not known whether the rows of the exchange {exchange} are in the stream {stream}"
    );
    Failure::new("rabbitmq-bindings", Exit::Config, what)
        .caused_by(why.to_owned())
        .remedy(
            "set management_url in [sink.rabbitmq], and give the user the tag management; or leave --against-table out",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_connections_is_no_wrong_login() {
        for (text, id) in [
            (
                "NOT_ALLOWED - access to vhost 'v' refused for user 'u': connection limit (0) is reached",
                "rabbitmq-limit",
            ),
            ("NOT_ALLOWED - vhost limit not found", "rabbitmq-access"),
            (
                "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.",
                "rabbitmq-access",
            ),
        ] {
            let error = RabbitmqError::Denied {
                address: "h:5672".to_owned(),
                text: text.to_owned(),
            };
            assert_eq!(error.to_failure().id, id, "{text}");
        }
    }

    #[test]
    fn a_server_of_another_protocol_has_a_remedy_that_names_the_port() {
        let error = RabbitmqError::Protocol {
            address: "h:15672".to_owned(),
            reason: "the server sent a frame without an end".to_owned(),
        };
        assert_eq!(error.words().failure(&error).id, "rabbitmq-protocol");
        assert!(error.words().remedy.contains("15672"));
        assert!(
            error
                .words()
                .cause(&error)
                .ends_with(" [rabbitmq-protocol]")
        );
    }
}
