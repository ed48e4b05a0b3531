//! The figures of docs/adr/measurements/replay.md: `REPLAY_ROWS=1000000 cargo test --release -p
//! walrelay --test e2e replay::million -- --ignored --nocapture`.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::thread::sleep;
use std::time::{Duration, Instant};

use walrelay_measure::load;
use walrelay_testkit::{SlotWatch, millis_now};

use super::run;
use crate::endpoint::{LISTEN, address, latency_since};
use crate::rig::{PATIENCE, Rig, done, words};

const KEYS: u64 = 5_000;

/// Of each key, the number of records and a hash of them in order. The header of the replay is left
/// out.
type ByKey = BTreeMap<Vec<u8>, (u64, u64)>;

fn by_key(rig: &Rig, prefix: &str, rows: u64) -> ByKey {
    let topic = format!("{prefix}{}bulk", rig.prefix);
    let mut keys = ByKey::new();
    for mut record in rig.records_in(&topic, rows as usize) {
        assert!(!record.headers.is_empty(), "headers");
        record.headers.retain(|(name, _)| name != "walrelay-replay");
        let (count, hash) = keys.entry(record.key.expect("a key")).or_default();
        let mut hasher = DefaultHasher::new();
        (*hash, record.payload, record.headers).hash(&mut hasher);
        (*count, *hash) = (*count + 1, hasher.finish());
    }
    keys
}

/// Rows per second of a relay that drains them from a slot of its own to topics of its own.
fn drain(rig: &Rig, prefix: &str, end: &str, rows: u64) -> f64 {
    let db = rig.db();
    let name = format!("drain_{}", prefix.trim_end_matches('-'));
    db.batch(&format!(
        "SELECT pg_copy_logical_replication_slot('walrelay_bookmark_start', '{name}', false)"
    ));
    let config = rig.path("walrelay.toml");
    let set = format!(
        "--set source.slot={name} \
         --set router.debezium.\"route.topic.replacement\"=drain-{prefix}${{routedByValue}}"
    );
    let relay = rig.start_with(&config, &words(&set));
    relay.streaming();
    let begun = Instant::now();
    let slot = SlotWatch::new(&rig.postgres.url(), &name);
    slot.wait_until(end.parse().expect("an LSN"), PATIENCE);
    let rate = rows as f64 / begun.elapsed().as_secs_f64();
    relay.ends_well();
    db.batch(&format!("SELECT pg_drop_replication_slot('{name}')"));
    rate
}

/// A live drain and two replays of the same rows: their rates, the records of each key, and the
/// latency of a relay beside them.
#[test]
#[ignore = "a million rows, minutes: its figures are in docs/adr/measurements/replay.md"]
fn rows_are_replayed_as_fast_as_they_are_drained() {
    let rows: u64 =
        std::env::var("REPLAY_ROWS").map_or(1_000_000, |rows| rows.parse().expect("a number"));
    let rig = Rig::with_outbox(15);
    let config = rig.config_and(LISTEN);
    let db = rig.db();
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    done(&run(&config, "slots create"));
    done(&run(&config, "bookmark create start"));
    let insert = format!(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'bulk', 'key-' || n % {KEYS}, 'T', \
         jsonb_build_object('number', n, 'text', repeat('x', 200))"
    );
    for (_, block) in load::backlog(&insert, 0..rows) {
        db.batch(&block);
    }
    let end = rig.slot().wal_end().to_string();

    let relay = rig.streaming(&config);
    let address = address(&relay);
    let begun = Instant::now();
    rig.caught_up();
    let alone = rows as f64 / begun.elapsed().as_secs_f64();
    eprintln!("live drain alone: {alone:.0} rows/s");

    let load = rig.workload().rate(300.0).start();
    sleep(Duration::from_secs(2));
    let since = millis_now().unsigned_abs();
    sleep(Duration::from_secs(20));
    eprintln!("relay before: {}", latency_since(address, since));
    let replay = |prefix: &str| {
        let line = format!("replay --from start --to {end} --topic-prefix {prefix}");
        let said = done(&run(&config, &line));
        eprintln!("{said}");
        let (_, rate) = said.split_once(" s (").expect("a rate");
        let (rate, _) = rate.split_once(' ').expect("its end");
        rate.parse::<f64>().expect("a rate")
    };
    let since = millis_now().unsigned_abs();
    let rate = replay("first-");
    eprintln!(
        "replay alone: {rate:.0} rows/s; relay meanwhile: {}",
        latency_since(address, since)
    );
    for prefix in ["second-", "third-"] {
        // Both run at the same time, so that they share the machine. The other relay reads a slot
        // at the position of the bookmark.
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
    let all = ["first-", "second-", ""].map(|prefix| by_key(&rig, prefix, rows));
    let count: u64 = all[0].values().map(|(count, _)| count).sum();
    assert_eq!(count, rows, "each record once");
    assert!(
        all[0] == all[1],
        "the same records in the same order per key"
    );
    assert!(all[0] == all[2], "as the relay has sent them");
}
