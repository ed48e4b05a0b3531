//! Benchmark of the core: time and instructions per row, as a whole and by parts (`make
//! bench-core`).
//!
//! The rows have about 270 bytes of `jsonb`, are read from memory, and take the default route. The
//! time is the shortest of many rounds, because other processes on the machine can only add to it.
//! Instructions are counted by `valgrind --tool=callgrind` if that is installed. They are the same
//! on a busy machine, and are compared with the last record in `instructions.toml` beside this
//! file.
//!
//! `BENCH_RECORD=1` writes the record.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people, which ends where it cannot measure"
)]

mod callgrind;
mod feed;
mod parts;
mod record;

use std::env;
use std::time::Instant;

use crate::parts::{PARTS, ROWS};
use crate::record::Record;

const ROUNDS: usize = 50;
/// Passes over the rows in a round.
const PASSES: usize = 10;

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let [_, flag, name, passes] = arguments.as_slice()
        && flag == callgrind::FLAG
    {
        let (_, make) = PARTS.iter().find(|(part, _)| part == name).expect("a part");
        let mut pass = make();
        for _ in 0..passes.parse().expect("a number") {
            pass();
        }
        return;
    }

    let times = measure();
    let counts = callgrind::count();
    let before = Record::read();
    if let Err(reason) = &counts {
        eprintln!("no instructions: {reason}");
    }
    println!("| part | ns per row, least | median | instructions per row | recorded | change |");
    println!("|---|---:|---:|---:|---:|---:|");
    for (at, (name, _)) in PARTS.iter().enumerate() {
        let (least, median) = times[at];
        let count = counts.as_ref().ok().map(|counts| counts[at]);
        let known = before
            .as_ref()
            .and_then(|record| record.instructions_of(name));
        let shown = |number: Option<f64>| number.map_or("–".to_owned(), |n| format!("{n:.1}"));
        let change = count.zip(known).map_or("–".to_owned(), |(now, before)| {
            format!("{:+.1} %", (now / before - 1.0) * 100.0)
        });
        println!(
            "| {name} | {least:.1} | {median:.1} | {} | {} | {change} |",
            shown(count),
            shown(known),
        );
    }
    let Ok(counts) = counts else { return };
    let now = Record::from_this_machine(counts);
    if let Some(before) = &before
        && !before.is_of_the_same(&now)
    {
        println!(
            "\nThe record is of {}, this is {}.",
            before.machine(),
            now.machine()
        );
    }
    if env::var_os("BENCH_RECORD").is_some() {
        now.write();
    }
}

/// Nanoseconds per row of each part: the least and the median of the rounds. The parts take turns.
fn measure() -> Vec<(f64, f64)> {
    let mut passes: Vec<_> = PARTS.iter().map(|(_, make)| make()).collect();
    let mut rounds = vec![Vec::with_capacity(ROUNDS); passes.len()];
    for _ in 0..ROUNDS {
        for (pass, rounds) in passes.iter_mut().zip(&mut rounds) {
            let begun = Instant::now();
            for _ in 0..PASSES {
                pass();
            }
            let nanos = begun.elapsed().as_secs_f64() * 1e9;
            rounds.push(nanos / (PASSES * ROWS) as f64);
        }
    }
    let spread = |mut rounds: Vec<f64>| {
        rounds.sort_by(f64::total_cmp);
        (rounds[0], rounds[ROUNDS / 2])
    };
    rounds.into_iter().map(spread).collect()
}
