//! The benchmark of `docs/trust/benchmarks.md`: `make bench`.
//!
//! Starts a Postgres that flushes its commits to disk and a Kafka broker, and measures the release
//! binary between them: draining a backlog beside `pg_recvlogical` on the same WAL, idle, and the
//! latency at a steady rate. Prints Markdown on standard output, progress on standard error.
//!
//! It reads `/proc`, so it runs on Linux only. What other programs use of the machine meanwhile is
//! measured too and printed beside each run.
//!
//! - `walrelay-bench [path of the binary]`, else `WALRELAY_BIN`, else the release build beside this program
//! - `BENCH_SINK`: `rabbitmq`, `redis`, `nats` or `http`: measures that sink beside a polling relay
//!   instead. Of the variables below, `BENCH_RUNS`, `BENCH_ROWS` (50,000 by default), `BENCH_SECONDS`, `BENCH_RATE` and
//!   `BENCH_WAIT` count
//! - `BENCH_ONLY`: `drain`, `latency`, `ramp`, `light`, `idle` or `sweep` alone; any other word
//!   selects draining by the contenders whose short names contain it, such as `relay` or `tcp`
//! - `BENCH_RUNS`: runs of each contender, 3 by default; at most 3 for latency
//! - `BENCH_ROWS`: rows of the backlog, 1,000,000 by default; `BENCH_SWEEP_ROWS`: rows of a sweep's
//!   backlog, 500,000 by default; `BENCH_SWEEP`: only cases whose short names contain this, such as
//!   `topics` or `tls`
//! - `BENCH_SECONDS`: how long a rate is held, 15 by default; `BENCH_RATE`: other rates, separated
//!   by commas; `BENCH_STEP`: seconds of a step of the ramp, 5 by default; `BENCH_IDLE`: seconds of
//!   idleness, 60 by default
//! - `BENCH_BASELINE`: the path of an earlier binary, which is measured beside this one
//! - `BENCH_PEERS=1`: Debezium Server takes part (`make bench` fetches it)
//! - `BENCH_WAIT`: seconds to wait in all for a machine that is busy with other things, 60 by
//!   default
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal, which ends with the reason when a measurement cannot be made"
)]

mod checker;
mod consumer;
mod contender;
mod cpu;
mod debezium;
mod drain;
mod harness;
mod idle;
mod latency;
mod load_kind;
mod polling;
mod programs;
mod quiet;
mod sinks;
mod stream;
mod sweep;
mod table;
mod warm_up;
mod writers;

use std::env;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::checker::Checker;
use crate::contender::Contender;
use crate::drain::{DrainSpec, Drained};
use crate::harness::{Backlog, Harness, OUTBOX};
use crate::idle::Idle;
use crate::latency::Latency;
use crate::load_kind::Load;
use crate::quiet::Quiet;
use crate::sweep::Swept;
use crate::warm_up::warm_up;

