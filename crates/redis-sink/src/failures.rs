//! The errors of a connection as `walrelay` prints them.

use walrelay_failure::{Chain, Exit, Failure, FailureWords, ToFailure};
use walrelay_sink_client::{ClientError as _, ConnectError};

use crate::RedisError;

impl ToFailure for RedisError {
    fn to_failure(&self) -> Failure {
        self.words().failure(self)
    }
}

impl RedisError {
    /// Returns the words for the error, which `check` and the running relay share.
    pub(crate) fn table(&self) -> FailureWords {
        let (id, exit, what, remedy) = match self {
            Self::Denied { .. } => (
                "redis-access",
                Exit::Denied,
                "Redis refuses the relay",
                "correct username and password in [sink.redis], and see that the user is on",
            ),
            Self::Sentinel { .. } => (
                "redis-sentinel",
                Exit::Config,
                "Sentinel names no master of Redis that can be used",
                "correct sentinels and master in [sink.redis], and give the user the right +role",
            ),
            Self::Cluster { .. } => (
                "redis-cluster",
                Exit::Config,
                "the slots of the Redis Cluster cannot be read",
                "correct hosts and cluster in [sink.redis], and give the user the right +cluster|slots",
            ),
            Self::Connect(ConnectError::Settings(_)) => (
                "redis-settings",
                Exit::Config,
                "[sink.redis] cannot be used",
                "correct hosts or sentinels, ca_file, certificate_file or key_file in [sink.redis]; files are in PEM",
            ),
            Self::Connect(ConnectError::Certificate(fault)) => (
                "redis-tls",
                Exit::Config,
                "TLS to Redis fails",
                fault.remedy,
            ),
            Self::Connect(ConnectError::Handshake { .. }) => (
                "redis-tls",
                Exit::Config,
                "TLS to Redis fails",
                "see that hosts in [sink.redis] have the names in the server's certificate, that \
                 ca_file has its authority, and that the port is one of TLS",
            ),
            Self::Protocol { .. } => (
                "redis-protocol",
                Exit::Config,
                "the server at hosts does not speak as Redis does",
                "see that hosts in [sink.redis] name the port of Redis, which is usually 6379, and that tls is as the port has it",
            ),
            Self::NotReady { .. } => (
                "redis-unreachable",
                Exit::Unavailable,
                "Redis accepts no commands at the moment",
                "wait while the server starts or fails over; if that lasts, name the master in hosts of [sink.redis]",
            ),
            _ => (
                "redis-unreachable",
                Exit::Unavailable,
                "Redis cannot be reached",
                "check hosts and tls in [sink.redis], and that the server runs",
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

/// Returns the words for a stream that cannot be read.
pub(crate) fn stream_failure(stream: &str, error: &RedisError) -> Failure {
    let exit = match error {
        RedisError::Denied { code, .. } if code == "NOPERM" => Exit::Denied,
        RedisError::NotReady { code, .. } if code == "WRONGTYPE" => Exit::Config,
        RedisError::Protocol { .. } | RedisError::NotReady { .. } => Exit::Unavailable,
        error => return error.to_failure(),
    };
    let what = format!("the stream {stream} cannot be read");
    Failure::new("redis-stream", exit, what)
        .caused_by(Chain(error).to_string())
        .remedy(
            "let the user of [sink.redis] use XRANGE, XINFO STREAM and XADD with it, and see that it is a stream and \
             its server no replica",
        )
}

/// Returns the words for a stream whose entries have no times.
pub(crate) fn no_times(stream: &str) -> Failure {
    let what = format!("the stream {stream} cannot be read from a time on");
    Failure::new("redis-times", Exit::Config, what)
        .caused_by(
            "the ids of its entries are positions in the log (ids = \"position\"), and no times",
        )
        .remedy("read it from its beginning: leave the time out")
}
