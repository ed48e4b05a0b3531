use std::time::Duration;

use walrelay_testkit::{Db, Delivered, History, Kafka, check, eventually, servers};

use crate::rig::{PATIENCE, Rig, insert};

/// The first line of the formula of docs/OPERATIONS.md, "Memory", in MiB.
const FIXED: u64 = 24;

/// The whole of it, for the default limits. A debug build and its allocator are allowed a quarter more.
fn bound(largest_row: u64, topics: u64) -> u64 {
    let window = 16;
    let formula = FIXED + window.max(largest_row) + largest_row * 5 / 4 + largest_row + topics / 32;
    formula * 5 / 4
}

/// A transaction of a million rows goes through in bounded memory.
#[test]
fn transaction_of_a_million_rows() {
    // Its records are gone with its broker.
    let kafka = Kafka::builder().start();
    let rig = Rig::with(servers::postgres(15), kafka.bootstrap_servers());
    rig.workload().create_tables();
    let relay = rig.relay();
    Db::connect(&rig.postgres.url()).batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-' || k, 'T', \
         jsonb_build_object('number', n, 'text', repeat('x', 100)) \
         FROM generate_series(1, 10000) n, generate_series(0, 99) k",
    );
    rig.caught_up();
    let memory = relay.peak_memory();
    let verdict = rig.verdict();
    eprintln!("1,000,000 rows in one transaction: {memory} MiB at most; {verdict}");
    verdict.assert_clean();
    assert_eq!((verdict.committed, verdict.duplicates), (1_000_000, 0));
    assert!(memory <= bound(1, 1), "{memory} MiB of {}", bound(1, 1));
    relay.ends_well();
}

/// A row beside which the buffers are small, with bytes of every kind of character.
#[test]
fn row_of_a_few_megabytes() {
    let rig = Rig::with_outbox(18);
    let config = rig.config_with(
        &rig.postgres.url(),
        "\"message.max.bytes\" = \"10000000\"\n",
    );
    let topic = format!("{}order", rig.prefix);
    rig.kafka()
        .create_topic(&topic, 1, &[("max.message.bytes", "10000000")]);
    let relay = rig.streaming(&config);
    Db::connect(&rig.postgres.url()).batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-1', 'T', \
         jsonb_build_object('number', n, 'text', repeat('aé漢😀\"\\', 300000)) \
         FROM generate_series(1, 3) n",
    );
    rig.caught_up();
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.committed, 3);
    drop(relay);
}

/// One row of 64 MB amid small ones: held whole, once as it is read and once as it is sent.
#[test]
fn row_of_64_megabytes() {
    const LIMIT: &str = "100000000";
    let kafka = Kafka::builder()
        .setting("message.max.bytes", LIMIT)
        .setting("replica.fetch.max.bytes", LIMIT)
        .setting("socket.request.max.bytes", "200000000")
        .start();
    let rig = Rig::with(servers::postgres(18), kafka.bootstrap_servers());
    rig.workload().create_tables();
    let limit = format!("\"message.max.bytes\" = {LIMIT}\n");
    let relay = rig.streaming(&rig.config_with(&rig.postgres.url(), &limit));
    let row = |number: u32, size: u32| {
        Db::connect(&rig.postgres.url()).batch(&format!(
            "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-1', 'T', \
             jsonb_build_object('number', {number}, 'text', repeat('x', {size}))"
        ));
    };
    row(1, 100);
    row(2, 64_000_000);
    row(3, 100);
    rig.caught_up();
    let memory = relay.peak_memory();
    let verdict = rig.verdict();
    eprintln!("a row of 64 MB: {memory} MiB at most; {verdict}");
    verdict.assert_clean();
    assert_eq!((verdict.committed, verdict.duplicates), (3, 0));
    assert!(memory <= bound(62, 1), "{memory} MiB of {}", bound(62, 1));
    relay.ends_well();
}

/// Many topics, each with its queue in the client. `WALRELAY_TOPICS` asks for more or fewer.
#[test]
fn outbox_of_many_topics() {
    let topics: u64 = std::env::var("WALRELAY_TOPICS")
        .ok()
        .and_then(|topics| topics.parse().ok())
        .unwrap_or(200);
    let kafka = Kafka::builder().partitions(1).start();
    let rig = Rig::with(servers::postgres(15), kafka.bootstrap_servers());
    rig.workload().create_tables();
    // The broker makes a thousand topics, and may take its time on a busy machine.
    let patient = "\"topic.metadata.propagation.max.ms\" = 600000\n";
    let relay = rig.streaming(&rig.config_with(&rig.postgres.url(), patient));
    Db::connect(&rig.postgres.url()).batch(&format!(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'topic-' || t, 'key', 'T', \
         jsonb_build_object('number', n, 'text', repeat('x', 100)) \
         FROM generate_series(1, 20) n, generate_series(1, {topics}) t"
    ));
    rig.caught_up();
    let memory = relay.peak_memory();
    // Read in parts: a consumer of a thousand topics does not get through its preparations.
    let records: Vec<Delivered> = (1..=9)
        .flat_map(|digit| {
            let prefix = format!("{}topic-{digit}", rig.prefix);
            History::records(&rig.bootstrap, &prefix, 0, PATIENCE)
        })
        .collect();
    let committed = History::committed(&rig.postgres.url(), "outbox", &rig.prefix);
    let verdict = check(&committed, &records);
    eprintln!("{topics} topics: {memory} MiB at most; {verdict}");
    verdict.assert_clean_but_for_ragged();
    assert_eq!(verdict.committed as u64, 20 * topics);
    assert!(
        memory <= bound(1, topics),
        "{memory} MiB of {}",
        bound(1, topics)
    );
    relay.ends_well();
}

