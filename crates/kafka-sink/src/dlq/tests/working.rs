use std::collections::BTreeMap;
use std::ops::ControlFlow;

use rdkafka::types::RDKafkaRespErr;
use walrelay_sink_kind::dead_letters::{
    Action, DeadLetters as _, DlqRecord, DlqReplayer, NotRedriven, ReplayOptions, ReplaySummary,
    Step,
};
use walrelay_sink_kind::topics::ReadRecord;

use super::*;
use crate::dlq::KafkaDeadLetters;
use crate::dlq::store::TopicLog;

fn replayer(cluster: &Cluster) -> DlqReplayer<TopicLog> {
    KafkaDeadLetters::new(config(cluster))
        .replayer(TOPIC, LONG)
        .expect("readable")
        .expect("there is such a topic")
}

fn redrive() -> ReplayOptions {
    redrive_to(None, true)
}

fn redrive_to(topic: Option<&str>, follow: bool) -> ReplayOptions {
    let topic = topic.map(str::to_owned);
    ReplayOptions {
        action: Action::Redrive { topic, follow },
        limit: None,
        patience: LONG,
    }
}

fn all(_: &DlqRecord) -> bool {
    true
}

/// Returns a reported step as text.
fn describe(step: &Step<'_>) -> String {
    match step {
        Step::Done(dead_letter) => format!("done {}", dead_letter.id),
        Step::Failed(name, _, why) => format!("failed {}: {why}", name.id),
        Step::HeldBack {
            dead_letter,
            behind,
        } => format!("{} waits for {}", dead_letter.id, behind.id),
    }
}

/// Reads and replays the dead letters.
fn carry_out(
    cluster: &Cluster,
    options: &ReplayOptions,
    select: impl Fn(&DlqRecord) -> bool,
) -> (ReplaySummary, Vec<String>) {
    let mut replayer = replayer(cluster);
    replayer.read(&select).expect("readable");
    let mut steps = Vec::new();
    let summary = replayer
        .carry_out(options, &select, &mut |step| steps.push(describe(&step)))
        .expect("it ends well");
    (summary, steps)
}

fn open_letters(cluster: &Cluster) -> usize {
    let mut replayer = replayer(cluster);
    replayer.read(&all).expect("readable");
    replayer.open()
}

/// Returns all records of a topic, by partition and offset.
fn records(cluster: &Cluster, topic: &str) -> Vec<ReadRecord> {
    let mut found = read(cluster, &[topic], count_of(cluster, topic));
    found.sort_by_key(|record| (record.partition, record.offset));
    found
}

fn values(cluster: &Cluster, topic: &str) -> BTreeMap<String, Vec<String>> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for record in records(cluster, topic) {
        let key = record.key.map_or_else(|| "null".to_owned(), text);
        let value = record.value.map_or_else(|| "null".to_owned(), text);
        found.entry(key).or_default().push(value);
    }
    found
}

#[test]
fn dead_letters_are_redriven_once_and_in_order() {
    let cluster = cluster(&[(TOPIC, 3), ("orders", 3)]);
    let writer = Writer::new(&cluster);
    let more = [
        (dlq_headers::TIMESTAMP, "1700000000123"),
        (dlq_headers::EVENT_ID, "event"),
    ];
    for row in 0..40 {
        let (id, key) = (format!("1/A {row}"), format!("k{}", row % 5));
        writer.dead_letter(&Draft {
            more: &more,
            ..draft(&id, &key)
        });
    }
    // Repeats, as of a relay that was killed.
    for row in 20..40 {
        let (id, key) = (format!("1/A {row}"), format!("k{}", row % 5));
        writer.dead_letter(&draft(&id, &key));
    }
    writer.dead_letter(&Draft {
        key: None,
        value: None,
        ..draft("1/B 0", "")
    });
    writer.write(Some("k1"), Some("of somebody else"), &[]);
    writer.resolution(Some("k1"), "s 1/A 1");
    let (summary, steps) = carry_out(&cluster, &redrive(), all);
    let expected = ReplaySummary {
        done: 40,
        ..ReplaySummary::default()
    };
    assert_eq!(summary, expected, "{steps:?}");
    let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in (0..40).filter(|row| *row != 1) {
        let of_key = expected.entry(format!("k{}", row % 5)).or_default();
        of_key.push(format!("1/A {row}"));
    }
    expected.insert("null".to_owned(), vec!["null".to_owned()]);
    assert_eq!(values(&cluster, "orders"), expected);
    let first = &records(&cluster, "orders")[0];
    assert_eq!(first.timestamp_ms, Some(1_700_000_000_123));
    let names: Vec<_> = first.headers.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["id"]);

    assert_eq!(open_letters(&cluster), 0);
    let (summary, steps) = carry_out(&cluster, &redrive(), all);
    assert_eq!((summary, steps), (ReplaySummary::default(), vec![]));
    let written = records(&cluster, TOPIC);
    let partition_of = |name: &str, value: &str| {
        let found = written.iter().find(|record| {
            let value = Some(value.as_bytes().to_vec());
            record.headers.contains(&(name.to_owned(), value))
        });
        found.expect("written").partition
    };
    assert_eq!(
        partition_of(dlq_headers::RESOLVES, "s 1/B 0"),
        partition_of(dlq_headers::LSN, "1/B"),
    );
}

