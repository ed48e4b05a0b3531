//! Events of the outbox are posted to an HTTP endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use walrelay_testkit::{Authority, HttpRequest, HttpServer, eventually, lock};

use crate::endpoint::{LISTEN, address, at, get, metric, status};
use crate::page::first_glance;
use crate::rig::{
    NOWHERE, PATIENCE, Rig, assert_has, assert_lacks, done, edit, ends, insert_of, output,
    output_with, refused, said, stdout,
};
use crate::shown::{SINK_DOWN, Views};

/// What a server has got, and the status of its answers.
#[derive(Default)]
struct Got {
    requests: Mutex<Vec<HttpRequest>>,
    status: AtomicU32,
}

impl Got {
    fn bodies(&self) -> Vec<String> {
        let requests = lock(&self.requests);
        let body = |request: &HttpRequest| String::from_utf8(request.body.clone()).expect("text");
        requests.iter().map(body).collect()
    }

    /// The answers from now on.
    fn answer(&self, status: u32) {
        self.status.store(status, Ordering::SeqCst);
    }
}

fn endpoint() -> (HttpServer, Arc<Got>) {
    let got = Arc::<Got>::default();
    got.answer(200);
    let server = {
        let got = Arc::clone(&got);
        HttpServer::start(None, None, move |request| {
            lock(&got.requests).push(request);
            let status = got.status.load(Ordering::SeqCst);
            Some((format!("{status} Status"), String::new()))
        })
    };
    (server, got)
}

/// Writes a configuration whose sink is this server.
fn config(rig: &Rig, server: &HttpServer, more: &str) -> std::path::PathBuf {
    let more = format!(
        "[sink]\nkind = \"http\"\n[sink.http]\nurl = \"{}/hooks/{{topic}}\"\n\
         key_header = \"x-key\"\n{more}",
        server.url()
    );
    rig.config_and(&more)
}

fn arguments(config: &Path) -> &str {
    config.to_str().expect("text")
}

#[test]
fn events_are_posted_in_order_and_again_under_the_same_id_after_a_kill() {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
    let (server, got) = endpoint();
    let config = config(&rig, &server, "");
    let check = output(&["check", "--config", arguments(&config)]);
    let found = String::from_utf8_lossy(&check.stdout).into_owned();
    assert_has(&found, &["http\n", "pass  http-server"]);
    assert!(lock(&got.requests).is_empty(), "check posts nothing");

    let relay = rig.streaming(&config);
    done(&output_with("bookmark create start", &config, &[]));
    insert_of(&db, "order", "a", 0);
    rig.caught_up();
    // The server takes the events and answers with an error, so the relay sends them again.
    got.answer(500);
    let keys = ["a", "b", "c"];
    for number in 1..31 {
        insert_of(&db, "order", keys[number as usize % 3], number);
    }
    eventually(PATIENCE, || lock(&got.requests).len() >= 7);
    relay.kill();
    got.answer(200);
    let relay = rig.streaming(&config);
    rig.caught_up();
    relay.ends_well();

    let requests = lock(&got.requests).clone();
    let ids: BTreeSet<String> = db
        .column("SELECT id::text FROM outbox", &[])
        .into_iter()
        .collect();
    let mut id_of: BTreeMap<Vec<u8>, &str> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut newest: BTreeMap<&str, u32> = BTreeMap::new();
    for request in &requests {
        assert_eq!(request.line, format!("POST /hooks/{}order", rig.prefix));
        let id = request.header("webhook-id").expect("an id");
        assert!(ids.contains(id), "{id} is the id of no row");
        let known = *id_of.entry(request.body.clone()).or_insert(id);
        assert_eq!(known, id, "an event has two ids");
        let body = std::str::from_utf8(&request.body).expect("text");
        let number = body
            .trim_end_matches('}')
            .rsplit(' ')
            .next()
            .expect("a number");
        let number: u32 = number.parse().expect("a number");
        let key = request.header("x-key").expect("a key");
        if seen.insert(number) {
            let before = newest.insert(key, number);
            assert!(
                before < Some(number),
                "{number} of {key} comes behind {before:?}"
            );
        }
    }
    assert_eq!(id_of.len(), 31, "lost: {:?}", got.bodies());

    let replay = "replay --from start --topic-prefix again-";
    done(&output_with(replay, &config, &[]));
    let replayed = lock(&got.requests)[requests.len()..].to_vec();
    let mut ids_again = BTreeSet::new();
    for request in &replayed {
        assert_eq!(
            request.line,
            format!("POST /hooks/again-{}order", rig.prefix)
        );
        ids_again.insert(request.header("webhook-id").expect("an id"));
    }
    let ids: BTreeSet<&str> = id_of.into_values().collect();
    assert_eq!(ids_again, ids, "the events have their ids");
}

