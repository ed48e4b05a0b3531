use std::fs;
use std::path::{Path, PathBuf};

use walrelay_testkit::{Db, SecureKafka, eventually, servers};

use crate::rig::{Checked, PATIENCE, Rig};

/// A configuration whose only topic is named without looking at a row.
fn constant(rig: &Rig, topic: &str, more: &str) -> PathBuf {
    let config = rig.config_with(&rig.postgres.url(), more);
    let text = fs::read_to_string(&config).expect("the configuration");
    let routed = format!("\"{}${{routedByValue}}\"", rig.prefix);
    assert!(text.contains(&routed), "{text}");
    fs::write(&config, text.replace(&routed, &format!("\"{topic}\""))).expect("written");
    config
}

/// The setting and the value that a remedy gives a topic.
fn altered(remedy: &serde_json::Value) -> (String, String) {
    let text = remedy["remedy"].as_str().expect("a remedy");
    assert!(
        text.starts_with("kafka-configs.sh --bootstrap-server "),
        "{text}"
    );
    let (_, change) = text.split_once("--add-config ").expect("a change");
    let (name, value) = change.split_once('=').expect("a value");
    (name.to_owned(), value.to_owned())
}

/// The settings of a topic, one after the other. Each remedy is carried out.
#[test]
fn of_topics() {
    let rig = Rig::with_outbox(18);
    let db = Db::connect(&rig.postgres.url());
    let topic = format!("{}all", rig.prefix);
    let config = constant(&rig, &topic, "");
    let check = |set: &[&str]| {
        let set = set.iter().flat_map(|set| ["--set", set]);
        Checked::of(&config, &set.collect::<Vec<_>>())
    };
    let create = [
        "sink.topics.create=true",
        "sink.topics.replication_factor=3",
    ];
    let checked = check(&create);
    checked.is("kafka/brokers", "pass", &["1 broker(s)"]);
    checked.is(
        "kafka/topics",
        "fail",
        &["[kafka-topic]", "replication_factor"],
    );
    assert_eq!(checked.code, Some(78));
    let created = [
        "sink.topics.create=true",
        "sink.topics.replication_factor=1",
    ];
    let checked = check(&created);
    checked.is("kafka/topics", "pass", &["1 to be created"]);
    checked.is(
        "kafka/replication-factor",
        "warn",
        &["new topics: 1 replica(s)"],
    );

    rig.kafka().create_topic(&topic, 1, &[]);
    db.batch(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', 'T', \
         jsonb_build_object('text', repeat('x', 5000)))",
    );
    let letters = format!("poison.topic={topic}");
    let set = ["poison.unroutable=dead-letter", &letters];
    eventually(PATIENCE, || {
        check(&set).worst("kafka/topics")["finding"] == "1 known, all exist"
    });
    let checked = check(&set);
    checked.is("kafka/topic-access", "pass", &["may write"]);
    checked.is("kafka/topic-settings", "pass", &[]);
    let few = ["1 replica(s)", "replication_factor = 3"];
    checked.is("kafka/replication-factor", "warn", &few);
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    // The remedy of one that is compacted leaves its retention, and that has one of its own.
    for (setting, value, item, verdict, words) in [
        (
            "min.insync.replicas",
            "2",
            "kafka/min-insync-replicas",
            "fail",
            "[kafka-topic]",
        ),
        (
            "unclean.leader.election.enable",
            "true",
            "kafka/unclean-election",
            "warn",
            "be lost",
        ),
        (
            "max.message.bytes",
            "2000",
            "kafka/message-size",
            "warn",
            "bytes = 2000",
        ),
        (
            "cleanup.policy",
            "compact",
            "kafka/dead-letters",
            "warn",
            "compacted",
        ),
        (
            "retention.ms",
            "60000",
            "kafka/dead-letters",
            "warn",
            "after 60000 ms",
        ),
    ] {
        rig.kafka().alter_topic(&topic, setting, value);
        eventually(PATIENCE, || {
            let now = check(&set).worst(item).clone();
            now["verdict"] == verdict
                && (verdict == "fail" || now["finding"].to_string().contains(words))
        });
        let checked = check(&set);
        let expected = if verdict == "fail" { 78 } else { 0 };
        assert_eq!(checked.code, Some(expected), "{checked:#?}");
        let (name, value) = altered(checked.is(item, verdict, &[words]));
        assert_eq!(name, setting);
        rig.kafka().alter_topic(&topic, &name, &value);
        eventually(PATIENCE, || {
            let now = check(&set).worst(item).clone();
            now["verdict"] == "pass"
                || (verdict == "warn" && !now["finding"].to_string().contains(words))
        });
    }
    eventually(PATIENCE, || {
        check(&set).worst("kafka/dead-letters")["verdict"] == "pass"
    });
    // The relay's own limit.
    let small = "sink.kafka.message.max.bytes=3000";
    let checked = check(&[small]);
    checked.is("kafka/message-size", "warn", &["[sink.kafka]"]);
    assert_eq!(checked.code, Some(0), "{checked:#?}");
}

