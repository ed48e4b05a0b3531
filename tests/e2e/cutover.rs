//! `walrelay cutover` and `mark_sent`: from two kinds of polling relays to walrelay, and back.

mod poller;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use walrelay_testkit::{Db, Delivered, eventually, rng};
use walrelay_throwaway::ChildGuard;

use crate::rig::{
    PATIENCE, Rig, SLOT, assert_has, assert_lacks, command_with, create_slot, done, ends,
    output_with, refused, said, wait_rows, with_source,
};
use poller::Kind;

fn rig(major: u32, kind: Kind) -> Rig {
    let rig = Rig::with_outbox(major);
    rig.db().batch(&format!(
        "ALTER TABLE outbox ADD seq bigserial, {}; CREATE INDEX ON outbox (seq)",
        kind.columns()
    ));
    rig
}

/// Writes a configuration for this outbox.
fn config(rig: &Rig, kind: Kind) -> PathBuf {
    let lines = format!(
        "snapshot = \"unsent\"\nsnapshot_where = \"{}\"\nsnapshot_order = [\"seq\"]\nmark_sent = \"{}\"",
        kind.unsent(),
        kind.mark()
    );
    with_source(rig.config(), &lines)
}

fn ids(db: &Db, condition: &str) -> HashSet<String> {
    let sql = format!("SELECT id::text FROM outbox WHERE {condition}");
    db.column(&sql, &[]).into_iter().collect()
}

fn is_pollers(record: &Delivered) -> bool {
    record.header(poller::HEADER).is_some()
}

/// What a switch says of a slot that was dropped, and of no other. It may also warn of the brokers,
/// which answer late on a busy machine.
const RELAYED_AGAIN: [&str; 2] = ["was dropped", "relayed again"];

/// Kills the poller in the middle of a batch. Returns the ids of the rows that it has marked.
fn kill(rig: &Rig, mut poller: ChildGuard, kind: Kind) -> HashSet<String> {
    poller.kill().expect("it is killed");
    let db = rig.db();
    let sessions = "SELECT FROM pg_stat_activity WHERE application_name = $1";
    // Wait until the server has ended its transactions.
    eventually(PATIENCE, || {
        db.query(sessions, &[&poller::APPLICATION]).is_empty()
    });
    ids(&db, &format!("NOT ({})", kind.unsent()))
}

/// Asserts that nothing is lost or reordered, and that walrelay repeats none of the rows that the
/// poller had marked.
#[track_caller]
fn judge(rig: &Rig, marked: &HashSet<String>, what: &str) {
    let verdict = rig.verdict();
    let records = rig.records(verdict.committed);
    let mut walrelays = records.iter().filter(|record| !is_pollers(record));
    let is_marked = |record: &Delivered| record.id.as_ref().is_some_and(|id| marked.contains(id));
    let twice = walrelays.any(is_marked);
    let of_poller = records.iter().filter(|record| is_pollers(record)).count();
    eprintln!("{what}: {of_poller} records are the poller's; {verdict}");
    verdict.assert_clean_but_for_ragged();
    assert!(!twice, "rows that the poller had marked are repeated");
    assert!(
        of_poller > 0 && of_poller < records.len(),
        "both relays published"
    );
}

/// The poller is killed in the middle of a batch under load, and walrelay continues.
fn cut_over(major: u32, kind: Kind, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let rig = rig(major, kind);
    let config = config(&rig, kind);
    done(&output_with("init", &config, &[]));
    let load = rig.workload().rate(800.0).seed(seed).start();
    let poller = poller::start(&rig, kind, false);
    let db = rig.db();
    eventually(PATIENCE, || {
        ids(&db, &format!("NOT ({})", kind.unsent())).len() > 300
    });
    // Any moment may be the wrong one, so the kill comes at a random time.
    sleep(Duration::from_millis(rng.u64(..400)));
    let marked = kill(&rig, poller, kind);
    let switched = output_with("cutover", &config, &[]);
    assert_eq!(switched.status.code(), Some(64), "a step must be named");
    let line = format!("switch --yes --poller {}", poller::APPLICATION);
    let switched = done(&step(&config, &line));
    assert_has(&switched, &["Start walrelay run now"]);
    assert_lacks(&switched, &RELAYED_AGAIN);
    wait_rows(&load, 200);
    let relay = rig.streaming(&config);
    wait_rows(&load, 300);
    let again = step(&config, "switch --yes");
    refused(&again, 78, &["[cutover-slot]"]);
    load.stop();
    rig.caught_up();
    let verified = object(&step(&config, "verify --where true --output json"));
    assert_eq!(verified["differences"], json!({}), "{verified}");
    let what = format!("{kind:?} on Postgres {major}, seed {seed}");
    judge(&rig, &marked, &what);
    // Confirmed rows are marked.
    eventually(PATIENCE, || ids(&db, kind.unsent()).is_empty());
    relay.ends_well();
}