/// Everything that was measured; written as JSON.
#[derive(Debug, Default, Serialize)]
struct Figures {
    machine: Vec<(&'static str, String)>,
    /// Average bytes of a payload in the drained backlog.
    payload_bytes: Option<f64>,
    wal_bytes: Option<i64>,
    drained: Vec<Drained>,
    latency: Vec<Latency>,
    ramp: Vec<Latency>,
    light: Vec<Latency>,
    idle: Vec<Idle>,
    swept: Vec<Swept>,
}

/// The parts that are measured by default. A sweep must be asked for.
const PARTS: [&str; 5] = ["drain", "latency", "ramp", "light", "idle"];
const SWEEP: &str = "sweep";

fn main() {
    if env::args().nth(1).as_deref() == Some(polling::FLAG) {
        return polling::serve();
    }
    if env::args().nth(1).as_deref() == Some(sinks::polling::FLAG) {
        return sinks::polling::serve();
    }
    if let Some(sink) = env::var("BENCH_SINK").ok().filter(|sink| !sink.is_empty()) {
        return sinks::measure(&sink);
    }
    let runs: usize = number("BENCH_RUNS", 3);
    assert!(runs > 0, "BENCH_RUNS must be at least 1");
    let rows: u64 = number("BENCH_ROWS", 1_000_000);
    let seconds: u64 = number("BENCH_SECONDS", 15);
    let peers = number("BENCH_PEERS", 0) != 0;
    let only = env::var("BENCH_ONLY").unwrap_or_default();
    let is_part = PARTS.contains(&&*only) || only == SWEEP;
    let wanted = |part: &str| match &*only {
        "" => part != SWEEP,
        only if is_part => part == only,
        _ => part == "drain",
    };
    let mut quiet = Quiet::new(Duration::from_secs(number("BENCH_WAIT", 60)));

    let harness = Harness::start(peers);
    let mut figures = Figures {
        machine: table::machine(&harness),
        ..Figures::default()
    };
    println!("{}", table::facts(&figures.machine));
    if wanted("drain") {
        let word = if is_part { "" } else { &*only };
        let backlog = harness.backlog(OUTBOX, Load::orders(rows));
        figures.payload_bytes = Some(backlog.payload_bytes);
        figures.wal_bytes = Some(backlog.wal_bytes);
        drain_all(
            &harness,
            &backlog,
            runs,
            word,
            &mut quiet,
            &mut figures.drained,
        );
        harness.drop_slot(&backlog.kept);
        println!("{}", table::draining(&backlog, &figures.drained));
        println!("{}", table::ratios(&figures.drained));
    }
    if ["latency", "ramp", "light"].into_iter().any(wanted) {
        latency::until_warm(&harness, &mut quiet);
    }
    if wanted("latency") {
        let rounds = runs.min(latency::ROUNDS);
        let print_progress = |run: &Latency| eprintln!("{}", table::latency_progress(run));
        for rate in rates_or(&latency::RATES) {
            let of_rate =
                latency::steady(&harness, rate, rounds, seconds, &mut quiet, print_progress);
            figures.latency.extend(of_rate);
        }
        println!("{}", table::latency(&figures.latency));
        println!("{}", table::latency_ratios(&figures.latency));
    }
    if wanted("ramp") {
        eprintln!("ramp");
        figures.ramp = latency::ramp(&harness, number("BENCH_STEP", 5), &mut quiet);
        println!("{}", table::ramp(&figures.ramp));
    }
    if wanted("light") {
        eprintln!("a light topic, alone and beside a heavy one");
        figures.light = latency::light(&harness, seconds, &mut quiet);
        println!("{}", table::light(&figures.light));
    }
    if wanted("idle") {
        let time = Duration::from_secs(number("BENCH_IDLE", 60));
        for contender in Contender::IDLE {
            if contender.takes_part(&harness) {
                eprintln!("idle");
                figures
                    .idle
                    .push(idle::run(&harness, contender, time, &mut quiet));
            }
        }
        println!("{}", table::idle(&harness, &figures.idle));
    }
    if wanted(SWEEP) {
        let rows = number("BENCH_SWEEP_ROWS", 500_000);
        let cases = env::var("BENCH_SWEEP").unwrap_or_default();
        let print_progress =
            |case: &str, run: &Drained| eprintln!("{case}: {}", table::progress(run));
        figures.swept = sweep::run(&harness, rows, runs, &cases, &mut quiet, print_progress);
        println!("{}", table::sweep(&figures.swept));
    }
    if !figures.drained.is_empty() {
        println!("{}", table::every_run(&figures.drained));
    }
    println!("As JSON: {}", write(&figures).display());
}

/// Returns the rates of `BENCH_RATE`, or the defaults.
fn rates_or(default: &[u64]) -> Vec<u64> {
    let Ok(text) = env::var("BENCH_RATE") else {
        return default.to_vec();
    };
    let rate = |word: &str| {
        let rate = word.trim().parse();
        rate.unwrap_or_else(|_| panic!("BENCH_RATE={text} is not a list of numbers"))
    };
    text.split(',').map(rate).collect()
}

fn drain_all(
    harness: &Harness,
    backlog: &Backlog,
    runs: usize,
    only: &str,
    quiet: &mut Quiet,
    drained: &mut Vec<Drained>,
) {
    eprintln!(
        "{} rows in {} MB of WAL, payloads of {:.0} bytes",
        backlog.load.rows,
        backlog.wal_bytes / 1_000_000,
        backlog.payload_bytes
    );
    let mut checker = Checker::new(harness, backlog);
    let mut drain = |contender, round| {
        let spec = DrainSpec {
            harness,
            backlog,
            contender,
            round,
            tls: false,
        };
        drain::run(&spec, &mut checker, quiet)
    };
    // The warm-up runs do not count. They also bring the WAL into the page cache.
    warm_up(|_| drain(Contender::RELAY, 0).cost_to_broker());
    for round in 1..=runs {
        let mut order = Contender::order(&Contender::DRAINING, harness, round);
        order.retain(|contender| contender.word().contains(only));
        for contender in order {
            let run = drain(contender, round);
            eprintln!("{}", table::progress(&run));
            drained.push(run);
        }
    }
}

/// Writes the figures as JSON into the build directory.
fn write(figures: &impl Serialize) -> PathBuf {
    let own = env::current_exe().expect("this program has a path");
    let target = own.ancestors().nth(2).expect("a build directory");
    let dir = target.join("bench");
    fs::create_dir_all(&dir).expect("a directory is made");
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.expect("after 1970").as_secs();
    let path = dir.join(format!("bench-{seconds}.json"));
    let json = serde_json::to_string_pretty(figures).expect("figures are JSON");
    fs::write(&path, json + "\n").expect("the figures are written");
    path
}

/// Returns a number from the environment, or the default.
fn number<T: FromStr>(name: &str, default: T) -> T {
    match env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}
