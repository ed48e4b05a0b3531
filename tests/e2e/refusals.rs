//! An event that the destination refuses costs no other one a repeat. Judged by what the server has
//! received, which no load disturbs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use walrelay_testkit::{HttpReceiver, Reaction, eventually};

use crate::endpoint::{LISTEN, address, at, metric};
use crate::rig::{PATIENCE, Rig, assert_has, insert_of, output_with, stdout};

/// Writes a configuration whose sink is this server, with a URL of dead letters.
fn config(rig: &Rig, server: &HttpReceiver, path: &str, more: &str) -> PathBuf {
    let host = server.address();
    rig.config_and(&format!(
        "[sink]\nkind = \"http\"\n[sink.http]\nurl = \"http://{host}/{path}\"\n\
         dead_letter_url = \"http://{host}/dead\"\n[poison]\nrejected = \"dead-letter\"\n{more}"
    ))
}

/// Counts how often the server has received each body on paths for which this is true.
fn received(server: &HttpReceiver, is: impl Fn(&str) -> bool) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for request in server.received() {
        if is(&request.path) {
            let body = String::from_utf8(request.body).expect("text");
            *times.entry(body).or_default() += 1;
        }
    }
    times
}

/// Returns the bodies that came more than once.
fn repeated(times: &BTreeMap<String, usize>) -> Vec<&String> {
    let repeated = times.iter().filter(|(_, times)| **times > 1);
    repeated.map(|(body, _)| body).collect()
}

const BAD: &str = "\"bad\"";

/// Ten events of one key are refused, and 400 of 40 other keys are not.
#[test]
fn ten_events_of_a_key_take_one_retry_for_and_repeat_nothing() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    let server = HttpReceiver::start(false, None, |_, received| {
        let is_bad = String::from_utf8_lossy(&received.body).contains(BAD);
        if is_bad && received.path != "/dead" {
            Reaction::Answer(422, Vec::new())
        } else {
            Reaction::Store(200)
        }
    });
    let config = config(
        &rig,
        &server,
        "events",
        &format!("retry_for = \"4s\"\n{LISTEN}"),
    );
    let relay = rig.streaming(&config);
    db.batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         SELECT gen_random_uuid(), 'order', 'k', 'T', jsonb_build_object('bad', i) \
         FROM generate_series(1, 10) i; \
         INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         SELECT gen_random_uuid(), 'order', 'key' || i % 40, 'T', jsonb_build_object('good', i) \
         FROM generate_series(1, 400) i",
    );
    let at_events = |path: &str| path == "/events";
    eventually(PATIENCE, || {
        let times = received(&server, at_events);
        times.keys().filter(|body| !body.contains(BAD)).count() == 400
    });
    let address = address(&relay);
    eventually(PATIENCE, || {
        metric(address, "walrelay_retrying_keys") == Some(1.0)
    });
    let status = stdout(&output_with("status", &config, &[&at(address)]));
    assert_has(
        &status,
        &[
            "sent again",
            "1 keys wait, up to 1 of 1000",
            "the event \"",
            "order\" has been refused for",
            "the server answers 422",
        ],
    );
    rig.caught_up();
    eventually(PATIENCE, || {
        metric(address, "walrelay_retrying_keys") == Some(0.0)
    });
    relay.ends_well();

    let mut times = received(&server, at_events);
    assert_eq!(times.len(), 410);
    assert!(
        times.remove("{\"bad\": 1}") > Some(1),
        "it was tried for a while"
    );
    assert_eq!(repeated(&times), <[&str; 0]>::default());
    let dead = received(&server, |path| path == "/dead");
    assert_eq!(dead.len(), 10);
    assert_eq!(repeated(&dead), <[&str; 0]>::default());
}

/// The address of one tenant is gone, and another one's asks for five minutes.
#[test]
fn a_tenant_whose_address_fails_stops_no_other_one() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    let is_repaired = Arc::new(AtomicBool::new(false));
    let repaired = Arc::clone(&is_repaired);
    let server = HttpReceiver::start(false, None, move |_, received| match &*received.path {
        "/gone" => Reaction::Answer(410, Vec::new()),
        "/later" if !repaired.load(Ordering::SeqCst) => {
            Reaction::Answer(503, vec![("retry-after", "2".to_owned())])
        }
        _ => Reaction::Store(200),
    });
    let config = config(&rig, &server, "{aggregatetype}", "retry_for = \"2s\"\n");
    let relay = rig.streaming(&config);
    let mut number = 0;
    for tenant in ["gone", "later", "a", "b"] {
        for key in 0..50 {
            number += 1;
            insert_of(&db, tenant, &format!("k{key}"), number);
        }
    }
    let is_good = |path: &str| matches!(path, "/a" | "/b");
    eventually(PATIENCE, || received(&server, is_good).len() == 100);
    is_repaired.store(true, Ordering::SeqCst);
    rig.caught_up();
    relay.ends_well();
    let good = received(&server, is_good);
    assert_eq!((good.len(), repeated(&good).len()), (100, 0));
    let dead = received(&server, |path| path == "/dead");
    assert_eq!((dead.len(), repeated(&dead).len()), (50, 0));
    let stored = server.stored();
    assert_eq!(stored.iter().filter(|it| it.path == "/later").count(), 50);
}

