//! Latency from the commit to the broker's log and to a consumer.
//!
//! Rows are written on a fixed schedule, whatever the contender does (an open loop). The time of
//! each row counts from its commit, so a contender that stalls is late with every row written
//! meanwhile. The time of a commit is the one in the WAL (`track_commit_timestamp`), which Postgres
//! takes before it flushes. All processes run on one machine with one clock; the broker's
//! timestamps (`LogAppendTime`) have whole milliseconds.

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use walrelay_measure::figures::{Spread, median};
use walrelay_measure::load::{Step, StepTimes};
use walrelay_measure::proc;
use walrelay_testkit::{PATIENCE, Program};

use crate::consumer::{Seen, consume};
use crate::contender::{Backends, Contender, Kind};
use crate::cpu::Cpu;
use crate::debezium::Tuned;
use crate::harness::{Harness, OUTBOX, RelayConfig};
use crate::load_kind::PARTITIONS;
use crate::quiet::Quiet;
use crate::stream::{Stream, step, step_of, write};
use crate::warm_up::warm_up;
use crate::writers::Writers;

/// Steady rates in rows per second.
pub(crate) const RATES: [u64; 3] = [100, 1_000, 10_000];
/// Rates of the ramp in rows per second.
const RAMP: [u64; 13] = [
    100, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 25_000, 30_000, 35_000, 40_000, 50_000,
];
/// Seconds that a rate is held before it counts: the first rows measure the broker's JIT compiler
/// rather than the contender.
pub(crate) const WARM_UP: u64 = 5;
/// Most rounds of a rate. A rate takes as long as it is held, however fast the machine is.
pub(crate) const ROUNDS: usize = 3;
/// Rows per second of the light topic; of the heavy topic also the rows per transaction.
const LIGHT: u64 = 100;
const HEAVY: (u64, u64) = (20_000, 100);

/// The figures of one step of a stream.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Latency {
    pub(crate) contender: String,
    /// Round from 1 on; 0 if there is only one round, and for a median.
    pub(crate) round: usize,
    pub(crate) kind: &'static str,
    pub(crate) step: Step,
    pub(crate) rows: u64,
    /// Rows per second that were really committed.
    pub(crate) committed: f64,
    pub(crate) append: Spread,
    pub(crate) consumer: Spread,
    /// The time that a transaction took its writer, until the commit was flushed. No relay sees a
    /// row earlier.
    pub(crate) written: Spread,
    /// Milliseconds that a writer was late at most. Above a few milliseconds the rate was not kept.
    pub(crate) behind: f64,
    /// CPU in milliseconds per second, over all steps together.
    pub(crate) cpu: Cpu,
}

impl Latency {
    /// Returns the medians of the runs of one contender at one rate, each figure for itself.
    pub(crate) fn median(runs: &[&Self]) -> Self {
        let of = |figure: &dyn Fn(&Self) -> f64| median(runs.iter().map(|run| figure(run)));
        let spread = |of_run: fn(&Self) -> Spread| {
            let spreads: Vec<Spread> = runs.iter().map(|run| of_run(run)).collect();
            Spread::median(&spreads)
        };
        Self {
            round: 0,
            rows: runs.iter().map(|run| run.rows).sum(),
            committed: of(&|run| run.committed),
            append: spread(|run| run.append),
            consumer: spread(|run| run.consumer),
            written: spread(|run| run.written),
            behind: of(&|run| run.behind),
            cpu: Cpu {
                relay: of(&|run| run.cpu.relay),
                postgres: of(&|run| run.cpu.postgres),
                broker: of(&|run| run.cpu.broker),
                own: of(&|run| run.cpu.own),
                machine: of(&|run| run.cpu.machine),
            },
            ..runs[0].clone()
        }
    }
}

/// Measures one rate in rounds over all contenders, each in a process of its own.
pub(crate) fn steady(
    harness: &Harness,
    rate: u64,
    rounds: usize,
    seconds: u64,
    quiet: &mut Quiet,
    progress: impl Fn(&Latency),
) -> Vec<Latency> {
    let mut runs = Vec::new();
    for round in 1..=rounds {
        for contender in Contender::order(&Contender::LATENCY, harness, round) {
            let stream = Stream::orders(&[step(rate, WARM_UP), step(rate, seconds)]);
            let name = format!("latency_{rate}_{round}");
            let mut measured = run(harness, contender, &name, &stream, quiet);
            let measured = Latency {
                round,
                ..measured.remove(1)
            };
            progress(&measured);
            runs.push(measured);
        }
    }
    runs
}

/// Repeats runs that do not count until the broker is warm.
pub(crate) fn until_warm(harness: &Harness, quiet: &mut Quiet) {
    const SECONDS: u64 = 10;
    warm_up(|round| {
        let stream = Stream::orders(&[RATES[1], RATES[2]].map(|rate| step(rate, SECONDS)));
        let name = format!("warm_{round}");
        let measured = run(harness, Contender::RELAY_UNIX, &name, &stream, quiet);
        measured[0].cpu.broker
    });
}

/// Measures one relay through all rates of the ramp.
pub(crate) fn ramp(harness: &Harness, seconds: u64, quiet: &mut Quiet) -> Vec<Latency> {
    let stream = Stream::orders(&RAMP.map(|rate| step(rate, seconds)));
    run(harness, Contender::RELAY, "ramp", &stream, quiet)
}

