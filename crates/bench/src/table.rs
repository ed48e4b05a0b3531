//! The figures as Markdown tables.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use walrelay_measure::figures::{Machine, fixed, known, median, thousands};
use walrelay_measure::table;

use crate::contender::Contender;
use crate::drain::Drained;
use crate::harness::{Backlog, Harness};
use crate::idle::Idle;
use crate::latency::Latency;
use crate::load_kind::PARTITIONS;
use crate::sweep::Swept;

/// Returns facts about the machine, the servers and the binary.
pub(crate) fn machine(harness: &Harness) -> Vec<(&'static str, String)> {
    let (kafka, java) = (kafka_version(harness), first_line("java", &["-version"]));
    let kafka = format!("{kafka}, one broker, {PARTITIONS} partitions, no compression; {java}");
    let mut facts = common_facts(harness);
    facts.push(("Kafka", kafka));
    facts
}

/// Returns facts about the machine, Postgres and the binary.
pub(crate) fn common_facts(harness: &Harness) -> Vec<(&'static str, String)> {
    let here = Machine::here();
    let unknown = || "?".to_owned();
    let model = here.model.unwrap_or_else(unknown);
    let memory = here.memory_mb.unwrap_or(0) as f64 / 1e3;
    let kernel = here.kernel.unwrap_or_else(unknown);
    let control = first_line("cat", &["/proc/sys/net/ipv4/tcp_congestion_control"]);
    let (version, fsync) = (
        setting(harness, "server_version"),
        setting(harness, "fsync"),
    );
    let recvlogical = first_line(&harness.recvlogical.to_string_lossy(), &["--version"]);
    let walrelay = first_line(&harness.binary.to_string_lossy(), &["--version"]);
    vec![
        ("processors", format!("{} × {model}", here.processors)),
        ("memory", format!("{memory:.0} GB")),
        (
            "kernel",
            format!("Linux {kernel}, TCP congestion control {control}"),
        ),
        (
            "Postgres",
            format!("{version}; fsync {fsync}; {recvlogical}"),
        ),
        ("walrelay", format!("{walrelay}, default configuration")),
    ]
}

pub(crate) fn facts(machine: &[(&str, String)]) -> String {
    let rows = machine.iter();
    let rows = rows.map(|(name, value)| format!("| {name} | {value} |\n"));
    format!("{BLANK}{}", rows.collect::<Vec<_>>().concat())
}

/// Head of a table of two columns without headings.
const BLANK: &str = "| | |\n|---|---|\n";

/// Returns the least and the most of some rates.
pub(crate) fn from_to(rates: impl Iterator<Item = f64> + Clone) -> String {
    let least = rates.clone().fold(f64::INFINITY, f64::min);
    let most = rates.fold(0.0, f64::max);
    format!("{} – {}", thousands(least), thousands(most))
}

fn most_memory(runs: &[&Drained]) -> String {
    let most = runs.iter().map(|run| run.memory).fold(0.0, f64::max);
    format!("{most:.1} MB")
}

/// Returns the first line that a program prints.
fn first_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let bytes = output.map_or_else(
        |_| Vec::new(),
        |output| [output.stdout, output.stderr].concat(),
    );
    let text = String::from_utf8_lossy(&bytes);
    text.lines().next().unwrap_or("?").trim().to_owned()
}

fn setting(harness: &Harness, name: &str) -> String {
    let value = harness
        .db
        .text(&format!("SELECT current_setting('{name}')"));
    value.unwrap_or_default()
}

/// Returns the version of the broker, which runs from a directory named after it.
fn kafka_version(harness: &Harness) -> String {
    let pid = harness.kafka.pid().unwrap_or_default();
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let version = line.split_once("/kafka-").map(|(_, rest)| rest);
    let version = version.and_then(|rest| rest.split_once('/'));
    version.map_or("?", |(version, _)| version).to_owned()
}

