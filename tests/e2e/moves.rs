//! `walrelay move`: an outbox goes to another server under writers that go on, and nothing is lost, repeated or
//! out of order.

mod fences;
mod keys;
mod unfinished;
mod versions;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use serde_json::{Value, json};
use walrelay_testkit::{Db, Delivered, Nats, Redis, eventually, rng};
use walrelay_throwaway::ChildGuard;

use crate::docs::{block, shell};
use crate::rig::{
    PATIENCE, Rig, SLOT, assert_has, command_with, done, edit, output_with, refused, said,
};
use versions::step_under_kills;

/// Services, each of which writes the events of one key.
const WRITERS: u32 = 4;
/// SQLSTATE `object_not_in_prerequisite_state`, with which the fence refuses.
const FENCED: &str = "55000";
/// SQLSTATE `undefined_table`: of a server that gets its rows by a dump.
const MISSING_TABLE: &str = "42P01";
/// SQLSTATE `admin_shutdown`.
const SHUTDOWN: &str = "57P01";

/// Writers that insert into the server that accepts it, as services do whose connections are switched.
struct Writers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u32>>,
}

impl Writers {
    fn start(urls: &[String]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..WRITERS).map(|key| {
            let (stop, urls) = (Arc::clone(&stop), urls.to_vec());
            thread::spawn(move || write(key, &urls, &stop))
        });
        Self {
            threads: threads.collect(),
            stop,
        }
    }

    /// Returns the number of events of each key.
    fn end(self) -> Vec<u32> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.threads.into_iter().map(JoinHandle::join);
        ended.map(|written| written.expect("it ends")).collect()
    }
}

/// Writes numbered events of a key until it is stopped, each again until a server has committed it.
fn write(key: u32, urls: &[String], stop: &AtomicBool) -> u32 {
    let mut servers: Vec<Option<Db>> = urls.iter().map(|_| None).collect();
    let mut server = 0;
    for number in 0.. {
        let sql = format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
             VALUES (gen_random_uuid(), 'order', 'key-{key}', 'T', '{{\"number\": {number}}}')"
        );
        loop {
            if stop.load(Ordering::Relaxed) {
                return number;
            }
            let db = servers.get_mut(server).expect("there are two");
            if db.is_none() {
                *db = Db::try_connect(urls.get(server).expect("there are two")).ok();
            }
            match db.as_ref().map(|db| db.try_batch(&sql)) {
                Some(Ok(())) => break,
                Some(Err(error)) => {
                    match error.code().map(|code| code.code().to_owned()).as_deref() {
                        Some(FENCED | MISSING_TABLE) => {}
                        // The server stops, and refuses inserts by then: nothing is in doubt.
                        Some(SHUTDOWN) | None => *db = None,
                        Some(_) => panic!("{error}"),
                    }
                }
                None => {}
            }
            server = (server + 1) % servers.len();
            sleep(Duration::from_millis(20));
        }
        sleep(Duration::from_millis(2));
    }
    unreachable!("the numbers do not end")
}

/// Asserts that the topics have each event, in the order of its key. Returns the number of repeats.
#[track_caller]
fn judge(rig: &Rig, written: &[u32]) -> usize {
    let all: u32 = written.iter().sum();
    let records = rig.records(usize::try_from(all).expect("few"));
    judge_records(&records, written)
}

/// The same of these records.
#[track_caller]
fn judge_records(records: &[Delivered], written: &[u32]) -> usize {
    let mut seen: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for record in records {
        let numbers = seen.entry(record.key_text().to_owned()).or_default();
        numbers.push(number(record));
    }
    let mut repeats = 0;
    for (key, count) in written.iter().enumerate() {
        let numbers = seen.remove(&format!("key-{key}")).unwrap_or_default();
        let mut next = 0;
        for number in numbers {
            assert!(number <= next, "key {key}: {number} came before {next}");
            if number == next {
                next += 1;
            } else {
                repeats += 1;
            }
        }
        assert_eq!(next, u64::from(*count), "events of key {key} are missing");
    }
    assert!(seen.is_empty(), "records of other keys: {seen:?}");
    repeats
}

fn number(record: &Delivered) -> u64 {
    let payload = record.payload.as_deref().expect("there is a payload");
    let payload: Value = serde_json::from_slice(payload).expect("JSON");
    payload["number"].as_u64().expect("a number")
}

