use walrelay_testkit::{Delivered, History, Kafka, check, eventually_while_moving};

use crate::rig::{PATIENCE, Rig, insert, kafka_in_turn};

/// The constant part of the memory formula in docs/operate/running.md without the pages of the program,
/// in MiB.
const FIXED: u64 = 12;

/// The memory formula for the default limits, in MiB, plus a quarter for a debug build and its
/// allocator.
fn bound(largest_row: u64, topics: u64) -> u64 {
    let window = 12;
    let formula = FIXED + window.max(largest_row) + largest_row * 5 / 4 + largest_row + topics / 32;
    formula * 5 / 4
}

#[track_caller]
fn assert_bounded(memory: u64, bound: u64) {
    assert!(memory <= bound, "{memory} MiB of {bound}");
}

/// A number from the environment, or the default.
fn variable(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    let value = value.and_then(|value| value.parse().ok());
    value.unwrap_or(default)
}

/// Waits until the slot has reached the current end of the WAL, for as long as records arrive. The
/// slot itself does not move during a large transaction.
pub(crate) fn caught_up_while_moving(rig: &Rig) {
    let slot = rig.slot();
    let end = slot.wal_end();
    let progress = || {
        let records = History::count(&rig.bootstrap, &rig.prefix);
        (slot.confirmed(), records)
    };
    eventually_while_moving(progress, || slot.confirmed() >= end);
}

/// A transaction of many rows needs bounded memory. The fault suite has one of a million.
#[test]
fn transaction_of_300_000_rows() {
    let rig = Rig::with_outbox(15);
    let relay = rig.relay();
    rig.db().batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-' || k, 'T', \
         jsonb_build_object('number', n, 'text', repeat('x', 100)) \
         FROM generate_series(1, 3000) n, generate_series(0, 99) k",
    );
    caught_up_while_moving(&rig);
    let memory = relay.peak_memory();
    let verdict = rig.verdict();
    eprintln!("300,000 rows in one transaction: {memory} MiB at most; {verdict}");
    verdict.assert_counts(300_000, 0);
    assert_bounded(memory, bound(1, 1));
    relay.ends_well();
    rig.delete_topics(&["order"]);
}

/// A row that is larger than the buffers, with characters of one to four bytes.
#[test]
fn row_of_a_few_megabytes() {
    let rig = Rig::with_outbox(18);
    let config = rig.config_and("\"message.max.bytes\" = \"10000000\"\n");
    let topic = format!("{}order", rig.prefix);
    rig.kafka()
        .create_topic(&topic, 1, &[("max.message.bytes", "10000000")]);
    let relay = rig.streaming(&config);
    rig.db().batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-1', 'T', \
         jsonb_build_object('number', n, 'text', repeat('aé漢😀\"\\', 300000)) \
         FROM generate_series(1, 3) n",
    );
    let verdict = rig.finish(relay);
    verdict.assert_clean();
    assert_eq!(verdict.committed, 3);
}

