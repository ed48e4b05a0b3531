//! The figures as Markdown.

use std::fmt::Write as _;
use std::fs;
use std::thread;

use crate::contender::Contender;
use crate::drain::Drained;
use crate::idle::Idle;
use crate::latency::{Cpu, Latency, Spread};
use crate::median::median;
use crate::proc::say;
use crate::rig::{Backlog, PARTITIONS, Rig};
use crate::sweep::Swept;

/// What and where it was measured.
pub(crate) fn machine(rig: &Rig) -> Vec<(&'static str, String)> {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or_else(|| "?".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let processors = thread::available_parallelism().map_or(0, usize::from);
    let memory = field("/proc/meminfo", "MemTotal");
    let memory: f64 = memory.trim_end_matches(" kB").parse().unwrap_or(0.0);
    let binary = rig.binary.to_string_lossy();
    vec![
        (
            "processors",
            format!("{processors} × {}", field("/proc/cpuinfo", "model name")),
        ),
        ("memory", format!("{:.0} GB", memory * 1024.0 / 1e9)),
        (
            "kernel",
            format!(
                "Linux {}, TCP congestion control {}",
                say("uname", &["-r"]),
                say("cat", &["/proc/sys/net/ipv4/tcp_congestion_control"])
            ),
        ),
        (
            "Postgres",
            format!(
                "{}; fsync {}; {}",
                setting(rig, "server_version"),
                setting(rig, "fsync"),
                say(&rig.recvlogical.to_string_lossy(), &["--version"])
            ),
        ),
        (
            "Kafka",
            format!(
                "{}, one broker, {PARTITIONS} partitions, no compression; {}",
                kafka_version(rig),
                say("java", &["-version"])
            ),
        ),
        (
            "walrelay",
            format!("{}, default configuration", say(&binary, &["--version"])),
        ),
    ]
}

pub(crate) fn facts(machine: &[(&str, String)]) -> String {
    let mut text = String::from("| | |\n|---|---|\n");
    for (name, value) in machine {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    text
}

fn setting(rig: &Rig, name: &str) -> String {
    let value = rig.db.text(&format!("SELECT current_setting('{name}')"));
    value.unwrap_or_default()
}

/// The broker runs from a directory named after its version.
fn kafka_version(rig: &Rig) -> String {
    let pid = rig.kafka.pid().unwrap_or_default();
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let version = line.split_once("/kafka-").map(|(_, rest)| rest);
    let version = version.and_then(|rest| rest.split_once('/'));
    version.map_or("?", |(version, _)| version).to_owned()
}

pub(crate) fn draining(backlog: &Backlog, runs: &[Drained]) -> String {
    let of = |word: &str| chosen(runs, word);
    let yardstick = median_of(&of(&Contender::YARDSTICK.word()), |run| run.rows_per_second);
    let mut text = format!(
        "Draining {} rows, {:.0} bytes of jsonb each, a fifth of them in transactions of their own and \
         the rest in those of 100 ({} MB of WAL). Medians of the undisturbed runs; CPU in seconds per \
         million rows.\n\n\
         | reader | runs | rows/s | of pg_recvlogical, TCP | from – to | second half | CPU reader | Postgres | \
         Kafka | peak memory | duplicates |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        thousands(backlog.load.rows as f64),
        backlog.payload_bytes,
        backlog.wal_bytes / 1_000_000
    );
    for contender in Contender::all(true, true) {
        let runs = of(&contender.word());
        if runs.is_empty() {
            continue;
        }
        let rate = median_of(&runs, |run| run.rows_per_second);
        let rates = || runs.iter().map(|run| run.rows_per_second);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} – {} | {} | {:.2} | {:.2} | {} | {:.1} MB | {} |",
            contender.name(),
            runs.len(),
            thousands(rate),
            or_dash(rate / yardstick),
            thousands(rates().fold(f64::INFINITY, f64::min)),
            thousands(rates().fold(0.0, f64::max)),
            thousands(median_of(&runs, |run| run.second_half_rows_per_second)),
            median_of(&runs, |run| run.reader_cpu),
            median_of(&runs, |run| run.postgres_cpu),
            or_dash(median_of(&runs, broker_cpu)),
            runs.iter().map(|run| run.memory).fold(0.0, f64::max),
            runs.iter().map(|run| run.duplicates).sum::<usize>(),
        );
    }
    text
}

