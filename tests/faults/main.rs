//! The fault suite: every line of the catalogue of faults under load, before a real Postgres and a
//! real Kafka, with the history checker of `walrelay-testkit` as the judge.
//!
//! - [`table`]: the scenarios, what each covers, and which run in `make test`.
//! - [`context`]: what a scenario works with: servers, load, relays, marks of faults, the judge.
//! - [`outcome`]: what a scenario shows. [`report`]: the table of docs/PROOF.md.
//! - [`run`]: lanes, each with servers of its own; evidence of what failed.
//! - the scenarios: [`process`], [`takeover`], [`handover`], [`kafka`], [`kafka_cluster`], [`postgres`],
//!   [`failover`], [`network`], [`distance`], [`data`].
//!
//! A scenario is a function from a [`context::Context`] to an [`outcome::Outcome`]; it is entered in
//! [`table::SCENARIOS`], and fails by panicking or by an outcome that is not clean.
//!
//! | variable | |
//! |---|---|
//! | `FAULTS_ALL=1` | every scenario on Postgres 14 to 18, as `make test-faults`; else the subset on 15 and 18 |
//! | `FAULTS_SEED` | drives the load and the moments of the faults, which are counted in rows. Default: 1, or random with `FAULTS_ALL` |
//! | `FAULTS_ONLY` | names of scenarios, with commas in between |
//! | `FAULTS_POSTGRES` | versions of Postgres, with commas in between |
//! | `FAULTS_KEEP=1` | the logs of what passed are kept too |
//! | `FAULTS_LANES` | scenarios at once, default 2 |

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a scenario fails by panicking with the reason, and says what it measured"
)]

mod context;
mod data;
mod distance;
mod failover;
mod handover;
mod kafka;
mod kafka_cluster;
mod network;
mod outcome;
mod postgres;
mod process;
mod report;
#[allow(dead_code, reason = "shared with tests/e2e, which uses all of it")]
#[path = "../e2e/rig.rs"]
mod rig;
mod run;
mod table;
mod takeover;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::main()
}
