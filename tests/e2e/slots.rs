//! A slot that does not continue what was relayed stops the relay with the range that is gone, and
//! nothing but `--accept-gap` takes it over a gap. In each test some events are relayed by nobody:
//! a relay that passed over them silently would run on, and the test would not end well.

use std::fs;
use std::path::{Path, PathBuf};

use walrelay_lsn::Lsn;
use walrelay_testkit::{
    ChaosProxy, Cut, Db, Delivered, History, Kafka, Workload, eventually, servers,
};
use walrelay_throwaway::{Postgres, Shutdown};

use crate::rig::{PATIENCE, Relay, Rig, SLOT, ends, insert, output_with, shared_kafka};

fn drop_slot(db: &Db) {
    db.batch(&format!("SELECT pg_drop_replication_slot('{SLOT}')"));
}

fn create_slot(db: &Db) {
    db.batch(&format!(
        "SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')"
    ));
}

fn advance_slot(db: &Db) {
    db.batch(&format!(
        "SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())"
    ));
}

fn wal_end(db: &Db) -> Lsn {
    let end = db.text("SELECT pg_current_wal_flush_lsn()::text");
    end.expect("a position").parse().expect("an LSN")
}

/// The rig's configuration with more lines in `[source]`.
fn config_with(rig: &Rig, url: &str, lines: &str) -> PathBuf {
    let path = rig.config_with(url, "\n[delivery]\nbackoff_max = \"500ms\"\n");
    let text = fs::read_to_string(&path).expect("the configuration");
    let text = text.replace("[source]\n", &format!("[source]\n{lines}\n"));
    fs::write(&path, text).expect("written");
    path
}

/// The same with a state file.
fn noting(rig: &Rig) -> PathBuf {
    config_with(rig, &rig.postgres.url(), "state_file = \"state\"")
}

fn accepting(rig: &Rig, config: &Path) -> Relay {
    rig.start_with(config, &["--accept-gap"])
}

/// What a state file holds.
fn noted(path: &Path, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| {
        let (name, value) = line.split_once(" = ")?;
        (name == key).then(|| value.trim_matches('"').to_owned())
    });
    Some(line.unwrap_or_else(|| panic!("no {key} in {text}")))
}

fn noted_lsn(path: &Path) -> Option<Lsn> {
    noted(path, "confirmed").map(|lsn| lsn.parse().expect("an LSN"))
}

/// The range that an error or a log line names last: `from X … to Y`.
#[track_caller]
fn range(log: &str) -> (Lsn, Lsn) {
    let (_, rest) = log.rsplit_once("committed from ").expect("a range");
    let lsn = |text: &str| {
        let text: String = text
            .chars()
            .take_while(|c| c.is_ascii_hexdigit() || *c == '/')
            .collect();
        text.parse::<Lsn>()
    };
    let from = lsn(rest).unwrap_or_else(|_| panic!("no beginning: {rest}"));
    let (_, rest) = rest.split_once(" to ").expect("an end");
    let to = lsn(rest).unwrap_or_else(|_| panic!("no end: {rest}"));
    (from, to)
}

/// The range holds what was written while nobody relayed.
#[track_caller]
fn covers(log: &str, begin: Lsn, end: Lsn) {
    let (from, to) = range(log);
    assert!(
        from <= begin && to >= end,
        "{from} to {to} does not cover {begin} to {end}: {log}"
    );
}

/// Event 1 is relayed; the relay runs on.
fn relayed_one(rig: &Rig, config: &Path) -> Relay {
    rig.workload().create_tables();
    let relay = rig.streaming(config);
    insert(&Db::connect(&rig.postgres.url()), 1);
    rig.caught_up();
    relay
}

fn delivered(rig: &Rig) -> Vec<String> {
    let limit = std::time::Duration::from_secs(1);
    let records = History::records(&rig.bootstrap, &rig.prefix, usize::MAX, limit);
    let payload = |record: &Delivered| {
        let payload = record.payload.clone().expect("a payload");
        String::from_utf8(payload).expect("text")
    };
    records.iter().map(payload).collect()
}

fn numbers(numbers: &[u32]) -> Vec<String> {
    let payload = |number: &u32| format!("{{\"number\": {number}}}");
    numbers.iter().map(payload).collect()
}

