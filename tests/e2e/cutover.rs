//! `walrelay cutover` and `mark_sent`: from two kinds of polling relays to walrelay, and back.

mod poller;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use fastrand::Rng;
use walrelay_testkit::{Db, Delivered, History, Running, eventually};

use crate::rig::{PATIENCE, Rig, done, output_with, refused, said};
use poller::Kind;

fn rig(major: u32, kind: Kind) -> Rig {
    let rig = Rig::with_outbox(major);
    Db::connect(&rig.postgres.url()).batch(&format!(
        "ALTER TABLE outbox ADD seq bigserial, {}; CREATE INDEX ON outbox (seq)",
        kind.columns()
    ));
    rig
}

/// A configuration for this outbox.
fn config(rig: &Rig, kind: Kind) -> PathBuf {
    let path = rig.config();
    let text = fs::read_to_string(&path).expect("it is there");
    let lines = format!(
        "[source]\nsnapshot = \"unsent\"\nsnapshot_where = \"{}\"\nsnapshot_order = [\"seq\"]\nmark_sent = \"{}\"\n",
        kind.unsent(),
        kind.mark()
    );
    fs::write(&path, text.replacen("[source]\n", &lines, 1)).expect("it is written");
    path
}

fn ids(db: &Db, condition: &str) -> HashSet<String> {
    let rows = db.query(
        &format!("SELECT id::text FROM outbox WHERE {condition}"),
        &[],
    );
    rows.iter().map(|row| row.get(0)).collect()
}

fn is_pollers(record: &Delivered) -> bool {
    record
        .headers
        .iter()
        .any(|(name, _)| name == poller::HEADER)
}

/// So many more rows are written.
fn more(load: &Running, rows: u64) {
    let next = load.written().rows + rows;
    eventually(PATIENCE, || load.written().rows >= next);
}

/// Kills the poller in mid-batch. The ids of the rows that it has marked.
fn kill(rig: &Rig, mut poller: walrelay_lab::servers::ChildGuard, kind: Kind) -> HashSet<String> {
    poller.kill().expect("it is killed");
    let db = Db::connect(&rig.postgres.url());
    let sessions = "SELECT FROM pg_stat_activity WHERE application_name = $1";
    // A server ends what was under way.
    eventually(PATIENCE, || {
        db.query(sessions, &[&poller::APPLICATION]).is_empty()
    });
    ids(&db, &format!("NOT ({})", kind.unsent()))
}

/// Nothing is lost or reordered, and walrelay repeats no row of these, which the poller had marked.
#[track_caller]
fn judge(rig: &Rig, marked: &HashSet<String>, what: &str) {
    let verdict = rig.verdict();
    let records = History::records(&rig.bootstrap, &rig.prefix, verdict.committed, PATIENCE);
    let twice = records
        .iter()
        .filter(|record| !is_pollers(record))
        .filter(|record| record.id.as_ref().is_some_and(|id| marked.contains(id)))
        .count();
    let of_poller = records.iter().filter(|record| is_pollers(record)).count();
    eprintln!("{what}: {of_poller} records are the poller's; {verdict}");
    verdict.assert_clean_but_for_ragged();
    assert_eq!(twice, 0, "rows that the poller had marked are repeated");
    assert!(
        of_poller > 0 && of_poller < records.len(),
        "both relays published"
    );
}

/// The poller is killed in mid-batch under load, walrelay goes on.
fn cut_over(major: u32, kind: Kind, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let rig = rig(major, kind);
    let config = config(&rig, kind);
    done(&output_with("init", &config, &[]));
    let load = rig.workload().rate(800.0).seed(seed).start();
    let poller = poller::start(&rig, kind, false);
    let db = Db::connect(&rig.postgres.url());
    eventually(PATIENCE, || {
        ids(&db, &format!("NOT ({})", kind.unsent())).len() > 300
    });
    sleep(Duration::from_millis(rng.u64(..400)));
    let marked = kill(&rig, poller, kind);
    let switched = output_with("cutover", &config, &[]);
    assert_eq!(switched.status.code(), Some(64), "a step must be named");
    let switched = step(
        &config,
        "switch",
        &["--yes", "--poller", poller::APPLICATION],
    );
    assert!(
        done(&switched).contains("Start walrelay run now"),
        "{switched:?}"
    );
    more(&load, 200);
    let relay = rig.streaming(&config);
    more(&load, 300);
    let again = step(&config, "switch", &["--yes"]);
    refused(&again, 78, &["[cutover-slot]"]);
    load.stop();
    rig.caught_up();
    done(&step(&config, "verify", &["--where", "true"]));
    judge(
        &rig,
        &marked,
        &format!("{kind:?} on Postgres {major}, seed {seed}"),
    );
    // What is confirmed is marked.
    eventually(PATIENCE, || ids(&db, kind.unsent()).is_empty());
    relay.ends_well();
}

