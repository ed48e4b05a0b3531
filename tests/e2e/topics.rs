use std::collections::HashSet;

use serde_json::Value;
use walrelay_lsn::Lsn;
use walrelay_testkit::{Delivered, Kafka, KafkaCluster, eventually, eventually_some, servers};

use crate::endpoint::{LISTEN, address, at as at_address, config, metric, status};
use crate::page::first_glance;
use crate::rig::{
    PATIENCE, Rig, assert_has, assert_lacks, edit, insert_of, kafka_in_turn, output_with, stdout,
    strict_kafka, with_failures, with_source,
};
use crate::shown::Views;

/// The broker creates no topics on demand, and the relay is configured to create them.
#[test]
fn topics_are_created_where_configured() {
    let kafka = strict_kafka();
    let rig = Rig::with_kafka(15, kafka);
    let more = "\n[sink.topics]\ncreate = true\npartitions = 5\nreplication_factor = 1\n";
    let relay = rig.streaming(&rig.config_and(more));
    rig.workload().rows(2_000).run();
    rig.caught_up();
    let history = rig.history();
    history.check().assert_clean();
    let partitions = history.records.iter().map(|record| record.partition).max();
    assert_eq!(partitions, Some(4), "five partitions, all in use");
    relay.ends_well();
}

/// A missing topic may appear: its events wait, nothing is confirmed meanwhile, and the relay continues.
#[test]
fn missing_topics_are_waited_for() {
    let kafka = strict_kafka();
    let rig = Rig::with_kafka(15, kafka);
    // How long librdkafka waits for unknown topics.
    let more = "\"topic.metadata.propagation.max.ms\" = 500\n\n\
                [delivery]\nbackoff_max = \"500ms\"\n";
    let relay = rig.streaming(&rig.config_and(more));
    for kind in ["payment", "customer"] {
        kafka.create_topic(&format!("{}{kind}", rig.prefix), 3, &[]);
    }
    let before = rig.slot().wal_end();
    let written = rig.workload().rows(300).run();
    relay.says("does not exist: its records wait for it");
    let after = rig.slot().wal_end();
    let confirmed = rig.slot().confirmed();
    assert!(
        confirmed < after,
        "confirmed beyond a record that went nowhere: {before} {confirmed}"
    );

    kafka.create_topic(&format!("{}order", rig.prefix), 3, &[]);
    let verdict = rig.finish(relay);
    eprintln!("topic missing, {} rows: {verdict}", written.rows);
    verdict.assert_clean();
}

fn insert(rig: &Rig, kind: &str, number: u32) {
    insert_of(&rig.db(), kind, kind, number);
}

/// The text in a JSON log.
fn does_not_exist(rig: &Rig, kind: &str) -> String {
    format!(
        "\"waiting_for\":\"topic \\\"{}{kind}\\\" does not exist",
        rig.prefix
    )
}

/// A missing topic is named before librdkafka gives up its record, also while records go to other
/// topics. By the relay's clock it is named within two seconds, but for attempts in which a busy
/// machine held up the relay.
#[test]
fn missing_topics_are_named_at_once() {
    let kafka = strict_kafka();
    let rig = Rig::with_kafka(15, kafka);
    kafka.create_topic(&format!("{}payment", rig.prefix), 1, &[]);
    // How long librdkafka waits for unknown topics: half an hour, and not more, as it multiplies 32-bit
    // integers by a thousand.
    let more = "\"topic.metadata.propagation.max.ms\" = 2000000\n";
    // The server's silence on a busy machine must not end the connection.
    let config = with_source(rig.config_and(more), "wal_sender_timeout = \"60s\"");
    let relay = rig.streaming(&config);
    let (mut payments, mut attempts) = (0, 0);
    eventually(PATIENCE, || {
        attempts += 1;
        let kind = format!("order-{attempts}");
        let text = does_not_exist(&rig, &kind);
        insert(&rig, &kind, 1);
        relay.until(&text, || {
            payments += 1;
            insert(&rig, "payment", payments);
            relay.log().contains(&text)
        });
        assert_lacks(&relay.log(), &["trying again"]);
        kafka.create_topic(&format!("{}{kind}", rig.prefix), 1, &[]);
        rig.caught_up();
        let log = relay.log();
        let line = log.lines().find(|line| line.contains(&text));
        let line: Value = serde_json::from_str(line.expect("the line")).expect("JSON");
        let seconds = line["lasts_s"].as_u64().expect("seconds");
        eprintln!("a missing topic was named after {seconds} whole seconds");
        seconds < 2
    });
    rig.finish(relay).assert_clean_but_for_ragged();
}