#[test]
fn a_refused_dead_letter_holds_back_its_key_and_no_other() {
    let cluster = cluster(&[(TOPIC, 2), ("orders", 2), ("secret", 1)]);
    let writer = Writer::new(&cluster);
    writer.dead_letter(&draft("0/1 0", "a").to(Some("secret")));
    writer.dead_letter(&draft("0/1 1", "a").to(Some("secret")));
    // Another topic: no order between the two.
    writer.dead_letter(&draft("0/1 2", "a"));
    writer.dead_letter(&draft("0/1 3", "b").to(Some("secret")));
    writer.dead_letter(&draft("0/1 4", "c").to(None));
    writer.dead_letter(&draft("0/1 5", "c"));
    writer.dead_letter(&Draft {
        value: None,
        more: &[(dlq_headers::VALUE_BYTES, "5000000")],
        ..draft("0/1 6", "d")
    });
    writer.dead_letter(&draft("0/1 7", "d"));
    writer.dead_letter(&draft("0/1 8", "e"));
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    cluster.topic_error("secret", denied).expect("set");
    let (summary, steps) = carry_out(&cluster, &redrive(), all);
    assert_eq!(
        summary,
        ReplaySummary {
            done: 2,
            failed: 4,
            held_back: 3
        }
    );
    for (step, expected) in steps.iter().zip([
        "failed 0/1 0: topic \"secret\":",
        "0/1 1 waits for 0/1 0",
        "done 0/1 2",
        "failed 0/1 3: its topic accepts nothing:",
        "failed 0/1 4: it has no topic to go to",
        "0/1 5 waits for 0/1 4",
        "failed 0/1 6: its value of 5000000 bytes was left out of the dead letter",
        "0/1 7 waits for 0/1 6",
        "done 0/1 8",
    ]) {
        assert!(step.starts_with(expected), "{step}, not {expected}");
    }
    assert_eq!(open_letters(&cluster), 7);

    // The causes are fixed or worked around.
    let nothing = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR;
    cluster.topic_error("secret", nothing).expect("set");
    let drop = ReplayOptions {
        action: Action::Drop,
        ..redrive()
    };
    let (summary, _) = carry_out(&cluster, &drop, |of| of.omitted_bytes.is_some());
    assert_eq!(summary.done, 1);
    let elsewhere = redrive_to(Some("orders"), false);
    let (summary, _) = carry_out(&cluster, &elsewhere, |of| of.topic.is_none());
    assert_eq!(summary.done, 1);
    let (summary, steps) = carry_out(&cluster, &redrive(), all);
    assert_eq!((summary.done, summary.failed), (5, 0), "{steps:?}");
    assert_eq!(open_letters(&cluster), 0);
    let found = values(&cluster, "orders");
    assert_eq!(found["c"], ["0/1 4", "0/1 5"]);
    assert_eq!(found["d"], ["0/1 7"]);
    assert_eq!(values(&cluster, "secret")["a"], ["0/1 0", "0/1 1"]);
}

#[test]
fn parked_dead_letters_follow_also_those_added_meanwhile() {
    let cluster = cluster(&[(TOPIC, 2), ("orders", 2)]);
    let writer = Writer::new(&cluster);
    let parked = |id: &'static str, key: &'static str| Draft {
        class: dlq_headers::PARKED,
        ..draft(id, key)
    };
    writer.dead_letter(&draft("0/1 0", "a"));
    writer.dead_letter(&parked("0/2 0", "a"));
    writer.dead_letter(&parked("0/2 1", "b"));
    let select = |dead_letter: &DlqRecord| dead_letter.class == "rejected";
    let mut replayer = replayer(&cluster);
    replayer.read(&select).expect("readable");
    let mut steps = Vec::new();
    let summary = replayer
        .carry_out(&redrive(), &select, &mut |step| {
            // A relay that has not read the resolution yet parks more events.
            match steps.len() {
                0 => writer.dead_letter(&parked("0/3 0", "a")),
                2 => {
                    writer.dead_letter(&parked("0/4 0", "b"));
                    writer.dead_letter(&draft("0/4 1", "a"));
                    writer.dead_letter(&draft("0/4 2", "c"));
                }
                _ => {}
            }
            steps.push(describe(&step));
        })
        .expect("it ends well");
    assert_eq!(
        steps,
        ["done 0/1 0", "done 0/2 0", "done 0/3 0", "done 0/4 1"]
    );
    assert_eq!(summary.done, 4);
    // The open ones have other keys.
    assert_eq!(open_letters(&cluster), 3);

    let alone = ReplayOptions {
        limit: Some(1),
        ..redrive_to(None, false)
    };
    let (summary, steps) = carry_out(&cluster, &alone, all);
    assert_eq!((summary.done, steps), (1, vec!["done 0/2 1".to_owned()]));
}

