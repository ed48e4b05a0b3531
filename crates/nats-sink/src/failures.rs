//! The errors of a connection as `walrelay` prints them.

use walrelay_sink::check::shortened;
use walrelay_sink::{FailureClass, FailureWords, SinkFailure, ToFailure};
use walrelay_sink_client::{ClientError as _, ConnectError};

use crate::NatsError;
use crate::client::exchange::ExchangeError;

impl ToFailure for NatsError {
    fn to_failure(&self) -> SinkFailure {
        self.words().failure(self)
    }
}

impl NatsError {
    /// Returns the words for the error, which `check` and the running relay share.
    pub(crate) fn table(&self) -> FailureWords {
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
            Self::Protocol { .. } => (
                "nats-protocol",
                FailureClass::Configuration,
                "the server at hosts does not speak as NATS does",
                "see that hosts in [sink.nats] name the port for clients, which is usually 4222; 8222 is that of the monitoring",
            ),
            Self::Closed { .. } => (
                "nats-unreachable",
                FailureClass::Unavailable,
                "NATS has ended the connection",
                "see the cause, and the log of the server: the relay connects again",
            ),
            _ => (
                "nats-unreachable",
                FailureClass::Unavailable,
                "NATS cannot be reached",
                "check hosts and tls in [sink.nats], and that the server runs; its port is usually 4222, and never \
                 that of the monitoring (8222)",
            ),
        };
        FailureWords {
            id,
            class,
            what,
            remedy,
        }
    }
}

/// Names of streams that a failure lists, at most.
const LISTED: usize = 5;

/// Returns the words for a stream that cannot be read.
pub(crate) fn stream_failure(topic: &str, error: &ExchangeError) -> SinkFailure {
    let what = format!("the messages of {topic} cannot be read");
    let (class, why) = match error {
        ExchangeError::Connection(NatsError::Protocol { reason, .. }) => {
            (FailureClass::Unavailable, reason.clone())
        }
        ExchangeError::Connection(error) => return error.to_failure(),
        ExchangeError::ApiDenied | ExchangeError::SubjectDenied => (
            FailureClass::Denied,
            "the user may not ask JetStream for them".to_owned(),
        ),
    };
    SinkFailure::new("nats-stream", class, what).caused_by(why).remedy(
        "let the user of [sink.nats] publish to $JS.API.STREAM.NAMES, $JS.API.STREAM.INFO.* and \
             $JS.API.STREAM.MSG.GET.*, and see that JetStream is on and the stream has a leader",
    )
}

/// Returns the words for a subject that several streams have.
pub(crate) fn several_streams(subject: &str, streams: &[String]) -> SinkFailure {
    let names = shortened(streams.to_vec(), LISTED).join(", ");
    let what = format!("several streams have messages of {subject}: {names}");
    SinkFailure::new("nats-stream", FailureClass::Configuration, what)
        .remedy("name one of the streams instead of the subject")
}

/// Returns true if a failure is about a stream that is read.
pub(crate) fn is_of_stream(failure: &SinkFailure) -> bool {
    failure.id == "nats-stream"
}

/// Returns true for the words of [`not_the_same`].
pub(crate) fn is_not_the_same(failure: &SinkFailure) -> bool {
    is_of_stream(failure) && failure.class == FailureClass::Configuration
}

/// Returns the words for a stream that was deleted or made anew while it was read.
pub(crate) fn not_the_same(topic: &str) -> SinkFailure {
    let what = format!("the stream of {topic} was deleted or recreated while it was read");
    SinkFailure::new("nats-stream", FailureClass::Configuration, what)
        .remedy("see who deletes it, and begin it again")
}