/// The connection to Postgres is lost three times inside one transaction.
#[test]
fn a_lost_connection_repeats_nothing_that_the_sink_has_taken() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let server = HttpReceiver::start(false, None, move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        Reaction::Store(200)
    });
    let window = "[delivery]\nmax_in_flight_records = 64\n";
    let config = config(&rig, &server, "events", window);
    let relay = rig.streaming(&config);
    db.batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         SELECT gen_random_uuid(), 'order', 'key' || i % 100, 'T', jsonb_build_object('good', i) \
         FROM generate_series(1, 3000) i",
    );
    for cut in 1..=3 {
        eventually(PATIENCE, || count.load(Ordering::SeqCst) >= cut * 500);
        db.batch("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots");
    }
    rig.caught_up();
    assert!(
        relay.log().contains("trying again"),
        "the connection was lost"
    );
    relay.ends_well();
    let times = received(&server, |_| true);
    assert_eq!((times.len(), repeated(&times).len()), (3_000, 0));
}

/// Delivered events behind one that is sent again for an hour need no room in the window.
#[test]
fn more_events_than_may_be_in_flight_pass_a_refused_one() {
    for (more, most) in [("", 2_000), ("max_unconfirmed_records = 128\n", 127)] {
        let rig = Rig::with_outbox(18);
        let db = rig.db();
        let is_repaired = Arc::new(AtomicBool::new(false));
        let repaired = Arc::clone(&is_repaired);
        let server = HttpReceiver::start(false, None, move |_, received| {
            let is_bad = String::from_utf8_lossy(&received.body).contains(BAD);
            if is_bad && !repaired.load(Ordering::SeqCst) {
                Reaction::Answer(422, Vec::new())
            } else {
                Reaction::Store(200)
            }
        });
        let bounds = format!(
            "retry_for = \"1h\"\n[delivery]\nmax_in_flight_records = 32\nbackoff_max = \"1s\"\n{more}"
        );
        let config = config(&rig, &server, "events", &bounds);
        let relay = rig.streaming(&config);
        db.batch(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
             SELECT gen_random_uuid(), 'order', 'k', 'T', jsonb_build_object('bad', 1); \
             INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
             SELECT gen_random_uuid(), 'order', 'key' || i % 50, 'T', jsonb_build_object('good', i) \
             FROM generate_series(1, 2000) i",
        );
        eventually(PATIENCE, || server.stored().len() >= most);
        is_repaired.store(true, Ordering::SeqCst);
        rig.caught_up();
        relay.ends_well();
        let stored = server.bodies();
        let before = stored.iter().position(|body| body.contains(BAD));
        assert_eq!(before, Some(most), "events that passed the refused one");
        let distinct: BTreeSet<&String> = stored.iter().collect();
        assert_eq!((stored.len(), distinct.len()), (2_001, 2_001));
    }
}

/// A refused tenant's events are larger than the window, by one key or by a hundred, or its server is away.
#[test]
fn large_events_that_wait_leave_room_for_other_tenants() {
    for (keys, answer) in [(1, 422), (100, 422), (100, 503)] {
        let rig = Rig::with_outbox(18);
        let db = rig.db();
        let is_repaired = Arc::new(AtomicBool::new(false));
        let repaired = Arc::clone(&is_repaired);
        let server = HttpReceiver::start(false, None, move |_, received| {
            if received.path == "/bad" && !repaired.load(Ordering::SeqCst) {
                Reaction::Answer(answer, Vec::new())
            } else {
                Reaction::Store(200)
            }
        });
        let bounds = "retry_for = \"1h\"\n[delivery]\nmax_in_flight_bytes = \"1MiB\"\n\
                      max_retrying_bytes = \"40MiB\"\nbackoff_max = \"1s\"\n";
        let config = config(&rig, &server, "{aggregatetype}", bounds);
        let relay = rig.streaming(&config);
        db.batch(&format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
             SELECT gen_random_uuid(), 'bad', 'k' || i % {keys}, 'T', \
             jsonb_build_object('bad', i, 'text', repeat('x', 200000)) FROM generate_series(1, 100) i; \
             INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
             SELECT gen_random_uuid(), 'good', 'k' || i % 50, 'T', jsonb_build_object('good', i) \
             FROM generate_series(1, 1000) i"
        ));
        let good = |path: &str| server.count(|it| it.path == path);
        eventually(PATIENCE, || good("/good") == 1_000);
        assert_eq!(good("/bad"), 0);
        is_repaired.store(true, Ordering::SeqCst);
        rig.caught_up();
        relay.ends_well();
        assert_eq!((good("/bad"), good("/good")), (100, 1_000), "each once");
    }
}
