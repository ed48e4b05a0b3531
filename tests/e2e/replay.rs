//! `walrelay bookmark` and `walrelay replay`: events are sent again from a kept position, the
//! bookmark stays where it is, and the relay continues.

mod million;
mod moved;
mod watched;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use walrelay_lsn::Lsn;
use walrelay_testkit::{Db, Delivered, History, eventually, eventually_some};
use walrelay_throwaway::Signal;

use crate::endpoint::{LISTEN, address, get, metric};
use crate::rig::{
    PATIENCE, Relay, Rig, assert_has, assert_lacks, command_with, done, edit, ends, insert,
    json_lines, output_with, refused, wait_rows, with_source,
};

const ROWS: u64 = 20_000;

/// Runs a command line with this configuration.
fn run(config: &Path, line: &str) -> Output {
    output_with(line, config, &[])
}

fn bookmarks(config: &Path) -> Vec<Value> {
    json_lines(&run(config, "bookmark list --output json"))
}

/// Ids of each key, in the order of its partition.
fn by_key(records: &[Delivered]) -> BTreeMap<(String, Vec<u8>), Vec<String>> {
    let mut keys: BTreeMap<_, Vec<(i64, String)>> = BTreeMap::new();
    for record in records {
        let topic = record.topic.rsplit('.').next().expect("a name").to_owned();
        let key = (topic, record.key.clone().expect("a key"));
        let id = record.id.clone().expect("an id");
        keys.entry(key).or_default().push((record.offset, id));
    }
    let sorted = keys.into_iter().map(|(key, mut records)| {
        records.sort();
        (key, records.into_iter().map(|(_, id)| id).collect())
    });
    sorted.collect()
}

/// The value of a header, which must be the same in all these records.
fn header_of_all(records: &[Delivered], name: &str) -> String {
    let values: BTreeSet<_> = records
        .iter()
        .map(|record| {
            let found = record.headers.iter().filter(|(found, _)| found == name);
            let found: Vec<_> = found.map(|(_, value)| value.clone()).collect();
            assert_eq!(found.len(), 1, "{name} is there once");
            found
        })
        .collect();
    assert_eq!(values.len(), 1, "{values:?}");
    let value = values.into_iter().flatten().flatten().next();
    String::from_utf8(value.expect("a value")).expect("text")
}