fn step(config: &Path, line: &str) -> Output {
    output_with(&format!("cutover {line}"), config, &[])
}

#[test]
fn a_cutover_from_a_relay_with_a_status_loses_nothing() {
    let mut rng = rng("cutover::a_cutover_from_a_relay_with_a_status_loses_nothing");
    cut_over(15, Kind::Status, rng.u64(..));
}

#[test]
fn a_cutover_from_a_relay_with_a_time_loses_nothing() {
    let mut rng = rng("cutover::a_cutover_from_a_relay_with_a_time_loses_nothing");
    cut_over(18, Kind::Dispatched, rng.u64(..));
}

/// Run by `cargo test -p walrelay --test e2e -- cutover::cutovers_of_ten_seeds_lose_nothing --ignored --nocapture`.
#[test]
#[ignore = "takes minutes"]
fn cutovers_of_ten_seeds_lose_nothing() {
    for seed in 1..=10 {
        let kind = if seed % 2 == 0 {
            Kind::Status
        } else {
            Kind::Dispatched
        };
        let (major, other) = if seed % 4 < 2 { (15, 18) } else { (18, 15) };
        cut_over(major, kind, seed);
        back(other, kind, seed, seed % 3 == 0);
    }
}

/// walrelay stops under load, by SIGKILL if `killed`, and the poller continues.
fn back(major: u32, kind: Kind, seed: u64, killed: bool) {
    let rig = rig(major, kind);
    let config = config(&rig, kind);
    done(&output_with("init", &config, &[]));
    rig.workload().rows(200).seed(seed).run();
    assert_lacks(&done(&step(&config, "switch --yes")), &RELAYED_AGAIN);
    let relay = rig.streaming(&config);
    let load = rig.workload().rate(800.0).seed(seed + 1).start();
    wait_rows(&load, 500);
    let early = step(&config, "rollback --yes --patience 1s");
    refused(&early, 75, &["[cutover-busy]", "reads slot"]);
    let signal = if killed { "KILL" } else { "TERM" };
    let dry = done(&step(&config, "rollback --dry-run"));
    assert_has(&dry, &["The slot is dropped"]);
    let line = format!(
        "rollback --output json --stop-relay 'kill -{signal} {}'",
        relay.pid()
    );
    let back = object(&step(&config, &line));
    assert_eq!(back["dropped_slot"], "walrelay", "{back}");
    assert!(rig.slot().read().is_none(), "the slot is left");
    // Rows that are written meanwhile are for the poller.
    wait_rows(&load, 200);
    let db = rig.db();
    let unsent = || ids(&db, kind.unsent());
    assert!(!unsent().is_empty(), "rows of after the stop are marked");
    let poller = poller::start(&rig, kind, false);
    wait_rows(&load, 200);
    load.stop();
    eventually(PATIENCE, || unsent().is_empty());
    drop(poller);
    let verdict = rig.verdict();
    eprintln!("back to {kind:?} on Postgres {major} after SIG{signal}, seed {seed}: {verdict}");
    verdict.assert_clean_but_for_ragged();
    // A relay that drained leaves nothing to repeat.
    assert!(killed || verdict.duplicates == 0, "{verdict}");
}

#[test]
fn a_rollback_to_a_relay_with_a_status_repeats_nothing() {
    let mut rng = rng("cutover::a_rollback_to_a_relay_with_a_status_repeats_nothing");
    back(18, Kind::Status, rng.u64(..1 << 60), false);
}

#[test]
fn a_rollback_to_a_relay_with_a_time_after_a_crash_loses_nothing() {
    let mut rng = rng("cutover::a_rollback_to_a_relay_with_a_time_after_a_crash_loses_nothing");
    back(15, Kind::Dispatched, rng.u64(..1 << 60), true);
}