/// What is shown of a relay names its own sink.
#[test]
fn nothing_that_is_shown_names_kafka_or_brokers() {
    let rig = Rig::without_broker(18).outbox();
    let (server, _got) = endpoint();
    let config = config(&rig, &server, LISTEN);
    edit(
        &config,
        &format!("[sink.kafka]\n\"bootstrap.servers\" = \"{NOWHERE}\"\n"),
        "",
    );
    let relay = rig.streaming(&config);
    let address = address(&relay);
    insert_of(&rig.db(), "order", "a", 1);
    rig.caught_up();
    let status_of = || stdout(&output_with("status", &config, &[&at(address)]));
    assert_has(&status_of(), &["http ", "1 of 1 endpoints up"]);
    let healthy = status(address);
    assert_eq!(healthy["sink"]["endpoints"][0]["state"], "UP");

    drop(server);
    insert_of(&rig.db(), "order", "a", 2);
    let down = "walrelay_sink_all_endpoints_down";
    eventually(PATIENCE, || metric(address, down) == Some(1.0));
    eventually(PATIENCE, || status_of().contains("0 of 1 endpoints up"));
    let check = said(&output(&["check", "--config", arguments(&config)]));
    assert_has(&check, &["FAIL  http-server"]);
    let mut shown = vec![
        ("status", status_of()),
        ("check", check),
        ("log", relay.log()),
    ];
    for path in ["/", "/api/status", "/metrics", "/readyz"] {
        let (_, body) = get(address, path).expect("an answer");
        shown.push((path, body));
    }
    for (what, text) in shown {
        let text = text.to_lowercase();
        let found = text.find("kafka").or_else(|| text.find("broker"));
        let around = found.map(|at| text[..at].chars().rev().take(200).collect::<String>());
        let before = around.map(|text| text.chars().rev().collect::<String>());
        assert_eq!(before, None, "{what} names another sink after this text");
    }
    relay.kill();
}

#[test]
fn an_endpoint_that_refuses_every_event_stops_the_relay() {
    let rig = Rig::with_outbox(15);
    let (server, got) = endpoint();
    let config = config(&rig, &server, "token = \"secret-token\"\n");
    // A constant one: what a row has chosen concerns only the events of that address.
    edit(&config, "/{topic}", "");
    got.answer(401);
    let mut relay = rig.streaming(&config);
    insert_of(&rig.db(), "order", "secret-key", 1);
    let log = ends(&mut relay, 78, "delivery");
    assert_has(&log, &["the server answers 401", "correct token"]);
    assert_lacks(&log, &["secret-token", "secret-key"]);
    let sent = lock(&got.requests).clone();
    assert_eq!(sent[0].header("authorization"), Some("Bearer secret-token"));
}

#[test]
fn a_refused_event_goes_to_the_url_of_dead_letters() {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
    let (server, got) = endpoint();
    let (dead_server, dead) = endpoint();
    let policy = "[poison]\nrejected = \"dead-letter\"\nretry_for = \"1s\"\n";
    let without = config(&rig, &server, policy);
    let out = output(&["check", "--offline", "--config", arguments(&without)]);
    refused(&out, 78, &["sink.http.dead_letter_url"]);
    let url = format!("dead_letter_url = \"{}/dead\"\n{policy}", dead_server.url());
    let config = config(&rig, &server, &url);
    let relay = rig.streaming(&config);
    got.answer(422);
    insert_of(&db, "order", "a", 1);
    eventually(PATIENCE, || !lock(&dead.requests).is_empty());
    got.answer(200);
    insert_of(&db, "order", "a", 2);
    rig.caught_up();
    relay.ends_well();
    let letters = lock(&dead.requests).clone();
    assert_eq!(letters[0].line, "POST /dead");
    let sent = lock(&got.requests).clone();
    assert_eq!(
        letters[0].header("webhook-id"),
        sent[0].header("webhook-id")
    );
    assert_eq!(
        got.bodies().last().map(String::as_str),
        Some("{\"number\": 2}")
    );
    let list = output(&["dlq", "list", "--config", arguments(&config)]);
    refused(&list, 78, &["[dlq-sink]", "cannot read dead letters back"]);
    fs::remove_file(config).expect("the file exists");
}

