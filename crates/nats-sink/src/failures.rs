//! The errors of a connection as `walrelay` prints them.

use walrelay_failure::{Exit, Failure, FailureWords, ToFailure};
use walrelay_sink_client::{ClientError as _, ConnectError};
use walrelay_sink_kind::check::shortened;

use crate::NatsError;
use crate::client::exchange::ExchangeError;

impl ToFailure for NatsError {
    fn to_failure(&self) -> Failure {
        self.words().failure(self)
    }
}

impl NatsError {
    /// Returns the words for the error, which `check` and the running relay share.
    pub(crate) fn table(&self) -> FailureWords {
        let (id, exit, what, remedy) = match self {
            Self::Denied { .. } => (
                "nats-access",
                Exit::Denied,
                "NATS refuses the relay",
                "correct username, password, token, credentials_file or certificate_file in [sink.nats]",
            ),
            Self::Connect(ConnectError::Settings(_)) | Self::Credentials { .. } => (
                "nats-settings",
                Exit::Config,
                "[sink.nats] cannot be used",
                "correct hosts, credentials_file, ca_file, certificate_file or key_file in [sink.nats]; \
                 certificates and keys are in PEM",
            ),
            Self::Connect(ConnectError::Certificate(fault)) => {
                ("nats-tls", Exit::Config, "TLS to NATS fails", fault.remedy)
            }
            Self::Connect(ConnectError::Handshake { .. }) | Self::TlsMismatch { .. } => (
                "nats-tls",
                Exit::Config,
                "TLS to NATS fails",
                "see that tls in [sink.nats] is as the server has it, that hosts have the names in the \
                 server's certificate, and that ca_file has its authority",
            ),
            Self::Protocol { .. } => (
                "nats-protocol",
                Exit::Config,
                "the server at hosts does not speak as NATS does",
                "see that hosts in [sink.nats] name the port for clients, which is usually 4222; 8222 is that of the monitoring",
            ),
            Self::Closed { .. } => (
                "nats-unreachable",
                Exit::Unavailable,
                "NATS has ended the connection",
                "see the cause, and the log of NATS: the relay connects again",
            ),
            _ => (
                "nats-unreachable",
                Exit::Unavailable,
                "NATS cannot be reached",
                "check hosts and tls in [sink.nats], and that the server runs; its port is usually 4222, and never \
                 that of the monitoring (8222)",
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

/// Names of streams that a failure lists, at most.
const LISTED: usize = 5;

/// Returns the words for a stream that cannot be read.
pub(crate) fn stream_failure(topic: &str, error: &ExchangeError) -> Failure {
    let what = format!("the messages of {topic} cannot be read");
    let (exit, why) = match error {
        ExchangeError::Connection(NatsError::Protocol { reason, .. }) => {
            (Exit::Unavailable, reason.clone())
        }
        ExchangeError::Connection(error) => return error.to_failure(),
        ExchangeError::ApiDenied | ExchangeError::SubjectDenied => (
            Exit::Denied,
            "the user may not ask JetStream for them".to_owned(),
        ),
    };
    Failure::new("nats-stream", exit, what).caused_by(why).remedy(
        "let the user of [sink.nats] publish to $JS.API.STREAM.NAMES, $JS.API.STREAM.INFO.* and \
             $JS.API.STREAM.MSG.GET.*, and see that JetStream is on and the stream has a leader",
    )
}

/// Returns the words for a subject that several streams have.
pub(crate) fn several_streams(subject: &str, streams: &[String]) -> Failure {
    let names = shortened(streams.to_vec(), LISTED).join(", ");
    let what = format!("several streams have messages of {subject}: {names}");
    Failure::new("nats-stream", Exit::Config, what)
        .remedy("name one of the streams instead of the subject")
}

/// Returns true if a failure is about a stream that is read.
pub(crate) fn is_of_stream(failure: &Failure) -> bool {
    failure.id == "nats-stream"
}

/// Returns true for the words of [`not_the_same`].
pub(crate) fn is_not_the_same(failure: &Failure) -> bool {
    is_of_stream(failure) && failure.exit == Exit::Config
}

/// Returns the words for a stream that was deleted or recreated while it was read.
pub(crate) fn not_the_same(topic: &str) -> Failure {
    let what = format!("the stream of {topic} was deleted or recreated while it was read");
    Failure::new("nats-stream", Exit::Config, what)
        .remedy("see who deletes or purges the stream of NATS, and run the command again")
}