/// A relay that is started while a rollback marks rows must wait, and must not begin anew after it.
#[test]
fn no_relay_reads_the_slot_of_a_rollback() {
    let kind = Kind::Dispatched;
    let rig = rig(17, kind);
    let config = config(&rig, kind);
    let db = rig.db();
    done(&output_with("init", &config, &[]));
    let early = ends(&mut rig.start(&config), 78, "cutover-not-switched");
    assert_has(&early, &["walrelay cutover switch"]);
    done(&step(&config, "switch --yes"));
    let relay = rig.streaming(&config);
    db.batch(
        "CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$; \
         CREATE TRIGGER gate BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION gate()",
    );
    rig.workload().rows(50).seed(1).run();
    let rows = ids(&db, "true").len();
    rig.caught_up();
    relay.ends_well();
    // The server may read the last statement of the relay, a mark, after the relay has ended.
    let sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'walrelay%'";
    eventually(PATIENCE, || db.query(sessions, &[]).is_empty());
    // The relay cannot mark these rows, and each mark of the rollback waits for a lock.
    db.batch(
        "CREATE OR REPLACE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         WHILE NOT pg_try_advisory_lock_shared(42) LOOP PERFORM pg_sleep(0.02); END LOOP; \
         PERFORM pg_advisory_unlock_shared(42); RETURN NEW; END $$",
    );
    let gate = rig.db();
    gate.batch("SELECT pg_advisory_lock(42)");
    let mut rollback = command_with("cutover rollback --yes", &config, &[]);
    rollback.stdout(Stdio::piped()).stderr(Stdio::piped());
    let rollback = rollback.spawn().expect("walrelay runs");
    rig.slot().wait_active(PATIENCE);
    let marks =
        "SELECT FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'WITH batch AS%'";
    eventually(PATIENCE, || !db.query(marks, &[]).is_empty());
    let mut relay = rig.start(&config);
    relay.says("standing by");
    gate.batch("SELECT pg_advisory_unlock(42)");
    let back = done(&rollback.wait_with_output().expect("it ends"));
    assert_has(&back, &[&format!("marked {rows} rows"), "dropped slot"]);
    ends(&mut relay, 78, "cutover-not-switched");
    // As a supervisor starts it.
    ends(&mut rig.start(&config), 78, "cutover-not-switched");
    let check = said(&output_with("check", &config, &[]));
    assert_has(&check, &["cutover-not-switched"]);
    assert!(rig.slot().read().is_none());
    db.batch("DROP TRIGGER gate ON outbox");
    rig.workload().rows(10).seed(2).run();
    let relay = rig.start_with(&config, &["--accept-gap"]);
    relay.says("the snapshot relays the existing rows");
    // A stop before the slot is opened is not complete, and loses nothing.
    relay.streaming();
    eventually(PATIENCE, || ids(&db, kind.unsent()).is_empty());
    rig.verdict().assert_nothing_repeated();
    relay.ends_well();
}

/// Rows are marked only behind the confirmed position.
#[test]
fn rows_that_are_not_confirmed_are_not_marked() {
    let kind = Kind::Dispatched;
    let rig = rig(15, kind);
    let config = config(&rig, kind);
    let db = rig.db();
    rig.workload().rows(300).seed(1).run();
    let mut relay = rig.streaming(&config);
    eventually(PATIENCE, || ids(&db, kind.unsent()).is_empty());
    // Kafka accepts no record for this topic, so its row and those behind it stay unconfirmed.
    db.batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         VALUES (gen_random_uuid(), 'no topic', 'k', 'T', '{\"number\": 1}')",
    );
    rig.workload().rows(50).seed(2).run();
    relay.ended();
    let unsent = ids(&db, kind.unsent());
    assert!(unsent.len() > 50, "{} rows are not marked", unsent.len());
    let line = "check --offline --set=source.snapshot=initial";
    let without = said(&output_with(line, &config, &[]));
    assert_has(&without, &["source.mark_sent"]);
}

/// Returns the object that a command which succeeds prints.
#[track_caller]
fn object(output: &Output) -> Value {
    done(output);
    serde_json::from_slice(&output.stdout).expect("an object")
}

