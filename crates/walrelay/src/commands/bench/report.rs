//! The figures of a benchmark as Markdown and as JSON.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use walrelay_measure::figures::{Machine, Spread, known};

use super::drain::DrainResult;
use super::latency::LatencyResult;

/// The figures of a benchmark.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) walrelay: &'static str,
    /// The machine of the benchmark; the servers may run elsewhere.
    pub(super) machine: Machine,
    pub(super) postgres: String,
    /// `bootstrap.servers`; `None` without Kafka.
    pub(super) kafka: Option<String>,
    /// Bytes of a payload, about; `None` for rows that the benchmark has not written.
    pub(super) payload_bytes: Option<u32>,
    pub(super) drained: Vec<DrainResult>,
    pub(super) latency: Vec<LatencyResult>,
}

impl Report {
    pub(super) fn to_json(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(path, text)
    }

    pub(super) fn to_markdown(&self) -> String {
        let mut text = format!(
            "walrelay {} on {} × {}, {} {}; Postgres {}{}\n",
            self.walrelay,
            self.machine.processors,
            self.machine.model.as_deref().unwrap_or("?"),
            self.machine.system,
            self.machine.kernel.as_deref().unwrap_or(""),
            self.postgres,
            match &self.kafka {
                Some(servers) => format!("; Kafka at {servers}"),
                None => String::new(),
            }
        );
        if !self.drained.is_empty() {
            text.push_str(&self.drained());
        }
        if !self.latency.is_empty() {
            text.push_str(&self.latency());
        }
        text
    }

    fn drained(&self) -> String {
        let first = self.drained.first();
        let mut text = format!(
            "\nA backlog of {} rows{}; CPU in seconds per million rows.\n\n\
             | | rows/s | ratio | second half | CPU relay | walsender | peak memory |\n\
             |---|---:|---:|---:|---:|---:|---:|\n",
            first.map_or(0, |run| run.rows),
            self.payload_bytes
                .map_or_else(String::new, |bytes| format!(" of about {bytes} bytes"))
        );
        for run in &self.drained {
            let base = first.map_or(f64::NAN, |first| first.rows_per_second);
            let _ = writeln!(
                text,
                "| {}{} | {:.0} | {:.2} | {:.0} | {} | {} | {} |",
                run.contender,
                if run.repeated {
                    " (disturbed: a new sink was made)"
                } else {
                    ""
                },
                run.rows_per_second,
                run.rows_per_second / base,
                run.second_half_rows_per_second,
                known(run.relay_cpu, ""),
                known(run.walsender_cpu, ""),
                known(run.peak_memory_mb, " MB"),
            );
        }
        text
    }

    fn latency(&self) -> String {
        let mut text = String::from(
            "\nMilliseconds from the commit to the broker's acknowledgement (a sample), and from the \
             writing of a row to a consumer.\n\n\
             | rows/s | ack p50 | p90 | p99 | max | consumer p50 | p90 | p99 | max | rows | load late by at most |\n\
             |---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        for run in &self.latency {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {:.0} |",
                run.rate,
                spread(run.acknowledged),
                spread(run.consumed),
                run.rows,
                run.late_ms
            );
        }
        text
    }
}

fn spread(spread: Option<Spread>) -> String {
    spread.map_or_else(|| "– | – | – | –".to_owned(), |spread| spread.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_relative_to_the_first_and_unknown_figures_are_dashes() {
        let run = |contender, rows_per_second| DrainResult {
            contender,
            rows: 1000,
            seconds: 1000.0 / rows_per_second,
            rows_per_second,
            second_half_rows_per_second: rows_per_second,
            relay_cpu: Some(1.234),
            walsender_cpu: None,
            peak_memory_mb: Some(9.0),
            repeated: false,
        };
        let report = Report {
            walrelay: "1.2.3",
            machine: Machine::here(),
            postgres: "15.1".to_owned(),
            kafka: None,
            payload_bytes: Some(300),
            drained: vec![run("to nothing", 2000.0), run("to Kafka", 1000.0)],
            latency: vec![LatencyResult {
                rate: 100,
                rows: 1000,
                acknowledged: None,
                consumed: Some(Spread {
                    p50: 0.5,
                    p90: 1.0,
                    p99: 2.0,
                    max: 3.0,
                }),
                late_ms: 1.0,
            }],
        };
        let text = report.to_markdown();
        for line in [
            "| to nothing | 2000 | 1.00 | 2000 | 1.23 | – | 9.00 MB |",
            "| to Kafka | 1000 | 0.50 | 1000 | 1.23 | – | 9.00 MB |",
            "| 100 | – | – | – | – | 0.50 | 1.00 | 2.00 | 3.00 | 1000 | 1 |",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(json["drained"][1]["rows_per_second"], 1000.0);
        assert_eq!(json["latency"][0]["consumed"]["p99"], 2.0);
    }
}
