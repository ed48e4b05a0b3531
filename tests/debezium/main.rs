//! A real Debezium Server and the binary `walrelay` on the same database: the hand-over, and both
//! beside each other.
//!
//! `make test-debezium` fetches Debezium Server and runs these tests. Otherwise they are ignored,
//! because it is 780 MB and needs a newer Java than Kafka does. `WALRELAY_TEST_DEBEZIUM` names its
//! directory and `WALRELAY_TEST_JAVA` the Java.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking with the reason, and says what it measured"
)]

mod beside;
mod hand_over;
#[allow(
    dead_code,
    unused_imports,
    reason = "shared with the tests that need no Debezium"
)]
#[path = "../e2e/rig/mod.rs"]
mod rig;
mod server;
