use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use walrelay_testkit::{eventually, eventually_some};
use walrelay_throwaway::Signal;

use super::{Checked, WITHOUT_KAFKA};
use crate::endpoint::{address, at, config};
use crate::rig::{
    PATIENCE, Rig, assert_has, ends, insert, kafka_in_turn, output_with, said, with_source,
};

/// A relay whose memory an attacker could come by, and a configuration file that every user may read.
#[test]
fn check_reports_a_relay_that_keeps_secrets_badly() {
    let rig = Rig::with_outbox(18);
    rig.db()
        .batch("CREATE ROLE renewed SUPERUSER LOGIN PASSWORD 'hunter2'");
    let configured = config(&rig, &rig.url_as("renewed", "hunter2", "postgres"), "");
    let relay = rig.streaming(&configured);
    let found = Checked::run(&configured, &[&at(address(&relay))]);
    // The relay has the user and the limits of this test.
    let line = |file: &str, start: &str| {
        let text = fs::read_to_string(file).expect("proc(5)");
        let line = text.lines().find_map(|line| line.strip_prefix(start));
        line.expect("the line")
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let is_root = line("/proc/self/status", "Uid:")[1] == "0";
    let dumps = line("/proc/self/limits", "Max core file size")[0] != "0";
    let words = [(is_root, "runs as root"), (dumps, "passwords and rows")];
    let words: Vec<&str> = words
        .iter()
        .filter(|(is, _)| *is)
        .map(|(_, words)| *words)
        .collect();
    if words.is_empty() {
        found.passes("relay/process", &["does not run as root"]);
    } else {
        found.warns("relay/process", &words);
    }
    let mut mode = fs::metadata(&configured).expect("a file").permissions();
    mode.set_mode(0o644);
    fs::set_permissions(&configured, mode.clone()).expect("set");
    let readable = Checked::run(&configured, &WITHOUT_KAFKA);
    readable.warns(
        "configuration/file",
        &["every user of this machine", "source.url", "chmod 640"],
    );
    mode.set_mode(0o600);
    fs::set_permissions(&configured, mode).expect("set");
    Checked::run(&configured, &WITHOUT_KAFKA).passes("configuration/file", &["every key is known"]);
    relay.ends_well();
}

/// A role that reads no table learns the topics of the running relay.
#[test]
fn check_learns_the_topics_of_a_running_relay() {
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(18, &kafka);
    let db = rig.db();
    db.batch("CREATE ROLE least LOGIN REPLICATION PASSWORD 'hunter2'");
    rig.create_slot();
    let configured = config(&rig, &rig.url_as("least", "hunter2", "postgres"), "");
    let relay = rig.streaming(&configured);
    let set = format!("--set=http.listen={}", address(&relay));
    let check = |set: &str| Checked::run(&configured, &[set]);
    let found = check("--set=http.listen=127.0.0.1:9");
    found.passes("relay/state", &["none was asked", "127.0.0.1:9"]);
    db.batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key', 'T', '{\"number\": 1}' \
         FROM generate_series(1, 20000)",
    );
    rig.caught_up();
    eventually(PATIENCE, || {
        let state = check(&set).worst("relay/state")["finding"].to_string();
        state.contains("streaming; 20000 records acknowledged, 0 in flight")
    });
    // The client library tells of its brokers with its next statistics.
    let found = eventually_some(PATIENCE, || {
        let known = |found: &Checked| {
            !found.worst("relay/servers")["finding"]
                .to_string()
                .contains("0 of 0")
        };
        Some(check(&set)).filter(known)
    });
    found.passes("kafka/topics", &["1 known, all exist"]);
    found.passes("relay/servers", &["1 of 1 brokers up"]);
    let other = Checked::run(&configured, &[&set, "--set=source.slot=another"]);
    other.warns("relay/state", &["reads slot walrelay", "slot another"]);

    kafka.kill();
    insert(&db, 1);
    eventually(PATIENCE, || {
        check(&set).worst("relay/state")["verdict"] == "fail"
    });
    let found = check(&set);
    let words = ["[not-ready]", "no broker answers", "start the brokers"];
    found.fails("relay/state", &words);
    found.warns("relay/servers", &["0 of 1 brokers up"]);
    kafka.start_again();
    eventually(PATIENCE, || {
        check(&set).worst("relay/state")["verdict"] == "pass"
    });
    relay.ends_well();
}

/// A process that is stopped keeps its slot and its port.
#[test]
fn check_reports_a_relay_that_hangs() {
    let rig = Rig::with_outbox(16);
    let configured = config(&rig, &rig.postgres.url(), "");
    // The server keeps the walsender of a process that is stopped.
    let configured = with_source(configured, "wal_sender_timeout = \"10m\"");
    let relay = rig.streaming(&configured);
    let set = at(address(&relay));
    relay.signal(Signal::Stop);
    let held = Checked::run(&configured, &[&set]);
    let words = [
        "[relay-silent]",
        "does not answer",
        "is held by server process",
        "SIGKILL",
    ];
    held.fails("relay/state", &words);
    let output = output_with("status", &configured, &[&set, "--exit-code"]);
    assert_eq!(output.status.code(), Some(69));
    assert_has(&said(&output), &["the relay hangs", "does not answer"]);
    relay.signal(Signal::Cont);
    eventually(PATIENCE, || {
        Checked::run(&configured, &[&set]).worst("relay/state")["verdict"] == "pass"
    });
    relay.ends_well();
}

/// The reason of a relay that has ended, which nobody reads in its log.
#[test]
fn check_reports_the_reason_of_a_relay_that_has_ended() {
    let rig = Rig::without_broker(18).outbox();
    let db = rig.db();
    let configured = rig.config();
    rig.create_slot();
    db.batch("ALTER PUBLICATION walrelay SET (publish = 'delete')");
    ends(
        &mut rig.start(&configured),
        78,
        "publication-without-insert",
    );
    let found = Checked::run(&configured, &WITHOUT_KAFKA);
    let words = ["[publication-without-insert]", "ALTER PUBLICATION"];
    found.warns("relay/last-run", &words);
}

/// An operator reads which server takes its time.
#[test]
fn check_names_what_it_waits_for() {
    let rig = Rig::with_outbox(18);
    rig.create_slot();
    // The kernel accepts connections, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = silent.local_addr().expect("an address");
    let set = format!("--set=sink.kafka.bootstrap.servers={silent}");
    let text = said(&output_with("check", &rig.config(), &[&set]));
    assert_has(&text, &[&format!("waiting for Kafka, {silent} …")]);
}