pub(crate) fn draining(backlog: &Backlog, runs: &[Drained]) -> String {
    let rate = |runs: &[&Drained]| median_of(runs, |run| run.rows_per_second);
    let yardstick = rate(&chosen(runs, &Contender::REFERENCE.word()));
    let contenders = Contender::DRAINING.map(|contender| chosen(runs, &contender.word()));
    let contenders = contenders.into_iter().filter(|runs| !runs.is_empty());
    let contenders: Vec<Runs<'_>> = contenders.collect();
    let table = table!(&contenders, |runs|
        "<reader" => runs[0].contender.clone();
        "runs" => runs.len().to_string();
        "rows/s" => thousands(rate(runs));
        "of pg_recvlogical, TCP" => known(rate(runs) / yardstick, "");
        "from – to" => from_to(runs.iter().map(|run| run.rows_per_second));
        "second half" => thousands(median_of(runs, |run| run.second_half_rows_per_second));
        "CPU reader" => fixed(2, median_of(runs, |run| run.reader_cpu));
        "Postgres" => fixed(2, median_of(runs, |run| run.postgres_cpu));
        "Kafka" => known(median_of(runs, broker_cpu), "");
        "peak memory" => most_memory(runs);
        "duplicates" => runs.iter().map(|run| run.duplicates).sum::<usize>().to_string();
    );
    format!(
        "Draining {} rows, {:.0} bytes of jsonb each, a fifth of them in transactions of their own and \
         the rest in those of 100 ({} MB of WAL). Medians of the undisturbed runs; CPU in seconds per \
         million rows.\n\n{table}",
        thousands(backlog.load.rows as f64),
        backlog.payload_bytes,
        backlog.wal_bytes / 1_000_000
    )
}

/// Returns the rates of walrelay into Kafka divided by those of the others, by the medians.
pub(crate) fn ratios(runs: &[Drained]) -> String {
    let rate = |word: &str, of: fn(&Drained) -> f64| median_of(&chosen(runs, word), of);
    let whole: fn(&Drained) -> f64 = |run| run.rows_per_second;
    let second: fn(&Drained) -> f64 = |run| run.second_half_rows_per_second;
    let others = [
        ("pg_recvlogical, TCP", "recvlogical_tcp", whole),
        ("walrelay with [http], TCP", "observed_relay_tcp", whole),
        ("walrelay, baseline, TCP", "baseline_relay_tcp", whole),
        ("polling, UPDATE", "polling_update_tcp", whole),
        ("polling, DELETE", "polling_delete_tcp", whole),
        ("Debezium Server", "debezium_tcp", whole),
        ("Debezium Server, second halves", "debezium_tcp", second),
    ];
    let known_others = others
        .into_iter()
        .filter(|(_, word, of)| !rate(word, *of).is_nan());
    let ratio =
        |ours: &str, (_, word, of): &(_, &str, _)| known(rate(ours, *of) / rate(word, *of), "");
    let table = table!(&known_others.collect::<Vec<_>>(), |other|
        "<" => other.0.to_owned();
        "by TCP" => ratio("relay_tcp", other);
        "by a unix socket" => ratio("relay_unix", other);
    );
    format!("walrelay into Kafka, as many times as fast as:\n\n{table}")
}

/// Runs of one contender.
type Runs<'a> = Vec<&'a Drained>;

/// Returns the runs of a contender that count: the undisturbed ones, or all if every run was
/// disturbed. The choice depends on what others used, never on the result.
fn chosen<'a>(runs: &'a [Drained], word: &str) -> Runs<'a> {
    let mut all: Runs<'_> = runs.iter().filter(|run| run.word == word).collect();
    if !all.iter().all(|run| run.is_disturbed()) {
        all.retain(|run| !run.is_disturbed());
    }
    all
}