fn step(config: &std::path::Path, step: &str, more: &[&str]) -> std::process::Output {
    let path = config.to_str().expect("a path that is text");
    let words = [&["cutover", step, "--config", path], more].concat();
    crate::rig::output(&words)
}

#[test]
fn from_a_relay_with_a_status_loses_nothing() {
    cut_over(15, Kind::Status, fastrand::u64(..));
}

#[test]
fn from_a_relay_with_a_time_loses_nothing() {
    cut_over(18, Kind::Dispatched, fastrand::u64(..));
}

/// `cargo test -p walrelay --test e2e -- cutover::of_ten_seeds --ignored --nocapture`.
#[test]
#[ignore = "takes minutes"]
fn of_ten_seeds() {
    for seed in 1..=10 {
        let kind = if seed % 2 == 0 {
            Kind::Status
        } else {
            Kind::Dispatched
        };
        cut_over(if seed % 4 < 2 { 15 } else { 18 }, kind, seed);
        back(
            if seed % 4 < 2 { 18 } else { 15 },
            kind,
            seed,
            seed % 3 == 0,
        );
    }
}

/// walrelay stops under load, and the poller goes on. `killed`: by SIGKILL.
fn back(major: u32, kind: Kind, seed: u64, killed: bool) {
    let rig = rig(major, kind);
    let config = config(&rig, kind);
    done(&output_with("init", &config, &[]));
    rig.workload().rows(200).seed(seed).run();
    done(&step(&config, "switch", &["--yes"]));
    let relay = rig.streaming(&config);
    let load = rig.workload().rate(800.0).seed(seed + 1).start();
    more(&load, 500);
    let early = step(&config, "rollback", &["--yes", "--patience", "1s"]);
    refused(&early, 75, &["[cutover-busy]", "reads slot"]);
    let signal = if killed { "KILL" } else { "TERM" };
    let stop = format!("kill -{signal} {}", relay.pid());
    let dry = step(&config, "rollback", &["--dry-run"]);
    assert!(done(&dry).contains("The slot is dropped"), "{dry:?}");
    let back = step(&config, "rollback", &["--stop-relay", &stop]);
    assert!(
        done(&back).contains("Start the polling relay now"),
        "{back:?}"
    );
    assert!(rig.slot().read().is_none(), "the slot is left");
    // Rows of meanwhile are the poller's.
    more(&load, 200);
    let db = Db::connect(&rig.postgres.url());
    assert!(
        !ids(&db, kind.unsent()).is_empty(),
        "rows of after the stop are marked"
    );
    let poller = poller::start(&rig, kind, false);
    more(&load, 200);
    load.stop();
    eventually(PATIENCE, || ids(&db, kind.unsent()).is_empty());
    drop(poller);
    let verdict = rig.verdict();
    eprintln!("back to {kind:?} on Postgres {major} after SIG{signal}, seed {seed}: {verdict}");
    verdict.assert_clean_but_for_ragged();
    if !killed {
        assert_eq!(
            verdict.duplicates, 0,
            "a relay that drained leaves nothing to repeat"
        );
    }
}

#[test]
fn back_to_a_relay_with_a_status_repeats_nothing() {
    back(18, Kind::Status, fastrand::u64(..1 << 60), false);
}

#[test]
fn back_to_a_relay_with_a_time_after_a_crash_loses_nothing() {
    back(15, Kind::Dispatched, fastrand::u64(..1 << 60), true);
}

