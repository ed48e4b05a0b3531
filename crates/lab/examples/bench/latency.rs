//! From the commit to the broker's log, and to a consumer.
//!
//! Rows are written on a fixed schedule, whatever the contender does (an open loop), and each row's time
//! counts from its commit: a contender that stalls is late with all rows of the meantime. The time of a
//! commit is the one in the WAL (`track_commit_timestamp`), which Postgres takes before it flushes. All
//! run on one machine and by one clock; the broker's (`LogAppendTime`) counts whole milliseconds.

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use walrelay_lab::figures::{Spread, median};
use walrelay_lab::load::{Step, Wrote};
use walrelay_lab::proc;

use crate::consumer::{Seen, consume};
use crate::contender::{Backends, Contender, Kind};
use crate::cpu::Cpu;
use crate::debezium::Tuned;
use crate::quiet::Quiet;
use crate::rig::{OUTBOX, PARTITIONS, RelayConfig, Rig};
use crate::running::{PATIENCE, Running};
use crate::stream::{Stream, place_of, step, write};
use crate::warm_up::warm_up;
use crate::writers::Writers;

/// Rows a second that are held steadily.
pub(crate) const RATES: [u64; 3] = [100, 1_000, 10_000];
/// The steps of a ramp.
const RAMP: [u64; 13] = [
    100, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 25_000, 30_000, 35_000, 40_000, 50_000,
];
/// Seconds of a rate before it counts: the first rows say more of the broker's compiler than of the
/// contender.
const WARM_UP: u64 = 5;
/// Rounds of a rate, at the most: a rate takes as long as it is held, however fast the machine.
pub(crate) const ROUNDS: usize = 3;
/// Rows a second of the light topic and of the heavy one, whose transactions are larger.
const LIGHT: u64 = 100;
const HEAVY: (u64, u64) = (20_000, 100);

/// A step of a stream.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Latency {
    pub(crate) contender: String,
    /// From 1 on; 0 of what has one round only, and of a median.
    pub(crate) round: usize,
    pub(crate) kind: &'static str,
    pub(crate) step: Step,
    pub(crate) rows: u64,
    /// Rows a second that were committed: what came of the rate.
    pub(crate) committed: f64,
    pub(crate) append: Spread,
    pub(crate) consumer: Spread,
    /// How long a transaction took its writer, until the commit was on the disk. No relay sees a row
    /// before.
    pub(crate) written: Spread,
    /// Milliseconds that a writer was late at the most: above some of them the rate was not kept.
    pub(crate) behind: f64,
    /// Milliseconds a second, of all steps together.
    pub(crate) cpu: Cpu,
}

