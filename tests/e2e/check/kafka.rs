use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use walrelay_testkit::{SecureKafka, eventually, servers};

use super::{Checked, checked};
use crate::rig::{PATIENCE, Rig, edit, secure_kafka};

/// A configuration whose only topic is known without reading a row.
fn constant(rig: &Rig, topic: &str, more: &str) -> PathBuf {
    let config = rig.config_and(more);
    let routed = format!("\"{}${{routedByValue}}\"", rig.prefix);
    edit(&config, &routed, &format!("\"{topic}\""));
    config
}

/// The setting and the value that a remedy gives to a topic.
fn altered(remedy: &Value) -> (String, String) {
    let text = remedy["remedy"].as_str().expect("a remedy");
    let command = "kafka-configs.sh --bootstrap-server ";
    assert!(text.starts_with(command), "{text}");
    let (_, change) = text.split_once("--add-config ").expect("a change");
    let (name, value) = change.split_once('=').expect("a value");
    (name.to_owned(), value.to_owned())
}

/// The settings of a topic, one after the other. Each remedy is carried out.
#[test]
fn check_reports_faults_of_topics() {
    let rig = Rig::with_outbox(18);
    let db = rig.db();
    let topic = format!("{}all", rig.prefix);
    let config = constant(&rig, &topic, "");
    let check = |set: &str| checked(&config, &[], set);
    let found = check("sink.topics.create=true sink.topics.replication_factor=3");
    found.passes("kafka/brokers", &["1 broker(s)"]);
    found.fails("kafka/topics", &["[kafka-topic]", "replication_factor"]);
    found.ends(78);
    let found = check("sink.topics.create=true sink.topics.replication_factor=1");
    found.passes("kafka/topics", &["1 to be created"]);
    found.warns("kafka/replication-factor", &["new topics: 1 replica(s)"]);

    rig.kafka().create_topic(&topic, 1, &[]);
    db.batch(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', 'T', \
         jsonb_build_object('text', repeat('x', 5000)))",
    );
    let set = format!("poison.unroutable=dead-letter poison.topic={topic}");
    let check = || checked(&config, &[], &set);
    let known = "1 known, all exist";
    eventually(PATIENCE, || {
        check().worst("kafka/topics")["finding"] == known
    });
    let found = check();
    found.passes("kafka/topic-access", &["may write"]);
    found.passes("kafka/topic-settings", &[]);
    let few = ["1 replica(s)", "the cluster has 1 broker(s)"];
    found.warns("kafka/replication-factor", &few);
    found.ends(0);
    let spoil = |set: &str, item: &str, verdict: &str, words: &str| {
        let (setting, value) = set.split_once('=').expect("a value");
        rig.kafka().alter_topic(&topic, setting, value);
        let is_found = |found: &Value| found["finding"].to_string().contains(words);
        eventually(PATIENCE, || {
            let now = check().worst(item).clone();
            now["verdict"] == verdict && (verdict == "fail" || is_found(&now))
        });
        let found = check();
        found.ends(if verdict == "fail" { 78 } else { 0 });
        let (name, value) = altered(found.is(item, verdict, &[words]));
        assert_eq!(name, setting);
        rig.kafka().alter_topic(&topic, &name, &value);
        eventually(PATIENCE, || {
            let now = check().worst(item).clone();
            now["verdict"] == "pass" || (verdict == "warn" && !is_found(&now))
        });
    };
    let (election, insync) = ("kafka/unclean-election", "kafka/min-insync-replicas");
    spoil("min.insync.replicas=2", insync, "warn", "count it as 1");
    spoil(
        "unclean.leader.election.enable=true",
        election,
        "warn",
        "be lost",
    );
    spoil(
        "max.message.bytes=2000",
        "kafka/message-size",
        "warn",
        "bytes = 2000",
    );
    // The remedy of a compacted topic keeps its retention, which has a remedy of its own.
    spoil(
        "cleanup.policy=compact",
        "kafka/dead-letters",
        "warn",
        "compacted",
    );
    spoil(
        "retention.ms=60000",
        "kafka/dead-letters",
        "warn",
        "after 60000 ms",
    );
    Checked::until(check, "kafka/dead-letters", "pass");
    // The relay's own limit.
    let found = checked(&config, &[], "sink.kafka.message.max.bytes=3000");
    found.warns("kafka/message-size", &["[sink.kafka]"]);
    found.ends(0);
}