/// Topics of rows are known as the router names them.
#[test]
fn of_rows() {
    let rig = Rig::with_outbox(18);
    let checked = Checked::of(&rig.config(), &[]);
    checked.is("kafka/topics", "pass", &["none is known"]);
    let db = Db::connect(&rig.postgres.url());
    db.batch(
        "INSERT INTO outbox SELECT gen_random_uuid(), k, 'key', 'T', '{\"a\": 1}' \
         FROM unnest(ARRAY['order', 'payment', 'order']) k",
    );
    let checked = Checked::of(&rig.config(), &[]);
    checked.is("kafka/topics", "pass", &["2 known"]);
    // A relay that runs is no obstacle.
    let relay = rig.relay();
    let checked = Checked::of(&rig.config(), &[]);
    checked.is("postgres/slot", "pass", &["is being read by"]);
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    relay.ends_well();

    // What the role may not read is said.
    db.batch("CREATE ROLE least LOGIN REPLICATION PASSWORD 'hunter2'");
    let url = rig.url_as("least", "hunter2", "postgres");
    let config = rig.config_with(&url, "");
    let checked = Checked::of(&config, &[]);
    checked.is(
        "kafka/message-size",
        "warn",
        &["may not read", "GRANT SELECT ON"],
    );
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    db.batch("GRANT SELECT ON public.outbox TO least");
    Checked::of(&config, &[]).is("kafka/message-size", "pass", &["the largest row"]);
}

/// What the brokers refuse is a finding that names the right.
#[test]
fn of_rights() {
    let broker = SecureKafka::start();
    let rig = Rig::with(servers::postgres(18), broker.kafka.listener("SECURE"));
    rig.workload().create_tables();
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
    let check = |config: &Path| Checked::of(config, &[]);

    let wrong = check(&config(SecureKafka::LIMITED, "wrong-password"));
    wrong.is(
        "kafka/brokers",
        "fail",
        &["[kafka-access]", "sasl.password"],
    );
    assert_eq!(wrong.code, Some(77));

    let config = config(SecureKafka::LIMITED, SecureKafka::LIMITED_PASSWORD);
    let item = "kafka/topic-access";
    let denied = [
        "[topic-access]",
        "User:limited",
        "--operation Write",
        &topic,
    ];
    let checked = check(&config);
    checked.is(item, "fail", &denied);
    assert_eq!(checked.code, Some(77));
    broker.kafka.create_topic(&topic, 1, &[]);
    broker.allow(&topic, &["DESCRIBE"]);
    eventually(PATIENCE, || {
        let checked = check(&config);
        checked.worst(item)["finding"]
            .to_string()
            .contains("may not write")
    });
    check(&config).is(item, "fail", &denied);
    broker.allow(&topic, &["WRITE"]);
    eventually(PATIENCE, || check(&config).worst(item)["verdict"] == "pass");
    let item = "kafka/topic-settings";
    let checked = check(&config);
    checked.is(item, "warn", &["--operation DescribeConfigs", &topic]);
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    broker.allow(&topic, &["DESCRIBE_CONFIGS"]);
    eventually(PATIENCE, || check(&config).worst(item)["verdict"] == "pass");
}
