//! The figures of a benchmark as Markdown and as JSON.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use walrelay_measure::figures::{Machine, Spread, fixed, known};
use walrelay_measure::table;

use super::drain::DrainResult;
use super::latency::LatencyResult;

/// A sink and its servers.
#[derive(Debug, Serialize)]
pub(super) struct SinkServers {
    /// `sink.kind`.
    pub(super) kind: &'static str,
    #[serde(skip)]
    pub(super) title: &'static str,
    pub(super) servers: String,
}

impl SinkServers {
    /// Returns the servers, if they are brokers of Kafka.
    pub(super) fn kafka_servers(&self) -> Option<String> {
        (self.kind == "kafka").then(|| self.servers.clone())
    }
}

/// The figures of a benchmark.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) walrelay: &'static str,
    /// The machine of the benchmark; the servers may run elsewhere.
    pub(super) machine: Machine,
    pub(super) postgres: String,
    /// The sink that was measured; `None` if records were thrown away.
    pub(super) sink: Option<SinkServers>,
    /// The servers of a sink of Kafka, which older versions write here.
    #[serde(skip_serializing_if = "Option::is_none")]
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
            match &self.sink {
                Some(sink) => format!("; {} at {}", sink.title, sink.servers),
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
        let base = first.map_or(f64::NAN, |first| first.rows_per_second);
        let rows = first.map_or(0, |run| run.rows);
        let size = self
            .payload_bytes
            .map_or_else(String::new, |bytes| format!(" of about {bytes} bytes"));
        let table = table!(&self.drained, |run|
            "<" => {
                let disturbed = run.repeated.then_some(" (disturbed: a new sink was made)");
                format!("{}{}", run.contender, disturbed.unwrap_or_default())
            };
            "rows/s" => fixed(0, run.rows_per_second);
            "ratio" => fixed(2, run.rows_per_second / base);
            "second half" => fixed(0, run.second_half_rows_per_second);
            "CPU relay" => known(run.relay_cpu, "");
            "walsender" => known(run.walsender_cpu, "");
            "peak memory" => known(run.peak_memory_mb, " MB");
        );
        format!("\nA backlog of {rows} rows{size}; CPU in seconds per million rows.\n\n{table}")
    }

    fn latency(&self) -> String {
        let table = table!(&self.latency, |run|
            "rows/s" => run.rate.to_string();
            "ack p50 | p90 | p99 | max" => spread(run.acknowledged);
            "consumer p50 | p90 | p99 | max" => spread(run.consumed);
            "rows" => run.rows.to_string();
            "load late by at most" => fixed(0, run.late_ms);
        );
        format!(
            "\nMilliseconds from the commit to the sink's acknowledgement (a sample), and from the \
             writing of a row to a consumer.\n\n{table}"
        )
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
        let run = |contender: &str, rows_per_second| DrainResult {
            contender: contender.to_owned(),
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
            sink: None,
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