/// One row of 64 MB between small ones: it is held as a whole, once while it is read and once while
/// it is sent.
#[test]
fn row_of_64_megabytes() {
    const LIMIT: &str = "100000000";
    let kafka = Kafka::builder()
        .setting("message.max.bytes", LIMIT)
        .setting("replica.fetch.max.bytes", LIMIT)
        .setting("socket.request.max.bytes", "200000000")
        .start();
    let rig = Rig::with_kafka(18, &kafka);
    let limit = format!("\"message.max.bytes\" = {LIMIT}\n");
    let relay = rig.streaming(&rig.config_and(&limit));
    let row = |number: u32, size: u32| {
        rig.db().batch(&format!(
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
    verdict.assert_counts(3, 0);
    assert_bounded(memory, bound(62, 1));
    relay.ends_well();
}

/// Many topics, each with its queue in the client. `WALRELAY_TOPICS` sets their number.
#[test]
fn outbox_of_many_topics() {
    let topics = variable("WALRELAY_TOPICS", 200);
    let kafka = Kafka::builder().partitions(1).start();
    let rig = Rig::with_kafka(15, &kafka);
    // The broker creates hundreds of topics, which takes long on a busy machine.
    let patient = "\"topic.metadata.propagation.max.ms\" = 600000\n";
    let relay = rig.streaming(&rig.config_and(patient));
    rig.db().batch(&format!(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'topic-' || t, 'key', 'T', \
         jsonb_build_object('number', n, 'text', repeat('x', 100)) \
         FROM generate_series(1, 20) n, generate_series(1, {topics}) t"
    ));
    caught_up_while_moving(&rig);
    let memory = relay.peak_memory();
    // Read in parts: a consumer of a thousand topics is not ready in time.
    let part = |digit| rig.records_in(&format!("{}topic-{digit}", rig.prefix), 0);
    let records: Vec<Delivered> = (1..=9).flat_map(part).collect();
    let committed = History::committed(&rig.postgres.url(), "outbox", &rig.prefix);
    let verdict = check(&committed, &records);
    eprintln!("{topics} topics: {memory} MiB at most; {verdict}");
    verdict.assert_clean_but_for_ragged();
    assert_eq!(verdict.committed as u64, 20 * topics);
    assert_bounded(memory, bound(1, topics));
    relay.ends_well();
}

/// The broker is away while a backlog grows in the WAL. The relay holds no more of it than its
/// window, continues with feedback, and drains it when the broker is back. `WALRELAY_BACKLOG_MIB`
/// sets a larger backlog.
#[test]
fn backlog_behind_a_stopped_broker() {
    let mib = variable("WALRELAY_BACKLOG_MIB", 256);
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(18, &kafka);
    let relay = rig.relay();
    let db = rig.db();
    // Creates the topic.
    insert(&db, 1);
    rig.caught_up();
    kafka.stop();
    let slot = rig.slot();
    let before = slot.wal_end();
    let mut round = 0;
    // Rows of about an incompressible kilobyte, a thousand per transaction.
    while slot.wal_end().get() - before.get() < mib << 20 {
        db.batch(&format!(
            "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-' || n % 50, 'T', \
             jsonb_build_object('number', {round} * 20 + n / 50, 'text', (SELECT \
             string_agg(md5((n * 31 + {round} + i)::text), '') FROM generate_series(1, 30) i)) \
             FROM generate_series(0, 999) n"
        ));
        round += 1;
    }
    relay.says("the sink accepts nothing more");
    let walsender = slot.wait_active(PATIENCE);
    let blocked = relay.peak_memory();
    assert_bounded(blocked, bound(1, 1));
    kafka.start_again();
    rig.caught_up();
    assert_eq!(slot.reader(), Some(walsender), "feedback went on");
    let memory = relay.peak_memory();
    let verdict = rig.verdict();
    eprintln!(
        "{mib} MiB of WAL behind a stopped broker: {blocked} MiB while blocked, {memory} MiB at most; {verdict}"
    );
    verdict.assert_clean();
    assert_eq!(verdict.committed, round * 1000 + 1);
    assert_bounded(memory, bound(1, 1));
    relay.says("accepts records again");
    relay.ends_well();
}

/// A broker that stops in the middle of a backlog of small rows, whose memory is mostly overhead of
/// the client library. A full window, far larger than the default, keeps the memory formula.
#[test]
fn full_window_of_small_rows() {
    const WINDOW: u64 = 128;
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(15, &kafka);
    let limits = format!(
        "\n[delivery]\nmax_in_flight_bytes = \"{WINDOW}MiB\"\nmax_in_flight_records = 1000000\n"
    );
    let relay = rig.streaming(&rig.config_debug(&limits));
    let db = rig.db();
    insert(&db, 1);
    rig.caught_up();
    let idle = relay.peak_memory();
    db.batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-' || k, 'T', \
         jsonb_build_object('number', n, 'text', repeat('x', 30)) \
         FROM generate_series(1, 10000) n, generate_series(0, 49) k",
    );
    // Wait for the mode first: otherwise the records of the other producer are still in flight, and
    // the throughput producer waits for them.
    relay.says("changed producer mode");
    kafka.pause();
    relay.says("the sink accepts nothing more");
    let full = relay.peak_memory();
    kafka.resume();
    caught_up_while_moving(&rig);
    let memory = relay.peak_memory();
    let verdict = rig.verdict();
    eprintln!(
        "a window of {WINDOW} MiB: {idle} MiB idle, {full} MiB when full, {memory} MiB at most; {verdict}"
    );
    verdict.assert_clean();
    assert_eq!(verdict.committed, 500_001);
    // The memory formula, and a quarter as in `bound`.
    assert_bounded(memory, (FIXED + WINDOW) * 5 / 4);
    relay.ends_well();
}