impl Latency {
    /// What is in the middle of the runs of one contender at one rate, each figure for itself.
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

/// A rate in rounds of all contenders, each by a process of its own.
pub(crate) fn steady(
    rig: &Rig,
    rate: u64,
    rounds: usize,
    seconds: u64,
    quiet: &mut Quiet,
    say: impl Fn(&Latency),
) -> Vec<Latency> {
    let mut runs = Vec::new();
    for round in 1..=rounds {
        // Every other round backwards, so that none profits from its place.
        let mut order = Contender::PROMPT.to_vec();
        order.retain(|contender| contender.takes_part(rig));
        if round % 2 == 0 {
            order.reverse();
        }
        for contender in order {
            let stream = Stream::orders(&[step(rate, WARM_UP), step(rate, seconds)]);
            let name = format!("latency_{rate}_{round}");
            let mut measured = run(rig, contender, &name, &stream, quiet);
            let measured = Latency {
                round,
                ..measured.remove(1)
            };
            say(&measured);
            runs.push(measured);
        }
    }
    runs
}

/// Runs that do not count, until the broker is warm.
pub(crate) fn until_warm(rig: &Rig, quiet: &mut Quiet) {
    const SECONDS: u64 = 10;
    warm_up(|round| {
        let stream = Stream::orders(&[RATES[1], RATES[2]].map(|rate| step(rate, SECONDS)));
        let name = format!("warm_{round}");
        let measured = run(rig, Contender::RELAY_UNIX, &name, &stream, quiet);
        measured[0].cpu.broker
    });
}

/// One relay through all rates.
pub(crate) fn ramp(rig: &Rig, seconds: u64, quiet: &mut Quiet) -> Vec<Latency> {
    let stream = Stream::orders(&RAMP.map(|rate| step(rate, seconds)));
    run(rig, Contender::RELAY, "ramp", &stream, quiet)
}

/// A light topic alone, and beside a heavy one.
pub(crate) fn light(rig: &Rig, seconds: u64, quiet: &mut Quiet) -> Vec<Latency> {
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
    let mut measured = run(rig, relay, "light_alone", &streams[..1], quiet);
    measured.extend(run(rig, relay, "light_beside", &streams, quiet));
    measured
}

fn run(
    rig: &Rig,
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
    rig.create_topics(&topics, PARTITIONS);
    let polls = matches!(contender.kind, Kind::Polling(_));
    let table = if polls { "polled" } else { OUTBOX };
    let before = rig.rows_numbered(table);
    if polls {
        rig.empty_polled();
    }
    if contender.has_slot() {
        rig.slot_at_end(&slot);
    }
    let config = RelayConfig {
        url: &contender.url(rig),
        table,
        slot: &slot,
        prefix: &prefix,
        tls: false,
    };
    let starts = contender.kind != Kind::Writers;
    let relay = starts.then(|| contender.start(rig, &config, Tuned::Latency, 0));
    let mut backends = Backends::of(contender, rig, &slot);
    quiet.wait();
    let steps = || streams.iter().flat_map(|stream| &stream.steps);
    let rows = steps().map(Step::rows).sum();
    let kafka = rig.kafka.bootstrap_servers();
    let writers = (!starts).then(|| Writers::new(&kafka, &prefix));
    let (ready, stop) = (Barrier::new(2), AtomicBool::new(false));
    let (seen, mut wrote, cpu) = thread::scope(|scope| {
        let consumer = scope.spawn(|| consume(&kafka, &topics, rows, &ready, &stop));
        ready.wait();
        let mut used = || {
            let relay = relay.as_ref().map(Running::pid);
            let relay = relay.map_or(0.0, |pid| proc::cpu(pid).expect("it runs"));
            Cpu::so_far(rig, relay, backends.cpu())
        };
        let (began, before) = (Instant::now(), used());
        let wrote = write(&rig.postgres.url(), table, streams, writers.as_ref());
        let cpu = used().since(before, 1e3 / began.elapsed().as_secs_f64());
        // Everything has to come; this is how long it may take.
        let begun = Instant::now();
        while !consumer.is_finished() && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        let seen = consumer.join().expect("the consumer ends well");
        (seen, wrote, cpu)
    });
    if let Some(relay) = relay {
        contender.end(relay);
    }
    if contender.has_slot() {
        rig.drop_slot(&slot);
    }
    let committed = rig.commit_times(table, before);
    rig.delete_topics(&topics);
    assert_eq!(committed.len() as u64, rows, "rows written");
    let name = contender.latency_name();
    by_step(&name, streams, &committed, &seen, &mut wrote, cpu)
}

/// The figures of each step of each stream.
fn by_step(
    name: &str,
    streams: &[Stream],
    committed: &[(String, i64, i64)],
    seen: &HashMap<String, Seen>,
    wrote: &mut [Vec<Wrote>],
    cpu: Cpu,
) -> Vec<Latency> {
    // Of each stream and step: when it was committed, and how long it then took.
    let times = streams
        .iter()
        .map(|stream| vec![Default::default(); stream.steps.len()]);
    let mut times: Vec<Vec<[Vec<i64>; 3]>> = times.collect();
    for (id, number, committed) in committed {
        let seen = seen.get(id);
        let seen = seen.unwrap_or_else(|| panic!("{name} never sent row {number}"));
        let (stream, step) = place_of(streams, number.unsigned_abs());
        let [commits, append, consumer] = &mut times[stream][step];
        commits.push(*committed);
        append.push(seen.appended - committed);
        consumer.push(seen.consumed - committed);
    }
    let spread = |times: &mut Vec<i64>| Spread::of(times).expect("rows of a step");
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

/// Of times in microseconds.
fn rate_of(times: &[i64]) -> f64 {
    let (first, last) = (times.iter().min(), times.iter().max());
    let span = first.zip(last).map_or(0, |(first, last)| last - first);
    times.len() as f64 * 1e6 / span.max(1) as f64
}
