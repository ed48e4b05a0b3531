//! The testkit against the real servers it starts.

#![allow(
    clippy::unwrap_used,
    reason = "a test's helpers may panic as the test itself may"
)]

use std::time::{Duration, Instant};

use rdkafka::{
    ClientConfig,
    message::{Header, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, Producer as _},
};
use walrelay_lab::servers::Shutdown;
use walrelay_testkit::{
    ChaosProxy, Committed, Cut, Db, Delivered, Direction, History, Kafka, SlotWatch, Standby,
    Workload, eventually, servers,
};

const LIMIT: Duration = Duration::from_secs(30);

fn producer(bootstrap_servers: &str) -> BaseProducer {
    ClientConfig::new()
        .set("bootstrap.servers", bootstrap_servers)
        .set("enable.idempotence", "true")
        .set("reconnect.backoff.max.ms", "200")
        .create()
        .unwrap()
}

fn produce(producer: &BaseProducer, rows: &[Committed]) {
    for row in rows {
        let headers = OwnedHeaders::new().insert(Header {
            key: "id",
            value: Some(&row.id),
        });
        let record = BaseRecord::to(&row.topic)
            .key(row.key.as_ref().unwrap())
            .payload(row.payload.as_ref().unwrap())
            .headers(headers);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    assert!(delivers(producer, LIMIT));
}

/// Whether all that was sent is reported on within the limit.
fn delivers(producer: &BaseProducer, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while producer.in_flight_count() > 0 && Instant::now() < deadline {
        producer.poll(Duration::from_millis(10));
    }
    producer.in_flight_count() == 0
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

/// Starts, stops, starts: twice in a row, each on data of its own.
fn starts_and_stops(major: u32) {
    for _ in 0..2 {
        let server = servers::postgres(major);
        assert_eq!(server.version().major, major);
        for url in [server.url(), server.url_tcp().unwrap()] {
            let db = Db::connect(&url);
            assert_eq!(db.text("SHOW wal_level").as_deref(), Some("logical"));
            // Killed below, and others elsewhere: nothing of theirs may stay in /dev/shm.
            let memory = db.text("SHOW dynamic_shared_memory_type");
            assert_eq!(memory.as_deref(), Some("mmap"));
            let version: i32 = db.text("SHOW server_version_num").unwrap().parse().unwrap();
            assert_eq!(version / 10_000, i32::try_from(major).unwrap());
        }
        let wrong = server
            .url_tcp_for("postgres", Some("wrong"), "postgres")
            .unwrap();
        let error = Db::try_connect(&wrong).unwrap_err();
        assert_eq!(error.code().unwrap().code(), "28P01");
        Db::connect(&server.url()).batch("CREATE TABLE t (n int); INSERT INTO t VALUES (7)");
        server.stop(Shutdown::Fast).unwrap();
        Db::try_connect(&server.url()).unwrap_err();
        server.start_again().unwrap();
        let db = Db::connect(&server.url());
        assert_eq!(db.text("SELECT n::text FROM t").as_deref(), Some("7"));
        // Killed with a session open, whose process notices in its own time.
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

/// A standby follows, has no slot of its primary's, and takes over at an address that moves.
fn standby_takes_over(major: u32) {
    let primary = servers::postgres(major);
    let db = Db::connect(&primary.url());
    db.batch("CREATE TABLE t (n int); INSERT INTO t VALUES (1)");
    db.batch("SELECT pg_create_logical_replication_slot('relay', 'pgoutput')");
    drop(db);
    let standby = Standby::of(&primary, &[]);
    let proxy = ChaosProxy::start(("127.0.0.1", primary.port()));
    let url = primary.url_tcp().unwrap();
    let at = |port: u16| format!(":{port}/");
    let url = url.replace(&at(primary.port()), &at(proxy.port()));
    let db = Db::connect(&url);
    db.batch("INSERT INTO t VALUES (2)");
    standby.wait_replayed(SlotWatch::new(&url, "relay").wal_end());
    let copy = Db::connect(&standby.server().url());
    assert_eq!(
        copy.text("SELECT sum(n)::text FROM t").as_deref(),
        Some("3")
    );
    let error = copy.try_batch("INSERT INTO t VALUES (3)").unwrap_err();
    assert_eq!(error.code().unwrap().code(), "25006"); // read only
    assert_eq!(
        copy.text("SELECT slot_name::text FROM pg_replication_slots"),
        None
    );

    primary.kill().unwrap();
    standby.promote();
    proxy.lead_to(("127.0.0.1", standby.server().port()));
    for url in [&url, &standby.url_of_both(&primary, "postgres")] {
        eventually(LIMIT, || Db::try_connect(url).is_ok());
        Db::connect(url).batch("INSERT INTO t VALUES (4)");
    }
    assert_eq!(
        copy.text("SELECT sum(n)::text FROM t").as_deref(),
        Some("11")
    );
    eventually(LIMIT, || {
        copy.batch("CHECKPOINT");
        copy.text("SELECT timeline_id::text FROM pg_control_checkpoint()")
            .as_deref()
            == Some("2")
    });
    standby.server().stop(Shutdown::Fast).unwrap();
    standby.server().start_again().unwrap();
    let copy = Db::connect(&standby.server().url());
    assert_eq!(
        copy.text("SELECT pg_is_in_recovery()::text").as_deref(),
        Some("false")
    );
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
    produce(&producer(&bootstrap), &all[..10]);
    let (first, stop) = (kafka.pid().unwrap(), || {
        History::records(&bootstrap, "kept.", 10, LIMIT)
    });
    assert_eq!(ids(&stop()).len(), 10);

    kafka.stop();
    assert_eq!(kafka.pid(), None);
    std::net::TcpStream::connect(&bootstrap).unwrap_err();
    kafka.start_again();
    assert_ne!(kafka.pid(), Some(first));
    assert_eq!(kafka.bootstrap_servers(), bootstrap);
    produce(&producer(&bootstrap), &all[10..20]);

    kafka.kill();
    kafka.start_again();
    let producer = producer(&bootstrap);
    kafka.pause();
    let record = BaseRecord::to("kept.a")
        .key("key")
        .payload("from the pause");
    producer
        .send::<str, str>(record)
        .map_err(|(error, _)| error)
        .unwrap();
    assert!(!delivers(&producer, Duration::from_millis(300)));
    kafka.resume();
    assert!(delivers(&producer, LIMIT));

    let records = History::records(&bootstrap, "kept.", 20, LIMIT);
    let verdict = walrelay_testkit::check(&all[..20], &records);
    assert_eq!(verdict.phantom.len(), 1, "{verdict}"); // the one without an id
    assert!(
        verdict.lost.is_empty() && verdict.reordered.is_empty(),
        "{verdict}"
    );
}

#[test]
fn kafka_without_auto_creation_and_through_a_proxy() {
    let kafka = Kafka::builder().auto_create(false).proxied().start();
    kafka.create_topic("made.b", 1, &[("max.message.bytes", "2000")]);
    let proxy = kafka.proxy();
    let producer = producer(&proxy.address().to_string());
    produce(&producer, &rows("made.b", 0..5));
    // Whoever comes through the proxy is sent through the proxy by the broker's own words.
    assert!(proxy.bytes(Direction::ToServer) > 0 && proxy.accepted() >= 1);
    let before = proxy.accepted();
    proxy.cut(Cut::Reset);
    produce(&producer, &rows("made.b", 5..10));
    assert!(proxy.accepted() > before);

    let record = BaseRecord::to("never.made").key("key").payload("x");
    producer
        .send::<str, str>(record)
        .map_err(|(error, _)| error)
        .unwrap();
    assert!(!delivers(&producer, Duration::from_millis(500))); // nobody made the topic
    let records = History::records(&kafka.bootstrap_servers(), "", 10, LIMIT);
    let verdict = walrelay_testkit::check(&rows("made.b", 0..10), &records);
    verdict.assert_clean();
}

/// Three replicas: a leader that dies is replaced, with two brokers gone nothing is taken, and what
/// was taken is there when they are back.
#[test]
fn kafka_cluster_survives_its_brokers() {
    let cluster = Kafka::builder().start_cluster();
    let bootstrap = cluster.bootstrap_servers();
    cluster.create_topic("three.a", 1, &[]);
    let all = rows("three.a", 0..30);
    let producer = producer(&bootstrap);
    produce(&producer, &all[..10]);

    let first = cluster.leader_of("three.a", 0);
    cluster.kill(first);
    let second = cluster.wait_other_leader("three.a", 0, first);
    produce(&producer, &all[10..20]);
    cluster.kill(second);
    cluster.wait_in_sync_at_most(1);
    let record = BaseRecord::to("three.a").key("key").payload("x");
    producer
        .send::<str, str>(record)
        .map_err(|(error, _)| error)
        .unwrap();
    assert!(
        !delivers(&producer, Duration::from_secs(3)),
        "one replica was enough"
    );
    cluster.start_again(first);
    cluster.start_again(second);
    cluster.wait_in_sync();
    assert!(delivers(&producer, LIMIT));
    produce(&producer, &all[20..]);
    cluster.stop(cluster.leader_of("three.a", 0));

    let records = History::records(&bootstrap, "three.", 30, LIMIT);
    let verdict = walrelay_testkit::check(&all, &records);
    assert_eq!(verdict.phantom.len(), 1, "{verdict}"); // the one without an id
    assert!(
        verdict.lost.is_empty() && verdict.reordered.is_empty(),
        "{verdict}"
    );
}

/// The workload's own rows, produced here as a relay should: the oracle must be content. Then not as
/// it should.
#[test]
fn workload_and_checker() {
    let kafka = Kafka::builder().start();
    let server = servers::postgres(15);
    let plan = Workload::new(&server.url()).rows(3000).keys(20).seed(7);
    let written = plan.run();
    assert!(
        written.rows >= 3000 && written.transactions > 0,
        "{written:?}"
    );
    assert!(
        written.rolled_back > 0 && written.savepoints > 0,
        "{written:?}"
    );
    assert_eq!(written.errors, 0);

    let mut rows = History::committed(&server.url(), "public.outbox", "outbox.event.");
    assert_eq!(rows.len() as u64, written.rows);
    rows.sort_by_key(|row| row.number);
    produce(&producer(&kafka.bootstrap_servers()), &rows);
    let collect = |limit| {
        let kafka = kafka.bootstrap_servers();
        History::collect(
            &server.url(),
            "public.outbox",
            &kafka,
            "outbox.event.",
            limit,
        )
    };
    let history = collect(LIMIT);
    history.check().assert_clean();
    assert_eq!(history.check().duplicates, 0);
    let topics: std::collections::BTreeSet<_> =
        history.records.iter().map(|record| &record.topic).collect();
    assert_eq!(topics.len(), 3);

    // Numbers of a key are without gaps: what was rolled back was given again.
    let mut highest = std::collections::BTreeMap::<_, (i64, i64)>::new();
    for row in &history.committed {
        let (count, top) = highest.entry((&row.topic, &row.key)).or_default();
        *count += 1;
        *top = row.number.max(*top);
    }
    assert!(
        highest.values().all(|(count, top)| count == top),
        "{highest:?}"
    );

    // The same rows again, and two more that nobody sends.
    produce(&producer(&kafka.bootstrap_servers()), &rows);
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
    eventually(LIMIT, || running.written().rows > 200);
    server.stop(Shutdown::Immediate).unwrap();
    server.start_again().unwrap();
    let before = running.written().rows;
    eventually(LIMIT, || running.written().rows > before + 200);
    let written = running.stop();
    assert!(written.errors > 0);
    let rows = History::committed(&server.url(), "outbox", "");
    // Answers to commits may have been lost, commits may not.
    assert!(
        rows.len() as u64 >= written.rows,
        "{} {written:?}",
        rows.len()
    );
}

#[test]
fn a_slot_is_watched() {
    let server = servers::postgres(15);
    let watch = SlotWatch::new(&server.url(), "s");
    assert_eq!(watch.read(), None);
    let db = Db::connect(&server.url());
    db.query(
        "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
        &[],
    );
    let first = watch.read().unwrap();
    assert_eq!(first.active_pid, None);
    db.batch("CREATE TABLE t (n int); INSERT INTO t SELECT generate_series(1, 1000)");
    let end = watch.wal_end();
    assert!(first.confirmed_flush < end && first.restart <= first.confirmed_flush);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        watch.wait_until(end, Duration::from_millis(50));
    }));
    assert!(caught.is_err());
    db.query(
        &format!("SELECT pg_replication_slot_advance('s', '{end}')"),
        &[],
    );
    watch.wait_until(end, LIMIT);
}

#[tokio::test]
async fn blocking_helpers_work_inside_a_runtime() {
    let server = servers::any_postgres(15);
    // Through a proxy, if it is reached by TCP at all.
    if let Some(own) = server.own() {
        let proxy = ChaosProxy::start(("127.0.0.1", own.port()));
        let through = own
            .url_tcp()
            .unwrap()
            .replace(&own.port().to_string(), &proxy.port().to_string());
        let db = Db::connect(&through);
        assert_eq!(db.text("SELECT 'here'").as_deref(), Some("here"));
        proxy.cut(Cut::Reset);
        db.try_batch("SELECT 1").unwrap_err();
    }
    assert_eq!(
        Db::connect(server.url()).text("SELECT 'x'").as_deref(),
        Some("x")
    );
}
