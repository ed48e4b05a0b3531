//! The figures as Markdown tables.

use std::fs;

use walrelay_measure::figures::{Spread, fixed, known, median, thousands};
use walrelay_measure::table;
use walrelay_throwaway::RabbitMqBinaries;

use super::run::{Drained, Latency, Relay};
use super::target::Target;
use crate::harness::Harness;
use crate::table::from_to;

/// Returns facts about the machine, the servers and the binary.
pub(super) fn machine(harness: &Harness, target: &Target) -> Vec<(&'static str, String)> {
    let mut facts = crate::table::common_facts(harness);
    let server = match target {
        Target::RabbitMq(_) => {
            let binaries = RabbitMqBinaries::find();
            let version =
                binaries.map_or_else(|_| "?".to_owned(), |binaries| binaries.version().to_owned());
            format!("RabbitMQ {version}, one node, one scheduler, a quorum queue")
        }
        Target::Redis(server) => {
            let version = server.client().version();
            format!("Redis {version}, `appendonly yes`, `appendfsync always`")
        }
        Target::Nats(_) => {
            "NATS 2.15.1, one server, a stream in files, `sync_interval` of 2 minutes".to_owned()
        }
        Target::Http { .. } => "a receiver of HTTP/1.1 inside the program that measures".to_owned(),
    };
    facts.push(("destination", server));
    let size = fs::metadata(&harness.binary).map_or(0, |file| file.len());
    facts.push(("binary", format!("{:.2} MB", size as f64 / 1e6)));
    facts
}

pub(super) fn progress(run: &Drained) -> String {
    format!(
        "{}, {}, round {}: {} rows/s",
        run.case,
        run.relay.name(),
        run.round,
        thousands(run.rows_per_second)
    )
}

pub(super) fn latency_progress(run: &Latency) -> String {
    format!(
        "{} rows/s, {}, round {}: {}",
        run.rate,
        run.relay.name(),
        run.round,
        run.consumer
    )
}

/// The runs of one relay.
type Runs<'a, T> = Vec<&'a T>;

/// Groups runs by what `key` returns, in the order of their first.
fn groups<T, K: PartialEq>(runs: &[T], key: impl Fn(&T) -> K) -> Vec<Runs<'_, T>> {
    let mut groups: Vec<Runs<'_, T>> = Vec::new();
    for run in runs {
        let group = groups.iter_mut().find(|group| key(group[0]) == key(run));
        match group {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups
}

pub(super) fn draining(runs: &[Drained]) -> String {
    let rate = |runs: &[&Drained]| median(runs.iter().map(|run| run.rows_per_second));
    let groups = groups(runs, |run| (run.case.clone(), run.relay));
    let polling = |case: &str| {
        let of_case = groups
            .iter()
            .find(|runs| runs[0].case == case && runs[0].relay == Relay::Polling);
        of_case.map_or(f64::NAN, |runs| rate(runs))
    };
    let table = table!(&groups, |runs|
        "<into" => runs[0].case.clone();
        "<relay" => runs[0].relay.name().to_owned();
        "rows" => thousands(runs[0].rows as f64);
        "rows/s" => thousands(rate(runs));
        "of polling" => known(rate(runs) / polling(&runs[0].case), "");
        "from – to" => from_to(runs.iter().map(|run| run.rows_per_second));
        "CPU relay" => fixed(2, median(runs.iter().map(|run| run.relay_cpu)));
        "server" => known(
            runs[0].server_cpu.map(|_| median(runs.iter().filter_map(|run| run.server_cpu))),
            ""
        );
        "peak MB" => fixed(1, runs.iter().map(|run| run.memory).fold(0.0, f64::max));
        "duplicates" => runs.iter().map(|run| run.duplicates).sum::<usize>().to_string();
    );
    let rounds = runs.iter().map(|run| run.round).max().unwrap_or_default();
    format!(
        "Draining a backlog: medians of {rounds} runs; CPU in seconds per million rows. The polling \
         relay takes batches of 1,000 and marks them by UPDATE.\n\n{table}"
    )
}

pub(super) fn latency(runs: &[Latency]) -> String {
    let groups = groups(runs, |run| (run.rate, run.relay));
    let spread = |runs: &[&Latency]| {
        let spreads: Vec<Spread> = runs.iter().map(|run| run.consumer).collect();
        Spread::median(&spreads)
    };
    let walrelay = |rate: u64| {
        let of_rate = groups
            .iter()
            .find(|runs| runs[0].rate == rate && runs[0].relay == Relay::Walrelay);
        of_rate.map(|runs| spread(runs))
    };
    let ratio = |runs: &[&Latency], of: fn(Spread) -> f64| {
        let ours = walrelay(runs[0].rate).map_or(f64::NAN, of);
        known(of(spread(runs)) / ours, "")
    };
    let table = table!(&groups, |runs|
        "rows/s" => thousands(runs[0].rate as f64);
        "<relay" => match runs[0].relay {
            Relay::Walrelay => "walrelay".to_owned(),
            Relay::Polling => "polling every 50 ms".to_owned(),
        };
        "p50 | p90 | p99 | max" => spread(runs).to_string();
        "p50, of walrelay" => ratio(runs, |spread| spread.p50);
        "p99" => ratio(runs, |spread| spread.p99);
        "rows" => runs.iter().map(|run| run.rows).sum::<usize>().to_string();
        "load late by at most" => fixed(0, runs.iter().map(|run| run.behind).fold(0.0, f64::max));
    );
    format!(
        "From the commit to a consumer, milliseconds, of rows written on a schedule: medians of the \
         rounds, each figure for itself.\n\n{table}"
    )
}