/// `--accept-gap` goes on from there, says for which range, and what comes now arrives; a plain
/// start afterwards finds nothing wrong.
#[track_caller]
fn goes_on(rig: &Rig, config: &Path, expected: &[u32]) {
    let relay = accepting(rig, config);
    relay.streaming();
    relay.says("accepted by --accept-gap");
    insert(&Db::connect(&rig.postgres.url()), 9);
    rig.caught_up();
    let log = relay.ends_well();
    assert!(!log.contains("there is no gap"), "{log}");
    assert_eq!(delivered(rig), numbers(expected), "{log}");
    let relay = rig.streaming(config);
    relay.ends_well();
}

fn dropped_while_no_relay_ran(noting_too: bool) {
    let rig = Rig::new(15);
    let config = if noting_too {
        noting(&rig)
    } else {
        rig.config()
    };
    relayed_one(&rig, &config).ends_well();
    let db = Db::connect(&rig.postgres.url());
    drop_slot(&db);
    let begin = wal_end(&db);
    insert(&db, 2);
    let end = wal_end(&db);
    let checked = output_with("check", &config, &[]);
    assert_eq!(checked.status.code(), Some(78));
    for _ in 0..2 {
        let log = ends(&mut rig.start(&config), 78, "slot-missing");
        for way in ["walrelay init", "walrelay run --accept-gap"] {
            assert!(log.contains(way), "{log}");
        }
        if noting_too {
            covers(&log, begin, end);
        } else {
            assert!(log.contains("which nobody knows"), "{log}");
        }
        assert!(rig.slot().read().is_none(), "it was made anew");
    }
    if noting_too {
        // Nor without the publication, while the file remembers.
        db.batch("DROP PUBLICATION walrelay");
        ends(&mut rig.start(&config), 78, "slot-missing");
    }
    goes_on(&rig, &config, &[1, 9]);
}

#[test]
fn dropped_while_no_relay_ran_is_not_made_anew() {
    dropped_while_no_relay_ran(false);
    dropped_while_no_relay_ran(true);
}

/// Neither publication nor slot is the first day; `init` makes a slot whenever it is asked to.
#[test]
fn of_the_first_day_is_made_and_init_makes_one_with_a_note() {
    let rig = Rig::with_outbox(18);
    let config = rig.config();
    rig.relay().ends_well();
    drop_slot(&Db::connect(&rig.postgres.url()));
    let init = output_with("init", &config, &[]);
    let said = String::from_utf8_lossy(&init.stdout).into_owned();
    assert!(
        said.contains("created slot walrelay") && said.contains("note: publication walrelay was"),
        "{said}"
    );
    let relay = accepting(&rig, &config);
    relay.streaming();
    relay.says("there is no gap in the log");
    relay.ends_well();
}

/// Two relays that start at the same moment on an empty database: one makes both things, the other
/// waits for it, and neither takes the other's half-made set-up for a slot that was dropped.
#[test]
fn of_two_that_start_together_is_made_once() {
    for round in 0..3 {
        let rig = Rig::with_outbox(15);
        let config = rig.config();
        let first = rig.start(&config);
        let second = rig.start(&config);
        let logs = || format!("round {round}: {}\n{}", first.log(), second.log());
        eventually(PATIENCE, || {
            assert!(!logs().contains("[slot-missing]"), "{}", logs());
            let streams = first.streams() + second.streams();
            let waits = logs().matches("is being read by server process").count();
            streams == 1 && waits > 0
        });
        assert_eq!(logs().matches("created the slot:").count(), 1, "{}", logs());
    }
}

/// Cuts the relay off, does something to the slot, and lets it back.
fn cut_off(rig: &Rig, proxy: &ChaosProxy, act: impl FnOnce(&Db)) {
    let db = Db::connect(&rig.postgres.url());
    proxy.refuse(true);
    proxy.cut(Cut::Reset);
    rig.slot().wait_inactive(PATIENCE);
    act(&db);
    proxy.refuse(false);
}

/// With and without a state file: the process remembers by itself.
fn under_a_relay(id: &str, act: impl Fn(&Db)) {
    for lines in ["", "state_file = \"state\""] {
        let rig = Rig::new(18);
        let (proxy, url) = rig.proxy();
        let config = config_with(&rig, &url, lines);
        let mut relay = relayed_one(&rig, &config);
        let mut written = (Lsn::ZERO, Lsn::ZERO);
        cut_off(&rig, &proxy, |db| {
            let begin = wal_end(db);
            insert(db, 2);
            written = (begin, wal_end(db));
            act(db);
        });
        let log = ends(&mut relay, 65, id);
        covers(&log, written.0, written.1);
        assert_eq!(delivered(&rig), numbers(&[1]), "{log}");
        if !lines.is_empty() {
            // The next process knows as well.
            let id = if id == "slot-gone" {
                "slot-missing"
            } else {
                id
            };
            let code = if id == "slot-missing" { 78 } else { 65 };
            let log = ends(&mut rig.start(&config), code, id);
            covers(&log, written.0, written.1);
            goes_on(&rig, &config, &[1, 9]);
        }
    }
}

