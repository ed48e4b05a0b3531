use walrelay_failure::{Chain, Exit, Failure, ToFailure as _};

use crate::client::error::RedisError;

/// Returns the words for dead letters that cannot be read.
pub(super) fn failure(error: &RedisError) -> Failure {
    let class = match error {
        RedisError::Connect(_) => return error.to_failure(),
        RedisError::Denied { .. } => Exit::Denied,
        RedisError::Protocol { .. }
        | RedisError::NotReady { .. }
        | RedisError::Sentinel { .. }
        | RedisError::Cluster { .. } => Exit::Unavailable,
    };
    let what = "the stream of dead letters cannot be read";
    Failure::new("dlq-topic", class, what)
        .caused_by(Chain(error).to_string())
        .remedy(
            "let the user of [sink.redis] use XRANGE, XINFO STREAM and XADD with it, and see that its \
             server is no replica",
        )
}
