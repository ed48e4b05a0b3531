//! The HTTP endpoint of a relay: what it shows, and that no client holds the relay up.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::Value;
use walrelay_testkit::{Authority, Cut, Issued, eventually, eventually_some, free_address};

use crate::rig::{
    PATIENCE, Rig, assert_has, assert_lacks, insert, output_with, refused, stdout, wait_rows,
};

/// The usual configuration with the endpoint at this address, and more lines.
pub(crate) fn config(rig: &Rig, url: &str, address: SocketAddr, more: &str) -> PathBuf {
    rig.config_with(url, &format!("\n[http]\nlisten = \"{address}\"\n{more}"))
}

/// Status and body of a GET; `None` if nobody answers.
pub(crate) fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let limit = Duration::from_secs(10);
    let mut connection = TcpStream::connect_timeout(&address, limit).ok()?;
    connection.set_read_timeout(Some(limit)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// The document at a path.
fn document(address: SocketAddr, path: &str) -> Value {
    let (_, body) = get(address, path).expect("an answer");
    serde_json::from_str(&body).expect("JSON")
}

pub(crate) fn status(address: SocketAddr) -> Value {
    document(address, "/api/status")
}

/// Value of the metrics line that begins with `line`.
fn metric(address: SocketAddr, line: &str) -> Option<f64> {
    let (_, body) = get(address, "/metrics")?;
    let found = body
        .lines()
        .find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
    found.and_then(|value| value.parse().ok())
}

#[test]
fn shows_what_a_relay_does() {
    let rig = Rig::with_outbox(18);
    let address = free_address();
    let relay = rig.streaming(&config(&rig, &rig.postgres.url(), address, ""));
    let written = rig.workload().rows(500).run();
    rig.caught_up();
    let (healthy, _) = get(address, "/healthz").expect("an answer");
    let ready = get(address, "/readyz").expect("an answer");
    assert_eq!(healthy, 200);
    assert_eq!(
        (ready.0, &*ready.1),
        (200, r#"{"ready":true,"reason":null}"#)
    );
    // The relay reads the state of the slot every five seconds, and sends a status update every
    // second.
    eventually(PATIENCE, || {
        let report = status(address);
        report["slot"]["active"] == true && report["delivery"]["in_flight_records"] == 0
    });
    let report = status(address);
    let topics = report["delivery"]["topics"].as_array().expect("a list");
    let delivered = topics
        .iter()
        .filter_map(|topic| topic["delivered"].as_u64());
    let delivered: u64 = delivered.sum();
    assert_eq!(delivered, written.rows, "{report:#}");
    assert_eq!(report["source"]["lag_seconds"], 0.0, "{report:#}");
    assert_eq!(report["delivery"]["records"], written.rows);
    let p99 = &report["latency"]["commit_to_ack"]["p99_ms"];
    assert!(p99.as_f64().expect("a figure") > 0.0);
    assert_eq!(report["kafka"]["brokers"][0]["state"], "UP", "{report:#}");
    let config = report["config"].to_string();
    assert_has(&config, &["\"source.slot\",\"walrelay\"", "redacted"]);
    let password = rig.postgres.superuser_password();
    assert_lacks(&report.to_string(), &[password]);
    assert!(metric(address, "walrelay_commit_to_ack_seconds_count").expect("a figure") >= 1.0);
    assert_eq!(metric(address, "walrelay_lag_seconds"), Some(0.0));
    let history = document(address, "/api/history");
    let seconds = history["samples"].as_array().expect("a list");
    let records: f64 = seconds.iter().filter_map(|second| second[1].as_f64()).sum();
    assert!(records > 0.0, "{history}");
    relay.ends_well();
}

/// The document of `walrelay status`, once the relay answers it.
///
/// The endpoint's thread has a low priority. On a busy machine its answer may take longer than the
/// command waits, and the command reads the slot instead.
fn status_from_relay(config: &Path) -> Value {
    eventually_some(PATIENCE, || {
        let output = output_with("status", config, &["--output", "json"]);
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        json["relay"].is_object().then_some(json)
    })
}

#[test]
fn status_asks_the_relay_or_else_postgres() {
    let rig = Rig::with_outbox(18);
    let config = config(&rig, &rig.postgres.url(), free_address(), "");
    let relay = rig.streaming(&config);
    let shown = |more: &[&str]| stdout(&output_with("status", &config, more));
    let text = eventually_some(PATIENCE, || {
        Some(shown(&[])).filter(|text| !text.contains("not asked: "))
    });
    let parts = [
        "relay          streaming",
        "in flight      0 of 65536 records",
        "brokers up",
    ];
    assert_has(&text, &parts);
    let json = status_from_relay(&config);
    assert_eq!(json["relay"]["ready"], true, "{json:#}");
    relay.ends_well();
    let text = shown(&[]);
    let parts = [
        "relay          not asked: ",
        "slot           walrelay: not read",
    ];
    assert_has(&text, &parts);
    let json: Value = serde_json::from_str(&shown(&["--output", "json"])).expect("JSON");
    assert_eq!(
        (&json["relay"], &json["slot"]["active"]),
        (&Value::Null, &Value::Bool(false))
    );
}

/// Postgres cannot be reached, so nothing is read, but the lag grows all the same. Afterwards it is
/// 0 again.
#[test]
fn lag_grows_while_nothing_is_read() {
    let rig = Rig::with_outbox(18);
    let address = free_address();
    let (proxy, url) = rig.proxy();
    let relay = rig.streaming(&config(&rig, &url, address, ""));
    eventually(PATIENCE, || {
        metric(address, "walrelay_lag_seconds") == Some(0.0)
    });
    proxy.refuse(true);
    proxy.cut(Cut::Reset);
    insert(&rig.db(), 1);
    let lag = || metric(address, "walrelay_lag_seconds").unwrap_or_default();
    eventually(PATIENCE, || lag() > 3.0);
    let (status, reason) = get(address, "/readyz").expect("an answer");
    assert_eq!(status, 503);
    assert_has(&reason, &["waiting to retry"]);
    let reconnects = metric(address, "walrelay_reconnects_total{cause=\"connection\"}");
    assert!(reconnects >= Some(1.0));
    proxy.refuse(false);
    eventually(PATIENCE, || lag() == 0.0);
    relay.ends_well();
}

#[test]
fn a_token_and_tls_keep_others_out() {
    let rig = Rig::with_outbox(18);
    let authority = Authority::new("walrelay");
    let Issued { certificate, key } = authority.server("127.0.0.1");
    for (name, text) in [
        ("tls.crt", certificate + &authority.pem()),
        ("tls.key", key),
        ("token", "s3cret".to_owned()),
    ] {
        std::fs::write(rig.path(name), text).expect("written");
    }
    let address = free_address();
    let more = "token_file = \"token\"\n[http.tls]\ncertificate_file = \"tls.crt\"\nkey_file = \"tls.key\"\n";
    let config = config(&rig, &rig.postgres.url(), address, more);
    let relay = rig.streaming(&config);
    assert_eq!(get(address, "/healthz"), None, "this is no HTTPS");
    let json = status_from_relay(&config);
    assert_eq!(json["relay"]["ready"], true, "{json:#}");
    assert_lacks(&relay.ends_well(), &["s3cret"]);
}

/// Latency from commit to acknowledgement since a time: medians of the p50 and p99 of each second,
/// and the p99 of the worst second.
pub(crate) fn latency_since(address: SocketAddr, since_ms: u64) -> String {
    let history = document(address, "/api/history");
    let samples = history["samples"].as_array().expect("samples").iter();
    let samples = samples.filter(|sample| sample[0].as_u64().is_some_and(|at| at >= since_ms));
    let [p50, p99] = [2, 3].map(|column| {
        let values = samples.clone().filter_map(|sample| sample[column].as_f64());
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        values
    });
    let median = |values: &[f64]| values.get(values.len() / 2).copied().unwrap_or_default();
    format!(
        "{} s: p50 {:.1} ms, p99 {:.1} ms, p99 of the worst second {:.1} ms",
        p50.len(),
        median(&p50),
        median(&p99),
        p99.last().copied().unwrap_or_default()
    )
}

/// The 99th percentile of commit to acknowledgement in milliseconds, since the bucket counts in
/// `before`, and the current counts.
fn p99(address: SocketAddr, before: &[f64]) -> (f64, Vec<f64>) {
    let (_, body) = get(address, "/metrics").expect("an answer");
    let prefix = "walrelay_commit_to_ack_seconds_bucket{le=\"";
    let buckets: Vec<(f64, f64)> = body
        .lines()
        .filter_map(|line| line.strip_prefix(prefix)?.split_once("\"} "))
        .filter_map(|(le, count)| {
            Some((le.replace("+Inf", "inf").parse().ok()?, count.parse().ok()?))
        })
        .collect();
    let counts: Vec<f64> = buckets.iter().map(|(_, count)| *count).collect();
    let since = |at: usize| counts[at] - before.get(at).copied().unwrap_or_default();
    let total = since(counts.len() - 1);
    let at = (0..counts.len())
        .find(|at| since(*at) >= 0.99 * total)
        .expect("the last one");
    (buckets[at].0 * 1e3, counts)
}

/// Opens hostile connections until `done`: slow ones that never end their request, and some that
/// send an endless header. Returns their number.
fn hammer(address: SocketAddr, done: &AtomicBool) -> u64 {
    let mut slow = Vec::new();
    let mut connections = 0;
    while !done.load(Relaxed) {
        connections += 1;
        let Ok(mut connection) = TcpStream::connect_timeout(&address, Duration::from_secs(1))
        else {
            continue;
        };
        let endless = connections % 100 == 0;
        let _ = connection.write_all(b"GET /metrics HTTP/1.1\r\nX: ");
        if endless {
            // Until the endpoint closes the connection, which it does after 16 KiB.
            let chunk = vec![b'x'; 1 << 16];
            let begun = Instant::now();
            let mut sent = 0_u64;
            while connection.write_all(&chunk).is_ok() && begun.elapsed() < Duration::from_secs(5) {
                sent += chunk.len() as u64;
            }
            assert!(sent < 1 << 30, "the endpoint read a gigabyte");
        } else {
            slow.push(connection);
            if slow.len() > 500 {
                slow.clear();
            }
        }
    }
    connections
}

#[test]
fn a_hostile_client_does_not_delay_events() {
    let rig = Rig::with_outbox(18);
    let address = free_address();
    let relay = rig.streaming(&config(&rig, &rig.postgres.url(), address, ""));
    let load = rig.workload().rate(200.0).start();
    wait_rows(&load, 200);
    let (_, begun) = p99(address, &[]);
    wait_rows(&load, 800);
    let (quiet, before) = p99(address, &begun);
    let done = AtomicBool::new(false);
    let connections = std::thread::scope(|scope| {
        let hammering = scope.spawn(|| hammer(address, &done));
        wait_rows(&load, 800);
        done.store(true, Relaxed);
        hammering.join().expect("no panic")
    });
    // The endpoint drops slow clients after five seconds.
    let (hammered, _) = eventually_some(PATIENCE, || {
        get(address, "/healthz").filter(|(status, _)| *status == 200)?;
        Some(p99(address, &before))
    });
    eprintln!(
        "commit to acknowledgement p99: at most {quiet} ms without, {hammered} ms with {connections} hostile connections"
    );
    assert!(connections > 500, "{connections}");
    // The bounds of the buckets double. Two buckets are noise on a shared machine; a relay that
    // waited for a client would be seconds late.
    assert!(
        hammered <= (quiet * 4.0).max(64.0),
        "{hammered} ms, {quiet} ms without"
    );
    load.stop();
    rig.finish(relay).assert_clean();
}

/// An endpoint that cannot be served is an error at the start, before anything is read.
#[test]
fn an_address_that_is_taken_is_an_error() {
    let rig = Rig::with_outbox(18);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let config = config(&rig, &rig.postgres.url(), address, "");
    let output = output_with("run", &config, &[]);
    refused(&output, 78, &["[http-endpoint]", &address.to_string()]);
}
