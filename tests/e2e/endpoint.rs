//! The HTTP endpoint of a relay: what it shows, and that no client holds the relay up.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::Value;
use walrelay_testkit::{Authority, Cut, Issued, Running, eventually, eventually_some, millis_now};

use crate::rig::{
    NOWHERE, PATIENCE, Relay, Rig, assert_has, assert_lacks, insert, output_with, refused,
    run_command, stdout, wait_rows, with_source,
};

/// The section with which a relay serves the endpoint at a free port, which [`address`] returns.
pub(crate) const LISTEN: &str = "\n[http]\nlisten = \"127.0.0.1:0\"\n";

/// The usual configuration with the endpoint at a free port, and more lines.
pub(crate) fn config(rig: &Rig, url: &str, more: &str) -> PathBuf {
    rig.config_with(url, &format!("{LISTEN}{more}"))
}

/// Address of the relay's endpoint, from its log. A relay that is started again has another one.
#[track_caller]
pub(crate) fn address(relay: &Relay) -> SocketAddr {
    let mut found = None;
    relay.until("address of the endpoint", || {
        let log = relay.log();
        let listen = log.split_once("\"listen\":\"");
        let listen = listen.and_then(|(_, rest)| rest.split_once('"'));
        found = listen.and_then(|(address, _)| address.parse().ok());
        found.is_some()
    });
    found.expect("an address")
}

/// The option with which a command asks the relay at this address.
pub(crate) fn at(address: SocketAddr) -> String {
    format!("--set=http.listen={address}")
}

/// Status and body of a GET; `None` if nobody answers.
pub(crate) fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    get_by(address, &address.to_string(), path)
}

/// The same with this header `Host`.
fn get_by(address: SocketAddr, host: &str, path: &str) -> Option<(u16, String)> {
    ask(
        address,
        &format!("GET {path}"),
        &format!("Host: {host}\r\n"),
    )
}

