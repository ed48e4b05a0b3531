//! The client against a scripted server, for what a real one cannot be made to do on cue, and
//! against a real Postgres.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the lints' own exception for tests ends at functions without #[test]"
)]

mod corpus;
mod fake;
mod login;
mod real;
mod stream;
