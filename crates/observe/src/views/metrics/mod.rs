//! Metrics in the OpenMetrics text format, made from the status report at each scrape.
//!
//! `list` has them: `docs/reference/metrics.md` is generated from it, and a test checks that alerts
//! and dashboards name existing metrics only.

mod histograms;
mod list;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::MetricType::{self, Counter};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::Pipelines;
use crate::Telemetry;
use crate::report::StatusReport;
use crate::state::latencies::Buckets;

pub(super) use histograms::{HISTOGRAMS, Histogram};
use list::{BUILD, METRICS, PROCESS};

/// The media type of the OpenMetrics text format.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The labels of a sample.
pub(super) type Labels = Vec<(&'static str, String)>;
/// Labels and value of one sample. A metric without rows has no known value.
pub(super) type Row = (Labels, f64);

/// A metric that is read from the report.
pub(crate) struct Metric {
    /// The name without the prefix, the unit and `_total`.
    name: &'static str,
    pub(super) unit: Option<Unit>,
    /// A counter or a gauge.
    pub(super) kind: MetricType,
    pub(super) help: &'static str,
    pub(super) rows: fn(&StatusReport) -> Vec<Row>,
}

pub(super) const PREFIX: &str = "walrelay";

/// The subject of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// Each pipeline has a value.
    Pipeline,
    /// The process has one value.
    Process,
}

/// Lists all metrics but the histograms, each with its name, which has no unit and no `_total`.
pub(super) fn all() -> impl Iterator<Item = (String, &'static Metric, Subject)> {
    let prefixed = |(metric, subject): (&'static Metric, Subject)| {
        (format!("{PREFIX}_{}", metric.name), metric, subject)
    };
    let of_pipelines = METRICS.iter().map(|metric| (metric, Subject::Pipeline));
    let build = BUILD.iter().map(|metric| (metric, Subject::Process));
    let process = PROCESS.iter();
    of_pipelines
        .chain(build)
        .map(prefixed)
        .chain(process.map(|metric| (metric.name.to_owned(), metric, Subject::Process)))
}

/// The reports of all pipelines at one moment. Samples have the label `pipeline` if there are
/// several.
#[derive(Debug)]
pub(super) struct Scrape {
    pipelines: Pipelines,
    reports: Vec<StatusReport>,
}

impl Scrape {
    /// Takes a report of each pipeline.
    pub(super) fn new(pipelines: &Pipelines) -> Self {
        Self {
            pipelines: pipelines.clone(),
            reports: pipelines.iter().map(|one| one.report()).collect(),
        }
    }

    #[cfg(test)]
    pub(super) fn reports_mut(&mut self) -> &mut [StatusReport] {
        &mut self.reports
    }

    /// Iterates over the pipelines: telemetry, report and label.
    fn each(&self) -> impl Iterator<Item = (&Telemetry, &StatusReport, Labels)> {
        let one = self.pipelines.only().is_some();
        let each = self.pipelines.iter().zip(&self.reports);
        each.map(move |(telemetry, report)| {
            let label = (!one).then(|| ("pipeline", telemetry.name().to_owned()));
            (&**telemetry, report, label.into_iter().collect())
        })
    }

    /// Returns the samples of a metric, each with the report that it is from.
    pub(super) fn rows(&self, metric: &Metric, subject: Subject) -> Vec<(&StatusReport, Row)> {
        if subject == Subject::Process {
            let first = self.reports.first();
            let rows = |report| {
                (metric.rows)(report)
                    .into_iter()
                    .map(move |row| (report, row))
            };
            return first.into_iter().flat_map(rows).collect();
        }
        let rows = self.each().flat_map(|(_, report, label)| {
            let rows = (metric.rows)(report).into_iter();
            rows.map(move |(labels, value)| (report, ([&*label, &*labels].concat(), value)))
        });
        rows.collect()
    }

    /// Returns the buckets of a histogram, each with the report of its pipeline.
    pub(super) fn buckets(&self, histogram: &Histogram) -> Vec<(&StatusReport, Labels, Buckets)> {
        let each = self.each();
        each.map(|(telemetry, report, label)| {
            let labels = [label, (histogram.labels)(telemetry)].concat();
            (report, labels, (histogram.buckets)(telemetry))
        })
        .collect()
    }
}

/// Writes all metrics of a process in the OpenMetrics text format.
pub fn text(pipelines: &Pipelines) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(FromReports(pipelines.clone())));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct FromReports(Pipelines);

impl Collector for FromReports {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let scrape = Scrape::new(&self.0);
        for (name, metric, subject) in all() {
            metric.encode(&name, scrape.rows(metric, subject), &mut encoder)?;
        }
        for histogram in HISTOGRAMS {
            let Histogram { name, help, .. } = histogram;
            let (name, help) = (format!("{PREFIX}_{name}"), format!("{help}."));
            let unit = Some(&histogram.unit);
            let mut encoder =
                encoder.encode_descriptor(&name, &help, unit, MetricType::Histogram)?;
            for (_, label, buckets) in scrape.buckets(&histogram) {
                let (sum, samples) = (buckets.sum, buckets.samples());
                encoder
                    .encode_family(&label)?
                    .encode_histogram::<NoLabelSet>(sum, samples, &buckets.counts, None)?;
            }
        }
        Ok(())
    }
}

impl Metric {
    fn encode(
        &self,
        name: &str,
        rows: Vec<(&StatusReport, Row)>,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result {
        if rows.is_empty() {
            return Ok(());
        }
        let unit = self.unit.as_ref();
        let mut encoder = encoder.encode_descriptor(name, self.help, unit, self.kind)?;
        for (_, (labels, value)) in rows {
            let encoder = encoder.encode_family(&labels)?;
            match self.kind {
                Counter => ConstCounter::new(value).encode(encoder)?,
                _ => ConstGauge::new(value).encode(encoder)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