fn kinds(output: &Output) -> BTreeMap<String, u64> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| {
        let (count, kind) = line.split_once(" times: ")?;
        Some((kind.to_owned(), count.parse().ok()?))
    });
    lines.collect()
}

/// Both relays publish under load: first equal records, then records with mistakes.
#[test]
fn a_shadow_finds_what_differs_and_nothing_else() {
    let kind = Kind::Dispatched;
    let rig = rig(15, kind);
    let config = config(&rig, kind);
    done(&output_with("init", &config, &[]));
    // Few enough rows that a poller on a busy machine keeps up. The patience ends early if every
    // event is on both sides.
    let load = rig.workload().rate(200.0).seed(3).start();
    wait_rows(&load, 200);
    let plan = done(&step(&config, "plan"));
    assert_has(&plan, &["Nothing is in the way"]);
    let shadow = |time: &str, patience: &str| {
        let prefix = format!("shadow-{}", rig.prefix);
        let line = format!("shadow --for {time} --patience {patience} --topic-prefix {prefix}");
        step(&config, &line)
    };
    let poller = poller::start(&rig, kind, false);
    let equal = shadow("5s", "600s");
    assert_has(&done(&equal), &["events on both sides"]);
    assert_eq!(kinds(&equal), BTreeMap::new());
    assert!(rig.slot().read().is_none());
    kill(&rig, poller, kind);
    let poller = poller::start(&rig, kind, true);
    // The patience is for the poller: what it omits is awaited to its end.
    let differs = shadow("18s", "40s");
    let text = said(&differs);
    assert_eq!(differs.status.code(), Some(65), "{text}");
    let found = kinds(&differs);
    for what in [
        "only walrelay has it",
        "another value",
        "the value is the same JSON in other bytes",
    ] {
        assert!(found.get(what) > Some(&0), "{what}: {text}");
    }
    assert_eq!(found.len(), 3, "{text}");
    // No values.
    assert_lacks(&text, &["\"number\""]);
    kill(&rig, poller, kind);
    load.stop();
}

/// The switch waits for a transaction that holds locks, and names it. It reports what is not
/// configured.
#[test]
fn cutover_names_what_is_in_the_way() {
    let kind = Kind::Dispatched;
    let rig = rig(15, kind);
    let config = config(&rig, kind);
    done(&output_with("init", &config, &[]));
    rig.workload().rows(50).seed(1).run();
    let asked = step(&config, "switch");
    refused(&asked, 64, &["[cutover-not-agreed]"]);
    let dry = done(&step(&config, "switch --dry-run"));
    assert_has(&dry, &["makes slot walrelay"]);
    let dry = object(&step(&config, "switch --dry-run --output json"));
    let rows = ids(&rig.db(), "true").len();
    assert_eq!(dry, json!({ "slot": "walrelay", "unmarked_rows": rows }));
    let plan = object(&step(&config, "plan --output json"));
    assert_eq!(plan["unmarked_rows"], rows, "{plan}");
    assert_eq!(plan["obstacles"], json!([]), "{plan}");
    let failed = step(&config, "switch --stop-poller 'exit 3'");
    refused(&failed, 75, &["[cutover-command]"]);
    let locker = rig.db();
    locker.batch("SET application_name = 'stuck'; BEGIN; SELECT FROM outbox LIMIT 1 FOR UPDATE");
    let busy = step(&config, "switch --yes --patience 1s");
    refused(&busy, 75, &["[cutover-busy]", "stuck"]);
    locker.batch("COMMIT");
    assert!(rig.slot().read().is_none());
    let never = "plan --set=source.snapshot=never --set=source.snapshot_where=true";
    let plan = step(&config, never);
    assert_ne!(plan.status.code(), Some(0), "{plan:?}");
    let none = step(&config, "rollback --yes");
    refused(&none, 78, &["[cutover-no-slot]", "a rollback drops it"]);
    create_slot(&rig.db(), SLOT);
    let plan = step(&config, "plan --output json");
    assert_eq!(plan.status.code(), Some(78), "{plan:?}");
    let plan: Value = serde_json::from_slice(&plan.stdout).expect("an object");
    assert_eq!(plan["obstacles"][0]["id"], "cutover-slot", "{plan}");
    for name in ["plan", "shadow", "switch", "verify", "rollback"] {
        let help = said(&step(&config, &format!("{name} --help")));
        assert_has(&help, &["Examples:"]);
    }
}
