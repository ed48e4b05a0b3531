//! [`ConnectFailure`]: why a server of a sink is not reached.

use walrelay_failure::FailureWords;

/// The reason why the last attempt to connect to the servers of a sink failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectFailure {
    /// The words for it.
    pub words: FailureWords,
    /// The error with its causes, and the id.
    pub cause: String,
}