#[test]
fn dead_letters_that_would_be_out_of_order_are_found() {
    let cluster = cluster(&[(TOPIC, 1)]);
    let writer = Writer::new(&cluster);
    writer.dead_letter(&draft("0/1 0", "a"));
    writer.dead_letter(&draft("0/2 0", "a").to(Some("other")));
    writer.dead_letter(&draft("0/2 1", "a"));
    writer.dead_letter(&draft("0/2 2", "b"));
    writer.dead_letter(&Draft {
        slot: "t",
        ..draft("0/2 3", "a")
    });
    let mut replayer = replayer(&cluster);
    replayer
        .read(&|dead_letter| dead_letter.id.lsn == 2)
        .expect("readable");
    let found = replayer.out_of_order();
    let shown = found
        .iter()
        .map(|of| format!("{} behind {}", of.dead_letter, of.behind));
    assert_eq!(shown.collect::<Vec<_>>(), ["s 0/2 1 behind s 0/1 0"]);
    let listed = replayer.selected(false);
    let names: Vec<String> = listed.iter().map(|l| l.name.to_string()).collect();
    assert_eq!(names, ["s 0/2 0", "s 0/2 1", "s 0/2 2", "t 0/2 3"]);
    let mut keys = Vec::new();
    replayer
        .each(&listed, &mut |_, dead_letter| {
            keys.push(dead_letter.and_then(|of| of.key.clone()).expect("there"));
            ControlFlow::Continue(())
        })
        .expect("readable");
    assert_eq!(keys, [b"a", b"a", b"b", b"a"]);
    let mut shown = 0;
    replayer
        .each(&listed, &mut |_, _| {
            shown += 1;
            ControlFlow::Break(())
        })
        .expect("readable");
    assert_eq!(shown, 1, "nothing is shown after a break");
}

#[test]
fn without_an_acknowledgement_the_replay_fails_and_the_dead_letter_stays_open() {
    let cluster = cluster(&[(TOPIC, 1), ("orders", 1)]);
    let writer = Writer::new(&cluster);
    writer.dead_letter(&draft("0/1 0", "a"));
    let mut replayer = replayer(&cluster);
    replayer.read(&all).expect("readable");
    let short = ReplayOptions {
        patience: Duration::from_secs(2),
        ..redrive()
    };
    let away = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS;
    cluster.topic_error("orders", away).expect("set");
    let failure = replayer
        .carry_out(&short, &all, &mut |step| panic!("{step:?}"))
        .expect_err("no acknowledgement");
    assert_eq!(failure.id, "dlq-no-answer");
    assert!(failure.what.starts_with("dead letter s 0/1 0: "));
    assert_eq!(open_letters(&cluster), 1);
}

#[test]
fn dead_letters_removed_by_retention_are_gone() {
    let error = NotRedriven::Gone;
    assert!(error.to_string().contains("not in the topic"));
    let cluster = cluster(&[(TOPIC, 1)]);
    Writer::new(&cluster).dead_letter(&draft("0/1 0", "a"));
    let mut replayer = replayer(&cluster);
    replayer.read(&all).expect("readable");
    let mut listed = replayer.selected(false);
    listed[0].position.offset = 100;
    let mut gone = 0;
    replayer
        .each(&listed, &mut |_, dead_letter| {
            gone += usize::from(dead_letter.is_none());
            ControlFlow::Continue(())
        })
        .expect("readable");
    assert_eq!(gone, 1);
}

#[test]
fn a_missing_topic_is_none() {
    let cluster = cluster(&[]);
    let store = KafkaDeadLetters::new(config(&cluster));
    let replayer = store.replayer(TOPIC, LONG).expect("readable");
    assert!(replayer.is_none());
}