/// The broker is away while a backlog piles up in the log. The relay holds no more of it than its
/// window, goes on with feedback, and drains it when the broker is back. `WALRELAY_BACKLOG_MIB` asks
/// for more than the default.
#[test]
fn backlog_behind_a_stopped_broker() {
    let mib: u64 = std::env::var("WALRELAY_BACKLOG_MIB")
        .ok()
        .and_then(|mib| mib.parse().ok())
        .unwrap_or(256);
    let kafka = Kafka::builder().start();
    let rig = Rig::with(servers::postgres(18), kafka.bootstrap_servers());
    rig.workload().create_tables();
    let relay = rig.relay();
    let db = Db::connect(&rig.postgres.url());
    // So that the topic is there.
    insert(&db, 1);
    rig.caught_up();
    kafka.stop();
    let slot = rig.slot();
    let before = slot.wal_end();
    let mut round = 0;
    // Rows of about a kilobyte that does not compress, a thousand to a transaction.
    while slot.wal_end().get() - before.get() < mib << 20 {
        db.batch(&format!(
            "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-' || n % 50, 'T', \
             jsonb_build_object('number', {round} * 20 + n / 50, 'text', (SELECT \
             string_agg(md5((n * 31 + {round} + i)::text), '') FROM generate_series(1, 30) i)) \
             FROM generate_series(0, 999) n"
        ));
        round += 1;
    }
    relay.says("the sink takes nothing more");
    let walsender = slot.wait_active(PATIENCE);
    let blocked = relay.peak_memory();
    assert!(blocked <= bound(1, 1), "{blocked} MiB of {}", bound(1, 1));
    kafka.start_again();
    rig.caught_up();
    let now = slot.read().expect("the slot").active_pid;
    assert_eq!(now, Some(walsender), "feedback went on");
    let memory = relay.peak_memory();
    let verdict = rig.history_within(Duration::from_secs(300)).check();
    eprintln!(
        "{mib} MiB of WAL behind a stopped broker: {blocked} MiB while blocked, {memory} MiB at most; {verdict}"
    );
    verdict.assert_clean();
    assert_eq!(verdict.committed, round * 1000 + 1);
    assert!(memory <= bound(1, 1), "{memory} MiB of {}", bound(1, 1));
    eventually(PATIENCE, || relay.log().contains("takes records again"));
    relay.ends_well();
}

/// A broker that stops in the middle of a backlog of small rows, where most of what a record takes is
/// the client library's own: a window that is full, and far larger than by default, is what the memory
/// formula says.
#[test]
fn full_window_of_small_rows() {
    const WINDOW: u64 = 128;
    let kafka = Kafka::builder().start();
    let rig = Rig::with(servers::postgres(15), kafka.bootstrap_servers());
    rig.workload().create_tables();
    let limits = format!(
        "\n[delivery]\nmax_in_flight_bytes = \"{WINDOW}MiB\"\nmax_in_flight_records = 1000000\n"
    );
    let config = rig.config_with(&rig.postgres.url(), &limits);
    Rig::log_debug(&config);
    let relay = rig.streaming(&config);
    let db = Db::connect(&rig.postgres.url());
    insert(&db, 1);
    rig.caught_up();
    let idle = relay.peak_memory();
    db.batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-' || k, 'T', \
         jsonb_build_object('number', n, 'text', repeat('x', 30)) \
         FROM generate_series(1, 10000) n, generate_series(0, 49) k",
    );
    // Not before: it would wait for what the other producer has on its way.
    relay.says("changed producer mode");
    kafka.pause();
    relay.says("the sink takes nothing more");
    let full = relay.peak_memory();
    kafka.resume();
    rig.caught_up();
    let memory = relay.peak_memory();
    let verdict = rig.verdict();
    eprintln!(
        "a window of {WINDOW} MiB: {idle} MiB idle, {full} MiB when full, {memory} MiB at most; {verdict}"
    );
    verdict.assert_clean();
    assert_eq!(verdict.committed, 500_001);
    // Nothing is allowed to the window itself.
    let bound = FIXED * 5 / 4 + WINDOW;
    assert!(memory <= bound, "{memory} MiB of {bound}");
    relay.ends_well();
}
