//! `walrelay bookmark` and `walrelay replay`: events are sent again from a kept position, the bookmark stays
//! where it is, and the relay goes on.

mod million;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use walrelay_testkit::{Db, Delivered, History, eventually, eventually_some};

use crate::endpoint::{free_address, get};
use crate::rig::{PATIENCE, Relay, Rig, done, insert, output, refused, walrelay};

const ROWS: u64 = 20_000;

fn command(command: &str, config: &Path, args: &[&str]) -> Output {
    output(&with(command, config, args))
}

fn with<'a>(command: &'a str, config: &'a Path, args: &[&'a str]) -> Vec<&'a str> {
    let config = config.to_str().expect("a path that is text");
    [&[command], args, &["--config", config]].concat()
}

fn bookmarks(config: &Path) -> Vec<Value> {
    let listed = command("bookmark", config, &["list", "--output", "json"]);
    done(&listed);
    let text = String::from_utf8(listed.stdout).expect("text");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// The lines that a replay into standard output printed.
fn lines(output: &Output) -> Vec<Value> {
    done(output);
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// The ids of each key, in the order of its partition.
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

/// The one value of a header in all these records.
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
    let value = values
        .into_iter()
        .flatten()
        .flatten()
        .next()
        .expect("a value");
    String::from_utf8(value).expect("text")
}

/// Two replays of one bookmark, beside a relay under load, give the same records in the same order per key, and
/// the bookmark stays where it is; the relay's own history is clean.
#[test]
fn two_replays_give_the_same_beside_a_relay_at_work() {
    let rig = Rig::with_outbox(15);
    let config = rig.config();
    let relay = rig.streaming(&config);
    done(&command("bookmark", &config, &["create", "start"]));
    let rows = rig.workload().rows(ROWS).run().rows as usize;
    rig.caught_up();
    let before = bookmarks(&config);
    assert_eq!(before[0]["bookmark"], "start");

    let end = rig.slot().wal_end().to_string();
    let load = rig.workload().seed(7).rate(300.0).start();
    let replay = |prefix: &str| {
        let args = ["--from", "start", "--to", &end, "--topic-prefix", prefix];
        done(&command("replay", &config, &args));
        let topics = format!("{prefix}{}", rig.prefix);
        History::records(&rig.bootstrap, &topics, rows, PATIENCE)
    };
    let first = replay("first-");
    let second = replay("second-");
    assert!(load.written().rows > 100, "the relay had work meanwhile");
    load.stop();
    rig.caught_up();
    rig.verdict().assert_clean();
    relay.ends_well();

    assert_eq!(first.len(), rows, "all came, and nothing was repeated");
    let ids: BTreeSet<_> = first.iter().map(|record| &record.id).collect();
    assert_eq!(ids.len(), first.len(), "nothing was repeated");
    assert_eq!(by_key(&first), by_key(&second));
    let live = History::records(&rig.bootstrap, &rig.prefix, rows, PATIENCE);
    let live = by_key(&live);
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
    let left = fs::read_dir(".")
        .expect("a directory")
        .filter_map(Result::ok);
    let left: Vec<_> = left
        .map(|entry| entry.file_name())
        .filter(|name| ids.iter().any(|id| name.to_string_lossy().contains(id)))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Bookmarks are made, listed, advanced and dropped, and nothing that can hurt is done unasked.
#[test]
fn bookmarks_are_kept_and_given_up() {
    let rig = Rig::without_broker(18);
    rig.workload().create_tables();
    let config = rig.config();
    let db = Db::connect(&rig.postgres.url());
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    refused(
        &command("bookmark", &config, &["create", "a"]),
        64,
        &["[slot-unknown]"],
    );
    done(&command("slots", &config, &["create"]));
    let shown = done(&command("bookmark", &config, &["create", "a", "--dry-run"]));
    assert!(
        shown
            .contains("pg_copy_logical_replication_slot('walrelay', 'walrelay_bookmark_a', false)")
    );
    assert!(
        bookmarks(&config).is_empty(),
        "a dry run created a bookmark"
    );
    done(&command("bookmark", &config, &["create", "a"]));
    refused(
        &command("bookmark", &config, &["create", "a"]),
        64,
        &["[bookmark-exists]"],
    );
    refused(
        &command("bookmark", &config, &["create", "A b"]),
        64,
        &["[bookmark-name]"],
    );
    refused(
        &command("bookmark", &config, &["create", "rolling"]),
        64,
        &["[bookmark-name]"],
    );

    insert(&db, 1);
    done(&command(
        "slots",
        &config,
        &["advance", "walrelay", "--to", "now", "--yes"],
    ));
    let listed = done(&command("bookmark", &config, &["list", "--times"]));
    assert!(
        listed.starts_with("BOOKMARK") && listed.contains(" 20"),
        "{listed}"
    );
    let position = |at: usize| bookmarks(&config)[at]["position"].clone();
    let begin = position(0);
    let advance = ["advance", "a"];
    refused(
        &command("bookmark", &config, &advance),
        64,
        &["[slots-not-agreed]", "no longer be replayed"],
    );
    assert_eq!(position(0), begin);
    refused(
        &command(
            "bookmark",
            &config,
            &["advance", "a", "--to", "FFFF/0", "--yes"],
        ),
        64,
        &["[slot-position]", "the relay is at"],
    );
    done(&command("bookmark", &config, &["advance", "a", "--yes"]));
    assert_ne!(position(0), begin);
    refused(
        &command("bookmark", &config, &["drop", "b"]),
        64,
        &["[bookmark-unknown]"],
    );
    refused(
        &command("bookmark", &config, &["drop", "a"]),
        64,
        &["[slots-not-agreed]"],
    );
    done(&command("bookmark", &config, &["drop", "a", "--yes"]));
    assert!(bookmarks(&config).is_empty());
}

/// What is replayed is what was asked for: a range, a selection, a topic; a dry run sends nothing; what is no
/// longer retained is refused with the oldest that is; the live topics are not replayed into unasked.
#[test]
fn a_replay_takes_what_was_asked_for() {
    let rig = Rig::with_outbox(18);
    let config = rig.config();
    let relay = rig.streaming(&config);
    let db = Db::connect(&rig.postgres.url());
    let now = || {
        db.text("SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
    };
    let end = || rig.slot().wal_end().to_string();
    insert(&db, 0);
    rig.caught_up();
    let before = now().expect("a time");
    done(&command("bookmark", &config, &["create", "all"]));
    let dawn = now().expect("a time");
    insert(&db, 1);
    db.batch(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'other', 'U', '{\"number\": 2}')",
    );
    let middle = end();
    let noon = now().expect("a time");
    insert(&db, 3);
    insert(&db, 4);
    rig.caught_up();

    let numbers = |args: &[&str]| -> Vec<u64> {
        let args = [&["--sink", "stdout"], args].concat();
        let replayed = lines(&command("replay", &config, &args));
        let number = |line: Value| {
            let value: Value =
                serde_json::from_str(line["value"].as_str().expect("text")).expect("JSON");
            value["number"].as_u64().expect("a number")
        };
        replayed.into_iter().map(number).collect()
    };
    assert_eq!(numbers(&["--from", "all"]), [1, 2, 3, 4]);
    assert_eq!(numbers(&["--from", &middle]), [3, 4]);
    assert_eq!(numbers(&["--from", &noon]), [3, 4]);
    // No event is as old, and the bookmark was there already: nothing is lost.
    assert_eq!(numbers(&["--from", &dawn]), [1, 2, 3, 4]);
    assert_eq!(numbers(&["--from", "all", "--to", &middle]), [1, 2]);
    assert_eq!(numbers(&["--from", "all", "--to", &noon]), [1, 2]);
    assert_eq!(numbers(&["--from", "all", "--where", "type = 'U'"]), [2]);
    assert_eq!(
        numbers(&["--from", "all", "--where", "type = 'T' and key = 'other'"]),
        Vec::<u64>::new()
    );
    let topic = format!("topic = '{}order' and key = 'key'", rig.prefix);
    assert_eq!(numbers(&["--from", "all", "--where", &topic]), [1, 3, 4]);

    let args = [
        "--from",
        "all",
        "--to-topic",
        "elsewhere",
        "--sink",
        "stdout",
    ];
    let records = lines(&command("replay", &config, &args));
    assert!(
        records.iter().all(|record| record["topic"] == "elsewhere"),
        "{records:?}"
    );
    let headers = records[0]["headers"].as_array().expect("headers");
    assert_eq!(headers.last().expect("one")[0], "walrelay-replay");

    let dry = done(&command("replay", &config, &["--from", "all", "--dry-run"]));
    assert!(
        dry.contains("4 records would be sent")
            && dry.contains(&format!("4 to {}order", rig.prefix)),
        "{dry}"
    );
    refused(
        &command("replay", &config, &["--from", "all"]),
        64,
        &["[replay-not-agreed]", "old events of a key after new ones"],
    );
    let records = || History::records(&rig.bootstrap, &rig.prefix, 5, PATIENCE).len();
    // A topic that the relay writes is a live topic by any option's name.
    let live = format!("{}order", rig.prefix);
    let into_live = ["--from", "all", "--to-topic", &live];
    refused(
        &command("replay", &config, &into_live),
        64,
        &[
            "[replay-not-agreed]",
            &live,
            "old events of a key after new ones",
        ],
    );
    assert_eq!(records(), 5, "none sent anything");
    let aside = format!("aside-{}order", rig.prefix);
    let into_new = ["--from", "all", "--to-topic", &aside];
    done(&command("replay", &config, &into_new));
    refused(
        &command("replay", &config, &into_new),
        64,
        &["[replay-not-agreed]", &aside, "has records"],
    );
    done(&command(
        "replay",
        &config,
        &[&into_new[..], &["--yes"]].concat(),
    ));
    assert_eq!(
        History::records(&rig.bootstrap, &aside, 4, PATIENCE).len(),
        8
    );
    done(&command("replay", &config, &["--from", "all", "--yes"]));
    assert_eq!(records(), 9);

    refused(
        &command("replay", &config, &["--from", "none"]),
        64,
        &["[bookmark-unknown]"],
    );
    let kept = bookmarks(&config)[0]["position"]
        .as_str()
        .expect("a position")
        .to_owned();
    refused(
        &command("replay", &config, &["--from", "0/1"]),
        64,
        &["[replay-gone]", &kept],
    );
    refused(
        &command("replay", &config, &["--from", &before]),
        64,
        &[
            "[replay-gone]",
            "that can be replayed is 20",
            "of bookmark all",
        ],
    );
    refused(
        &command("replay", &config, &["--from", "FFFF/0"]),
        64,
        &["[replay-range]"],
    );
    refused(
        &command("replay", &config, &["--from", &middle, "--to", &kept]),
        64,
        &["[replay-range]", "before the beginning"],
    );
    refused(
        &command("replay", &config, &["--resume", "0123abcd"]),
        64,
        &["[replay-resume]"],
    );
    relay.ends_well();
}

/// A replay that was interrupted goes on where its acknowledgements ended; one that was killed repeats no more
/// than what it had not noted.
#[test]
fn an_interrupted_replay_is_resumed() {
    let rig = Rig::with_outbox(15);
    let config = rig.config();
    let relay = rig.streaming(&config);
    done(&command("bookmark", &config, &["create", "start"]));
    let rows = rig.workload().rows(4_000).run().rows as usize;
    rig.caught_up();
    let dir = rig.path("replays");
    fs::create_dir(&dir).expect("a directory");
    let state = ["--state-dir", dir.to_str().expect("text")];

    let args = [
        &[
            "--from",
            "start",
            "--topic-prefix",
            "again-",
            "--rate",
            "1500",
        ][..],
        &state,
    ]
    .concat();
    let mut command = walrelay(&with("replay", &config, &args));
    let mut replay = Relay::spawn(&mut command, &rig.path("replay.log"));
    let topics = format!("again-{}", rig.prefix);
    let sent = || History::records(&rig.bootstrap, &topics, 500, Duration::from_secs(2)).len();
    eventually(PATIENCE, || sent() >= 500);
    let running = replay.log();
    let running = running
        .split("replay ")
        .nth(1)
        .and_then(|rest| rest.get(..8));
    let again = [&["--resume", running.expect("an id")][..], &state].concat();
    refused(
        &self::command("replay", &config, &again),
        69,
        &["[replay-running]", ".lock"],
    );
    replay.signal("-INT");
    assert_eq!(replay.ended().code(), Some(75), "{}", replay.log());
    let log = replay.log();
    assert!(log.contains("[replay-interrupted]"), "{log}");
    let id = log
        .split("--resume ")
        .nth(1)
        .and_then(|rest| rest.get(..8))
        .expect("an id")
        .to_owned();
    let interrupted = sent();
    assert!((500..rows).contains(&interrupted), "{interrupted}");

    // Killed in the middle.
    let args = [&["--resume", &id][..], &state].concat();
    let mut command = walrelay(&with("replay", &config, &args));
    let replay = Relay::spawn(&mut command, &rig.path("resumed.log"));
    let noted = || {
        let text = fs::read_to_string(dir.join(format!("walrelay-replay-{id}.json"))).ok()?;
        let note: Value = serde_json::from_str(&text).ok()?;
        note["acknowledged"].as_str().map(str::to_owned)
    };
    let at_interruption = noted().expect("a position");
    eventually(PATIENCE, || {
        noted().is_some_and(|now| now != at_interruption)
    });
    // Each 50 ms while there is progress, not only with the updates of an idle stream, a second apart.
    let begun = Instant::now();
    let mut positions = BTreeSet::new();
    eventually(PATIENCE, || {
        positions.extend(noted());
        positions.len() > 8
    });
    let spent = begun.elapsed();
    assert!(spent < Duration::from_secs(4), "8 notes took {spent:?}");
    replay.kill();
    let killed = sent();
    assert!(killed < rows, "{killed}");

    finish(&config, &args);
    let records = History::records(&rig.bootstrap, &topics, rows, PATIENCE);
    let ids: BTreeSet<_> = records.iter().map(|record| record.id.clone()).collect();
    assert_eq!(ids.len(), rows, "all of it came");
    // 1,500 a second: what was acknowledged in 50 ms, what was in flight, and room for a busy machine.
    let repeated = records.len() - rows;
    eprintln!("{repeated} records were repeated; 8 notes took {spent:?}");
    assert!(repeated < 750, "{repeated} records were repeated");
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

fn finish(config: &Path, args: &[&str]) {
    let mut command: Command = walrelay(&with("replay", config, args));
    let output = eventually_some(PATIENCE, || command.output().ok());
    done(&output);
}

/// The running relay keeps the rolling bookmark at its distance, and not beyond the limit of WAL; a relay on standby
/// leaves it alone; dropped, it is made anew with a warning.
#[test]
fn a_rolling_bookmark_follows_the_relay() {
    let rig = Rig::with_outbox(18);
    let url = rig.postgres.url();
    let address = free_address();
    let more = format!(
        "\n[retention]\nkeep = \"3s\"\nmax_wal = \"32MiB\"\n\n[http]\nlisten = \"{address}\"\n"
    );
    let config = rig.config_with(&url, &more);
    let relay = rig.streaming(&config);
    let db = Db::connect(&url);
    let rolling = || {
        bookmarks(&config)
            .into_iter()
            .find(|bookmark| bookmark["bookmark"] == "rolling")
    };
    // A slot that is being made is listed before it has a position.
    let position = || -> walrelay_lsn::Lsn {
        let text = eventually_some(PATIENCE, || {
            rolling()?["position"].as_str().map(str::to_owned)
        });
        text.parse().expect("an LSN")
    };
    let begin = position();
    insert(&db, 1);
    rig.caught_up();
    let after_first = rig.slot().read().expect("the slot").confirmed_flush;
    assert!(
        position() < after_first,
        "the bookmark follows at a distance"
    );
    let replayed = command(
        "replay",
        &config,
        &["--from", "rolling", "--sink", "stdout"],
    );
    assert_eq!(lines(&replayed).len(), 1);
    // The time is over; the position moves with each event of any table.
    eventually(PATIENCE, || {
        insert(&db, 2);
        position() >= after_first
    });
    assert!(begin < after_first);
    let standby = rig.start_with(&config, &["--set", "http.listen=127.0.0.1:0"]);
    standby.says("standing by");

    // More WAL than may be kept, before the time is over.
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

    db.batch("SELECT pg_drop_replication_slot('walrelay_bookmark_rolling')");
    relay.says("dropped by somebody");
    eventually(PATIENCE, || rolling().is_some());
    assert!(
        !standby.log().contains("rolling bookmark is made"),
        "{}",
        standby.log()
    );

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