/// Asserts that of two records of a key, that with the higher position has the higher number. Returns the newest of each
/// key.
#[track_caller]
fn ascend(records: &[Delivered]) -> BTreeMap<&str, (u64, &str)> {
    let mut newest: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    for record in records {
        let position = record.header("walrelay-position").expect("a position");
        let next = (number(record), position);
        if let Some(last) = newest.insert(record.key_text(), next) {
            // A repeat has the position of its first delivery.
            assert_eq!(
                next.0.cmp(&last.0),
                next.1.cmp(last.1),
                "{next:?} after {last:?}"
            );
        }
    }
    newest
}

fn step(config: &Path, line: &str) -> Output {
    output_with(&format!("move {line}"), config, &[])
}

/// Runs a step that is killed at random moments, and then to its end.
#[track_caller]
fn killed(rng: &mut fastrand::Rng, config: &Path, line: &str) {
    for _ in 0..3 {
        let mut command = command_with(&format!("move {line}"), config, &[]);
        let mut child = ChildGuard::spawn(&mut command).expect("it starts");
        sleep(Duration::from_millis(rng.u64(0..150)));
        child.kill().expect("it is killed");
    }
    done(&step(config, line));
}

fn wait_rows(db: &Db, rows: i64) {
    let before: i64 = db.value("SELECT count(*) FROM outbox");
    eventually(PATIENCE, || {
        db.value::<i64>("SELECT count(*) FROM outbox") >= before + rows
    });
}

/// Two servers whose relays write to the same topics; the second gets the rows of the first by a subscription. `sink`
/// returns lines of the configuration for a prefix of topics.
fn replicated(old: u32, new: u32, sink: impl Fn(&str) -> String) -> (Rig, Rig, PathBuf, PathBuf) {
    let old = Rig::with_outbox(old);
    let mut new = Rig::with_outbox(new);
    new.prefix.clone_from(&old.prefix);
    let [from, to] = [&old, &new].map(|rig| rig.config_and(&sink(&rig.prefix)));
    done(&output_with("init", &from, &[]));
    // With what this relay records, as a blue/green deployment replicates it.
    let tables = "outbox, walrelay_state.move";
    done(&step(&from, "prepare"));
    give_up_prepared(&from);
    done(&output_with("init", &from, &[]));
    old.db()
        .batch(&format!("CREATE PUBLICATION green FOR TABLE {tables}"));
    done(&output_with("init", &to, &[]));
    (old, new, from, to)
}

/// Gives a preparation up. The slot has what was replicated.
#[track_caller]
fn give_up_prepared(config: &Path) {
    let refusal = ["[move-state]", "would send the replicated rows again"];
    refused(&step(config, "abort --yes"), 64, &refusal);
    let drop = format!("slots drop {SLOT}");
    done(&output_with(&drop, config, &["--yes"]));
    done(&step(config, "abort --yes"));
}

fn subscribe(old: &Rig, new: &Rig) {
    new.db().batch(&format!(
        "CREATE SUBSCRIPTION green CONNECTION '{}' PUBLICATION green",
        old.postgres.url_tcp()
    ));
}

/// Moves an outbox by a subscription into Kafka: nothing is lost or out of order. Returns the number of repeats.
fn blue_green(old: u32, new: u32, test: &str, kill_relays: bool) -> usize {
    let replicated = replicated(old, new, |_| String::new());
    let (old, written) = switched(replicated, test, kill_relays);
    judge(&old, &written)
}

