//! OpenTelemetry: metrics and spans, sent to a collector by OTLP over HTTP in its JSON encoding
//! (<https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>).
//!
//! - `metrics`: the metrics of `/metrics`.
//! - `spans`: one span for each batch; a batch is what one confirmed position covers.

mod metrics;
mod spans;

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tracing::warn;
use ureq::Agent;

use crate::Pipelines;
use crate::sections::Otel;
use crate::views::metrics::Scrape;
use walrelay_http_client::{Roots, agent};

/// Timeout of one request to the collector.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The thread that sends metrics and spans to the collector at each interval. Dropping it sends
/// once more and stops the thread.
#[derive(Debug)]
pub struct Exporter {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if the system cannot start a thread.
    pub fn start(config: &Otel, pipelines: Pipelines) -> std::io::Result<Self> {
        let roots = if config.endpoint.starts_with("https:") {
            Roots::System
        } else {
            Roots::None
        };
        let collector = Collector {
            agent: agent(REQUEST_TIMEOUT, roots),
            config: config.clone(),
            pipelines,
        };
        let (stop, stopped) = mpsc::channel::<()>();
        let interval = config.interval;
        let thread = thread::Builder::new()
            .name("otel".to_owned())
            .spawn(move || {
                let mut failing = false;
                loop {
                    let ends = stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout);
                    let exported = collector.export();
                    for pipeline in collector.pipelines.iter() {
                        pipeline.otel_problem(exported.as_ref().err().cloned());
                    }
                    match exported {
                        Ok(()) => failing = false,
                        // Logged once until a request succeeds: the next one includes the same
                        // counters.
                        Err(reason) if !failing => {
                            warn!(
                                reason,
                                "the OpenTelemetry collector does not accept the metrics"
                            );
                            failing = true;
                        }
                        Err(_) => {}
                    }
                    if ends {
                        return;
                    }
                }
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the OpenTelemetry exporter panicked");
        }
    }
}

struct Collector {
    agent: Agent,
    config: Otel,
    pipelines: Pipelines,
}

impl Collector {
    fn export(&self) -> Result<(), String> {
        let only = self.pipelines.only();
        let slot = only.map(|only| ("walrelay.slot", only.slot_name()));
        let process = [
            ("service.name", "walrelay"),
            ("service.version", env!("CARGO_PKG_VERSION")),
        ];
        let resource = json!({"attributes": attributes(process.into_iter().chain(slot))});
        let scope = json!({"name": "walrelay", "version": env!("CARGO_PKG_VERSION")});
        let metrics = metrics::metrics(&Scrape::new(&self.pipelines));
        let body = json!({"resourceMetrics": [
            {"resource": resource, "scopeMetrics": [{"scope": scope, "metrics": metrics}]}]});
        self.post("/v1/metrics", &body)?;
        let taken: Vec<_> = self
            .pipelines
            .iter()
            .map(|pipeline| (pipeline, pipeline.batches.take()))
            .collect();
        let spans: Vec<Value> = taken
            .iter()
            .flat_map(|(pipeline, batches)| {
                let name = only.is_none().then(|| pipeline.name());
                let span = move |batch| spans::span(batch, pipeline.sink_kind(), name);
                batches.iter().map(span)
            })
            .collect();
        if spans.is_empty() {
            return Ok(());
        }
        let body = json!({"resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]});
        let sent = self.post("/v1/traces", &body);
        if sent.is_err() {
            for (pipeline, batches) in taken {
                pipeline.batches.give_back(batches);
            }
        }
        sent
    }

    fn post(&self, path: &str, body: &Value) -> Result<(), String> {
        let url = format!("{}{path}", self.config.endpoint.trim_end_matches('/'));
        let mut request = self
            .agent
            .post(&url)
            .header("Content-Type", "application/json");
        if let Some(token) = &self.config.token {
            let token = token.expose_secret().trim();
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let answer = request.send(body.to_string());
        match answer.map_err(|error| format!("{url}: {error}"))?.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("{url} answered with status {}", status.as_u16())),
        }
    }
}

/// Makes OTLP attributes with string values.
fn attributes<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value {
    let pairs = pairs.into_iter();
    pairs
        .map(|(key, value)| json!({"key": key, "value": {"stringValue": value}}))
        .collect()
}

/// Nanoseconds as a string, as OTLP's JSON encoding has 64-bit numbers.
fn nanos(millis: u64) -> String {
    (u128::from(millis) * 1_000_000).to_string()
}