#[test]
fn dropped_under_a_relay_is_not_made_anew() {
    under_a_relay("slot-gone", drop_slot);
}

#[test]
fn made_anew_under_a_relay_is_noticed() {
    under_a_relay("slot-moved", |db| {
        drop_slot(db);
        create_slot(db);
    });
}

#[test]
fn advanced_under_a_relay_is_noticed() {
    under_a_relay("slot-moved", advance_slot);
}

fn moved_while_no_relay_ran(act: impl Fn(&Db)) {
    let rig = Rig::new(15);
    let config = noting(&rig);
    relayed_one(&rig, &config).ends_well();
    let state = rig.path("state");
    let before = noted_lsn(&state).expect("a position");
    let db = Db::connect(&rig.postgres.url());
    let begin = wal_end(&db);
    insert(&db, 2);
    let end = wal_end(&db);
    act(&db);
    for _ in 0..2 {
        let log = ends(&mut rig.start(&config), 65, "slot-moved");
        covers(&log, begin, end);
        assert_eq!(range(&log).0, before, "{log}");
        assert_eq!(
            noted_lsn(&state),
            Some(before),
            "a refusal changed the file"
        );
    }
    goes_on(&rig, &config, &[1, 9]);
    assert!(noted_lsn(&state) > Some(end));

    // Without the file it is taken as it is: what GUARANTEES.md does not promise.
    fs::remove_file(&state).expect("removed");
    insert(&db, 10);
    act(&db);
    let relay = rig.streaming(&config);
    relay.ends_well();
    assert!(state.exists(), "it is made anew");
}

#[test]
fn moved_while_no_relay_ran_is_noticed_with_a_state_file() {
    moved_while_no_relay_ran(advance_slot);
    moved_while_no_relay_ran(|db| {
        drop_slot(db);
        create_slot(db);
    });
}

/// Another cluster, set up for a relay too, takes the address over.
#[test]
fn of_another_cluster_is_noticed() {
    for lines in ["", "state_file = \"state\""] {
        let rig = Rig::new(18);
        let other = another_cluster();
        let (proxy, url) = rig.proxy();
        let config = config_with(&rig, &url, lines);
        let mut relay = relayed_one(&rig, &config);
        let password = rig.postgres.superuser_password();
        let db = Db::connect(&other.url());
        db.batch(&format!("ALTER ROLE postgres PASSWORD '{password}'"));
        proxy.lead_to(("127.0.0.1", other.port()));
        proxy.cut(Cut::Reset);
        let log = ends(&mut relay, 65, "other-server");
        assert!(log.contains("--accept-gap"), "{log}");
        let mut relay = rig.start(&config);
        if lines.is_empty() {
            // It trusts what it finds: what GUARANTEES.md does not promise.
            relay.streaming();
            continue;
        }
        let log = ends(&mut relay, 65, "other-server");
        assert!(log.contains("system identifier changed"), "{log}");
        let relay = accepting(&rig, &config);
        relay.streaming();
        relay.says("accepted by --accept-gap");
        relay.ends_well();
        rig.streaming(&config).ends_well();
    }
}

fn another_cluster() -> Postgres {
    let other = servers::postgres(18);
    Workload::new(&other.url()).create_tables();
    let db = Db::connect(&other.url());
    db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
    create_slot(&db);
    other
}

/// Restored from an older state while no relay ran.
#[test]
fn of_a_server_that_went_back_is_noticed_with_a_state_file() {
    let rig = Rig::new(15);
    let config = noting(&rig);
    relayed_one(&rig, &config).ends_well();
    rig.postgres.stop(Shutdown::Fast).expect("it stops");
    let data = rig.postgres.data_dir();
    let backup = data.with_extension("backup");
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([&data, &backup])
        .status();
    assert!(copied.expect("cp runs").success());
    rig.postgres.start_again().expect("it starts again");
    let relay = rig.streaming(&config);
    rig.workload().rows(2_000).seed(2).run();
    rig.caught_up();
    relay.ends_well();
    let relayed = noted_lsn(&rig.path("state")).expect("a position");
    rig.postgres.stop(Shutdown::Fast).expect("it stops");
    fs::remove_dir_all(&data).expect("removed");
    fs::rename(&backup, &data).expect("restored");
    rig.postgres.start_again().expect("it starts again");
    let log = ends(&mut rig.start(&config), 65, "log-went-back");
    let (from, to) = range(&log);
    assert_eq!(to, relayed, "{log}");
    assert!(from < to, "{log}");
    let relay = accepting(&rig, &config);
    relay.streaming();
    relay.says("accepted by --accept-gap");
    relay.ends_well();
}