/// The topics of rows have the names that the router makes.
#[test]
fn check_finds_topics_by_the_waiting_rows() {
    let rig = Rig::with_outbox(18);
    let checked = Checked::run(&rig.config(), &[]);
    checked.passes("kafka/topics", &["none is known"]);
    let db = rig.db();
    db.batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), k, 'key', 'T', '{\"a\": 1}' \
         FROM unnest(ARRAY['order', 'payment', 'order']) k",
    );
    let checked = Checked::run(&rig.config(), &[]);
    checked.passes("kafka/topics", &["2 known"]);
    // A running relay is no obstacle.
    let relay = rig.relay();
    let checked = Checked::run(&rig.config(), &[]);
    checked.passes("postgres/slot", &["is being read by"]);
    checked.ends(0);
    relay.ends_well();

    // The check says what the role may not read.
    db.batch("CREATE ROLE least LOGIN REPLICATION PASSWORD 'hunter2'");
    let url = rig.url_as("least", "hunter2", "postgres");
    let config = rig.config_with(&url, "");
    let checked = Checked::run(&config, &[]);
    checked.warns("kafka/message-size", &["may not read", "GRANT SELECT ON"]);
    checked.ends(0);
    db.batch("GRANT SELECT ON public.outbox TO least");
    Checked::run(&config, &[]).passes("kafka/message-size", &["the largest row"]);
}

/// If the brokers refuse something, the finding names the missing permission.
#[test]
fn check_reports_missing_permissions_of_kafka() {
    let broker = secure_kafka();
    let rig = Rig::with(servers::postgres(18), broker.kafka.listener("SECURE")).outbox();
    fs::write(rig.path("ca.pem"), broker.authority.pem()).expect("written");
    let lines = |user: &str, password: &str| {
        format!(
            "\"broker.address.family\" = \"v4\"\n\"ssl.ca.location\" = \"{}\"\n\
             \"security.protocol\" = \"SASL_SSL\"\n\"sasl.mechanism\" = \"PLAIN\"\n\
             \"sasl.username\" = \"{user}\"\n\"sasl.password\" = \"{password}\"\n",
            rig.path("ca.pem").display()
        )
    };
    let topic = format!("{}all", rig.prefix);
    let config = |user: &str, password: &str| constant(&rig, &topic, &lines(user, password));
    let check = |config: &Path| Checked::run(config, &[]);

    let wrong = check(&config(SecureKafka::LIMITED, "wrong-password"));
    wrong.fails("kafka/brokers", &["[kafka-access]", "sasl.password"]);
    wrong.ends(77);

    let config = config(SecureKafka::LIMITED, SecureKafka::LIMITED_PASSWORD);
    let item = "kafka/topic-access";
    let denied = ["[topic-access]", "User:limited", "--operation Write"];
    let denied = [&denied[..], &[&topic]].concat();
    let checked = check(&config);
    checked.fails(item, &denied);
    checked.ends(77);
    broker.kafka.create_topic(&topic, 1, &[]);
    broker.allow(&topic, &["DESCRIBE"]);
    eventually(PATIENCE, || {
        let finding = check(&config).worst(item)["finding"].to_string();
        finding.contains("may not write")
    });
    check(&config).fails(item, &denied);
    broker.allow(&topic, &["WRITE"]);
    Checked::until(|| check(&config), item, "pass");
    let item = "kafka/topic-settings";
    let checked = check(&config);
    checked.warns(item, &["--operation DescribeConfigs", &topic]);
    checked.ends(0);
    broker.allow(&topic, &["DESCRIBE_CONFIGS"]);
    Checked::until(|| check(&config), item, "pass");
}