/// Moves an outbox by a subscription; the steps are killed at random moments, and so are the relays if `kill_relays`.
/// Returns the old server, and the number of events of each key.
fn switched(
    (old, new, from, to): (Rig, Rig, PathBuf, PathBuf),
    test: &str,
    kill_relays: bool,
) -> (Rig, Vec<u32>) {
    let mut rng = rng(test);
    let run_step = |rng: &mut fastrand::Rng, rig: &Rig, relay, config: &Path, line: &str| {
        if kill_relays {
            return step_under_kills(rng, rig, relay, config, line);
        }
        killed(rng, config, line);
        relay
    };
    let relay = old.streaming(&from);
    let writers = Writers::start(&[old.postgres.url(), new.postgres.url()]);
    // Before the writers could reach the new server, in life. Here they go there once the old one refuses.
    killed(&mut rng, &to, "prepare");
    subscribe(&old, &new);
    let second = new.start(&to);
    second.says("was not switched to");
    wait_rows(&old.db(), 200);
    let relay = run_step(&mut rng, &old, relay, &from, "drain --yes --patience 2m");
    // No step relies on a clock: those of the servers jump a day, in opposite directions.
    for (rig, jump) in [(&old, "+"), (&new, "-")] {
        rig.db().batch(&format!(
            "UPDATE walrelay_state.move SET at = at {jump} interval '1 day'"
        ));
    }
    let switch = format!("switch --yes --from {}", from.display());
    let second = run_step(&mut rng, &new, second, &to, &switch);
    second.streaming();
    wait_rows(&new.db(), 200);
    let verify = format!("verify --from {}", from.display());
    let verified = done(&step(&to, &verify));
    assert_has(&verified, &["no event waits in the old server's slot"]);
    let written = writers.end();
    new.caught_up();
    relay.streaming();
    relay.ends_well();
    second.ends_well();
    (old, written)
}

#[test]
fn rows_that_a_subscription_copies_are_sent_once_and_in_order() {
    let test = "moves::rows_that_a_subscription_copies_are_sent_once_and_in_order";
    assert_eq!(blue_green(15, 18, test, false), 0, "repeats");
}

/// A copy of the old server's database, such as `pg_upgrade` and a restored dump make it: its record, its fence and
/// its rows, on a server with another system identifier and other OIDs. Its clock is a year behind the old one's.
fn copy(old: &Rig, new: &Rig) {
    let record = "SELECT state || ',' || system || ',' || timeline || ',' || barrier || ',' || relations::text \
                  FROM walrelay_state.move";
    let record = old.db().text(record).expect("there is a record");
    let mut parts = record.splitn(5, ',');
    let mut part = || parts.next().expect("five parts").to_owned();
    let (state, system, timeline, barrier, relations) = (part(), part(), part(), part(), part());
    let rows = old
        .db()
        .column::<String>("SELECT row_to_json(outbox)::text FROM outbox", &[]);
    let db = new.db();
    // Passes the fence of this server, as what applies a subscription does.
    db.batch("SET session_replication_role = replica");
    for row in rows {
        db.query(
            "INSERT INTO outbox SELECT * FROM json_populate_record(NULL::outbox, $1::text::json)",
            &[&row],
        );
    }
    let fence = "SELECT tgname::text FROM pg_trigger WHERE tgrelid = 'outbox'::regclass AND tgname LIKE 'walrelay_move%'";
    let fence = db.text(fence).expect("there is a fence");
    db.batch(&format!(
        "UPDATE walrelay_state.move SET state = '{state}', system = '{system}', timeline = {timeline}, \
         barrier = '{barrier}', relations = '{relations}', at = now() + interval '1 year'; ALTER TABLE outbox ENABLE ALWAYS TRIGGER {fence}"
    ));
}

/// The same relay with its state file goes on after the switch, and so does one that streamed before.
#[test]
fn a_copy_that_was_made_after_the_drain_goes_on_without_a_flag() {
    let mut rng = rng("moves::a_copy_that_was_made_after_the_drain_goes_on_without_a_flag");
    let old = Rig::with_outbox(17);
    let mut new = Rig::with_outbox(15);
    new.prefix.clone_from(&old.prefix);
    let from = old.config();
    let file = format!("state_file = \"{}\"\n", old.path("position").display());
    edit(&from, "[source]\n", &format!("[source]\n{file}"));
    let to = new.config();
    edit(&to, "[source]\n", &format!("[source]\n{file}"));
    done(&output_with("init", &from, &[]));
    done(&output_with("init", &to, &[]));
    let relay = old.streaming(&from);
    let writers = Writers::start(&[old.postgres.url(), new.postgres.url()]);
    // A copy has its fence from its first moment on.
    done(&step(&to, "prepare"));
    wait_rows(&old.db(), 100);
    killed(&mut rng, &from, "drain --yes --patience 1m");
    relay.ends_well();
    copy(&old, &new);
    let second = new.start(&to);
    second.says("was not switched to");
    killed(&mut rng, &to, "switch --yes");
    second.streaming();
    second.says("the outbox was moved to this server");
    wait_rows(&new.db(), 100);
    done(&step(&to, "verify"));
    let written = writers.end();
    new.caught_up();
    second.ends_well();
    assert_eq!(judge(&old, &written), 0, "repeats");
}