/// Under load and through SIGKILL: read the slot first, then the file.
#[test]
fn never_stands_beyond_the_state_file() {
    let rig = Rig::with_outbox(15);
    let config = noting(&rig);
    let state = rig.path("state");
    let slot = rig.slot();
    let mut relay = rig.streaming(&config);
    let load = rig.workload().rate(2_000.0).seed(11).start();
    let mut seen = std::collections::BTreeSet::new();
    let mut look = || {
        let confirmed = slot.read().expect("the slot").confirmed_flush;
        let noted = noted_lsn(&state).expect("a position");
        assert!(
            confirmed <= noted,
            "the slot is at {confirmed}, noted is {noted}"
        );
        seen.insert(confirmed);
        seen.len()
    };
    for _ in 0..4 {
        let next = load.written().rows + 1_500;
        let before = look();
        // The disk decides how often it moves.
        eventually(PATIENCE, || {
            look() >= before + 5 && load.written().rows >= next
        });
        relay.kill();
        look();
        relay = rig.streaming(&config);
    }
    load.stop();
    rig.caught_up();
    assert!(look() > 20);
    rig.verdict().assert_clean_but_for_ragged();
    relay.ends_well();
    assert!(noted_lsn(&state).is_some());
}

/// The directory goes away: nothing is confirmed from then on. It comes back: nothing was lost.
#[test]
fn is_not_moved_while_the_state_file_cannot_be_written() {
    let rig = Rig::new(18);
    let directory = rig.path("notes");
    fs::create_dir(&directory).expect("a directory");
    let config = config_with(&rig, &rig.postgres.url(), "state_file = \"notes/state\"");
    let mut relay = relayed_one(&rig, &config);
    let away = rig.path("away");
    fs::rename(&directory, &away).expect("it goes away");
    insert(&Db::connect(&rig.postgres.url()), 2);
    let log = ends(&mut relay, 78, "state-file");
    assert!(log.contains("No such file or directory"), "{log}");
    let slot = rig.slot().read().expect("the slot").confirmed_flush;
    assert!(Some(slot) <= noted_lsn(&away.join("state")), "{log}");
    ends(&mut rig.start(&config), 78, "state-file");
    fs::rename(&away, &directory).expect("it comes back");
    let relay = rig.streaming(&config);
    rig.caught_up();
    // Delivered when it could not be noted, so once more; but none is missing.
    let verdict = rig.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.committed, 2);
    relay.ends_well();

    // Somebody else's file, and one that was cut off.
    let state = directory.join("state");
    let text = fs::read_to_string(&state).expect("the file");
    fs::write(&state, &text[..text.len() / 2]).expect("written");
    let log = ends(&mut rig.start(&config), 78, "state-file");
    assert!(log.contains("cut off"), "{log}");
    fs::write(&state, text).expect("written");
    create_other_slot(&rig);
    let other = rig.start_with(&config, &["--set", "source.slot=other"]);
    let log = ends(&mut { other }, 78, "state-file");
    assert!(log.contains("is of slot walrelay, not other"), "{log}");
}

fn create_other_slot(rig: &Rig) {
    Db::connect(&rig.postgres.url())
        .batch("SELECT pg_create_logical_replication_slot('other', 'pgoutput')");
}

