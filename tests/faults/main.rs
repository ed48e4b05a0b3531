//! The fault suite: every line of the catalogue of faults, under load, with a real Postgres and a
//! real Kafka or another sink's server, checked by the history checker of `walrelay-testkit`.
//!
//! - [`table`]: the scenarios, what each covers, and which run in `make test`.
//! - [`context`]: the context of a scenario: servers, load, relays, marks of faults, the final
//!   check.
//! - [`control`]: how late the machine itself is, for limits of times.
//! - [`outcome`]: the figures of a scenario. [`report`]: the table of docs/trust/proof.md.
//! - [`run`]: lanes, each with servers of its own; evidence of failures.
//! - [`destination`]: the server that relays write to.
//! - the scenarios: [`process`], [`takeover`], [`handover`], [`given_up`], [`sink`], [`kafka_cluster`],
//!   [`postgres`], [`failover`], [`network`], [`distance`], [`data`], [`rows`], [`replays`],
//!   [`rollbacks`], [`snapshots`]. [`cuts`]: each command, cut at each of its statements.
//!
//! The relay's code branches on the version of Postgres where it reads slots and publications, and
//! where it makes a slot. Every scenario does the first, and none of the subset depends on the rest.
//! So the scenarios of the subset run on 15 and 18 in turn, and each on every version only by
//! `make test-faults`.
//!
//! A scenario is a function from a [`context::Context`] to an [`outcome::Outcome`]. It is listed in
//! [`table::SCENARIOS`], and fails by a panic or by an outcome that is not clean.
//!
//! | variable | |
//! |---|---|
//! | `FAULTS_ALL=1` | every scenario on Postgres 14 to 18, as `make test-faults`; else the subset,
//! each on one of 15 and 18 |
//! | `FAULTS_SINK` | `kafka` (default), `rabbitmq` with quorum queues, `rabbitmq-classic`, `redis`,
//! `nats`, `nats-exclusive` with `exclusive_stream`, `http`, `http2`: runs the scenarios that say
//! `every_sink` or `other_sinks`, and `refusing_sinks` where repeats are refused, each on one of 15 and 18 |
//! | `FAULTS_SEED` | decides the load and the moments of the faults, which are counted in rows.
//! Default: `WALRELAY_TEST_SEED`, or random |
//! | `FAULTS_ONLY` | names of scenarios, separated by commas; on 15 and 18 |
//! | `FAULTS_POSTGRES` | versions of Postgres, separated by commas |
//! | `FAULTS_KEEP=1` | keeps the logs of passed scenarios too |
//! | `FAULTS_LANES` | number of concurrent scenarios, 2 by default; a scenario whose outcome is a time runs alone |

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a scenario fails by panicking with the reason, and says what it measured"
)]

mod context;
mod control;
mod cuts;
mod data;
mod destination;
mod distance;
mod failover;
mod given_up;
mod handover;
mod kafka_cluster;
mod network;
mod outcome;
mod postgres;
mod process;
mod replays;
mod report;
#[allow(
    dead_code,
    unused_imports,
    reason = "shared with tests/e2e, which uses all of it"
)]
#[path = "../e2e/rig/mod.rs"]
mod rig;
mod rollbacks;
mod rows;
mod run;
mod sink;
mod snapshots;
mod table;
mod takeover;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::main()
}
