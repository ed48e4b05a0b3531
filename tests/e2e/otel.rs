//! What a relay sends to an OpenTelemetry collector.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use serde_json::Value;
use walrelay_testkit::{HttpRequest, HttpServer, eventually_some};

use crate::endpoint::{address, config, get, status};
use crate::rig::{NOWHERE, PATIENCE, Rig, assert_has};

/// A collector that refuses the first request for metrics and the first one for spans, the requests
/// that it got, and whether it refused them.
fn collector() -> (HttpServer, Receiver<(HttpRequest, bool)>) {
    let (requests, received) = channel();
    let refuses = [AtomicBool::new(true), AtomicBool::new(true)];
    let server = HttpServer::start(None, None, move |request| {
        let path = usize::from(request.line.starts_with("POST /v1/traces"));
        let refused = refuses[path].swap(false, Ordering::Relaxed);
        // The test may have ended.
        let _ = requests.send((request, refused));
        let status = if refused { "503 Busy" } else { "200 OK" };
        Some((status.to_owned(), String::new()))
    });
    (server, received)
}

#[test]
fn a_collector_that_does_not_answer_is_shown() {
    let rig = Rig::with_outbox(18);
    let more = format!("[otel]\nendpoint = \"http://{NOWHERE}\"\ninterval = \"1s\"\n");
    let configured = config(&rig, &rig.postgres.url(), &more);
    let relay = rig.streaming(&configured);
    let at = address(&relay);
    let title = "The OpenTelemetry collector does not accept the metrics";
    let shown = eventually_some(PATIENCE, || {
        let shown = status(at);
        let problems = shown["problems"].as_array().expect("problems").clone();
        problems
            .into_iter()
            .find(|problem| problem["title"] == title)
    });
    assert_has(&shown["reason"].to_string(), &[NOWHERE, "/v1/metrics"]);
    let (code, text) = get(at, "/readyz").expect("an answer");
    assert_eq!(code, 200, "{text}");
    relay.ends_well();
}

#[test]
fn a_collector_gets_metrics_and_spans() {
    let rig = Rig::with_outbox(18);
    let token = rig.path("token");
    std::fs::write(&token, "secret\n").expect("written");
    let (collector, requests) = collector();
    let until = Instant::now() + PATIENCE;
    let request = || {
        let left = until.saturating_duration_since(Instant::now());
        let (request, refused) = requests.recv_timeout(left).expect("a request");
        assert_eq!(request.header("content-type"), Some("application/json"));
        assert_eq!(request.header("authorization"), Some("Bearer secret"));
        (request, refused)
    };
    let more = format!(
        "[otel]\nendpoint = \"{}\"\ninterval = \"1s\"\ntoken_file = \"{}\"\n",
        collector.url(),
        token.display()
    );
    let config = config(&rig, &rig.postgres.url(), &more);
    let relay = rig.streaming(&config);
    let written = rig.workload().rows(500).run();
    relay.says("collector does not accept the metrics");
    rig.caught_up();

    let (mut records, mut in_spans, mut refusals) = (0.0, 0, 0);
    let rows = f64::from(u32::try_from(written.rows).expect("few"));
    while records < rows || in_spans < written.rows {
        let (request, refused) = request();
        if refused {
            refusals += 1;
            continue;
        }
        let body: Value = serde_json::from_slice(&request.body).expect("JSON");
        match request.line.as_str() {
            "POST /v1/metrics" => {
                let found = &body["resourceMetrics"][0];
                let slot = &found["resource"]["attributes"][2]["value"]["stringValue"];
                assert_eq!(slot, "walrelay");
                let metrics = found["scopeMetrics"][0]["metrics"]
                    .as_array()
                    .expect("metrics");
                let named = |name: &str| metrics.iter().find(|metric| metric["name"] == name);
                let ack = named("walrelay_commit_to_ack").expect("a histogram");
                let counts = &ack["histogram"]["dataPoints"][0]["bucketCounts"];
                let bounds = &ack["histogram"]["dataPoints"][0]["explicitBounds"];
                let length = |list: &Value| list.as_array().expect("a list").len();
                assert_eq!(length(counts), length(bounds) + 1);
                let enqueued = &named("walrelay_enqueued_records").expect("a sum")["sum"];
                assert_eq!(enqueued["isMonotonic"], true);
                records = enqueued["dataPoints"][0]["asDouble"]
                    .as_f64()
                    .expect("a number");
            }
            "POST /v1/traces" => {
                let spans = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
                for span in spans.as_array().expect("spans") {
                    let time = |name: &str| -> u64 {
                        let text = span[name].as_str().expect("a text");
                        text.parse().expect("a time")
                    };
                    let (start, end) = (time("startTimeUnixNano"), time("endTimeUnixNano"));
                    assert!(start <= end, "{span}");
                    assert_eq!(span["traceId"].as_str().map(str::len), Some(32));
                    let count = &span["attributes"][1]["value"]["stringValue"];
                    in_spans += count
                        .as_str()
                        .and_then(|count| count.parse::<u64>().ok())
                        .expect("a count");
                }
            }
            line => panic!("{line}"),
        }
    }
    assert_eq!((in_spans, refusals), (written.rows, 2));
    rig.verdict().assert_clean();
    relay.ends_well();
}
