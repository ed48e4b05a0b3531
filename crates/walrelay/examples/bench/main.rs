//! The benchmark of `docs/BENCHMARKS.md`: `make bench`.
//!
//! Starts a Postgres that flushes its commits to disk and a Kafka broker, and measures the release
//! binary between them: draining a backlog beside `pg_recvlogical` on the same WAL, idle, and the
//! latency at a steady rate. Prints Markdown on standard output, progress on standard error.
//!
//! It reads `/proc`, so it is for Linux. What others do on the machine at the same time is measured
//! too and printed beside each run: a figure from a busy machine shows that it is one.
//!
//! - `bench [path of the binary]`, else `WALRELAY_BIN`, else the release build beside this program
//! - `BENCH_RUNS`: runs of each contender, 3 by default
//! - `BENCH_ROWS`: rows of the backlog, 1,000,000 by default
//! - `BENCH_ONLY`: drain only, with the contenders whose short names have this word in them, such as
//!   `relay` or `tcp`
//! - `BENCH_WAIT`: seconds to wait in all for a machine that is busy with other things, 60 by
//!   default
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal, which ends with the reason when a measurement cannot be made"
)]

mod drain;
mod idle;
mod latency;
mod polling;
mod proc;
mod rig;
mod table;

use std::env;
use std::str::FromStr;
use std::time::Duration;

use crate::drain::Contender;
use crate::proc::Quiet;
use crate::rig::Rig;

fn main() {
    if env::args().nth(1).as_deref() == Some(polling::FLAG) {
        return polling::serve();
    }
    let runs: usize = number("BENCH_RUNS", 3);
    let rows: u64 = number("BENCH_ROWS", 1_000_000);
    let only = env::var("BENCH_ONLY").unwrap_or_default();
    let mut quiet = Quiet::new(Duration::from_secs(number("BENCH_WAIT", 60)));
    assert!(runs > 0, "BENCH_RUNS must be at least 1");

    let rig = Rig::start();
    let backlog = rig.backlog(rows);
    eprintln!(
        "{} rows in {} MB of WAL, payloads of {:.0} bytes",
        backlog.rows,
        backlog.wal_bytes / 1_000_000,
        backlog.payload_bytes
    );

    // The broker's compiler warms up and the WAL comes into the page cache: this one does not count.
    eprintln!("warming up");
    drain::run(&rig, &backlog, Contender::RelayTcp, 0, &mut quiet);
    let mut drained = Vec::new();
    for round in 1..=runs {
        // Every other round backwards, so that none profits from its place.
        let mut order = Contender::ALL.to_vec();
        order.retain(|contender| contender.word().contains(&only));
        if round % 2 == 0 {
            order.reverse();
        }
        for contender in order {
            let run = drain::run(&rig, &backlog, contender, round, &mut quiet);
            eprintln!("{}", table::progress(&run));
            drained.push(run);
        }
    }
    if !only.is_empty() {
        println!("{}", table::draining(&backlog, &drained));
        return;
    }
    eprintln!("idle");
    let idle = idle::run(&rig, &mut quiet);
    let mut latencies = Vec::new();
    for (rate, load) in latency::RATES {
        eprintln!("latency at {rate} rows/s");
        for contender in latency::Contender::ALL {
            latencies.push(latency::run(&rig, contender, rate, load, &mut quiet));
        }
    }

    println!("{}", table::machine(&rig));
    println!("{}", table::draining(&backlog, &drained));
    println!("{}", table::latency(&latencies));
    println!("{}", table::idle(&rig, &idle));
    println!("{}", table::every_run(&drained));
}

/// A number from the environment.
fn number<T: FromStr>(name: &str, default: T) -> T {
    match env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}
