//! [`HttpError`]: why the settings cannot be used, or a sink cannot be created.

use std::error::Error;
use std::io;
use std::path::Path;

use walrelay_sink::{FailureClass, SinkFailure, ToFailure};

/// The settings of the sink cannot be used, or its thread cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// A file of TLS cannot be used.
    #[error("{file} cannot be used: {source}")]
    File {
        /// The file.
        file: String,
        /// The reason.
        source: Box<dyn Error + Send + Sync>,
    },
    /// There is no URL.
    #[error("url is missing")]
    NoUrl,
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[source] rustls::Error),
    /// The thread of the sink cannot be started.
    #[error("the sink's thread cannot be started: {0}")]
    Thread(#[from] io::Error),
}

impl HttpError {
    pub(crate) fn file(file: &Path, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::File {
            file: file.display().to_string(),
            source: source.into(),
        }
    }
}

impl ToFailure for HttpError {
    fn to_failure(&self) -> SinkFailure {
        let (class, what, remedy) = match self {
            Self::NoUrl | Self::File { .. } | Self::Tls(_) => (
                FailureClass::Configuration,
                "[sink.http] cannot be used",
                "correct url, ca_file, certificate_file or key_file in [sink.http]; files are in PEM",
            ),
            Self::Thread(_) => (
                FailureClass::Unavailable,
                "the HTTP sink cannot be started",
                "raise the limits of threads, memory and open files",
            ),
        };
        SinkFailure::new("http-settings", class, what)
            .caused_by(self.to_string())
            .remedy(remedy)
    }
}
