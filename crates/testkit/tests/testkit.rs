//! Tests of the testkit with the real servers that it starts.

#![allow(
    clippy::unwrap_used,
    reason = "a test's helpers may panic as the test itself may"
)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use walrelay_testkit::{
    ChaosProxy, Committed, Cut, Db, Delivered, Direction, History, HttpServer, Kafka, PATIENCE,
    Producer, SlotWatch, Standby, Workload, eventually, servers,
};
use walrelay_throwaway::Shutdown;

fn produce(producer: &Producer, rows: &[Committed]) {
    producer.send_rows(rows);
    assert!(producer.delivers(PATIENCE));
}

/// Sends a record without an id.
fn send(producer: &Producer, topic: &str) {
    producer.send(topic, Some(b"key"), Some(b"without an id"), &[]);
}

/// Asserts that all rows arrived in order, with one record more, which has no id.
#[track_caller]
fn one_phantom(rows: &[Committed], records: &[Delivered]) {
    let verdict = walrelay_testkit::check(rows, records);
    assert_eq!(verdict.phantom.len(), 1, "{verdict}");
    let complete = verdict.lost.is_empty() && verdict.reordered.is_empty();
    assert!(complete, "{verdict}");
}

fn rows(topic: &str, numbers: std::ops::Range<i64>) -> Vec<Committed> {
    numbers
        .map(|number| Committed {
            id: format!("id-{number}"),
            topic: topic.to_owned(),
            key: Some(b"key".to_vec()),
            number,
            payload: Some(format!("{{\"number\": {number}}}").into()),
        })
        .collect()
}

fn ids(records: &[Delivered]) -> Vec<&str> {
    records
        .iter()
        .map(|record| record.id.as_deref().unwrap())
        .collect()
}

/// Starts, stops and starts a server, twice, each with data of its own.
fn starts_and_stops(major: u32) {
    for _ in 0..2 {
        let server = servers::postgres(major);
        assert_eq!(server.version().major, major);
        for url in [server.url(), server.url_tcp()] {
            let db = Db::connect(&url);
            assert_eq!(db.text("SHOW wal_level").as_deref(), Some("logical"));
            // The servers are killed, here and elsewhere, so they must leave nothing in /dev/shm.
            let memory = db.text("SHOW dynamic_shared_memory_type");
            assert_eq!(memory.as_deref(), Some("mmap"));
            let version: i32 = db.text("SHOW server_version_num").unwrap().parse().unwrap();
            assert_eq!(version / 10_000, i32::try_from(major).unwrap());
        }
        let wrong = server.url_tcp_for("postgres", Some("wrong"), "postgres");
        let error = Db::try_connect(&wrong).unwrap_err();
        assert_eq!(error.code().unwrap().code(), "28P01");
        Db::connect(&server.url()).batch("CREATE TABLE t (n int); INSERT INTO t VALUES (7)");
        server.stop(Shutdown::Fast).unwrap();
        Db::try_connect(&server.url()).unwrap_err();
        server.start_again().unwrap();
        let db = Db::connect(&server.url());
        assert_eq!(db.text("SELECT n::text FROM t").as_deref(), Some("7"));
        // Kill the server while a session is open, whose process notices that later.
        server.kill().unwrap();
        server.start_again().unwrap();
        let db = Db::connect(&server.url());
        assert_eq!(db.text("SELECT n::text FROM t").as_deref(), Some("7"));
    }
}

#[test]
fn postgres_15_starts_and_stops() {
    starts_and_stops(15);
}

#[test]
fn postgres_18_starts_and_stops() {
    starts_and_stops(18);
}

/// A standby follows, has no slot of its primary, and takes over behind an address that moves.
fn standby_takes_over(major: u32) {
    let primary = servers::postgres(major);
    let db = Db::connect(&primary.url());
    db.batch("CREATE TABLE t (n int); INSERT INTO t VALUES (1)");
    db.batch("SELECT pg_create_logical_replication_slot('relay', 'pgoutput')");
    drop(db);
    let standby = Standby::start(&primary, &[]);
    let proxy = ChaosProxy::start(("127.0.0.1", primary.port()));
    let at = |port: u16| format!(":{port}/");
    let url = primary.url_tcp();
    let url = url.replace(&at(primary.port()), &at(proxy.port()));
    let db = Db::connect(&url);
    db.batch("INSERT INTO t VALUES (2)");
    standby.wait_replayed(SlotWatch::new(&url, "relay").wal_end());
    let copy = Db::connect(&standby.server.url());
    let sum = || copy.value::<i64>("SELECT sum(n) FROM t");
    assert_eq!(sum(), 3);
    let error = copy.try_batch("INSERT INTO t VALUES (3)").unwrap_err();
    assert_eq!(error.code().unwrap().code(), "25006"); // read only
    let slots = copy.query("SELECT FROM pg_replication_slots", &[]);
    assert!(slots.is_empty());

    primary.kill().unwrap();
    standby.promote();
    proxy.lead_to(("127.0.0.1", standby.server.port()));
    for url in [&url, &standby.url_of_both(&primary, "postgres")] {
        eventually(PATIENCE, || Db::try_connect(url).is_ok());
        Db::connect(url).batch("INSERT INTO t VALUES (4)");
    }
    assert_eq!(sum(), 11);
    eventually(PATIENCE, || {
        copy.batch("CHECKPOINT");
        copy.value::<i32>("SELECT timeline_id FROM pg_control_checkpoint()") == 2
    });
    standby.server.stop(Shutdown::Fast).unwrap();
    standby.server.start_again().unwrap();
    let copy = Db::connect(&standby.server.url());
    assert!(!copy.value::<bool>("SELECT pg_is_in_recovery()"));
}