#[test]
fn columns_of_the_row_are_parts_of_the_url() {
    let rig = Rig::with_outbox(15);
    let db = rig.db();
    let (server, got) = endpoint();
    let with_url = |path: &str| {
        let url = format!("{}/{path}", server.url());
        let more = format!(
            "[sink]\nkind = \"http\"\n[sink.http]\nurl = \"{url}\"\n[poison]\nunroutable = \"skip\"\n"
        );
        rig.config_and(&more)
    };
    let wrong = with_url("{tenant}/{topic}");
    let check = output(&["check", "--config", arguments(&wrong)]);
    refused(&check, 78, &["[column-missing]", "tenant"]);
    let config = with_url("{aggregatetype | upper}/{topic}/{aggregateid}");
    let relay = rig.streaming(&config);
    for (key, number) in [("a/ü", 1), ("..", 2), ("b", 3)] {
        insert_of(&db, "order", key, number);
    }
    rig.caught_up();
    relay.ends_well();
    // The keys are sent beside one another.
    let requests = lock(&got.requests);
    let lines: BTreeSet<String> = requests.iter().map(|it| it.line.clone()).collect();
    let expected = ["a%2F%C3%BC", "b"].map(|key| format!("POST /ORDER/{}order/{key}", rig.prefix));
    assert_eq!(lines, BTreeSet::from(expected));
}

/// The sinks over rustls have the words for a certificate in common.
#[test]
fn a_certificate_that_has_expired_is_named_and_waited_for() {
    let rig = Rig::with_outbox(18);
    let authority = Authority::new("ca");
    fs::write(rig.path("ca.pem"), authority.pem()).expect("written");
    let taken = |_| Some(("200 OK".to_owned(), String::new()));
    let expired = authority.expired_server("localhost");
    let server = HttpServer::start(None, Some(&expired), taken);
    let more = format!("ca_file = \"{}\"\n{LISTEN}", rig.path("ca.pem").display());
    let config = config(&rig, &server, &more);
    let relay = rig.streaming(&config);
    insert_of(&rig.db(), "order", "a", 1);
    let views = Views::new(&config, &relay);
    let named = format!("the certificate of localhost:{} has expired", server.port());
    let remedy = "give the server a new certificate";
    views.show("blocked", &[&named], remedy, SINK_DOWN);
    let title = format!("HTTP is down: {named}");
    assert_has(&first_glance(address(&relay)), &[&title]);
    relay.kill();
}

/// One topic whose events are not taken has a lag, and the others have none.
#[test]
fn the_lag_of_a_topic_is_shown() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    let is_stuck = Arc::new(AtomicBool::new(true));
    let server = {
        let is_stuck = Arc::clone(&is_stuck);
        HttpServer::start(None, None, move |request| {
            let refused = request.line.ends_with("late") && is_stuck.load(Ordering::SeqCst);
            let status = if refused { "503 Later" } else { "200 OK" };
            Some((status.to_owned(), String::new()))
        })
    };
    let relay = rig.streaming(&config(&rig, &server, LISTEN));
    let at = address(&relay);
    let lag = |kind: &str| {
        let topic = format!("{}{kind}", rig.prefix);
        let status = status(at);
        let topics = status["delivery"]["topics"].as_array().expect("a list");
        let of = topics.iter().find(|of| of["topic"] == topic)?;
        of["lag_seconds"].as_f64()
    };
    insert_of(&db, "late", "a", 1);
    eventually(PATIENCE, || lag("late") > Some(0.0));
    insert_of(&db, "order", "b", 2);
    eventually(PATIENCE, || lag("order") == Some(0.0));
    let before = lag("late");
    eventually(PATIENCE, || lag("late") > before);
    assert_eq!(lag("order"), Some(0.0));
    let line = format!("walrelay_topic_lag_seconds{{topic=\"{}late\"}}", rig.prefix);
    assert!(metric(at, &line) > Some(0.0));
    first_glance(at);
    is_stuck.store(false, Ordering::SeqCst);
    eventually(PATIENCE, || lag("late") == Some(0.0));
    relay.ends_well();
}
