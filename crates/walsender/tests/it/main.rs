//! Tests of the client against a scripted server, for behaviour that a real one does not show on
//! demand, and against a real Postgres.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "the lints' own exception for tests ends at functions without #[test]; figures are printed"
)]

use std::time::Duration;

mod corpus;
mod fake;
mod hosts;
mod login;
mod lying;
mod query;
mod real;
mod stream;

/// The limit of what must happen, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
