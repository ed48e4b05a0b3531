//! From the commit to the broker's log, and to a consumer.
//!
//! Rows are written on a fixed schedule, whatever the contender does (an open loop), and each one's
//! time counts from its own commit: a contender that stalls is late with all that was written
//! meanwhile. The commit's time is the one in the WAL (`track_commit_timestamp`), which Postgres takes
//! before it flushes. One clock serves for all, as everything runs on one machine; the broker's own
//! (`LogAppendTime`) counts whole milliseconds.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use walrelay_testkit::SlotWatch;

use crate::consumer::consume;
use crate::contender::Backends;
use crate::debezium::{self, Tuned};
use crate::load::{Step, Stream, place_of, write};
use crate::median::median;
use crate::polling::{self, Sent};
use crate::proc::{self, Quiet};
use crate::rig::{OUTBOX, PARTITIONS, PATIENCE, RelayConfig, Rig};
use crate::running::Running;
use crate::warm_up::warm_up;
use crate::writers::Writers;

/// Rows a second that are held steadily.
pub(crate) const RATES: [u64; 3] = [100, 1_000, 10_000];
/// The steps of a ramp.
const RAMP: [u64; 13] = [
    100, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 25_000, 30_000, 35_000, 40_000, 50_000,
];
/// Seconds of a rate before it counts: Java compiles what runs often, and so the first rows of a rate say
/// more of the broker's age than of the contender.
const WARM_UP: u64 = 5;
/// Rounds of a rate, at the most: a rate takes as long as it is held, however fast the machine.
pub(crate) const ROUNDS: usize = 3;
/// Rows a second of the light topic and of the heavy one, whose transactions are larger.
const LIGHT: u64 = 100;
const HEAVY: (u64, u64) = (20_000, 100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    RelayTcp,
    BaselineTcp,
    RelayUnix,
    Writers,
    Polling,
    Debezium,
}

impl Contender {
    const ALL: [Self; 6] = [
        Self::RelayTcp,
        Self::BaselineTcp,
        Self::RelayUnix,
        Self::Writers,
        Self::Polling,
        Self::Debezium,
    ];

    pub(crate) fn all(peers: bool, baseline: bool) -> impl Iterator<Item = Self> {
        let takes_part = move |one: &Self| match one {
            Self::Debezium => peers,
            Self::BaselineTcp => baseline,
            _ => true,
        };
        Self::ALL.into_iter().filter(takes_part)
    }

    fn name(self) -> &'static str {
        match self {
            Self::RelayTcp => "walrelay, TCP",
            Self::BaselineTcp => "walrelay, baseline, TCP",
            Self::RelayUnix => "walrelay, unix socket",
            Self::Writers => "none, the writers send by themselves",
            Self::Polling => "polling every 50 ms, UPDATE",
            Self::Debezium => "Debezium Server, tuned for latency",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::RelayTcp => "tcp",
            Self::BaselineTcp => "baseline",
            Self::RelayUnix => "unix",
            Self::Writers => "writers",
            Self::Polling => "polling",
            Self::Debezium => "debezium",
        }
    }

    fn table(self) -> &'static str {
        match self {
            Self::Polling => "polled",
            Self::RelayTcp
            | Self::BaselineTcp
            | Self::RelayUnix
            | Self::Writers
            | Self::Debezium => OUTBOX,
        }
    }

    /// `None`: there is nothing to start.
    fn start(self, rig: &Rig, slot: &str, prefix: &str) -> Option<Running> {
        let config = |url| {
            rig.slot_at_end(slot);
            RelayConfig {
                url,
                table: OUTBOX,
                slot,
                prefix,
                tls: false,
            }
        };
        Some(match self {
            Self::RelayTcp => rig.relay(&config(&rig.tcp())),
            Self::BaselineTcp => rig.baseline_relay(&config(&rig.tcp())),
            Self::RelayUnix => rig.relay(&config(&rig.postgres.url())),
            Self::Writers => return None,
            Self::Polling => {
                rig.empty_polled();
                let (url, kafka) = (rig.tcp(), rig.kafka.bootstrap_servers());
                let arguments = polling::arguments(&url, &kafka, prefix, 0, Sent::Update);
                rig.spawn(&rig.own, &arguments, polling::BEGINS)
            }
            Self::Debezium => {
                rig.slot_at_end(slot);
                debezium::start(rig, slot, prefix, Tuned::Latency)
            }
        })
    }
}

/// Milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Spread {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// A step of a stream.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Latency {
    pub(crate) contender: &'static str,
    /// From 1 on; 0 of what has one round only, and of a median.
    pub(crate) round: usize,
    pub(crate) kind: &'static str,
    pub(crate) step: Step,
    pub(crate) rows: u64,
    /// Rows a second that were committed: what came of the rate.
    pub(crate) committed: f64,
    pub(crate) append: Spread,
    pub(crate) consumer: Spread,
    /// How long a transaction took who wrote it, until its commit was on the disk: no relay can see a
    /// row before that.
    pub(crate) written: Spread,
    /// Milliseconds that the last writer was late at the most: above some of them the load is not what
    /// it says.
    pub(crate) behind: f64,
    /// Of all steps together.
    pub(crate) cpu: Cpu,
}

/// Milliseconds of CPU a second.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Cpu {
    pub(crate) relay: f64,
    /// Of the server's processes that serve it.
    pub(crate) postgres: f64,
    pub(crate) broker: f64,
    /// Of everything: the server's writers, and this program's, and its consumer, too.
    pub(crate) machine: f64,
}

impl Latency {
    /// What is in the middle of the runs of one contender at one rate, each figure for itself.
    pub(crate) fn median(runs: &[&Self]) -> Self {
        let of = |figure: &dyn Fn(&Self) -> f64| median(runs.iter().map(|run| figure(run)));
        let spread = |of_run: fn(&Self) -> Spread| Spread {
            p50: of(&|run| of_run(run).p50),
            p90: of(&|run| of_run(run).p90),
            p99: of(&|run| of_run(run).p99),
            max: of(&|run| of_run(run).max),
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
                machine: of(&|run| run.cpu.machine),
            },
            ..*runs[0]
        }
    }
}

impl Cpu {
    /// Seconds so far.
    fn so_far(rig: &Rig, relay: Option<&Running>, backends: &mut Backends) -> Self {
        let broker = rig.kafka.pid().expect("the broker runs");
        Self {
            relay: relay.map_or(0.0, |relay| proc::cpu(relay.pid()).expect("it runs")),
            postgres: backends.cpu(),
            broker: proc::cpu(broker).expect("it runs"),
            machine: proc::machine_cpu(),
        }
    }

    fn per_second(self, before: Self, time: Duration) -> Self {
        let since = |after: f64, before: f64| (after - before) * 1e3 / time.as_secs_f64();
        Self {
            relay: since(self.relay, before.relay),
            postgres: since(self.postgres, before.postgres),
            broker: since(self.broker, before.broker),
            machine: since(self.machine, before.machine),
        }
    }
}

/// A rate in rounds of all contenders, each by a process of its own.
pub(crate) fn steady(
    rig: &Rig,
    rate: u64,
    rounds: usize,
    seconds: u64,
    peers: bool,
    quiet: &mut Quiet,
    say: impl Fn(&Latency),
) -> Vec<Latency> {
    let mut runs = Vec::new();
    for round in 1..=rounds {
        // Every other round backwards, so that none profits from its place.
        let mut order: Vec<_> = Contender::all(peers, rig.baseline.is_some()).collect();
        if round % 2 == 0 {
            order.reverse();
        }
        for contender in order {
            let steps = vec![Step::new(rate, WARM_UP), Step::new(rate, seconds)];
            let stream = Stream {
                kind: "order",
                steps,
            };
            let name = format!("latency_{rate}_{round}");
            let mut measured = run(rig, contender, &name, &[stream], quiet);
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
        let steps = [RATES[1], RATES[2]].map(|rate| Step::new(rate, SECONDS));
        let stream = Stream {
            kind: "order",
            steps: steps.to_vec(),
        };
        let name = format!("warm_{round}");
        let measured = run(rig, Contender::RelayUnix, &name, &[stream], quiet);
        measured[0].cpu.broker
    });
}

/// One relay through all rates.
pub(crate) fn ramp(rig: &Rig, seconds: u64, quiet: &mut Quiet) -> Vec<Latency> {
    let steps = RAMP.map(|rate| Step::new(rate, seconds)).to_vec();
    let stream = Stream {
        kind: "order",
        steps,
    };
    run(rig, Contender::RelayTcp, "ramp", &[stream], quiet)
}