/// Moves an outbox as a copy to a server whose log begins lower, restarts its relay, and returns both rigs with the
/// configuration of the new one, and the number of events of each key.
fn moved_to_a_lower_log(
    test: &str,
    (old, mut new): (Rig, Rig),
    more: impl Fn(&Rig) -> String,
) -> (Rig, Rig, PathBuf, Vec<u32>) {
    let mut rng = rng(test);
    new.prefix.clone_from(&old.prefix);
    let header = "[router]\nposition_header = \"walrelay-position\"\n\n[router.debezium]";
    let (from, to) = (old.config_and(&more(&old)), new.config_and(&more(&old)));
    for config in [&from, &to] {
        edit(config, "[router.debezium]", header);
        done(&output_with("init", config, &[]));
    }
    for _ in 0..4 {
        old.db()
            .batch("SELECT pg_logical_emit_message(true, 'x', 'y'); SELECT pg_switch_wal()");
    }
    let relay = old.streaming(&from);
    let writers = Writers::start(&[old.postgres.url(), new.postgres.url()]);
    done(&step(&to, "prepare"));
    wait_rows(&old.db(), 100);
    done(&step(&from, "drain --yes"));
    relay.ends_well();
    copy(&old, &new);
    let lower = "SELECT pg_current_wal_lsn() < barrier FROM walrelay_state.move";
    assert!(new.db().value::<bool>(lower), "the new log is lower");
    let plan = done(&step(&to, "plan"));
    assert_has(&plan, &["the switch raises their epoch to 1"]);
    let second = new.start(&to);
    second.says("was not switched to");
    killed(&mut rng, &to, "switch --yes");
    second.streaming();
    wait_rows(&new.db(), 100);
    second.kill();
    // A restart reads the epoch from the database.
    let second = new.streaming(&to);
    wait_rows(&new.db(), 100);
    let written = writers.end();
    new.caught_up();
    second.ends_well();
    let plan = done(&step(&to, "plan --output json"));
    assert_has(&plan, &["\"epoch\":1"]);
    let real = "SELECT confirmed_flush_lsn <= pg_current_wal_lsn() FROM pg_replication_slots";
    assert!(new.db().value::<bool>(real), "no epoch is confirmed");
    (old, new, to, written)
}

/// Whether the position of a key's newest record has the first epoch.
fn is_raised((_, position): &(u64, &str)) -> bool {
    position.starts_with("01")
}

#[test]
fn positions_of_kafka_ascend_per_key_after_a_move_to_a_lower_log() {
    let rigs = (Rig::with_outbox(17), Rig::with_outbox(15));
    let test = "moves::positions_of_kafka_ascend_per_key_after_a_move_to_a_lower_log";
    let (old, new, to, written) = moved_to_a_lower_log(test, rigs, |_| String::new());
    let _ = judge(&old, &written);
    let all: u32 = written.iter().sum();
    let records = old.records(usize::try_from(all).expect("few"));
    let newest = ascend(&records);
    assert!(newest.values().all(is_raised), "{newest:?}");
    let topic = format!("{}order", old.prefix);
    done(&output_with(
        &format!("verify-topic {topic} --allow-repeats"),
        &to,
        &[],
    ));
    drop(new);
}

