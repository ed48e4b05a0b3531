//! Sinks other than Kafka, each beside a polling relay into the same server: `BENCH_SINK`.
//!
//! - [`target`]: the server, and what arrives there.
//! - [`polling`]: the polling relay, in a process of its own.
//! - [`run`]: one run of a relay: draining a backlog, rows on a schedule, nothing to do.
//! - [`table`]: the figures as Markdown.

pub(crate) mod polling;
mod run;
mod table;
mod target;

use std::time::Duration;

use serde::Serialize;

use crate::harness::{Harness, OUTBOX};
use crate::load_kind::Load;
use crate::quiet::Quiet;
use crate::{number, rates_or, write};
use run::{Drained, Latency, Relay, Runner};
use target::{Case, Target};

/// Steady rates in rows per second.
const RATES: [u64; 2] = [100, 1_000];
/// The part of the backlog that a slow receiver gets.
const SLOW_PART: u64 = 10;

/// Everything that was measured; written as JSON.
#[derive(Debug, Serialize)]
struct Figures {
    machine: Vec<(&'static str, String)>,
    drained: Vec<Drained>,
    latency: Vec<Latency>,
    /// Resident memory in MB of `walrelay run` with nothing to do.
    idle_memory: f64,
}

/// Measures the sink of this name, and prints the figures.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "as in main")]
pub(crate) fn measure(name: &str) {
    let runs: usize = number("BENCH_RUNS", 3);
    let rows: u64 = number("BENCH_ROWS", 50_000);
    let seconds: u64 = number("BENCH_SECONDS", 15);
    let mut quiet = Quiet::new(Duration::from_secs(number("BENCH_WAIT", 60)));
    let target = Target::start(name);
    let harness = Harness::start(false);
    let machine = table::machine(&harness, &target);
    println!("{}", crate::table::facts(&machine));
    let runner = Runner {
        harness: &harness,
        target: &target,
    };
    let mut figures = Figures {
        machine,
        drained: Vec::new(),
        latency: Vec::new(),
        idle_memory: runner.idle_memory(&mut quiet),
    };
    for case in target.cases() {
        let (table, part) = match case {
            Case::Late(_) => ("outbox_late", SLOW_PART),
            Case::Queue | Case::Stream | Case::AtOnce => (OUTBOX, 1),
        };
        let backlog = harness.backlog(table, Load::orders((rows / part).max(1)));
        for round in 1..=runs {
            for relay in Relay::order(round) {
                let drained = runner.drain(&backlog, *case, relay, round, &mut quiet);
                eprintln!("{}", table::progress(&drained));
                figures.drained.push(drained);
            }
        }
        harness.drop_slot(&backlog.kept);
    }
    println!("{}", table::draining(&figures.drained));
    for rate in rates_or(&RATES) {
        for round in 1..=runs {
            for relay in Relay::order(round) {
                let latency = runner.latency(rate, seconds, relay, round, &mut quiet);
                eprintln!("{}", table::latency_progress(&latency));
                figures.latency.push(latency);
            }
        }
    }
    println!("{}", table::latency(&figures.latency));
    println!(
        "Idle, walrelay has {:.1} MB of resident memory.\n",
        figures.idle_memory
    );
    println!("As JSON: {}", write(&figures).display());
}
