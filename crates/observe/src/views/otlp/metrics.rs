//! The metrics of `/metrics` as OTLP metrics.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use serde_json::{Value, json};

use super::{attributes, nanos};
use crate::StatusReport;
use crate::views::metrics::{HISTOGRAMS, Histogram, Labels, PREFIX, Scrape, all};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u8 = 2;

/// Makes the metrics of OTLP's `ScopeMetrics`. Names have no unit and no `_total`: a receiver for
/// Prometheus appends both again.
pub(super) fn metrics(scrape: &Scrape) -> Vec<Value> {
    let timed = |report: &StatusReport, labels: &Labels, mut point: Value| {
        let labels = labels.iter().map(|(name, value)| (*name, value.as_str()));
        point["attributes"] = attributes(labels);
        point["startTimeUnixNano"] = nanos(report.started_ms).into();
        point["timeUnixNano"] = nanos(report.now_ms).into();
        point
    };
    let mut metrics = Vec::new();
    for (name, metric, subject) in all() {
        let rows = scrape.rows(metric, subject);
        let points = rows
            .iter()
            .map(|(report, (labels, value))| timed(report, labels, json!({"asDouble": value})));
        let mut data = json!({"dataPoints": points.collect::<Value>()});
        let mut kind = "gauge";
        if metric.kind == MetricType::Counter {
            kind = "sum";
            data["aggregationTemporality"] = CUMULATIVE.into();
            data["isMonotonic"] = true.into();
        }
        let unit = unit_text(metric.unit.as_ref());
        if !rows.is_empty() {
            let help = metric.help;
            metrics.push(json!({"name": name, "description": help, "unit": unit, kind: data}));
        }
    }
    for histogram in HISTOGRAMS {
        let Histogram { name, help, .. } = histogram;
        let unit = unit_text(Some(&histogram.unit));
        let histograms = scrape.buckets(&histogram);
        let points = histograms.iter().map(|(report, labels, buckets)| {
            let counts = buckets.counts.iter().map(|(_, count)| count.to_string());
            // OTLP leaves out the infinite bound of the last bucket.
            let bounds = buckets.counts.iter().map(|(bound, _)| *bound);
            let bounds = bounds.filter(|bound| bound.is_finite());
            let point = json!({
                "count": buckets.samples().to_string(), "sum": buckets.sum,
                "bucketCounts": counts.collect::<Value>(),
                "explicitBounds": bounds.collect::<Value>(),
            });
            timed(report, labels, point)
        });
        metrics.push(json!({
            "name": format!("{PREFIX}_{name}"), "description": format!("{help}."), "unit": unit,
            "histogram": {
                "dataPoints": points.collect::<Value>(), "aggregationTemporality": CUMULATIVE,
            },
        }));
    }
    metrics
}

/// Returns the unit as OTLP writes it.
fn unit_text(unit: Option<&Unit>) -> &'static str {
    match unit {
        Some(Unit::Seconds) => "s",
        Some(Unit::Bytes) => "By",
        _ => "1",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::{Pipelines, RecentErrors, Setup, Telemetry};

    #[test]
    fn each_metric_kind_is_converted() {
        let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
        telemetry.commit_to_ack.record(Duration::from_millis(250));
        telemetry.commit_to_ack.record(Duration::from_secs(100));
        let mut scrape = Scrape::new(&Pipelines::from_iter([Arc::new(telemetry)]));
        let report = scrape.reports_mut().first_mut().unwrap();
        report.source.reconnects.insert("a b".to_owned(), 7);
        (report.started_ms, report.now_ms) = (1, 2);
        let point = |mut point: Value| {
            point["startTimeUnixNano"] = "1000000".into();
            point["timeUnixNano"] = "2000000".into();
            point
        };
        let cause = json!([{"key": "cause", "value": {"stringValue": "a b"}}]);
        let bounds: Vec<f64> = (0..18).map(|n| 0.0005 * f64::from(1_u32 << n)).collect();
        let mut counts = ["0"; 19];
        (counts[9], counts[18]) = ("1", "1");
        let help = "From commit to acknowledgement, of a sample of transactions, by the clocks of \
                    the server and of this machine.";
        let expected = json!([
            {"name": "walrelay_reconnects", "unit": "1",
             "description": "Attempts that failed and were followed by another, by cause",
             "sum": {"dataPoints": [point(json!({"attributes": cause, "asDouble": 7.0}))],
                     "aggregationTemporality": 2, "isMonotonic": true}},
            {"name": "walrelay_start_time", "unit": "s",
             "description": "When the relay was started, since 1970",
             "gauge": {"dataPoints": [point(json!({"attributes": [], "asDouble": 0.001}))]}},
            {"name": "walrelay_commit_to_ack", "description": help, "unit": "s",
             "histogram": {"dataPoints": [point(json!({"attributes": [], "count": "2", "sum": 100.25,
                 "bucketCounts": counts, "explicitBounds": bounds}))],
                 "aggregationTemporality": 2}},
        ]);
        let mut found = metrics(&scrape);
        // `snapshot_rows` has no value.
        let names = ["reconnects", "snapshot_rows", "start_time", "commit_to_ack"];
        let names = names.map(|name| format!("walrelay_{name}"));
        found.retain(|metric| names.iter().any(|name| metric["name"] == **name));
        assert_eq!(Value::from(found), expected);
    }
    #[test]
    fn points_name_the_pipeline_of_several() {
        let telemetry = |name: &str| {
            let setup = Setup {
                name: name.to_owned(),
                ..Setup::default()
            };
            Arc::new(Telemetry::new(setup, RecentErrors::default()))
        };
        let scrape = Scrape::new(&["a", "b"].map(telemetry).into_iter().collect());
        let metrics = metrics(&scrape);
        let attributes = |name: &str, kind: &str| -> Vec<Value> {
            let metric = metrics.iter().find(|metric| metric["name"] == name);
            let points = metric.unwrap()[kind]["dataPoints"].as_array().unwrap();
            points
                .iter()
                .map(|point| point["attributes"].clone())
                .collect()
        };
        let pipeline = |name: &str| json!([{"key": "pipeline", "value": {"stringValue": name}}]);
        let both = [pipeline("a"), pipeline("b")];
        assert_eq!(attributes("walrelay_ready", "gauge"), both);
        assert_eq!(attributes("walrelay_commit_to_ack", "histogram"), both);
        assert_eq!(attributes("walrelay_build_info", "gauge").len(), 1);
    }
}