/// How many times as fast walrelay into Kafka is as the others, by the medians.
pub(crate) fn ratios(runs: &[Drained]) -> String {
    let rate = |word: &str, of: fn(&Drained) -> f64| median_of(&chosen(runs, word), of);
    let whole: fn(&Drained) -> f64 = |run| run.rows_per_second;
    let second: fn(&Drained) -> f64 = |run| run.second_half_rows_per_second;
    let mut text = String::from(
        "walrelay into Kafka, as many times as fast as:\n\n| | by TCP | by a unix socket |\n|---|---:|---:|\n",
    );
    for (name, word, of) in [
        ("pg_recvlogical, TCP", "recvlogical_tcp", whole),
        ("walrelay, baseline, TCP", "baseline_relay_tcp", whole),
        ("polling, UPDATE", "polling_update_tcp", whole),
        ("polling, DELETE", "polling_delete_tcp", whole),
        ("Debezium Server", "debezium_tcp", whole),
        ("Debezium Server, second halves", "debezium_tcp", second),
    ] {
        let other = rate(word, of);
        if other.is_nan() {
            continue;
        }
        let walrelay = |word| or_dash(rate(word, of) / other);
        let (tcp, unix) = (walrelay("relay_tcp"), walrelay("relay_unix"));
        let _ = writeln!(text, "| {name} | {tcp} | {unix} |");
    }
    text
}

/// The runs of a contender that count. Chosen by what others did, never by what came out. Where others
/// were always busy all count, and the table of every run says so.
fn chosen<'a>(runs: &'a [Drained], word: &str) -> Vec<&'a Drained> {
    let all = || runs.iter().filter(|run| run.word == word);
    let quiet: Vec<_> = all().filter(|run| !run.is_disturbed()).collect();
    if quiet.is_empty() {
        all().collect()
    } else {
        quiet
    }
}

pub(crate) fn sweep(swept: &[Swept]) -> String {
    let mut text = String::from(
        "walrelay, TCP, to Kafka, over other loads; the ordinary one is 1 topic, 8 partitions and 271 B. \
         Medians; each case took turns with the ordinary load of the same run, to which the ratio is.\n\n\
         | load | rows | rows/s | MB/s | ordinary | ratio | CPU relay | Postgres | Kafka | peak memory |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for case in swept {
        let runs: Vec<&Drained> = case.runs.iter().collect();
        let base: Vec<&Drained> = case.base.iter().collect();
        let rate = median_of(&runs, |run| run.rows_per_second);
        let ordinary = median_of(&base, |run| run.rows_per_second);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.0} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} MB |",
            case.name,
            thousands(case.load.rows as f64),
            thousands(rate),
            rate * f64::from(case.load.bytes.unwrap_or(271)) / 1e6,
            thousands(ordinary),
            rate / ordinary,
            median_of(&runs, |run| run.reader_cpu),
            median_of(&runs, |run| run.postgres_cpu),
            median_of(&runs, broker_cpu),
            runs.iter().map(|run| run.memory).fold(0.0, f64::max),
        );
    }
    text
}

pub(crate) fn idle(rig: &Rig, idle: &[Idle]) -> String {
    let size = fs::metadata(&rig.binary).map_or(0, |file| file.len());
    let mut text = String::from("| | |\n|---|---|\n");
    for idle in idle {
        let _ = writeln!(
            text,
            "| {}, idle for {:.0} s | {:.1} MB resident ({:.1} MB at the start's peak); CPU per second: \
             {:.1} ms, walsender {:.1} ms; others used {:.2} processors |",
            idle.contender,
            idle.seconds,
            idle.memory,
            idle.memory_peak,
            idle.cpu,
            idle.walsender_cpu,
            idle.others
        );
    }
    let _ = writeln!(text, "| binary | {:.1} MB |", size as f64 / 1e6);
    text
}