#[test]
fn standby_of_postgres_15_takes_over() {
    standby_takes_over(15);
}

#[test]
fn standby_of_postgres_18_takes_over() {
    standby_takes_over(18);
}

#[test]
fn kafka_keeps_its_data_and_ports() {
    let kafka = Kafka::builder().partitions(2).start();
    let bootstrap = kafka.bootstrap_servers();
    let all = rows("kept.a", 0..30);
    produce(&Producer::new(&bootstrap), &all[..10]);
    let first = kafka.pid().unwrap();
    let records = History::records(&bootstrap, "kept.", 10, PATIENCE);
    assert_eq!(ids(&records).len(), 10);

    kafka.stop();
    assert_eq!(kafka.pid(), None);
    TcpStream::connect(&bootstrap).unwrap_err();
    kafka.start_again();
    assert_ne!(kafka.pid(), Some(first));
    assert_eq!(kafka.bootstrap_servers(), bootstrap);
    produce(&Producer::new(&bootstrap), &all[10..20]);

    kafka.kill();
    kafka.start_again();
    let producer = Producer::new(&bootstrap);
    kafka.pause();
    send(&producer, "kept.a");
    assert!(!producer.delivers(Duration::from_millis(300)));
    kafka.resume();
    assert!(producer.delivers(PATIENCE));

    let records = History::records(&bootstrap, "kept.", 20, PATIENCE);
    one_phantom(&all[..20], &records);
}

#[test]
fn kafka_without_auto_creation_and_through_a_proxy() {
    let kafka = Kafka::builder().without_auto_create().proxied().start();
    kafka.create_topic("made.b", 1, &[("max.message.bytes", "2000")]);
    let proxy = kafka.proxy();
    let producer = Producer::new(&proxy.address().to_string());
    produce(&producer, &rows("made.b", 0..5));
    // The broker advertises the proxy to clients that come through the proxy.
    assert!(proxy.bytes(Direction::ToServer) > 0 && proxy.accepted() >= 1);
    let before = proxy.accepted();
    proxy.cut(Cut::Reset);
    produce(&producer, &rows("made.b", 5..10));
    assert!(proxy.accepted() > before);

    send(&producer, "never.made");
    assert!(!producer.delivers(Duration::from_millis(500))); // the topic does not exist
    let records = History::records(&kafka.bootstrap_servers(), "", 10, PATIENCE);
    let verdict = walrelay_testkit::check(&rows("made.b", 0..10), &records);
    verdict.assert_clean();
}

/// With three replicas, a dead leader is replaced; with two brokers gone, nothing is accepted; and
/// what was accepted is there when they are back.
#[test]
fn kafka_cluster_survives_its_brokers() {
    let cluster = Kafka::builder().start_cluster();
    let bootstrap = cluster.bootstrap_servers();
    cluster.create_topic("three.a", 1, &[]);
    let all = rows("three.a", 0..30);
    let producer = Producer::new(&bootstrap);
    produce(&producer, &all[..10]);

    let first = cluster.leader_of("three.a", 0);
    cluster.kill(first);
    let second = cluster.wait_other_leader("three.a", 0, first);
    produce(&producer, &all[10..20]);
    cluster.kill(second);
    cluster.wait_in_sync_at_most(1);
    send(&producer, "three.a");
    let accepted = producer.delivers(Duration::from_secs(3));
    assert!(!accepted, "one replica was enough");
    cluster.start_again(first);
    cluster.start_again(second);
    cluster.wait_in_sync();
    assert!(producer.delivers(PATIENCE));
    produce(&producer, &all[20..]);
    cluster.stop(cluster.leader_of("three.a", 0));

    let records = History::records(&bootstrap, "three.", 30, PATIENCE);
    one_phantom(&all, &records);
}