#[test]
fn ids_of_redis_are_positions_after_a_move_to_a_lower_log() {
    if !Redis::is_wanted() {
        return;
    }
    let server = Redis::shared();
    let rigs = (
        Rig::without_broker(17).outbox(),
        Rig::without_broker(15).outbox(),
    );
    let test = "moves::ids_of_redis_are_positions_after_a_move_to_a_lower_log";
    let (old, _new, _, written) = moved_to_a_lower_log(test, rigs, |old| {
        format!(
            "[sink]\nkind = \"redis\"\n[sink.redis]\nhosts = [\"127.0.0.1:{}\"]\nstream = \"{}events\"\n",
            server.port(),
            old.prefix
        )
    });
    let entries = server.client().entries(&format!("{}events", old.prefix));
    let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for entry in &entries {
        let (lsn, row) = entry
            .text("position")
            .expect("there")
            .split_once(' ')
            .expect("two");
        let (high, low) = lsn.split_once('/').expect("two");
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("hex");
        assert_eq!(entry.id, format!("{}-{row}", (hex(high) << 32) + hex(low)));
        let body: Value = serde_json::from_slice(&entry.fields["payload"]).expect("JSON");
        let key = entry.text("key").expect("a key").to_owned();
        numbers
            .entry(key)
            .or_default()
            .push(body["number"].as_u64().expect("a number"));
    }
    for (key, count) in written.iter().enumerate() {
        let expected: Vec<u64> = (0..u64::from(*count)).collect();
        assert_eq!(
            numbers[&format!("key-{key}")],
            expected,
            "key {key}: none lost, repeated or out of order"
        );
    }
}

/// A stream of NATS forgets ids that are older than its duplicate window.
#[test]
fn positions_of_nats_ascend_per_key_after_a_move_to_a_lower_log() {
    let test = "moves::positions_of_nats_ascend_per_key_after_a_move_to_a_lower_log";
    move_to_nats(test, &json!({}), |_| String::new());
}

/// With each message naming its predecessor, of whatever server, the stream refuses a repeat also without the window.
#[test]
fn an_exclusive_stream_of_nats_has_each_event_once_after_a_move_to_a_lower_log() {
    let test = "moves::an_exclusive_stream_of_nats_has_each_event_once_after_a_move_to_a_lower_log";
    let window = json!({"duplicate_window": 100_000_000});
    move_to_nats(test, &window, |stream| {
        format!("exclusive_stream = \"{stream}\"\n")
    });
}

/// Moves an outbox whose relays publish to a stream of NATS with these members of its configuration. Nothing is lost,
/// repeated or out of order.
fn move_to_nats(test: &str, members: &Value, more: impl Fn(&str) -> String) {
    if !Nats::is_wanted() {
        return;
    }
    let server = Nats::shared();
    let rigs = (
        Rig::without_broker(17).outbox(),
        Rig::without_broker(15).outbox(),
    );
    let name = rigs.0.prefix.trim_end_matches(['-', '_', '.']);
    let stream = name.replace('.', "_");
    let mut client = server.client();
    client.create_stream(&stream, &[&format!("{stream}.>")], members);
    let (_old, _new, _, written) = moved_to_a_lower_log(test, rigs, |_| {
        format!(
            "[sink]\nkind = \"nats\"\n[sink.nats]\nhosts = [\"127.0.0.1:{}\"]\nsubject = \"{stream}.events\"\n{}",
            server.port(),
            more(&stream)
        )
    });
    let messages = client.messages(&stream, ">");
    let records: Vec<Delivered> = messages
        .into_iter()
        .map(|message| Delivered {
            key: message
                .headers
                .get("walrelay.key")
                .cloned()
                .map(String::into_bytes),
            payload: Some(message.payload),
            headers: message
                .headers
                .into_iter()
                .map(|(name, value)| (name, Some(value.into_bytes())))
                .collect(),
            ..Delivered::default()
        })
        .collect();
    assert_eq!(judge_records(&records, &written), 0, "repeats");
    let newest = ascend(&records);
    assert!(newest.values().all(is_raised), "{newest:?}");
}

#[test]
fn a_drain_that_does_not_end_lifts_its_fence() {
    let rig = Rig::with_outbox(16);
    let config = rig.config();
    done(&output_with("init", &config, &[]));
    // No relay reads the slot.
    let output = step(&config, "drain --yes --patience 1s");
    refused(&output, 75, &["[move-not-drained]", "the fence is lifted"]);
    crate::rig::insert(&rig.db(), 1);
    // A transaction that has written does not end.
    let writer = rig.db();
    writer.batch("BEGIN");
    crate::rig::insert(&writer, 2);
    let output = step(&config, "drain --yes --patience 1s");
    refused(&output, 75, &["[move-locked]"]);
    writer.batch("COMMIT");
    crate::rig::insert(&rig.db(), 3);
    let output = step(&config, "switch --yes");
    refused(&output, 78, &["[move-not-drained]"]);
    assert_eq!(rig.db().value::<i64>("SELECT count(*) FROM outbox"), 3);
}