const LATENCY_COLUMNS: &str = "log p50 | p90 | p99 | max | consumer p50 | p90 | p99 | max";

/// The runs of each rate and contender, in the order of the first round.
fn by_contender(runs: &[Latency]) -> Vec<Vec<&Latency>> {
    let first = runs.iter().filter(|run| run.round == 1);
    let alike = |one: &Latency, other: &Latency| {
        one.step.rate == other.step.rate && one.contender == other.contender
    };
    first
        .map(|first| runs.iter().filter(|run| alike(run, first)).collect())
        .collect()
}

pub(crate) fn latency(runs: &[Latency]) -> String {
    let mut text = format!(
        "From the commit to the broker's log and to a consumer, milliseconds, of rows written on a \
         schedule: medians of the rounds, each figure for itself, and the p99 to a consumer of every \
         round. The broker's clock counts whole milliseconds. CPU is in milliseconds a second: of the \
         relay, the server's processes that serve it, the broker, and the whole machine with those who \
         write and consume. Written: how long a transaction took who wrote it, until it was on the \
         disk.\n\n\
         | rows/s | committed/s | a transaction | relay | {LATENCY_COLUMNS} | p99 of each round | \
         written p50 | p99 | rows | load late by at most | CPU |\n\
         |---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for runs in by_contender(runs) {
        let run = Latency::median(&runs);
        let each: Vec<_> = runs
            .iter()
            .map(|run| format!("{:.1}", run.consumer.p99))
            .collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {:.2} | {:.2} | {} | {:.0} | {} |",
            thousands(run.step.rate as f64),
            thousands(run.committed),
            run.step.together,
            run.contender,
            spread(run.append),
            spread(run.consumer),
            each.join(", "),
            run.written.p50,
            run.written.p99,
            run.rows,
            run.behind,
            cpu(run.cpu)
        );
    }
    text
}

/// How many times as long a record takes with the others as with walrelay by TCP, to a consumer.
pub(crate) fn latency_ratios(runs: &[Latency]) -> String {
    let mut text = String::from(
        "As many times as long as with walrelay by TCP, to a consumer, by the medians:\n\n\
         | rows/s | relay | p50 | p99 |\n|---:|---|---:|---:|\n",
    );
    let mut ours: Option<Latency> = None;
    for runs in by_contender(runs) {
        let run = Latency::median(&runs);
        match &ours {
            // The first of each rate.
            Some(ours) if ours.step.rate == run.step.rate => {
                let _ = writeln!(
                    text,
                    "| {} | {} | {:.1} | {:.1} |",
                    thousands(run.step.rate as f64),
                    run.contender,
                    run.consumer.p50 / ours.consumer.p50,
                    run.consumer.p99 / ours.consumer.p99
                );
            }
            _ => ours = Some(run),
        }
    }
    text
}

/// With bars, in which a step would be seen: each mark is a tenth of a factor of ten.
pub(crate) fn ramp(runs: &[Latency]) -> String {
    let mut text = String::from(
        "One relay (TCP) while the rate rises: from the commit to a consumer, milliseconds. The bars are \
         logarithmic, from 0.1 ms, ten marks to a factor of ten: `=` up to p50, `-` up to p99.\n\n\
         | rows/s | committed/s | a transaction | p50 | p90 | p99 | max | written p99 | max | load late by at most | |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|:---|\n",
    );
    for run in runs {
        let marks = |ms: f64| ((ms / 0.1).log10() * 10.0).round().max(0.0) as usize;
        let (to_p50, to_p99) = (marks(run.consumer.p50), marks(run.consumer.p99));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.2} | {:.2} | {:.0} | `{}{}` |",
            thousands(run.step.rate as f64),
            thousands(run.committed),
            run.step.together,
            spread(run.consumer),
            run.written.p99,
            run.written.max,
            run.behind,
            "=".repeat(to_p50),
            "-".repeat(to_p99.saturating_sub(to_p50)),
        );
    }
    text
}