/// A light topic alone, and beside a heavy one.
pub(crate) fn light(rig: &Rig, seconds: u64, quiet: &mut Quiet) -> Vec<Latency> {
    let light = Stream {
        kind: "light",
        steps: vec![Step::new(LIGHT, seconds)],
    };
    let (rate, together) = HEAVY;
    let heavy = Stream {
        kind: "heavy",
        steps: vec![Step {
            rate,
            seconds,
            together,
        }],
    };
    let relay = Contender::RelayTcp;
    let mut measured = run(
        rig,
        relay,
        "light_alone",
        std::slice::from_ref(&light),
        quiet,
    );
    measured.extend(run(rig, relay, "light_beside", &[light, heavy], quiet));
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
    let topics: Vec<String> = streams
        .iter()
        .map(|stream| format!("{prefix}{}", stream.kind))
        .collect();
    rig.create_topics(&topics, PARTITIONS);
    let table = contender.table();
    let before = rig.rows_numbered(table);
    let relay = contender.start(rig, &slot, &prefix);
    let mut backends = match contender {
        Contender::Polling => Backends::of_polling(&rig.db),
        Contender::Writers => Backends::none(),
        Contender::RelayTcp
        | Contender::BaselineTcp
        | Contender::RelayUnix
        | Contender::Debezium => Backends::of_slot(&SlotWatch::new(&rig.postgres.url(), &slot)),
    };
    quiet.wait();
    let steps = || streams.iter().flat_map(|stream| &stream.steps);
    let rows = steps().map(Step::rows).sum();
    let kafka = rig.kafka.bootstrap_servers();
    let writers = (contender == Contender::Writers).then(|| Writers::new(&kafka, &prefix));
    let (ready, stop) = (Barrier::new(2), AtomicBool::new(false));
    let (seen, mut wrote, cpu) = thread::scope(|scope| {
        let consumer = scope.spawn(|| consume(&kafka, &topics, rows, &ready, &stop));
        ready.wait();
        let (began, before) = (
            Instant::now(),
            Cpu::so_far(rig, relay.as_ref(), &mut backends),
        );
        let wrote = write(&rig.postgres.url(), table, streams, writers.as_ref());
        let cpu =
            Cpu::so_far(rig, relay.as_ref(), &mut backends).per_second(before, began.elapsed());
        // Everything has to come; this is how long it may take.
        let begun = Instant::now();
        while !consumer.is_finished() && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        let seen = consumer.join().expect("the consumer ends well");
        (seen, wrote, cpu)
    });
    match (contender, relay) {
        (Contender::RelayTcp | Contender::RelayUnix, Some(relay)) => drop(relay.terminate()),
        (_, relay) => drop(relay),
    }
    if !matches!(contender, Contender::Polling | Contender::Writers) {
        rig.drop_slot(&slot);
    }
    let committed = rig.commit_times(table, before);
    rig.delete_topics(&topics);
    assert_eq!(committed.len() as u64, rows, "rows written");
    let mut append: Vec<Vec<Vec<i64>>> = streams
        .iter()
        .map(|stream| vec![Vec::new(); stream.steps.len()])
        .collect();
    let mut consumer = append.clone();
    let mut commits = append.clone();
    for (id, number, committed) in &committed {
        let seen = seen
            .get(id)
            .unwrap_or_else(|| panic!("{} never sent row {number}", contender.name()));
        let (stream, step) = place_of(streams, *number);
        commits[stream][step].push(*committed);
        append[stream][step].push(seen.appended - committed);
        consumer[stream][step].push(seen.consumed - committed);
    }
    let mut measured = Vec::new();
    for (number, stream) in streams.iter().enumerate() {
        for (at, step) in stream.steps.iter().enumerate() {
            measured.push(Latency {
                contender: contender.name(),
                round: 0,
                kind: stream.kind,
                step: *step,
                rows: step.rows(),
                committed: rate_of(&commits[number][at]),
                append: spread(&mut append[number][at]),
                consumer: spread(&mut consumer[number][at]),
                written: spread(&mut wrote[number][at].took),
                behind: wrote[number][at].behind.as_secs_f64() * 1e3,
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

fn spread(micros: &mut [i64]) -> Spread {
    micros.sort_unstable();
    let last = micros.len() - 1;
    let at = |share: f64| micros[(last as f64 * share).round() as usize] as f64 / 1e3;
    Spread {
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        max: at(1.0),
    }
}