/// Two replays of one bookmark, beside a relay under load, give the same records in the same order
/// per key. The bookmark stays where it is, and the relay's own history is clean.
#[test]
fn two_replays_give_the_same_beside_a_relay_at_work() {
    let rig = Rig::with_outbox(15);
    let config = rig.config();
    let relay = rig.streaming(&config);
    done(&run(&config, "bookmark create start"));
    let rows = rig.workload().rows(ROWS).run().rows as usize;
    rig.caught_up();
    let before = bookmarks(&config);
    assert_eq!(before[0]["bookmark"], "start");

    let end = rig.slot().wal_end().to_string();
    let load = rig.workload().seed(7).rate(300.0).start();
    wait_rows(&load, 100);
    let replay = |prefix: &str| {
        let line = format!("replay --from start --to {end} --topic-prefix {prefix}");
        done(&run(&config, &line));
        let topics = format!("{prefix}{}", rig.prefix);
        rig.records_in(&topics, rows)
    };
    let first = replay("first-");
    wait_rows(&load, 1);
    let second = replay("second-");
    // The relay had work meanwhile: the load was written before the replays, and is written now.
    wait_rows(&load, 1);
    load.stop();
    rig.finish(relay).assert_clean();

    assert_eq!(first.len(), rows, "all came, and nothing was repeated");
    let ids: BTreeSet<_> = first.iter().map(|record| &record.id).collect();
    assert_eq!(ids.len(), first.len(), "nothing was repeated");
    assert_eq!(by_key(&first), by_key(&second));
    let live = by_key(&rig.records(rows));
    for (key, replayed) in by_key(&first) {
        assert_eq!(
            live[&key][..replayed.len()],
            replayed,
            "the order of the relay"
        );
    }
    let ids = [&first, &second].map(|records| header_of_all(records, "walrelay-replay"));
    assert_ne!(ids[0], ids[1], "each run has an id of its own");
    let after = bookmarks(&config);
    assert_eq!(before[0]["position"], after[0]["position"]);
    let here = fs::read_dir(".").expect("a directory");
    let left: Vec<_> = here
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .filter(|name| ids.iter().any(|id| name.to_string_lossy().contains(id)))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Bookmarks are created, listed, advanced and dropped. Destructive steps need consent.
#[test]
fn bookmarks_are_kept_and_given_up() {
    let rig = Rig::without_broker(18).outbox();
    let config = rig.config();
    let bookmark = |line: &str| run(&config, &format!("bookmark {line}"));
    let db = rig.db();
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    refused(&bookmark("create a"), 64, &["[slot-unknown]"]);
    done(&run(&config, "slots create"));
    let shown = done(&bookmark("create a --dry-run"));
    let parts = ["pg_copy_logical_replication_slot('walrelay', 'walrelay_bookmark_a', false)"];
    assert_has(&shown, &parts);
    assert_eq!(bookmarks(&config).len(), 0, "a dry run created a bookmark");
    done(&bookmark("create a"));
    for (line, id) in [
        ("create a", "[bookmark-exists]"),
        ("create 'A b'", "[bookmark-name]"),
        ("create rolling", "[bookmark-name]"),
    ] {
        refused(&bookmark(line), 64, &[id]);
    }

    insert(&db, 1);
    done(&run(
        &config,
        "slots advance walrelay --to now --yes --no-bookmark",
    ));
    let listed = done(&bookmark("list --times"));
    assert!(
        listed.starts_with("BOOKMARK") && listed.contains(" 20"),
        "{listed}"
    );
    let position = || bookmarks(&config)[0]["position"].clone();
    let begin = position();
    let words = ["[slots-not-agreed]", "no longer be replayed"];
    refused(&bookmark("advance a"), 64, &words);
    assert_eq!(position(), begin);
    let words = ["[slot-position]", "the relay is at"];
    refused(&bookmark("advance a --to FFFF/0 --yes"), 64, &words);
    done(&bookmark("advance a --yes"));
    assert_ne!(position(), begin);
    refused(&bookmark("drop b"), 64, &["[bookmark-unknown]"]);
    refused(&bookmark("drop a"), 64, &["[slots-not-agreed]"]);
    done(&bookmark("drop a --yes"));
    assert_eq!(bookmarks(&config).len(), 0);
}

/// A replay has the requested range, selection and topic. A dry run sends nothing. A position that
/// is no longer retained is refused with the oldest one that is. A replay into live topics needs
/// consent.
#[test]
fn a_replay_takes_what_was_asked_for() {
    let rig = Rig::with_outbox(18);
    let config = rig.config();
    let relay = rig.streaming(&config);
    let replay = |line: &str| run(&config, &format!("replay {line}"));
    let db = rig.db();
    let now = || {
        db.value::<String>("SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
    };
    let end = || rig.slot().wal_end().to_string();
    insert(&db, 0);
    rig.caught_up();
    let before = now();
    done(&run(&config, "bookmark create all"));
    let dawn = now();
    insert(&db, 1);
    db.batch(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'other', 'U', '{\"number\": 2}')",
    );
    let middle = end();
    let noon = now();
    insert(&db, 3);
    insert(&db, 4);
    rig.caught_up();

    let numbers = |range: &str| -> Vec<u64> {
        let replayed = json_lines(&replay(&format!("--sink stdout --from {range}")));
        let number = |line: Value| {
            let value = line["value"].as_str().expect("text");
            let value: Value = serde_json::from_str(value).expect("JSON");
            value["number"].as_u64().expect("a number")
        };
        replayed.into_iter().map(number).collect()
    };
    let cases: [(&str, &[u64]); 9] = [
        ("all", &[1, 2, 3, 4]),
        (&middle, &[3, 4]),
        (&noon, &[3, 4]),
        // Nothing is lost, although the time is before the first event: the bookmark existed then.
        (&dawn, &[1, 2, 3, 4]),
        (&format!("all --to {middle}"), &[1, 2]),
        (&format!("all --to {noon}"), &[1, 2]),
        ("all --where \"type = 'U'\"", &[2]),
        ("all --where \"type = 'T' and key = 'other'\"", &[]),
        (
            &format!(
                "all --where \"topic = '{}order' and key = 'key'\"",
                rig.prefix
            ),
            &[1, 3, 4],
        ),
    ];
    for (range, expected) in cases {
        assert_eq!(numbers(range), expected, "{range}");
    }

    let records = json_lines(&replay("--from all --to-topic elsewhere --sink stdout"));
    let elsewhere = |record: &Value| record["topic"] == "elsewhere";
    assert!(records.iter().all(elsewhere), "{records:?}");
    let headers = records[0]["headers"].as_array().expect("headers");
    assert_eq!(headers.last().expect("one")[0], "walrelay-replay");

    // A topic that the relay writes counts as live, whichever option names it.
    let live = format!("{}order", rig.prefix);
    let into_live = format!("--from all --to-topic {live}");
    let dry = done(&replay("--from all --dry-run"));
    assert_has(&dry, &["4 records would be sent", &format!("4 to {live}")]);
    let old = "old events of a key after new ones";
    refused(&replay("--from all"), 64, &["[replay-not-agreed]", old]);
    let words = ["[replay-not-agreed]", &live, old];
    refused(&replay(&into_live), 64, &words);
    let records = || rig.records(5).len();
    assert_eq!(records(), 5, "none sent anything");
    let aside = format!("aside-{live}");
    let into_new = format!("--from all --to-topic {aside}");
    done(&replay(&into_new));
    let words = ["[replay-not-agreed]", &aside, "has records"];
    refused(&replay(&into_new), 64, &words);
    done(&replay(&format!("{into_new} --yes")));
    assert_eq!(rig.records_in(&aside, 4).len(), 8);
    done(&replay("--from all --yes"));
    assert_eq!(records(), 9);

    let kept = &bookmarks(&config)[0]["position"];
    let kept = kept.as_str().expect("a position");
    let gone = [
        "[replay-gone]",
        "that can be replayed is 20",
        "of bookmark all",
    ];
    let cases: [(&str, &[&str]); 6] = [
        ("--from none", &["[bookmark-unknown]"]),
        ("--from 0/1", &["[replay-gone]", kept]),
        (&format!("--from {before}"), &gone),
        ("--from FFFF/0", &["[replay-range]"]),
        (
            &format!("--from {middle} --to {kept}"),
            &["[replay-range]", "before the beginning"],
        ),
        ("--resume 0123abcd", &["[replay-resume]"]),
    ];
    for (line, words) in cases {
        refused(&replay(line), 64, words);
    }
    relay.ends_well();
}

/// Rows per second of the replays that are interrupted, so that they last for minutes.
const SLOWLY: u32 = 20;

/// An interrupted replay continues at the end of its acknowledged records. A killed one repeats at
/// most what it had not noted.
#[test]
fn an_interrupted_replay_is_resumed() {
    let rig = Rig::with_outbox(15);
    let config = rig.config();
    let relay = rig.streaming(&config);
    done(&run(&config, "bookmark create start"));
    let rows = rig.workload().rows(8_000).run().rows as usize;
    rig.caught_up();
    let dir = rig.path("replays");
    fs::create_dir(&dir).expect("a directory");
    let replay = |options: &str| {
        let state = dir.display();
        format!("replay {options} --state-dir {state}")
    };
    let start = |line: &str, log: &str| {
        let mut command = command_with(line, &config, &[]);
        Relay::spawn_to(&mut command, Stdio::null(), &rig.path(log))
    };
    let first = format!("--from start --topic-prefix again- --rate {SLOWLY}");
    let mut running = start(&replay(&first), "replay.log");
    let topics = format!("again-{}", rig.prefix);
    let sent = || History::records(&rig.bootstrap, &topics, 0, Duration::ZERO).len();
    eventually(PATIENCE, || sent() >= 30);
    let id_after = |log: &str, words: &str| {
        let (_, rest) = log.split_once(words).expect(words);
        rest[..8].to_owned()
    };
    let again = replay(&format!("--resume {}", id_after(&running.log(), "replay ")));
    refused(&run(&config, &again), 69, &["[replay-running]", ".lock"]);
    running.signal(Signal::Int);
    let log = ends(&mut running, 75, "replay-interrupted");
    let id = id_after(&log, "--resume ");
    let interrupted = sent();
    assert!((30..rows).contains(&interrupted), "{interrupted}");

    // Kill it in the middle.
    let resume = replay(&format!("--resume {id}"));
    let resumed = start(&resume, "resumed.log");
    let note = dir.join(format!("walrelay-replay-{id}.json"));
    // The position, and when it was noted.
    let noted = || -> Option<(String, SystemTime)> {
        let file = File::open(&note).ok()?;
        let at = file.metadata().ok()?.modified().ok()?;
        let note: Value = serde_json::from_reader(file).ok()?;
        Some((note["acknowledged"].as_str()?.to_owned(), at))
    };
    let mut last = noted().expect("a position");
    // The position is noted every 50 ms while there is progress, not only with the updates of an
    // idle stream, which are a second apart.
    let mut soon = 0;
    eventually(PATIENCE, || {
        let Some(now) = noted().filter(|now| now.0 != last.0) else {
            return false;
        };
        let apart = now.1.duration_since(last.1).unwrap_or_default();
        soon += u32::from(apart < Duration::from_millis(500));
        last = now;
        soon >= 8
    });
    resumed.kill();
    let killed = sent();
    assert!(killed < rows, "{killed}");
    let (position, _) = noted().expect("a position");
    let before = format!("replay --from start --to {position} --sink stdout");
    let before: BTreeSet<String> = json_lines(&run(&config, &before))
        .iter()
        .map(id_of_line)
        .collect();

    edit(&note, &format!("\"rate\": {SLOWLY}"), "\"rate\": null");
    done(&run(&config, &resume));
    let records = rig.records_in(&topics, rows);
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    for record in &records {
        *times
            .entry(record.id.as_deref().expect("an id"))
            .or_default() += 1;
    }
    assert_eq!(times.len(), rows, "all of it came");
    let repeated = times.iter().filter(|(_, times)| **times > 1);
    let repeated: Vec<&str> = repeated.map(|(id, _)| *id).collect();
    eprintln!(
        "{} records were noted when it was killed, {} were repeated",
        before.len(),
        repeated.len()
    );
    assert!(before.len() >= interrupted, "{} were noted", before.len());
    let wrong = repeated.iter().filter(|id| before.contains(**id));
    assert_eq!(wrong.count(), 0, "records before {position} were repeated");
    let first: BTreeSet<_> = records
        .iter()
        .map(|record| (&record.topic, record.partition, record.offset))
        .collect();
    assert_eq!(first.len(), records.len());
    assert_eq!(header_of_all(&records, "walrelay-replay"), id);
    let left = fs::read_dir(&dir).expect("a directory").count();
    assert_eq!(left, 0, "nothing is left of a replay that ended");
    relay.ends_well();
}

/// The header `id` of a record that a replay printed.
fn id_of_line(line: &Value) -> String {
    let headers = line["headers"].as_array().expect("headers");
    let id = headers.iter().find(|header| header[0] == "id");
    let id = id.and_then(|header| header[1].as_str());
    id.expect("an id").to_owned()
}

/// Drops the slot of the rolling bookmark, once the relay does not move it.
pub(crate) fn drop_rolling_bookmark(db: &Db) {
    db.batch(
        "DO $$BEGIN LOOP BEGIN PERFORM pg_drop_replication_slot('walrelay_bookmark_rolling'); EXIT; \
         EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.01); END; END LOOP; END$$",
    );
}

/// The position of the rolling bookmark. A slot that is being created is listed before it has one.
fn rolling_position(config: &Path) -> Lsn {
    let text = eventually_some(PATIENCE, || {
        let all = bookmarks(config);
        let rolling = all.iter().find(|of| of["bookmark"] == "rolling")?;
        rolling["position"].as_str().map(str::to_owned)
    });
    text.parse().expect("an LSN")
}

/// Relays that each end before the time to keep is over move the bookmark all the same: where they
/// were when is noted beside the state file, or in the database.
#[test]
fn a_rolling_bookmark_follows_over_restarts() {
    for state_file in ["state_file = \"state\"", ""] {
        let rig = Rig::with_outbox(17);
        let more = "\n[retention]\nkeep = \"10s\"\n";
        let config = with_source(rig.config_and(more), state_file);
        let db = rig.db();
        let path = rig.path("state.bookmark");
        let notes = || match state_file {
            "" if db.value::<bool>("SELECT to_regclass('walrelay_state.bookmark') IS NULL") => {
                String::new()
            }
            "" => db.value("SELECT coalesce(min(notes), '') FROM walrelay_state.bookmark"),
            _ => fs::read_to_string(&path).unwrap_or_default(),
        };
        let run = || {
            let before = notes();
            let relay = rig.streaming(&config);
            insert(&db, 1);
            rig.caught_up();
            relay.until("a note", || notes() != before);
            relay.ends_well();
        };
        run();
        let begin = rolling_position(&config);
        let mut runs = 1;
        eventually(PATIENCE, || {
            run();
            runs += 1;
            rolling_position(&config) > begin
        });
        assert!(
            runs > 2,
            "the first restart moved it: it was not {begin} long ago"
        );
        assert_eq!(path.exists(), !state_file.is_empty());
    }
}

/// The server keeps a transaction's WAL for a bookmark at which it was open, also after it has ended.
/// Then the limit holds again, and the log says what that costs.
#[test]
fn a_long_transaction_does_not_break_the_limit_of_the_rolling_bookmark() {
    let rig = Rig::with_outbox(18);
    let more = format!("\n[retention]\nkeep = \"1h\"\nmax_wal = \"16MiB\"\n{LISTEN}");
    let config = rig.config_and(&more);
    let relay = rig.streaming(&config);
    let address = address(&relay);
    let db = rig.db();
    rolling_position(&config);
    db.batch("CREATE TABLE bulk (text text)");
    let open = rig.db();
    open.batch("BEGIN; INSERT INTO bulk VALUES ('open')");
    let retained = || {
        let all = bookmarks(&config);
        let rolling = all.iter().find(|of| of["bookmark"] == "rolling");
        rolling.and_then(|of| of["retained_bytes"].as_u64())
    };
    for _ in 0..20 {
        db.batch(
            "INSERT INTO bulk SELECT repeat(md5(i::text), 8) FROM generate_series(1, 20000) i",
        );
        db.batch("CHECKPOINT");
    }
    insert(&db, 1);
    rig.caught_up();
    assert!(
        retained() > Some(64 << 20),
        "the open transaction keeps its WAL"
    );
    open.batch("COMMIT");
    // Each checkpoint lets the slots find a later `restart_lsn`.
    eventually(PATIENCE, || {
        db.batch("CHECKPOINT");
        insert(&db, 2);
        rig.caught_up();
        retained().is_some_and(|bytes| bytes < 32 << 20)
    });
    relay.says("moves the rolling bookmark early");
    eventually(PATIENCE, || {
        metric(address, "walrelay_bookmark_cut_short{cause=\"max_wal\"}") == Some(1.0)
    });
    relay.ends_well();
}

/// The running relay keeps the rolling bookmark at its distance, within the limit of WAL. A relay
/// on standby does not touch it. If it is dropped, the relay creates it again with a warning.
#[test]
fn a_rolling_bookmark_follows_the_relay() {
    let rig = Rig::with_outbox(18);
    let keep = Duration::from_secs(15);
    let more = format!(
        "\n[retention]\nkeep = \"{}s\"\nmax_wal = \"32MiB\"\n{LISTEN}",
        keep.as_secs()
    );
    let config = rig.config_and(&more);
    let relay = rig.streaming(&config);
    let address = address(&relay);
    let db = rig.db();
    let rolling = || {
        bookmarks(&config)
            .into_iter()
            .find(|bookmark| bookmark["bookmark"] == "rolling")
    };
    let position = || rolling_position(&config);
    let begin = position();
    // The bookmark follows at a distance. An attempt that took longer shows nothing.
    let mut attempts = 0;
    let after_first = eventually_some(PATIENCE, || {
        let begun = Instant::now();
        attempts += 1;
        insert(&db, attempts);
        rig.caught_up();
        let after = rig.slot().confirmed();
        let bookmark = position();
        let replayed = run(&config, "replay --from rolling --sink stdout");
        let replayed = json_lines(&replayed).len();
        (begun.elapsed() < keep).then(|| {
            assert!(bookmark < after, "{bookmark} is not before {after}");
            let expected = 1..=attempts as usize;
            assert!(expected.contains(&replayed), "{replayed} were replayed");
            after
        })
    });
    // The distance has passed; the position moves with each event of any table.
    eventually(PATIENCE, || {
        insert(&db, 2);
        position() >= after_first
    });
    assert!(begin < after_first);
    let standby = rig.start(&config);
    standby.says("standing by");

    // More WAL than the limit, before the distance has passed.
    let kept = |bookmark: &Value| bookmark["retained_bytes"].as_u64().expect("bytes");
    db.batch("CREATE TABLE bulk (text text)");
    for _ in 0..12 {
        db.batch(
            "INSERT INTO bulk SELECT repeat(md5(i::text), 8) FROM generate_series(1, 20000) i",
        );
    }
    rig.caught_up();
    eventually(PATIENCE, || {
        rolling().is_some_and(|bookmark| kept(&bookmark) < 48 << 20)
    });

    drop_rolling_bookmark(&db);
    relay.says("dropped by another client");
    eventually(PATIENCE, || rolling().is_some());
    assert_lacks(&standby.log(), &["rolling bookmark is made"]);

    eventually(PATIENCE, || {
        let text = get(address, "/metrics").map_or_else(String::new, |(_, text)| text);
        text.contains("walrelay_bookmark_retained_wal_bytes ")
            && text.contains("walrelay_bookmark_reachable_seconds ")
    });
    relay.ends_well();
    standby.streaming();
    eventually(PATIENCE, || {
        insert(&db, 3);
        rig.caught_up();
        standby.log().contains("rolling") || rolling().is_some()
    });
    standby.ends_well();
}
