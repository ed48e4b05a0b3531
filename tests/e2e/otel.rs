//! What a relay sends to an OpenTelemetry collector.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::Value;

use crate::endpoint::{config, free_address};
use crate::rig::{PATIENCE, Rig};

/// Requests to a collector at this listener: path and body. It refuses the first one.
fn collected(listener: TcpListener) -> Receiver<(String, Value)> {
    let (requests, received) = channel();
    thread::spawn(move || {
        for (number, connection) in listener.incoming().enumerate() {
            let mut reader = BufReader::new(connection.expect("a connection"));
            let mut lines = Vec::new();
            loop {
                let mut line = String::new();
                // A client that keeps the connection has closed it.
                if reader.read_line(&mut line).expect("a line") == 0 || line == "\r\n" {
                    break;
                }
                lines.push(line.trim().to_ascii_lowercase());
            }
            let value = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name));
            let Some(length) = value("content-length: ") else {
                continue;
            };
            assert_eq!(value("content-type: "), Some("application/json"));
            assert_eq!(value("authorization: "), Some("bearer secret"));
            let mut body = vec![0; length.parse().expect("a length")];
            reader.read_exact(&mut body).expect("the body");
            let path = lines[0].split(' ').nth(1).expect("a path").to_owned();
            let status = if number == 0 { "503 Busy" } else { "200 OK" };
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            reader
                .get_mut()
                .write_all(answer.as_bytes())
                .expect("an answer");
            if number > 0
                && requests
                    .send((path, serde_json::from_slice(&body).expect("JSON")))
                    .is_err()
            {
                return;
            }
        }
    });
    received
}

#[test]
fn a_collector_gets_metrics_and_spans() {
    let rig = Rig::with_outbox(18);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let token = rig.path("token");
    std::fs::write(&token, "secret\n").expect("written");
    let requests = collected(listener);
    let more = format!(
        "[otel]\nendpoint = \"{endpoint}\"\ninterval = \"1s\"\ntoken_file = \"{}\"\n",
        token.display()
    );
    let config = config(&rig, &rig.postgres.url(), free_address(), &more);
    let relay = rig.streaming(&config);
    rig.workload().rows(500).run();
    relay.says("collector does not take the metrics");
    rig.caught_up();

    let (mut records, mut in_spans) = (0.0, 0);
    while records < 500.0 || in_spans == 0 {
        let (path, body) = requests.recv_timeout(PATIENCE).expect("a request");
        match &*path {
            "/v1/metrics" => {
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
            "/v1/traces" => {
                let spans = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
                for span in spans.as_array().expect("spans") {
                    let time = |name: &str| -> u64 {
                        span[name]
                            .as_str()
                            .expect("a text")
                            .parse()
                            .expect("a time")
                    };
                    assert!(
                        time("startTimeUnixNano") <= time("endTimeUnixNano"),
                        "{span}"
                    );
                    assert_eq!(span["traceId"].as_str().map(str::len), Some(32));
                    in_spans += 1;
                }
            }
            path => panic!("{path}"),
        }
    }
    rig.verdict().assert_clean();
    relay.ends_well();
}