#[test]
fn a_move_is_given_up_in_each_state() {
    let (old, new, from, to) = replicated(18, 16, |_| String::new());
    let relay = old.streaming(&from);
    let writes = |db: &Db| {
        let insert = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
                      VALUES (gen_random_uuid(), 'order', 'key-0', 'T', '{\"number\": 0}')";
        match db.try_batch(insert) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.code().expect("a code").code(), FENCED);
                false
            }
        }
    };
    assert!(writes(&old.db()), "no move");
    done(&step(&to, "prepare"));
    assert!(!writes(&new.db()), "prepared");
    let checked = said(&output_with("check", &to, &[]));
    assert_has(&checked, &["[move-pending]"]);
    refused(&step(&to, "drain --yes"), 64, &["[move-state]"]);
    give_up_prepared(&to);
    assert!(writes(&new.db()), "given up");
    done(&step(&from, "drain --yes"));
    assert!(!writes(&old.db()), "drained");
    let checked = said(&output_with("check", &from, &[]));
    assert_has(&checked, &["inserts into it fail here"]);
    // The drain holds without its relay: a second one waits for nothing, and lifts nothing.
    relay.ends_well();
    done(&step(&from, "drain --yes --patience 1s"));
    assert!(!writes(&old.db()), "drained twice");
    let switch = format!("switch --yes --from {}", from.display());
    refused(&step(&to, &switch), 78, &["[move-unfenced]"]);
    done(&step(&from, "abort --yes"));
    assert!(writes(&old.db()), "given up");
    done(&step(&to, "prepare"));
    refused(&step(&to, &switch), 78, &["[move-unfenced]"]);
    let other = "--set=source.slot=other";
    let output = output_with(&format!("move {switch}"), &to, &[other]);
    refused(&output, 78, &["[move-unfenced]"]);
    let output = output_with(
        &format!("move {switch}"),
        &to,
        &["--set=source.tables=[\"other\"]"],
    );
    refused(&output, 64, &["--from is of another outbox"]);
}

/// Two relays send one outbox. A drain of one that fails, or is given up, leaves the fence of the other.
#[test]
fn each_slot_of_an_outbox_has_its_fence() {
    let rig = Rig::with_outbox(17);
    let config = rig.config();
    done(&output_with("init", &config, &[]));
    let relay = rig.streaming(&config);
    let other = "--set=source.slot=other";
    done(&output_with("init", &config, &[other]));
    done(&step(&config, "drain --yes"));
    relay.ends_well();
    let drain = output_with("move drain --yes --patience 1s", &config, &[other]);
    refused(&drain, 75, &["[move-not-drained]", "the fence is lifted"]);
    let insert = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
                  VALUES (gen_random_uuid(), 'order', 'key', 'T', '1')";
    let error = rig.db().try_batch(insert).expect_err("it is fenced");
    assert_eq!(error.code().expect("a code").code(), FENCED);
    let shown = done(&step(&config, "plan"));
    assert_has(&shown, &["refused by the fence", "drained"]);
    done(&step(&config, "abort --yes"));
    rig.db().batch(insert);
}

/// Two operators switch the same server. The second one looked before the first had ended, and must not advance the
/// slot: services write already.
#[test]
fn a_second_switch_changes_nothing() {
    let (old, new, from, to) = replicated(15, 17, |_| String::new());
    let relay = old.streaming(&from);
    done(&step(&to, "prepare"));
    done(&step(&from, "drain --yes"));
    relay.ends_well();
    let without = format!("switch --yes --from {}", from.display());
    refused(
        &step(&to, &without),
        78,
        &["[move-behind]", "--rows-arrived"],
    );
    let switch = format!("{without} --rows-arrived");
    let lock = new.db();
    lock.batch(&format!(
        "SELECT pg_advisory_lock(hashtextextended('walrelay move {SLOT}', 0))"
    ));
    let operators = [(); 2].map(|()| {
        let (to, switch) = (to.clone(), switch.clone());
        thread::spawn(move || step(&to, &switch))
    });
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    eventually(PATIENCE, || lock.value::<i64>(waiting) == 2);
    lock.batch("SELECT pg_advisory_unlock_all()");
    let said: Vec<String> = operators
        .map(|operator| done(&operator.join().expect("it ends")))
        .into();
    let second = said
        .iter()
        .filter(|said| said.contains("switched to already"));
    assert_eq!(second.count(), 1, "{said:?}");
    // Not drained in time: the record of the switch stands again.
    crate::rig::insert(&new.db(), 0);
    refused(
        &step(&to, "drain --yes --patience 1s"),
        75,
        &["[move-not-drained]", "the fence is lifted"],
    );
    assert_has(&done(&step(&to, "plan")), &["switched"]);
    let relay = new.streaming(&to);
    new.caught_up();
    relay.ends_well();
    assert_eq!(numbers(&old, 1), [0]);
}