/// Measures a light topic alone, and beside a heavy one.
pub(crate) fn light(harness: &Harness, seconds: u64, quiet: &mut Quiet) -> Vec<Latency> {
    let (rate, together) = HEAVY;
    let heavy = Step {
        rate,
        seconds,
        together,
    };
    let streams = [("light", step(LIGHT, seconds)), ("heavy", heavy)];
    let streams = streams.map(|(kind, step)| Stream {
        kind,
        steps: vec![step],
    });
    let relay = Contender::RELAY;
    let mut measured = run(harness, relay, "light_alone", &streams[..1], quiet);
    measured.extend(run(harness, relay, "light_beside", &streams, quiet));
    measured
}

fn run(
    harness: &Harness,
    contender: Contender,
    name: &str,
    streams: &[Stream],
    quiet: &mut Quiet,
) -> Vec<Latency> {
    let slot = format!("{name}_{}", contender.word());
    let prefix = format!("{slot}.");
    let topics = streams
        .iter()
        .map(|stream| format!("{prefix}{}", stream.kind));
    let topics: Vec<String> = topics.collect();
    harness.create_topics(&topics, PARTITIONS);
    let polls = matches!(contender.kind, Kind::Polling(_));
    let table = if polls { "polled" } else { OUTBOX };
    let before = harness.last_seq(table);
    if polls {
        harness.empty_polled();
    }
    if contender.has_slot() {
        harness.slot_at_end(&slot);
    }
    let config = RelayConfig {
        url: &contender.url(harness),
        table,
        slot: &slot,
        prefix: &prefix,
        tls: false,
        messages: false,
    };
    let starts = contender.kind != Kind::Writers;
    let relay = starts.then(|| contender.start(harness, &config, Tuned::Latency, 0));
    let mut backends = Backends::wait_for(contender, harness, &slot);
    quiet.wait();
    let steps = || streams.iter().flat_map(|stream| &stream.steps);
    let rows = steps().map(Step::rows).sum();
    let kafka = harness.kafka.bootstrap_servers();
    let writers = (!starts).then(|| Writers::new(&kafka, &prefix));
    let (seen, (mut wrote, cpu)) = while_consuming(&kafka, &topics, rows, || {
        let mut used = || {
            let relay = relay.as_ref().map(Program::pid);
            let relay = relay.map_or(0.0, |pid| proc::cpu(pid).expect("it runs"));
            Cpu::so_far(harness, relay, backends.cpu())
        };
        let (begun, before) = (Instant::now(), used());
        let wrote = write(&harness.postgres.url(), table, streams, writers.as_ref());
        let cpu = used().since(before, 1e3 / begun.elapsed().as_secs_f64());
        (wrote, cpu)
    });
    if let Some(relay) = relay {
        contender.end(relay);
    }
    if contender.has_slot() {
        harness.drop_slot(&slot);
    }
    let committed = harness.commit_times(table, before);
    harness.delete_topics(&topics);
    assert_eq!(committed.len() as u64, rows, "rows written");
    let name = contender.latency_name();
    by_step(&name, streams, &committed, &seen, &mut wrote, cpu)
}

/// Runs `write` while a consumer reads the topics. Waits until the consumer has all rows, or the
/// timeout is over. Returns what the consumer saw, and what `write` returned.
fn while_consuming<T>(
    kafka: &str,
    topics: &[String],
    rows: u64,
    write: impl FnOnce() -> T,
) -> (HashMap<String, Seen>, T) {
    let (ready, stop) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        let consumer = scope.spawn(|| consume(kafka, topics, rows, &ready, &stop));
        ready.wait();
        let written = write();
        let begun = Instant::now();
        while !consumer.is_finished() && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        (consumer.join().expect("the consumer ends well"), written)
    })
}

/// Returns the figures of each step of each stream.
fn by_step(
    name: &str,
    streams: &[Stream],
    committed: &[(String, i64, i64)],
    seen: &HashMap<String, Seen>,
    wrote: &mut [Vec<StepTimes>],
    cpu: Cpu,
) -> Vec<Latency> {
    // For each stream and step: commit times, latencies to the log, latencies to the consumer.
    let times = streams
        .iter()
        .map(|stream| vec![Default::default(); stream.steps.len()]);
    let mut times: Vec<Vec<[Vec<i64>; 3]>> = times.collect();
    for (id, number, committed) in committed {
        let seen = seen.get(id);
        let seen = seen.unwrap_or_else(|| panic!("{name} never sent row {number}"));
        let (stream, step) = step_of(streams, number.unsigned_abs());
        let [commits, append, consumer] = &mut times[stream][step];
        commits.push(*committed);
        append.push(seen.appended - committed);
        consumer.push(seen.consumed - committed);
    }
    let spread = |times: &mut Vec<i64>| Spread::from_micros(times).expect("rows of a step");
    let mut measured = Vec::new();
    for (number, stream) in streams.iter().enumerate() {
        for (at, step) in stream.steps.iter().enumerate() {
            let [commits, append, consumer] = &mut times[number][at];
            let wrote = &mut wrote[number][at];
            measured.push(Latency {
                contender: name.to_owned(),
                round: 0,
                kind: stream.kind,
                step: *step,
                rows: step.rows(),
                committed: rate_of(commits),
                append: spread(append),
                consumer: spread(consumer),
                written: spread(&mut wrote.took),
                behind: wrote.behind.as_secs_f64() * 1e3,
                cpu,
            });
        }
    }
    measured
}

/// Returns the events per second, from their times in microseconds.
fn rate_of(times: &[i64]) -> f64 {
    let (first, last) = (times.iter().min(), times.iter().max());
    let span = first.zip(last).map_or(0, |(first, last)| last - first);
    times.len() as f64 * 1e6 / span.max(1) as f64
}
