//! The figures as Markdown.

use std::fmt::Write as _;
use std::fs;
use std::thread;

use crate::drain::{Contender, Drained};
use crate::idle::Idle;
use crate::latency::{Latency, Spread};
use crate::proc::say;
use crate::rig::{Backlog, PARTITIONS, Rig};

pub(crate) fn machine(rig: &Rig) -> String {
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
    let rows = [
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
                "{}; fsync on; {}",
                setting(rig, "server_version"),
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
    ];
    let mut text = String::from("| | |\n|---|---|\n");
    for (name, value) in rows {
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
    // Chosen by what others did, never by what came out. Where others were always busy all count,
    // and the table of every run says so.
    let of = |contender| -> Vec<&Drained> {
        let all = || runs.iter().filter(|run| run.contender == contender);
        let quiet: Vec<_> = all().filter(|run| !run.is_disturbed()).collect();
        if quiet.is_empty() {
            all().collect()
        } else {
            quiet
        }
    };
    let yardstick = of(Contender::RecvlogicalTcp);
    let yardstick = match &yardstick[..] {
        [] => f64::NAN,
        runs => median(runs, |run| run.rows_per_second),
    };
    let mut text = format!(
        "Draining {} rows, {:.0} bytes of jsonb each, in transactions of 100 ({} MB of WAL). Medians of \
         the undisturbed runs; CPU in seconds per million rows.\n\n\
         | reader | runs | rows/s | of pg_recvlogical, TCP | from – to | CPU reader | walsender | broker | \
         peak memory |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        thousands(backlog.rows as f64),
        backlog.payload_bytes,
        backlog.wal_bytes / 1_000_000
    );
    for contender in Contender::ALL {
        let runs = of(contender);
        if runs.is_empty() {
            continue;
        }
        let rate = median(&runs, |run| run.rows_per_second);
        let rates = || runs.iter().map(|run| run.rows_per_second);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.2} | {} – {} | {:.2} | {:.2} | {} | {:.1} MB |",
            contender.name(),
            runs.len(),
            thousands(rate),
            rate / yardstick,
            thousands(rates().fold(f64::INFINITY, f64::min)),
            thousands(rates().fold(0.0, f64::max)),
            median(&runs, |run| run.reader_cpu),
            median(&runs, |run| run.walsender_cpu),
            broker(contender, median(&runs, |run| run.broker_cpu)),
            runs.iter().map(|run| run.memory).fold(0.0, f64::max),
        );
    }
    text
}

pub(crate) fn idle(rig: &Rig, idle: &Idle) -> String {
    let size = fs::metadata(&rig.binary).map_or(0, |file| file.len());
    let mut text = String::from("| | |\n|---|---|\n");
    let _ = writeln!(
        text,
        "| idle for {:.0} s | {:.1} MB resident ({:.1} MB at the start's peak); CPU per second: relay \
         {:.1} ms, walsender {:.1} ms; others used {:.2} processors |",
        idle.time.as_secs_f64(),
        idle.memory,
        idle.memory_peak,
        idle.cpu,
        idle.walsender_cpu,
        idle.others
    );
    let _ = writeln!(text, "| binary | {:.1} MB |", size as f64 / 1e6);
    text
}

pub(crate) fn latency(runs: &[Latency]) -> String {
    let mut text = String::from(
        "From the commit to the broker's log and to a consumer, milliseconds; rows in transactions of \
         their own, written on a schedule. The broker's clock counts whole milliseconds.\n\n\
         | rows/s | relay | log p50 | p90 | p99 | max | consumer p50 | p90 | p99 | max | rows | load late by at most |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for run in runs {
        let spread = |Spread(values): Spread| values.map(|ms| format!("{ms:.2}")).join(" | ");
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {:.0} |",
            thousands(run.rate as f64),
            run.contender.name(),
            spread(run.append),
            spread(run.consumer),
            run.rows,
            run.behind
        );
    }
    text
}

pub(crate) fn every_run(runs: &[Drained]) -> String {
    let mut text = String::from(
        "Every run; \"others\" is what anything else on the machine used meanwhile, in processors; a run \
         in which that was much (*) counts above only where there is no other.\n\n\
         | reader | round | seconds | rows/s | CPU reader | walsender | broker | peak MB | others |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for run in runs {
        let _ = writeln!(
            text,
            "| {} | {} | {:.2} | {} | {:.2} | {:.2} | {} | {:.1} | {:.2}{} |",
            run.contender.name(),
            run.round,
            run.seconds,
            thousands(run.rows_per_second),
            run.reader_cpu,
            run.walsender_cpu,
            broker(run.contender, run.broker_cpu),
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
        "{:<42} {:>7} rows/s; CPU {:.2} {:.2} {:.2}; {:.1} MB; others {:.2}",
        run.contender.name(),
        thousands(run.rows_per_second),
        run.reader_cpu,
        run.walsender_cpu,
        run.broker_cpu,
        run.memory,
        run.others
    )
}

/// A broker that is not read into has nothing to say.
fn broker(contender: Contender, cpu: f64) -> String {
    if contender.produces() {
        format!("{cpu:.2}")
    } else {
        "–".to_owned()
    }
}

fn median(runs: &[&Drained], of: impl Fn(&Drained) -> f64) -> f64 {
    let mut values: Vec<f64> = runs.iter().map(|run| of(run)).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
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