/// Status and body of a request: its method and path, and its headers, each with its line end.
pub(crate) fn ask(address: SocketAddr, what: &str, headers: &str) -> Option<(u16, String)> {
    let mut connection = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    connection.set_read_timeout(Some(PATIENCE)).ok()?;
    let request = format!("{what} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
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
pub(crate) fn metric(address: SocketAddr, line: &str) -> Option<f64> {
    let (_, body) = get(address, "/metrics")?;
    let found = body
        .lines()
        .find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
    found.and_then(|value| value.parse().ok())
}

#[test]
fn the_endpoint_shows_what_a_relay_does() {
    let rig = Rig::with_outbox(18);
    let relay = rig.streaming(&config(&rig, &rig.postgres.url(), ""));
    let address = address(&relay);
    let written = rig.workload().rows(500).run();
    rig.caught_up();
    let (healthy, _) = get(address, "/healthz").expect("an answer");
    let ready = get(address, "/readyz").expect("an answer");
    assert_eq!(healthy, 200);
    assert_eq!(
        (ready.0, &*ready.1),
        (200, r#"{"ready":true,"reason":null}"#)
    );
    // The relay reads the state of the slot every five seconds, sends a status update every second,
    // and has a lag while it does not get to run.
    let report = eventually_some(PATIENCE, || {
        let report = status(address);
        let idle = report["slot"]["active"] == true
            && report["delivery"]["in_flight_records"] == 0
            && report["source"]["lag_seconds"] == 0.0
            && report["kafka"]["brokers"][0]["state"] == "UP";
        idle.then_some(report)
    });
    let topics = report["delivery"]["topics"].as_array().expect("a list");
    let delivered = topics
        .iter()
        .filter_map(|topic| topic["delivered"].as_u64());
    let delivered: u64 = delivered.sum();
    assert_eq!(delivered, written.rows, "{report:#}");
    assert_eq!(report["delivery"]["records"], written.rows);
    let p99 = &report["latency"]["commit_to_ack"]["p99_ms"];
    assert!(p99.as_f64().expect("a figure") > 0.0);
    let config = report["config"].to_string();
    assert_has(&config, &["\"source.slot\",\"walrelay\"", "redacted"]);
    let password = rig.postgres.superuser_password();
    assert_lacks(&report.to_string(), &[password]);
    assert!(metric(address, "walrelay_commit_to_ack_seconds_count").expect("a figure") >= 1.0);
    eventually(PATIENCE, || {
        metric(address, "walrelay_lag_seconds") == Some(0.0)
    });
    // The history has whole seconds.
    eventually(PATIENCE, || {
        let history = document(address, "/api/history");
        let seconds = history["samples"].as_array().expect("a list");
        let records = seconds.iter().filter_map(|second| second[1].as_f64());
        records.sum::<f64>() > 0.0
    });
    relay.ends_well();
}

/// The document of `walrelay status`, once the relay at this address answers it.
///
/// The endpoint's thread has a low priority. On a busy machine its answer may take longer than the
/// command waits, and the command reads the slot instead.
fn status_from_relay(config: &Path, address: SocketAddr) -> Value {
    eventually_some(PATIENCE, || {
        let output = output_with("status", config, &[&at(address), "--output", "json"]);
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        json["relay"].is_object().then_some(json)
    })
}

#[test]
fn status_asks_the_relay_or_else_postgres() {
    let rig = Rig::with_outbox(18);
    let config = config(&rig, &rig.postgres.url(), "");
    let relay = rig.streaming(&config);
    let address = address(&relay);
    let shown = |more: &[&str]| stdout(&output_with("status", &config, more));
    let parts = [
        "relay          streaming",
        "in flight      0 of 65536 records",
        "brokers up",
    ];
    eventually(PATIENCE, || {
        let text = shown(&[&at(address)]);
        parts.iter().all(|part| text.contains(part))
    });
    let json = status_from_relay(&config, address);
    assert_eq!(json["relay"]["ready"], true, "{json:#}");
    relay.ends_well();
    // Another process may have the port of the relay by now.
    let nowhere = at(NOWHERE.parse().expect("an address"));
    eventually(PATIENCE, || rig.slot().reader().is_none());
    let text = shown(&[&nowhere]);
    let parts = [
        "relay          not asked: ",
        "slot           walrelay: not read",
    ];
    assert_has(&text, &parts);
    let json: Value = serde_json::from_str(&shown(&[&nowhere, "--output", "json"])).expect("JSON");
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
    let (proxy, url) = rig.proxy();
    let relay = rig.streaming(&config(&rig, &url, ""));
    let address = address(&relay);
    eventually(PATIENCE, || {
        metric(address, "walrelay_lag_seconds") == Some(0.0)
    });
    proxy.refuse(true);
    proxy.cut(Cut::Reset);
    insert(&rig.db(), 1);
    let lag = || metric(address, "walrelay_lag_seconds");
    // Between two waits, the relay tries to connect.
    eventually(PATIENCE, || {
        let (status, reason) = get(address, "/readyz").expect("an answer");
        status == 503 && reason.contains("waiting to retry")
    });
    eventually(PATIENCE, || lag() > Some(3.0));
    let reconnects = metric(address, "walrelay_reconnects_total{cause=\"connection\"}");
    assert!(reconnects >= Some(1.0));
    proxy.refuse(false);
    eventually(PATIENCE, || lag() == Some(0.0));
    relay.ends_well();
}

/// A site whose name leads to the endpoint sees metrics and health, and nothing of the configuration.
#[test]
fn another_name_gets_no_status_without_a_token() {
    let rig = Rig::with_outbox(18);
    let config = config(&rig, &rig.postgres.url(), "hosts = [\"relay.internal\"]\n");
    let relay = rig.streaming(&config);
    let address = address(&relay);
    let by = |host: &str, path: &str| get_by(address, host, path).expect("an answer");
    for path in ["/", "/api/status", "/api/history", "/api/events"] {
        let (status, body) = by("evil.example", path);
        assert_eq!(status, 403, "{path}: {body}");
        assert_has(&body, &["http.hosts", "http.token_file"]);
    }
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(by("evil.example", path).0, 200, "{path}");
    }
    for host in ["localhost", "relay.internal:80"] {
        assert_eq!(by(host, "/api/status").0, 200, "{host}");
    }
    relay.ends_well();
}

/// The minutes that an earlier relay has noted beside the state file are part of the history.
#[test]
fn minutes_of_before_the_start_are_shown() {
    let rig = Rig::with_outbox(18);
    let config = config(&rig, &rig.postgres.url(), "");
    let config = with_source(config, "state_file = \"position\"");
    let minute = millis_now() - 600_000;
    let noted = format!(
        "{{\"version\":1,\"slot\":\"walrelay\",\"minutes\":[[{minute},7.0,1.5,null,0.25]]}}"
    );
    std::fs::write(rig.path("position.history"), noted).expect("written");
    let relay = rig.streaming(&config);
    let history = document(address(&relay), "/api/history");
    assert_eq!(
        history["minutes"][0],
        serde_json::json!([minute, 7.0, 1.5, null, 0.25]),
        "{history:#}"
    );
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
    let more = "token_file = \"token\"\n[http.tls]\ncertificate_file = \"tls.crt\"\nkey_file = \"tls.key\"\n";
    let config = config(&rig, &rig.postgres.url(), more);
    let relay = rig.streaming(&config);
    let address = address(&relay);
    assert_eq!(get(address, "/healthz"), None, "this is no HTTPS");
    let json = status_from_relay(&config, address);
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
/// `before`, which become the current counts. Waits until the endpoint answers.
fn p99(address: SocketAddr, before: &mut Vec<f64>) -> f64 {
    let (_, body) = eventually_some(PATIENCE, || get(address, "/metrics"));
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
    *before = counts;
    buckets[at].0 * 1e3
}

/// Opens hostile connections until `done`, and counts them: slow ones that never end their request,
/// and some that send an endless header.
fn hammer(address: SocketAddr, done: &AtomicBool, connections: &AtomicU64) {
    let mut slow = Vec::new();
    while !done.load(Relaxed) {
        let Ok(mut connection) = TcpStream::connect_timeout(&address, Duration::from_secs(1))
        else {
            continue;
        };
        connection
            .set_write_timeout(Some(PATIENCE))
            .expect("a timeout");
        let endless = connections.fetch_add(1, Relaxed) % 100 == 99;
        let _ = connection.write_all(b"GET /metrics HTTP/1.1\r\nX: ");
        if endless {
            // Until the endpoint closes the connection, which it does after 16 KiB.
            let chunk = vec![b'x'; 1 << 16];
            let mut sent = 0_u64;
            while sent < 1 << 30 && connection.write_all(&chunk).is_ok() {
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
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Follows the page's stream of figures, as three browsers do, until `done`. Returns how many bytes came.
fn follow_pages(address: SocketAddr, done: &AtomicBool) -> usize {
    let open = || {
        let mut page = TcpStream::connect(address).expect("it listens");
        let request = "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
        page.write_all(request.as_bytes()).expect("a request");
        let timeout = Some(Duration::from_millis(50));
        page.set_read_timeout(timeout)
            .expect("an option of a socket");
        page
    };
    let mut pages = [open(), open(), open()];
    let (mut bytes, mut read) = (vec![0; 1 << 16], 0);
    while !done.load(Relaxed) {
        for page in &mut pages {
            // The endpoint gives a connection up where there are too many.
            match page.read(&mut bytes) {
                Ok(0) => *page = open(),
                Ok(length) => read += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => *page = open(),
            }
        }
    }
    read
}

/// Writes rows beside at least this many hostile connections, and an open page.
fn load_and_hammer(load: &Running, rows: u64, address: SocketAddr, at_least: u64) -> u64 {
    let (done, connections) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Also if a wait below fails: the scope waits for the thread.
        let _stop = SetWhenDropped(&done);
        let following = scope.spawn(|| follow_pages(address, &done));
        let hammering = scope.spawn(|| hammer(address, &done, &connections));
        wait_rows(load, rows);
        let hammered = || hammering.is_finished() || connections.load(Relaxed) >= at_least;
        eventually(PATIENCE, hammered);
        done.store(true, Relaxed);
        assert!(following.join().expect("pages") > 0, "no figures came");
    });
    connections.into_inner()
}

/// Rounds with and without hostile connections and open pages take turns, so that both have the same machine. The
/// best round with them is compared with the worst one without: a relay that waited for a client
/// would be seconds late in each.
#[test]
fn a_hostile_client_does_not_delay_events() {
    let rig = Rig::with_outbox(18);
    let relay = rig.streaming(&config(&rig, &rig.postgres.url(), ""));
    let address = address(&relay);
    let load = rig.workload().rate(200.0).start();
    wait_rows(&load, 200);
    let mut counts = Vec::new();
    p99(address, &mut counts);
    let (mut quiet, mut hammered, mut connections) = (0.0_f64, f64::INFINITY, 0);
    eventually(PATIENCE, || {
        wait_rows(&load, 400);
        quiet = quiet.max(p99(address, &mut counts));
        connections += load_and_hammer(&load, 400, address, 300);
        hammered = hammered.min(p99(address, &mut counts));
        eprintln!(
            "commit to acknowledgement p99: at most {quiet} ms without, {hammered} ms with {connections} hostile connections"
        );
        // The bounds of the buckets double: two buckets are noise.
        connections > 500 && hammered <= (quiet * 4.0).max(64.0)
    });
    load.stop();
    rig.finish(relay).assert_clean();
}

/// Clients that read no answer lose their connections in seconds, and probes are answered all the
/// time. Rows are relayed meanwhile.
#[test]
fn clients_that_hold_the_endpoint_do_not_hold_up_events() {
    let rig = Rig::with_outbox(18);
    let relay = rig.streaming(&config(&rig, &rig.postgres.url(), ""));
    let address = address(&relay);
    // The answers are more than the buffers of the system hold.
    let requests = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(400);
    for count in [64, 90] {
        let ask = || {
            let mut client = TcpStream::connect(address).expect("it listens");
            // The endpoint may have closed the connection already.
            let _ = client.write_all(requests.as_bytes());
            client.set_nonblocking(true).expect("an option of a socket");
            client
        };
        let mut held: Vec<TcpStream> = (0..count).map(|_| ask()).collect();
        let mut slowest = Duration::ZERO;
        for path in ["/healthz", "/readyz", "/metrics"].repeat(10) {
            let asked = Instant::now();
            let (status, _) = get(address, path).expect("an answer to a probe");
            slowest = slowest.max(asked.elapsed());
            assert_eq!(status, 200, "{path}");
        }
        eprintln!(
            "{count} clients that read nothing: the slowest of 30 probes took {slowest:?}; the relay had {} MiB at most",
            relay.peak_memory()
        );
        rig.workload().rows(500).seed(count).run();
        rig.caught_up();
        eventually(PATIENCE, || {
            held.retain_mut(|client| {
                let sent = client.write(b"GET ");
                sent.map_or_else(|error| error.kind() == ErrorKind::WouldBlock, |_| true)
            });
            held.is_empty()
        });
    }
    rig.finish(relay).assert_clean();
}

/// Clients that ask for more connections than the process has file descriptors leave it enough to
/// reconnect.
#[test]
fn clients_leave_descriptors_for_a_reconnect() {
    let rig = Rig::with_outbox(18);
    let (proxy, url) = rig.proxy();
    let run = run_command(&config(&rig, &url, ""));
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
        .arg(run.get_program())
        .args(run.get_args())
        .env_remove("WALRELAY_CONFIG");
    let relay = Relay::spawn(&mut limited, &rig.path("limited.log"));
    relay.streaming();
    let address = address(&relay);
    // A client whose connection was closed asks again, as a browser does.
    let requests = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(400);
    let ask = || {
        let mut client = TcpStream::connect(address).expect("it listens");
        let _ = client.write_all(requests.as_bytes());
        client
    };
    let mut clients: Vec<TcpStream> = (0..90).map(|_| ask()).collect();
    let streams = relay.streams();
    proxy.cut(Cut::Reset);
    relay.until("another stream", || {
        // Fewer than the backlog of the listener holds: on a busy machine it accepts late.
        if clients.len() < 110 {
            clients.push(ask());
        }
        relay.streams() > streams
    });
    rig.workload().rows(500).run();
    rig.caught_up();
    assert!(get(address, "/healthz").is_some(), "a probe is shut out");
    drop(clients);
    rig.finish(relay).assert_clean();
}

/// An endpoint that cannot be served is an error at the start, before anything is read.
#[test]
fn an_address_that_is_taken_is_an_error() {
    let rig = Rig::with_outbox(18);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let config = config(&rig, &rig.postgres.url(), "");
    let output = output_with("run", &config, &[&at(address)]);
    refused(&output, 78, &["[http-endpoint]", &address.to_string()]);
}
