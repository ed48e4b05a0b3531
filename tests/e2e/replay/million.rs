//! The figures of docs/adr/measurements/replay.md: `REPLAY_ROWS=1000000 cargo test --release -p walrelay --test e2e
//! replay::million -- --ignored --nocapture`.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Headers as _;
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use serde_json::Value;
use walrelay_testkit::{Db, SlotWatch};

use super::{command, done};
use crate::endpoint::{free_address, get};
use crate::rig::{PATIENCE, Rig};

const KEYS: u64 = 5_000;

/// How many records a key has, and what they are, in their order, but for the header of the replay.
type ByKey = BTreeMap<Vec<u8>, (u64, u64)>;

fn by_key(bootstrap: &str, topic: &str, rows: u64) -> ByKey {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "walrelay-replay")
        .set("enable.auto.commit", "false")
        .create()
        .expect("a consumer");
    let metadata = consumer
        .fetch_metadata(Some(topic), PATIENCE)
        .expect("metadata");
    let mut partitions = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        partitions
            .add_partition_offset(topic, partition.id(), Offset::Beginning)
            .expect("a partition");
    }
    consumer.assign(&partitions).expect("assigned");
    let mut keys = ByKey::new();
    let mut read = 0;
    let mut last = Instant::now();
    // Some time beyond the last one: there are no more.
    while read < rows || last.elapsed() < Duration::from_secs(3) {
        assert!(last.elapsed() < PATIENCE, "{read} of {rows} records");
        let Some(message) = consumer.poll(Duration::from_millis(200)) else {
            continue;
        };
        let message = message.expect("a record");
        let (count, hash) = keys
            .entry(message.key().expect("a key").to_vec())
            .or_default();
        let mut hasher = DefaultHasher::new();
        (*hash, message.payload()).hash(&mut hasher);
        for header in message.headers().expect("headers").iter() {
            if header.key != "walrelay-replay" {
                (header.key, header.value).hash(&mut hasher);
            }
        }
        (*count, *hash) = (*count + 1, hasher.finish());
        read += 1;
        last = Instant::now();
    }
    keys
}

/// Medians and maxima of the 99th percentiles of each second since `since_ms`.
fn p99(address: SocketAddr, since_ms: u64) -> String {
    let (_, body) = get(address, "/api/history").expect("an answer");
    let history: Value = serde_json::from_str(&body).expect("JSON");
    let samples = history["samples"].as_array().expect("samples").iter();
    let mut p99: Vec<f64> = samples
        .filter(|sample| sample[0].as_u64().is_some_and(|at| at >= since_ms))
        .filter_map(|sample| sample[3].as_f64())
        .collect();
    p99.sort_by(f64::total_cmp);
    let median = p99.get(p99.len() / 2).copied().unwrap_or_default();
    let most = p99.last().copied().unwrap_or_default();
    format!(
        "{} seconds, p99 median {median:.1} ms, most {most:.1} ms",
        p99.len()
    )
}

/// Rows a second of a relay that drains them from a slot of its own to its own topics.
fn drain(rig: &Rig, prefix: &str, end: &str, rows: u64) -> f64 {
    let db = Db::connect(&rig.postgres.url());
    let name = format!("drain_{}", prefix.trim_end_matches('-'));
    db.batch(&format!(
        "SELECT pg_copy_logical_replication_slot('walrelay_bookmark_start', '{name}', false)"
    ));
    let config = rig.path("walrelay.toml");
    let topics =
        format!("router.debezium.\"route.topic.replacement\"=drain-{prefix}${{routedByValue}}");
    let slot = format!("source.slot={name}");
    let set = [
        "--set",
        &slot,
        "--set",
        &topics,
        "--set",
        "http.listen=127.0.0.1:0",
    ];
    let relay = rig.start_with(&config, &set);
    relay.streaming();
    let begun = Instant::now();
    let slot = SlotWatch::new(&rig.postgres.url(), &name);
    slot.wait_until(end.parse().expect("an LSN"), PATIENCE);
    let rate = rows as f64 / begun.elapsed().as_secs_f64();
    relay.ends_well();
    db.batch(&format!("SELECT pg_drop_replication_slot('{name}')"));
    rate
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_millis() as u64
}