/// The broker is gone, WAL piles up: the warning comes while the slot can still be saved. Then it
/// is lost under the streaming relay, which says so with the range.
fn warned_of_before_it_is_lost(major: u32) {
    let postgres = servers::builder(major)
        .setting("max_slot_wal_keep_size", "96MB")
        .setting("min_wal_size", "32MB")
        .setting("max_wal_size", "48MB")
        .setting("checkpoint_timeout", "1h")
        .start()
        .expect("Postgres starts");
    let kafka = Kafka::builder().start();
    let rig = Rig::with(postgres, kafka.bootstrap_servers());
    rig.workload().create_tables();
    let config = rig.config_with(
        &rig.postgres.url(),
        "\n[delivery]\nmax_in_flight_records = 64\n",
    );
    let mut relay = rig.streaming(&config);
    let db = Db::connect(&rig.postgres.url());
    insert(&db, 1);
    rig.caught_up();
    kafka.kill();
    // Of this one on nothing can be confirmed. What is written before a commit may be: rows of
    // transactions that are open.
    insert(&db, 3);
    let begin = wal_end(&db);
    rig.workload().rows(300).seed(3).run();
    relay.says("the sink takes nothing more");
    let end = wal_end(&db);
    let status = || {
        db.text("SELECT wal_status FROM pg_replication_slots")
            .expect("the slot")
    };
    let write = |megabytes: u32| {
        db.batch(&format!(
            "SELECT pg_logical_emit_message(false, 'p', repeat('x', 1000000)) \
             FROM generate_series(1, {megabytes})"
        ));
    };
    // Towards the end, and waiting for a word in between.
    write(64);
    relay.says("more than half of the WAL");
    assert_ne!(status(), "lost", "{}", relay.log());
    write(30);
    relay.says("the slot is about to lose WAL it needs");
    assert_ne!(status(), "lost", "{}", relay.log());
    eventually(PATIENCE, || {
        write(20);
        db.batch("SELECT pg_switch_wal()");
        db.batch("CHECKPOINT");
        status() == "lost"
    });
    let log = ends(&mut relay, 65, "slot-lost");
    covers(&log, begin, end);
    assert!(log.contains("'::xid"), "no transaction is named: {log}");
    let log = ends(&mut rig.start(&config), 65, "slot-lost");
    covers(&log, begin, end);

    kafka.start_again();
    let relay = accepting(&rig, &config);
    relay.streaming();
    relay.says("dropped the slot, which was lost");
    covers(&relay.log(), begin, end);
    insert(&db, 2);
    rig.caught_up();
    let log = relay.ends_well();
    let delivered = delivered(&rig);
    assert_eq!(delivered.last(), numbers(&[2]).last(), "{log}");
}

#[test]
fn warned_of_before_it_is_lost_on_15() {
    warned_of_before_it_is_lost(15);
}

#[test]
fn warned_of_before_it_is_lost_on_18() {
    warned_of_before_it_is_lost(18);
}

/// Postgres 18 can invalidate a slot that nobody reads, whatever WAL there is.
#[test]
fn lost_by_idleness_is_noticed() {
    let kafka = shared_kafka();
    let rig = Rig::with(
        servers::builder(18)
            .setting("idle_replication_slot_timeout", "1s")
            .start()
            .expect("Postgres starts"),
        kafka.bootstrap_servers(),
    );
    let config = rig.config();
    relayed_one(&rig, &config).ends_well();
    let db = Db::connect(&rig.postgres.url());
    let begin = wal_end(&db);
    insert(&db, 2);
    let end = wal_end(&db);
    eventually(PATIENCE, || {
        db.batch("CHECKPOINT");
        let reason = "SELECT invalidation_reason FROM pg_replication_slots";
        db.text(reason).as_deref() == Some("idle_timeout")
    });
    let log = ends(&mut rig.start(&config), 65, "slot-lost");
    assert!(log.contains("(idle_timeout)"), "{log}");
    covers(&log, begin, end);
    db.batch("ALTER SYSTEM SET idle_replication_slot_timeout = 0");
    db.batch("SELECT pg_reload_conf()");
    goes_on(&rig, &config, &[1, 9]);
    drop(kafka);
}

/// `failover = true` makes a slot of which standbys keep a copy, and is refused where there is none.
#[test]
fn for_failover_is_made_from_17_on() {
    let rig = Rig::with_outbox(17);
    let config = config_with(&rig, &rig.postgres.url(), "failover = true");
    rig.streaming(&config).ends_well();
    let db = Db::connect(&rig.postgres.url());
    let failover = "SELECT failover::text FROM pg_replication_slots";
    assert_eq!(db.text(failover).as_deref(), Some("true"));
    drop_slot(&db);
    let init = output_with("init", &config, &[]);
    assert!(init.status.success());
    assert_eq!(db.text(failover).as_deref(), Some("true"));

    let old = Rig::new(15);
    old.workload().create_tables();
    let config = config_with(&old, &old.postgres.url(), "failover = true");
    let log = ends(&mut old.start(&config), 78, "failover-too-old");
    assert!(log.contains("Postgres 15"), "{log}");
    assert!(old.slot().read().is_none());
}
