//! The header with an event's position, over a history with repeats.

use std::collections::{BTreeSet, HashMap, HashSet};

use walrelay_testkit::{Cut, Direction};

use crate::rig::{Rig, wait_rows, with_source};
use crate::verify_topic::report;

const NAME: &str = "walrelay-position";

/// SIGKILL of a relay whose confirmations do not reach Postgres causes repeats; transactions have
/// several rows.
#[test]
fn the_position_of_a_repeat_is_the_same_and_ascends_per_key() {
    let rig = Rig::with_outbox(18);
    let more = format!("\n[router]\nposition_header = \"{NAME}\"\n");
    let (proxy, url) = rig.proxy();
    // The server must not end a stream while the relay cannot confirm.
    let config = with_source(rig.config_with(&url, &more), "wal_sender_timeout = \"10m\"");
    let mut relay = rig.streaming(&config);
    let load = rig.workload().rate(3_000.0).seed(31).start();
    for _ in 0..4 {
        wait_rows(&load, 400);
        proxy.stall_direction(Direction::ToServer);
        wait_rows(&load, 300);
        let committed = usize::try_from(load.written().rows).expect("a count");
        assert!(rig.records(committed).len() >= committed);
        relay.kill();
        // Before the stall ends: the confirmations that were held back are lost.
        proxy.cut(Cut::Reset);
        proxy.resume();
        relay = rig.streaming(&config);
    }
    let written = load.stop();
    rig.caught_up();
    let history = rig.history();
    let verdict = history.check();
    eprintln!("SIGKILL x4, {} rows: {verdict}", written.rows);
    verdict.assert_clean_but_for_ragged();
    assert!(verdict.duplicates > 0, "nothing was repeated: {verdict}");

    // verify-topic counts the same.
    let topics: BTreeSet<&str> = history.records.iter().map(|of| &*of.topic).collect();
    let topics = topics.into_iter().collect::<Vec<_>>().join(" ");
    let seen = report(&config, &topics, "--against-table --where true", 1);
    for (kind, count) in [
        ("repeated", verdict.duplicates),
        ("out_of_order", 0),
        ("split_keys", 0),
        ("lost", 0),
    ] {
        assert_eq!(seen[kind]["count"], count, "{kind}: {seen}");
    }
    assert_eq!(seen["rows"], verdict.committed, "{seen}");

    let mut records = history.records;
    records.sort_by_key(|record| (record.topic.clone(), record.partition, record.offset));
    let mut of_event: HashMap<String, Vec<u8>> = HashMap::new();
    let mut highest: HashMap<(String, Vec<u8>), Vec<u8>> = HashMap::new();
    for record in records {
        let positions = record.headers.iter().filter(|(name, _)| name == NAME);
        let positions: Vec<_> = positions.map(|(_, value)| value.clone()).collect();
        let [Some(position)] = &positions[..] else {
            panic!("not one position: {:?}", record.headers);
        };
        let text = str::from_utf8(position).expect("text");
        assert!(text.len() == 25 && text.as_bytes()[16] == b'/', "{text}");
        let id = record.id.expect("an id");
        if let Some(first) = of_event.get(&id) {
            assert_eq!(first, position, "the repeat of {id} has another position");
            continue;
        }
        of_event.insert(id, position.clone());
        if let Some(key) = record.key {
            let before = highest.insert((record.topic, key), position.clone());
            assert!(before.is_none_or(|before| before < *position), "{text}");
        }
    }
    let distinct: HashSet<_> = of_event.values().collect();
    assert_eq!(
        distinct.len(),
        of_event.len(),
        "two events have one position"
    );
    relay.ends_well();
}
