use std::net::TcpListener;

use walrelay_testkit::{eventually, eventually_some};
use walrelay_throwaway::Signal;

use super::{Checked, WITHOUT_KAFKA};
use crate::endpoint::{address, at, config};
use crate::rig::{
    PATIENCE, Rig, assert_has, ends, insert, kafka_in_turn, output_with, said, with_source,
};

/// A role that reads no table learns the topics of the running relay.
#[test]
fn of_a_relay_that_runs() {
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
fn of_a_relay_that_hangs() {
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
fn of_a_relay_that_has_ended() {
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
fn names_what_it_waits_for() {
    let rig = Rig::with_outbox(18);
    rig.create_slot();
    // The kernel accepts connections, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = silent.local_addr().expect("an address");
    let set = format!("--set=sink.kafka.bootstrap.servers={silent}");
    let text = said(&output_with("check", &rig.config(), &[&set]));
    assert_has(&text, &[&format!("waiting for Kafka, {silent} …")]);
}
