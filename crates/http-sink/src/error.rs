//! [`HttpError`]: why the settings cannot be used, or a sink cannot be created.

use walrelay_failure::{Exit, Failure, ToFailure};
use walrelay_sink_client::ConnectError;

/// The settings of the sink cannot be used, or its thread cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// There is no URL.
    #[error("url is missing")]
    NoUrl,
    /// The files of TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] ConnectError),
    /// The thread of the sink cannot be started.
    #[error("the sink's thread cannot be started: {0}")]
    Thread(#[source] ConnectError),
}

impl ToFailure for HttpError {
    fn to_failure(&self) -> Failure {
        let (class, what, remedy) = match self {
            Self::NoUrl | Self::Tls(_) => (
                Exit::Config,
                "[sink.http] cannot be used",
                "correct url, ca_file, certificate_file or key_file in [sink.http]; files are in PEM",
            ),
            Self::Thread(_) => (
                Exit::Unavailable,
                "the HTTP sink cannot be started",
                "raise the limits of threads, memory and open files",
            ),
        };
        Failure::new("http-settings", class, what)
            .caused_by(self.to_string())
            .remedy(remedy)
    }
}