/// The test sends the workload's rows as a relay should: the checker finds nothing. Then it sends
/// them wrongly, and the checker does.
#[test]
fn workload_and_checker() {
    let kafka = Kafka::builder().start();
    let server = servers::postgres(15);
    let plan = Workload::new(&server.url()).rows(3000).keys(20).seed(7);
    let written = plan.run();
    assert!(written.rows >= 3000, "{written:?}");
    for count in [
        written.transactions,
        written.rolled_back,
        written.savepoints,
    ] {
        assert!(count > 0, "{written:?}");
    }
    assert_eq!(written.errors, 0);

    let mut rows = History::committed(&server.url(), "public.outbox", "outbox.event.");
    assert_eq!(rows.len() as u64, written.rows);
    rows.sort_by_key(|row| row.number);
    produce(&Producer::new(&kafka.bootstrap_servers()), &rows);
    let (url, brokers) = (server.url(), kafka.bootstrap_servers());
    let collect = |limit| History::collect(&url, "public.outbox", &brokers, "outbox.event.", limit);
    let history = collect(PATIENCE);
    history.check().assert_nothing_repeated();
    let topics: std::collections::BTreeSet<_> =
        history.records.iter().map(|record| &record.topic).collect();
    assert_eq!(topics.len(), 3);

    // Numbers of a key have no gaps: a number that was rolled back is assigned again.
    let mut highest = std::collections::BTreeMap::<_, (i64, i64)>::new();
    for row in &history.committed {
        let (count, top) = highest.entry((&row.topic, &row.key)).or_default();
        *count += 1;
        *top = row.number.max(*top);
    }
    let no_gaps = highest.values().all(|(count, top)| count == top);
    assert!(no_gaps, "{highest:?}");

    // Send the same rows again, and write two more rows that nobody sends.
    produce(&Producer::new(&kafka.bootstrap_servers()), &rows);
    let db = Db::connect(&server.url());
    for number in [1_000_001, 1_000_002] {
        db.batch(&format!(
            "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'key-1', 'x', '{{\"number\": {number}}}')"
        ));
    }
    let verdict = collect(Duration::from_secs(1)).check();
    assert_eq!(verdict.lost.len(), 2, "{verdict}");
    assert_eq!(verdict.duplicates, rows.len());
}

#[test]
fn the_workload_outlives_a_restart_of_the_server() {
    let server = servers::postgres(18);
    let plan = Workload::new(&server.url()).writers(3).rate(2000.0);
    plan.create_tables();
    let running = plan.start();
    eventually(PATIENCE, || running.written().rows > 200);
    server.stop(Shutdown::Immediate).unwrap();
    server.start_again().unwrap();
    let before = running.written().rows;
    eventually(PATIENCE, || running.written().rows > before + 200);
    let written = running.stop();
    assert!(written.errors > 0);
    let rows = History::committed(&server.url(), "outbox", "");
    // Responses to commits may be lost, commits may not.
    let count = rows.len() as u64;
    assert!(count >= written.rows, "{count} {written:?}");
}

#[test]
fn a_slot_is_watched() {
    let server = servers::postgres(15);
    let watch = SlotWatch::new(&server.url(), "s");
    assert_eq!(watch.read(), None);
    let db = Db::connect(&server.url());
    db.batch("SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
    let first = watch.read().unwrap();
    assert_eq!(first.active_pid, None);
    db.batch("CREATE TABLE t (n int); INSERT INTO t SELECT generate_series(1, 1000)");
    let end = watch.wal_end();
    assert!(first.confirmed_flush < end && first.restart <= first.confirmed_flush);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        watch.wait_until(end, Duration::ZERO);
    }));
    assert!(caught.is_err());
    db.batch(&format!("SELECT pg_replication_slot_advance('s', '{end}')"));
    watch.wait_until(end, PATIENCE);
}

#[test]
#[should_panic(expected = "an answer of the HTTP server panicked")]
fn a_server_whose_answer_panics_fails_its_test() {
    let server = HttpServer::start(None, None, |_| panic!("as it must"));
    let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "it is closed");
}

#[tokio::test]
async fn blocking_helpers_work_inside_a_runtime() {
    let (url, own) = servers::any_postgres(15);
    // Through a proxy, if the test started the server.
    if let Some(own) = &own {
        let proxy = ChaosProxy::start(("127.0.0.1", own.port()));
        let (port, through) = (own.port().to_string(), proxy.port().to_string());
        let db = Db::connect(&own.url_tcp().replace(&port, &through));
        assert_eq!(db.text("SELECT 'here'").as_deref(), Some("here"));
        proxy.cut(Cut::Reset);
        db.try_batch("SELECT 1").unwrap_err();
    }
    let here = Db::connect(&url).text("SELECT 'x'");
    assert_eq!(here.as_deref(), Some("x"));
}