/// Events of a missing topic leave the window, so that they hold back their own topic only, although they fill it many
/// times over. Beyond `max_retrying_bytes` all events wait, and every view names the topic.
#[test]
fn missing_topics_hold_back_other_topics_only_beyond_the_bound() {
    for (bytes, passes) in [("40MiB", 2_100), ("0B", 100)] {
        let kafka = strict_kafka();
        let rig = Rig::with_kafka(18, kafka);
        let [payment, order] = ["payment", "order"].map(|kind| format!("{}{kind}", rig.prefix));
        kafka.create_topic(&payment, 3, &[]);
        let more = format!(
            "{LISTEN}\n[delivery]\nmax_in_flight_records = 32\nmax_retrying_bytes = \"{bytes}\"\n\
             [poison]\nretry_for = \"1h\"\n"
        );
        let config = rig.config_and(&more);
        let relay = rig.streaming(&config);
        for (kind, first, last) in [
            ("payment", 1, 100),
            ("order", 1, 1_000),
            ("payment", 101, 2_100),
        ] {
            rig.db().batch(&format!(
                "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
                 SELECT gen_random_uuid(), '{kind}', 'key' || i % 50, 'T', jsonb_build_object('number', i) \
                 FROM generate_series({first}, {last}) i"
            ));
        }
        rig.records_in(&payment, passes);
        // All keys of the topic wait, or those of a full window.
        let keys = if passes == 100 { 32 } else { 50 };
        let at = address(&relay);
        let shown = eventually_some(PATIENCE, || {
            let shown = status(at);
            let waiting = &shown["delivery"]["retrying"];
            let is_named = waiting["topic"] == *order && waiting["keys"] == keys;
            let is_blocked = shown["pipeline"]["state"] == "blocked";
            (is_named && is_blocked).then_some(shown)
        });
        let stored = rig.records_in(&payment, passes).len();
        assert_eq!(stored, passes, "{bytes}: events of the other topic");
        let missing = format!("topic \"{order}\" does not exist: its records wait for it");
        let reason = shown["pipeline"]["reason"].as_str().expect("a reason");
        assert_has(reason, &[&missing]);
        let text = stdout(&output_with("status", &config, &[&at_address(at)]));
        let waiting = format!("{keys} keys wait");
        assert_has(&text, &[&order, "does not exist", &waiting]);
        assert_has(&first_glance(at), &[&order, "does not exist"]);
        kafka.create_topic(&order, 3, &[]);
        rig.finish(relay).assert_counts(3_100, 0);
    }
}

/// A broker that is away is named as well.
#[test]
fn topics_are_not_blamed_for_a_broker_that_is_away() {
    let kafka = kafka_in_turn();
    let rig = Rig::with_kafka(15, &kafka);
    kafka.create_topic(&format!("{}order", rig.prefix), 1, &[]);
    let relay = rig.streaming(&rig.config());
    insert(&rig, "order", 1);
    rig.caught_up();
    kafka.kill();
    insert(&rig, "order", 2);
    relay.says(&format!(
        "\"waiting_for\":\"no broker answers: {}",
        rig.bootstrap
    ));
    kafka.start_again();
    rig.finish(relay).assert_clean_but_for_ragged();
}

/// A broker that advertises an address at which nothing listens: that address is named.
#[test]
fn topics_are_not_blamed_for_an_address_that_is_advertised() {
    let kafka = Kafka::builder().advertised_host("127.0.0.2").start();
    let rig = Rig::with_kafka(15, &kafka);
    let relay = rig.streaming(&rig.config());
    insert(&rig, "order", 1);
    // The broker listens at 127.0.0.1 alone, and holds its port there, so no other server gets this
    // port for all addresses.
    let advertised = rig.bootstrap.replace("127.0.0.1", "127.0.0.2");
    relay.says(&format!(
        "\"waiting_for\":\"broker {advertised} cannot be reached, an address that the cluster advertises"
    ));
}