/// A live drain and two replays of the same rows: their rates, the records of each key, and the latency of the relay
/// beside them.
#[test]
#[ignore = "a million rows, minutes: its figures are in docs/adr/measurements/replay.md"]
fn rows_are_replayed_as_fast_as_they_are_drained() {
    let rows: u64 =
        std::env::var("REPLAY_ROWS").map_or(1_000_000, |rows| rows.parse().expect("a number"));
    let rig = Rig::with_outbox(15);
    let address = free_address();
    let more = format!("\n[http]\nlisten = \"{address}\"\n");
    let config = rig.config_with(&rig.postgres.url(), &more);
    let db = Db::connect(&rig.postgres.url());
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    done(&command("slots", &config, &["create"]));
    done(&command("bookmark", &config, &["create", "start"]));
    // A fifth of them in transactions of their own, the others by hundreds.
    db.batch(&format!(
        "CREATE PROCEDURE fill(first bigint, last bigint, step bigint) LANGUAGE plpgsql AS $$ BEGIN \
         WHILE first < last LOOP \
         INSERT INTO outbox SELECT gen_random_uuid(), 'bulk', 'key-' || i % {KEYS}, 'T', \
         jsonb_build_object('number', i, 'text', repeat('x', 200)) FROM generate_series(first, first + step - 1) i; \
         COMMIT; first := first + step; END LOOP; END $$"
    ));
    let singles = rows / 5;
    db.batch(&format!("CALL fill(0, {singles}, 1)"));
    db.batch(&format!("CALL fill({singles}, {rows}, 100)"));
    let end = rig.slot().wal_end().to_string();

    let relay = rig.streaming(&config);
    let begun = Instant::now();
    rig.caught_up();
    let alone = rows as f64 / begun.elapsed().as_secs_f64();
    eprintln!("live drain alone: {alone:.0} rows/s");

    let load = rig.workload().rate(300.0).start();
    sleep(Duration::from_secs(2));
    let since = now_ms();
    sleep(Duration::from_secs(20));
    eprintln!("relay before: {}", p99(address, since));
    let replay = |prefix: &str| {
        let args = ["--from", "start", "--to", &end, "--topic-prefix", prefix];
        let said = done(&command("replay", &config, &args));
        let rate = said
            .split(" s (")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let rate: f64 = rate.and_then(|rate| rate.parse().ok()).expect("a rate");
        eprintln!("{said}");
        rate
    };
    let since = now_ms();
    let rate = replay("first-");
    eprintln!(
        "replay alone: {rate:.0} rows/s; relay meanwhile: {}",
        p99(address, since)
    );
    for prefix in ["second-", "third-"] {
        // At the same time, so that both have the same machine: another relay, on a slot that is where the bookmark is.
        let (rate, drained) = std::thread::scope(|scope| {
            let drained = scope.spawn(|| drain(&rig, prefix, &end, rows));
            (replay(prefix), drained.join().expect("a rate"))
        });
        eprintln!(
            "replay {rate:.0} rows/s beside a drain of {drained:.0} rows/s: {:.2}",
            rate / drained
        );
    }
    load.stop();
    rig.caught_up();
    relay.ends_well();
    let mut all = Vec::new();
    for prefix in ["first-", "second-", ""] {
        let topic = format!("{prefix}{}bulk", rig.prefix);
        all.push(by_key(&rig.bootstrap, &topic, rows));
    }
    let count: u64 = all[0].values().map(|(count, _)| count).sum();
    assert_eq!(count, rows, "each record once");
    assert!(
        all[0] == all[1],
        "the same records in the same order per key"
    );
    assert!(all[0] == all[2], "as the relay has sent them");
}