/// Rows are marked only behind the confirmed position.
#[test]
fn rows_that_are_not_confirmed_are_not_marked() {
    let kind = Kind::Dispatched;
    let rig = rig(15, kind);
    let config = config(&rig, kind);
    let db = Db::connect(&rig.postgres.url());
    rig.workload().rows(300).seed(1).run();
    let relay = rig.streaming(&config);
    eventually(PATIENCE, || ids(&db, kind.unsent()).is_empty());
    // Kafka takes no record of this topic: its row stays where it is, and so do those behind it.
    db.batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         VALUES (gen_random_uuid(), 'no topic', 'k', 'T', '{\"number\": 1}')",
    );
    rig.workload().rows(50).seed(2).run();
    let mut relay = relay;
    relay.ended();
    let unsent = ids(&db, kind.unsent());
    assert!(unsent.len() > 50, "{} rows are not marked", unsent.len());
    let without = output_with(
        "check",
        &config,
        &["--offline", "--set=source.snapshot=initial"],
    );
    assert!(said(&without).contains("source.mark_sent"), "{without:?}");
}

fn kinds(output: &std::process::Output) -> BTreeMap<String, u64> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| {
        let (count, kind) = line.split_once(" times: ")?;
        Some((kind.to_owned(), count.parse().ok()?))
    });
    lines.collect()
}

/// Both relays publish under load: equal records, then records with mistakes.
#[test]
fn a_shadow_finds_what_differs_and_nothing_else() {
    let kind = Kind::Dispatched;
    let rig = rig(15, kind);
    let config = config(&rig, kind);
    done(&output_with("init", &config, &[]));
    // Few enough that a poller on a busy machine keeps up.
    let load = rig.workload().rate(200.0).seed(3).start();
    more(&load, 200);
    let plan = step(&config, "plan", &[]);
    assert!(done(&plan).contains("Nothing is in the way"), "{plan:?}");
    let prefix = format!("shadow-{}", rig.prefix);
    let shadow = |time: &str, patience: &str| {
        let times = ["--for", time, "--patience", patience];
        let arguments = [&times[..], &["--topic-prefix", &prefix]].concat();
        step(&config, "shadow", &arguments)
    };
    let poller = poller::start(&rig, kind, false);
    let equal = shadow("5s", "60s");
    let text = done(&equal);
    assert!(
        text.contains("events on both sides") && kinds(&equal).is_empty(),
        "{text}"
    );
    assert!(rig.slot().read().is_none());
    kill(&rig, poller, kind);
    let poller = poller::start(&rig, kind, true);
    let differs = shadow("18s", "15s");
    assert_eq!(differs.status.code(), Some(65), "{}", said(&differs));
    let found = kinds(&differs);
    for what in [
        "only walrelay has it",
        "another value",
        "the value is the same JSON in other bytes",
    ] {
        assert!(
            found.get(what).is_some_and(|count| *count > 0),
            "{what}: {}",
            said(&differs)
        );
    }
    assert_eq!(found.len(), 3, "{}", said(&differs));
    let text = said(&differs);
    assert!(!text.contains("\"number\""), "values are printed: {text}");
    kill(&rig, poller, kind);
    load.stop();
}

/// A transaction that holds locks is waited for and named; what is not configured is said.
#[test]
fn names_what_is_in_the_way() {
    let kind = Kind::Dispatched;
    let rig = rig(15, kind);
    let config = config(&rig, kind);
    done(&output_with("init", &config, &[]));
    rig.workload().rows(50).seed(1).run();
    let asked = step(&config, "switch", &[]);
    refused(&asked, 64, &["[cutover-not-agreed]"]);
    let dry = step(&config, "switch", &["--dry-run"]);
    assert!(done(&dry).contains("makes slot walrelay"), "{dry:?}");
    let failed = step(&config, "switch", &["--stop-poller", "exit 3"]);
    refused(&failed, 75, &["[cutover-command]"]);
    let locker = Db::connect(&rig.postgres.url());
    locker.batch("SET application_name = 'stuck'; BEGIN; SELECT FROM outbox LIMIT 1 FOR UPDATE");
    let busy = step(&config, "switch", &["--yes", "--patience", "1s"]);
    refused(&busy, 75, &["[cutover-busy]", "stuck"]);
    locker.batch("COMMIT");
    assert!(rig.slot().read().is_none());
    let never = [
        "--set=source.snapshot=never",
        "--set=source.snapshot_where=true",
    ];
    let plan = step(&config, "plan", &never);
    assert_ne!(plan.status.code(), Some(0), "{plan:?}");
    let none = step(&config, "rollback", &["--yes"]);
    refused(&none, 78, &["[cutover-no-slot]"]);
    for name in ["plan", "shadow", "switch", "verify", "rollback"] {
        let help = said(&step(&config, name, &["--help"]));
        assert!(help.contains("Examples:"), "{help}");
    }
}
