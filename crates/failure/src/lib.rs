//! Failures for the operator: what is wrong, the cause, the remedy, and the exit code.
//!
//! # Contents
//! - [`Failure`]: a failure that may end a command. [`ToFailure`]: an error that has words for the operator.
//! - [`Exit`]: the class of a failure, and the exit code of a command that ends with it.
//! - [`FailureWords`]: the words for an error of a server, which `check` and the running relay share.
//! - [`Chain`]: an error with its causes. [`nearest`]: "did you mean".
//!
//! # Invariants
//! - Words contain names of things, never secrets or row values.
//! - Exit codes are an interface: `docs/reference/configuration.md` and `--help` list them from [`Exit::ALL`].

#![forbid(unsafe_code)]

mod chain;
mod exit;
mod failure;
mod nearest;
mod words;

pub use chain::Chain;
pub use exit::Exit;
pub use failure::{Failure, ToFailure};
pub use nearest::{nearest, nearest_within};
pub use words::FailureWords;