pub(crate) fn sweep(swept: &[Swept]) -> String {
    fn median_of(runs: &[Drained], figure: impl Fn(&Drained) -> f64) -> f64 {
        median(runs.iter().map(figure))
    }
    let rate = |runs: &[Drained]| median_of(runs, |run| run.rows_per_second);
    let table = table!(swept, |case|
        "<load" => case.name.to_owned();
        "rows" => thousands(case.load.rows as f64);
        "rows/s" => thousands(rate(&case.runs));
        "MB/s" => fixed(0, rate(&case.runs) * f64::from(case.load.bytes.unwrap_or(271)) / 1e6);
        "ordinary" => thousands(rate(&case.base));
        "ratio" => fixed(2, rate(&case.runs) / rate(&case.base));
        "CPU relay" => fixed(2, median_of(&case.runs, |run| run.reader_cpu));
        "Postgres" => fixed(2, median_of(&case.runs, |run| run.postgres_cpu));
        "Kafka" => fixed(2, median_of(&case.runs, broker_cpu));
        "peak memory" => most_memory(&case.runs.iter().collect::<Runs<'_>>());
    );
    format!(
        "walrelay, TCP, to Kafka, over other loads; the ordinary one is 1 topic, 8 partitions and 271 B. \
         Medians; each case took turns with the ordinary load of the same run, to which the ratio is.\n\n\
         {table}"
    )
}

pub(crate) fn idle(harness: &Harness, idle: &[Idle]) -> String {
    let size = fs::metadata(&harness.binary).map_or(0, |file| file.len());
    let mut text = BLANK.to_owned();
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

/// Returns the runs grouped by rate and contender, in the order of the first round.
fn by_contender(runs: &[Latency]) -> Vec<Vec<&Latency>> {
    let first = runs.iter().filter(|run| run.round == 1);
    let of = |run: &Latency| (run.step.rate, run.contender.clone());
    let alike = first.map(|first| runs.iter().filter(|run| of(run) == of(first)).collect());
    alike.collect()
}

pub(crate) fn latency(runs: &[Latency]) -> String {
    struct Row {
        run: Latency,
        /// The p99 to a consumer in each round.
        rounds: Vec<String>,
    }
    let rows = by_contender(runs).into_iter().map(|runs| Row {
        run: Latency::median(&runs),
        rounds: runs.iter().map(|run| fixed(1, run.consumer.p99)).collect(),
    });
    let table = table!(&rows.collect::<Vec<_>>(), |row|
        "rows/s" => thousands(row.run.step.rate as f64);
        "committed/s" => thousands(row.run.committed);
        "a transaction" => row.run.step.together.to_string();
        "<relay" => row.run.contender.clone();
        "log p50 | p90 | p99 | max" => row.run.append.to_string();
        "consumer p50 | p90 | p99 | max" => row.run.consumer.to_string();
        "p99 of each round" => row.rounds.join(", ");
        "written p50" => fixed(2, row.run.written.p50);
        "p99" => fixed(2, row.run.written.p99);
        "rows" => row.run.rows.to_string();
        "load late by at most" => fixed(0, row.run.behind);
        "<CPU" => row.run.cpu.to_string();
    );
    format!(
        "From the commit to the broker's log and to a consumer, milliseconds, of rows written on a \
         schedule: medians of the rounds, each figure for itself, and the p99 to a consumer of every \
         round. The broker's clock counts whole milliseconds. CPU is in milliseconds a second: of the \
         relay, the server's processes that serve it, the broker, and the whole machine with those who \
         write and consume. Written: how long a transaction took who wrote it, until it was on the \
         disk.\n\n{table}"
    )
}

/// Returns the latency to a consumer of the others divided by that of walrelay by TCP.
pub(crate) fn latency_ratios(runs: &[Latency]) -> String {
    let medians = by_contender(runs)
        .into_iter()
        .map(|runs| Latency::median(&runs));
    let medians: Vec<Latency> = medians.collect();
    // The first run of each rate is walrelay by TCP.
    let ours = |run: &Latency| medians.iter().find(|ours| ours.step.rate == run.step.rate);
    let rows = medians.iter().map(|run| (run, ours(run).unwrap_or(run)));
    let rows: Vec<_> = rows
        .filter(|(run, ours)| run.contender != ours.contender)
        .collect();
    let table = table!(&rows, |row|
        "rows/s" => thousands(row.0.step.rate as f64);
        "<relay" => row.0.contender.clone();
        "p50" => fixed(1, row.0.consumer.p50 / row.1.consumer.p50);
        "p99" => fixed(1, row.0.consumer.p99 / row.1.consumer.p99);
    );
    format!(
        "As many times as long as with walrelay by TCP, to a consumer, by the medians:\n\n{table}"
    )
}

/// Returns the ramp with logarithmic bars, which show a step: each mark is a tenth of a factor of
/// ten.
pub(crate) fn ramp(runs: &[Latency]) -> String {
    let marks = |ms: f64| ((ms / 0.1).log10() * 10.0).round().max(0.0) as usize;
    let table = table!(runs, |run|
        "rows/s" => thousands(run.step.rate as f64);
        "committed/s" => thousands(run.committed);
        "a transaction" => run.step.together.to_string();
        "p50 | p90 | p99 | max" => run.consumer.to_string();
        "written p99" => fixed(2, run.written.p99);
        "max" => fixed(2, run.written.max);
        "load late by at most" => fixed(0, run.behind);
        "<" => {
            let (to_p50, to_p99) = (marks(run.consumer.p50), marks(run.consumer.p99));
            format!("`{}{}`", "=".repeat(to_p50), "-".repeat(to_p99.saturating_sub(to_p50)))
        };
    );
    format!(
        "One relay (TCP) while the rate rises: from the commit to a consumer, milliseconds. The bars are \
         logarithmic, from 0.1 ms, ten marks to a factor of ten: `=` up to p50, `-` up to p99.\n\n{table}"
    )
}

pub(crate) fn light(runs: &[Latency]) -> String {
    let topics = ["light, alone", "light", "heavy"];
    let rows: Vec<_> = topics.into_iter().zip(runs).collect();
    let table = table!(&rows, |row|
        "<topic" => row.0.to_owned();
        "rows/s" => thousands(row.1.step.rate as f64);
        "committed/s" => thousands(row.1.committed);
        "a transaction" => row.1.step.together.to_string();
        "log p50 | p90 | p99 | max" => row.1.append.to_string();
        "consumer p50 | p90 | p99 | max" => row.1.consumer.to_string();
        "written p99" => fixed(2, row.1.written.p99);
        "max" => fixed(2, row.1.written.max);
        "load late by at most" => fixed(0, row.1.behind);
    );
    format!(
        "A light topic alone, then beside a heavy one, by one relay (TCP); milliseconds from the \
         commit.\n\n{table}"
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
        run.cpu,
        run.behind
    )
}

pub(crate) fn every_run(runs: &[Drained]) -> String {
    let table = table!(runs, |run|
        "<reader" => run.contender.clone();
        "round" => run.round.to_string();
        "seconds" => fixed(2, run.seconds);
        "rows/s" => thousands(run.rows_per_second);
        "second half" => thousands(run.second_half_rows_per_second);
        "CPU reader" => fixed(2, run.reader_cpu);
        "Postgres" => fixed(2, run.postgres_cpu);
        "Kafka" => known(broker_cpu(run), "");
        "peak MB" => fixed(1, run.memory);
        "others" => format!("{:.2}{}", run.others, if run.is_disturbed() { "*" } else { "" });
    );
    format!(
        "Every run; \"others\" is what anything else on the machine used meanwhile, in processors; a run \
         in which that was much (*) counts above only where there is no other.\n\n{table}"
    )
}

/// Formats one run on one line, for progress.
pub(crate) fn progress(run: &Drained) -> String {
    format!(
        "{:<42} {:>7} rows/s, {:>7} of the second half; CPU {:.2} {:.2} {}; {:.1} MB; others {:.2}",
        run.contender,
        thousands(run.rows_per_second),
        thousands(run.second_half_rows_per_second),
        run.reader_cpu,
        run.postgres_cpu,
        known(broker_cpu(run), ""),
        run.memory,
        run.others
    )
}

/// Returns the broker's CPU seconds; NaN for a run without a broker.
fn broker_cpu(run: &Drained) -> f64 {
    run.broker_cpu.unwrap_or(f64::NAN)
}

fn median_of(runs: &[&Drained], of: impl Fn(&Drained) -> f64) -> f64 {
    median(runs.iter().map(|run| of(run)))
}