pub(crate) fn light(runs: &[Latency]) -> String {
    let mut text = format!(
        "A light topic alone, then beside a heavy one, by one relay (TCP); milliseconds from the commit.\n\n\
         | topic | rows/s | committed/s | a transaction | {LATENCY_COLUMNS} | written p99 | max | load late by at most |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for (at, run) in runs.iter().enumerate() {
        let alone = if at == 0 { ", alone" } else { "" };
        let _ = writeln!(
            text,
            "| {}{alone} | {} | {} | {} | {} | {} | {:.2} | {:.2} | {:.0} |",
            run.kind,
            thousands(run.step.rate as f64),
            thousands(run.committed),
            run.step.together,
            spread(run.append),
            spread(run.consumer),
            run.written.p99,
            run.written.max,
            run.behind
        );
    }
    text
}

fn spread(spread: Spread) -> String {
    let Spread { p50, p90, p99, max } = spread;
    [p50, p90, p99, max]
        .map(|ms| format!("{ms:.2}"))
        .join(" | ")
}

/// Of the relay, the server for it, the broker, and the whole machine.
fn cpu(cpu: Cpu) -> String {
    format!(
        "{:.0} / {:.0} / {:.0} / {:.0}",
        cpu.relay, cpu.postgres, cpu.broker, cpu.machine
    )
}

pub(crate) fn latency_progress(run: &Latency) -> String {
    format!(
        "{:<34} at {:>6}/s: log p50 {:.2}, p99 {:.2}, consumer p50 {:.2}, p99 {:.2} ms, written p50 {:.2}, p99 {:.2}; CPU {}; load late by {:.0} ms",
        run.contender,
        run.step.rate,
        run.append.p50,
        run.append.p99,
        run.consumer.p50,
        run.consumer.p99,
        run.written.p50,
        run.written.p99,
        cpu(run.cpu),
        run.behind
    )
}

pub(crate) fn every_run(runs: &[Drained]) -> String {
    let mut text = String::from(
        "Every run; \"others\" is what anything else on the machine used meanwhile, in processors; a run \
         in which that was much (*) counts above only where there is no other.\n\n\
         | reader | round | seconds | rows/s | second half | CPU reader | Postgres | Kafka | peak MB | others |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for run in runs {
        let _ = writeln!(
            text,
            "| {} | {} | {:.2} | {} | {} | {:.2} | {:.2} | {} | {:.1} | {:.2}{} |",
            run.contender,
            run.round,
            run.seconds,
            thousands(run.rows_per_second),
            thousands(run.second_half_rows_per_second),
            run.reader_cpu,
            run.postgres_cpu,
            or_dash(broker_cpu(run)),
            run.memory,
            run.others,
            if run.is_disturbed() { "*" } else { "" }
        );
    }
    text
}

/// One run on one line.
pub(crate) fn progress(run: &Drained) -> String {
    format!(
        "{:<42} {:>7} rows/s, {:>7} of the second half; CPU {:.2} {:.2} {}; {:.1} MB; others {:.2}",
        run.contender,
        thousands(run.rows_per_second),
        thousands(run.second_half_rows_per_second),
        run.reader_cpu,
        run.postgres_cpu,
        or_dash(broker_cpu(run)),
        run.memory,
        run.others
    )
}

/// NaN where no broker takes part.
fn broker_cpu(run: &Drained) -> f64 {
    run.broker_cpu.unwrap_or(f64::NAN)
}

/// A dash for what was not measured.
fn or_dash(value: f64) -> String {
    if value.is_finite() {
        format!("{value:.2}")
    } else {
        "–".to_owned()
    }
}

fn median_of(runs: &[&Drained], of: impl Fn(&Drained) -> f64) -> f64 {
    median(runs.iter().map(|run| of(run)))
}

/// A whole number with separators.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
