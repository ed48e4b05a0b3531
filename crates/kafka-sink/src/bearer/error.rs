//! Errors of tokens.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// The reason why there is no token. No variant contains any of the token or output.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error("cannot be read ({0}); the relay's user must be able to read it")]
    Read(io::Error),
    #[error("cannot be started ({0}); it is run without a shell, and looked up in PATH")]
    Start(io::Error),
    #[error("its output cannot be read ({0})")]
    Output(io::Error),
    #[error(
        "had not ended after {after:?} and was stopped; raise token_timeout if it needs longer"
    )]
    Slow { after: Duration },
    #[error(
        "ended with {status}; run it by hand to see why: its standard error is not shown, because \
         it may hold a secret"
    )]
    Status { status: ExitStatus },
    #[error("there is nothing in it; it must print or hold one token")]
    Empty,
    #[error("it is longer than any token")]
    TooLong,
    #[error("it is no bearer token: one word of A-Z a-z 0-9 - . _ ~ + / =, as RFC 6750 has it")]
    Malformed,
    #[error(
        "the token is not a JWT with an expiry (claim exp); set token_lifetime to how long a \
         new one is valid"
    )]
    NoEnd,
    #[error("the token expired {} s ago; is its renewal still running?", ago.as_secs())]
    Expired { ago: Duration },
}