/// Returns the numbers of the events of the topics, of which there are so many.
fn numbers(rig: &Rig, records: usize) -> Vec<u64> {
    rig.records(records).iter().map(number).collect()
}

/// A superuser writes past the fence, and a subscription lags: each is named.
#[test]
fn a_second_writer_and_missing_rows_are_named() {
    let (old, new, from, to) = replicated(16, 17, |_| String::new());
    let relay = old.streaming(&from);
    done(&step(&to, "prepare"));
    subscribe(&old, &new);
    crate::rig::insert(&old.db(), 0);
    eventually(PATIENCE, || {
        new.db().value::<i64>("SELECT count(*) FROM outbox") == 1
    });
    new.db().batch("ALTER SUBSCRIPTION green DISABLE");
    crate::rig::insert(&old.db(), 1);
    done(&step(&from, "drain --yes"));
    relay.ends_well();
    let switch = format!("switch --yes --from {}", from.display());
    let waiting = thread::spawn({
        let to = to.clone();
        move || step(&to, &switch)
    });
    // It waits for the subscription, and ends once that has the row.
    sleep(Duration::from_millis(500));
    assert!(!waiting.is_finished());
    new.db().batch("ALTER SUBSCRIPTION green ENABLE");
    done(&waiting.join().expect("it ends"));
    assert_eq!(new.db().value::<i64>("SELECT count(*) FROM outbox"), 2);
    let second = new.streaming(&to);
    let verify = format!("verify --from {}", from.display());
    done(&step(&to, &verify));
    let db = old.db();
    db.batch("ALTER TABLE outbox DISABLE TRIGGER USER");
    crate::rig::insert(&db, 2);
    let output = step(&to, &verify);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let text = said(&output);
    assert_has(
        &text,
        &[
            "WRONG  the old server's outbox accepts inserts",
            "WRONG  events wait in the old server's slot",
        ],
    );
    let output = step(&to, &format!("{verify} --output json"));
    let object: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(object["ok"], false);
    second.ends_well();
}

/// The commands of the page, step by step: with two configurations, and with one for a server that is promoted.
#[test]
fn the_commands_of_the_page_move_an_outbox() {
    let document = "docs/how-to/move.md";
    let (old, new, from, to) = replicated(17, 18, |_| String::new());
    let folder = old.folder();
    std::fs::copy(&from, folder.join("old.toml")).expect("copied");
    std::fs::copy(&to, folder.join("new.toml")).expect("copied");
    let run = |name: &str| {
        let mut command = shell(&block(document, name));
        done(&command.current_dir(folder).output().expect("a shell"))
    };
    let relay = old.streaming(&from);
    run("move-prepare");
    subscribe(&old, &new);
    let second = new.start(&to);
    second.says("was not switched to");
    crate::rig::insert(&old.db(), 0);
    run("move-replicated");
    second.streaming();
    crate::rig::insert(&new.db(), 1);
    new.caught_up();
    run("move-verify");
    relay.ends_well();
    second.ends_well();
    assert_eq!(numbers(&old, 2), [0, 1]);
    // The server was switched to, so it is the one that is drained next. Here nothing is copied after that.
    let third = new.streaming(&to);
    let mut command = shell(&block(document, "move-drain"));
    command.env("WALRELAY_CONFIG", &to);
    done(&command.output().expect("a shell"));
    third.ends_well();
    let mut command = shell(&block(document, "move-switch"));
    command.env("WALRELAY_CONFIG", &to);
    refused(
        &command.output().expect("a shell"),
        78,
        &["[move-not-drained]", "not a copy of it"],
    );
}