/// A stop with a record whose topic is missing: nothing is retried, and the exit code and one line
/// say that the record is unsent, and why.
#[test]
fn missing_topics_end_a_stop_with_a_reason() {
    let kafka = strict_kafka();
    let rig = Rig::with_kafka(15, kafka);
    let mut end = Lsn::ZERO;
    // The topic is named while librdkafka waits for it, or refused before the stop, once or
    // repeatedly. A stop that waited for a timeout would last for half an hour.
    for (round, (more, words)) in [
        (
            "\"topic.metadata.propagation.max.ms\" = 2000000\n\n[delivery]\n",
            "does not exist",
        ),
        (
            "\"topic.metadata.propagation.max.ms\" = 500\n\n[delivery]\nbackoff_initial = \"1h\"\n\
             backoff_max = \"1h\"\n",
            "does not exist",
        ),
        (
            "\"topic.metadata.propagation.max.ms\" = 500\n\n[delivery]\nbackoff_initial = \"20ms\"\nbackoff_max = \"50ms\"\n\
             \n[poison]\nrejected = \"skip\"\n",
            "does not exist",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let config = rig.config_and(more);
        edit(&config, "[delivery]\n", "[delivery]\ndrain_timeout = \"1h\"\n");
        let relay = rig.streaming(&config);
        if round == 0 {
            insert(&rig, "order", 1);
            end = rig.db().insert_lsn();
        }
        relay.says(words);
        let (code, log) = relay.terminate();
        assert_eq!(code, Some(75), "{log}");
        let log = with_failures(log);
        let (_, after) = log.split_once("asked to stop").expect("it was asked");
        let topic = format!("topic \"{}order\"", rig.prefix);
        let ended = "not drained: 1 record is unsent or not acknowledged [drain-incomplete]";
        assert_has(after, &[ended, &topic]);
        assert_lacks(after, &["trying again", "gave the topic up", "skipped an event"]);
        let confirmed = rig.slot().confirmed();
        assert!(confirmed < end, "{confirmed} >= {end}: it was confirmed");
    }
    kafka.create_topic(&format!("{}order", rig.prefix), 1, &[]);
    rig.finish(rig.streaming(&rig.config())).assert_clean();
}

/// A topic is deleted and made anew with another leader after its leader epoch has risen. librdkafka
/// ignores the lower epoch of the new topic, so it sends to the former leader without end.
#[test]
fn recreated_topics_are_written_to() {
    let cluster = Kafka::builder().without_auto_create().start_cluster();
    let rig = Rig::with(servers::postgres(15), cluster.bootstrap_servers()).outbox();
    let [topic, single] = ["order", "single"].map(|kind| format!("{}{kind}", rig.prefix));
    cluster.create_topic_on(&single, &[&[1]], &[("min.insync.replicas", "1")]);
    cluster.create_topic_on(&topic, &[&[1, 2, 3]], &[]);
    let configured = rig.config_debug(&format!("\"debug\" = \"admin\"\n{LISTEN}"));
    let relay = rig.streaming(&configured);
    insert(&rig, "order", 1);
    rig.caught_up();
    // The response has the topic's id: the relay sends this request for ids alone.
    relay.says("DESCRIBETOPICS worker called in state waiting for response from broker: Success");
    cluster.stop(1);
    let leader = cluster.wait_other_leader(&topic, 0, 1);
    // The relay learns of the leader.
    insert(&rig, "order", 2);
    rig.caught_up();
    // A partition without a leader, as each view shows it.
    insert(&rig, "single", 1);
    let alert = "WalrelayLeaderless, after 1m";
    let remedy = "start the servers that have them";
    let words = ["Events wait for partitions without a leader", &single];
    Views::new(&configured, &relay).show_problem(&words, remedy, alert);
    cluster.start_again(1);
    cluster.wait_in_sync();
    let mut replicas = KafkaCluster::BROKERS;
    replicas.sort_by_key(|broker| *broker == leader);
    cluster.delete_topics(&[&topic]);
    cluster.create_topic_on(&topic, &[&replicas], &[]);
    for number in 3..=5 {
        insert(&rig, "order", number);
    }
    rig.caught_up();
    relay.says("topics were deleted and recreated");
    // Those of the other topic are records, too.
    let records = rig.records(4);
    let of_topic = records.iter().filter(|record| record.topic == topic);
    let mut numbers: Vec<&str> = of_topic.map(Delivered::value_text).collect();
    // The new producer may repeat any number of records from the first unacknowledged one on.
    let mut seen = HashSet::new();
    numbers.retain(|number| seen.insert(*number));
    let expected = [3, 4, 5].map(|number| format!("{{\"number\": {number}}}"));
    assert_eq!(numbers, expected);
    relay.ends_well();
}

/// Only the append times of a topic show a broker's clock.
#[test]
fn topics_that_keep_append_times_show_the_clock_of_the_broker() {
    let kafka = strict_kafka();
    let rig = Rig::with_kafka(18, kafka);
    let relay = rig.streaming(&config(&rig, &rig.postgres.url(), ""));
    let at = address(&relay);
    let offset = || status(at)["sink"]["clock_offset_seconds"].as_f64();
    kafka.create_topic(&format!("{}order", rig.prefix), 1, &[]);
    insert_of(&rig.db(), "order", "k", 1);
    rig.caught_up();
    assert_eq!(offset(), None, "a producer's time tells nothing");
    let appended = [("message.timestamp.type", "LogAppendTime")];
    kafka.create_topic(&format!("{}payment", rig.prefix), 1, &appended);
    insert_of(&rig.db(), "payment", "k", 2);
    rig.caught_up();
    // The broker has the clock of this machine.
    assert_eq!(offset(), Some(0.0));
    let line = "walrelay_clock_difference_seconds{of=\"sink\"}";
    assert_eq!(metric(at, line), Some(0.0));
    relay.ends_well();
}
