#![expect(
    clippy::redundant_closure_for_method_calls,
    reason = "a method is not general enough in the lifetime of its Cluster"
)]

use walrelay_sink_kind::check::Verdict;

use super::*;
use crate::Creation;
use crate::section::{KafkaProperties, TopicsSection};

fn settings(of: &[(&str, &str)]) -> KafkaSettings {
    let of = of.iter();
    of.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn existing(replicas: usize, of: &[(&str, &str)]) -> TopicSurvey {
    TopicSurvey {
        name: "orders".into(),
        state: TopicState::Exists {
            replicas,
            leaderless: Vec::new(),
            writable: Some(true),
        },
        settings: Some(Ok(settings(of))),
    }
}

fn in_state(state: TopicState) -> TopicSurvey {
    TopicSurvey {
        name: "orders".into(),
        state,
        settings: None,
    }
}

fn missing(creation: Creation) -> TopicSurvey {
    in_state(TopicState::Missing { creation })
}

fn sink() -> KafkaSection {
    KafkaSection {
        properties: KafkaProperties::default(),
        topics: TopicsSection {
            create: false,
            partitions: None,
            replication_factor: None,
        },
        bearer: None,
    }
}

/// Runs a check of this topic, on a cluster with this `auto.create.topics.enable`.
fn check_of(
    topic: TopicSurvey,
    auto_create: Option<&str>,
    check: impl Fn(&Cluster<'_>) -> Check,
) -> Check {
    let defaults = match auto_create {
        Some(value) => Ok(settings(&[
            ("auto.create.topics.enable", value),
            ("default.replication.factor", "1"),
            ("message.max.bytes", "1000"),
        ])),
        None => Err("not authorised".to_owned()),
    };
    let survey = ClusterSurvey {
        brokers: 3,
        defaults,
        topics: vec![topic],
    };
    let check = check(&Cluster {
        survey: &survey,
        brokers: 3,
        bootstrap: "b:9092",
        principal: "relay",
        subjects: subjects(&survey, &sink()),
    });
    let passed = check.verdict == Verdict::Pass;
    assert_eq!(passed, check.remedy.is_none(), "{check:?}");
    check
}

#[test]
fn missing_topics_fail_unless_they_are_created() {
    let unled = in_state(TopicState::Exists {
        replicas: 3,
        leaderless: vec![2],
        writable: None,
    });
    for (topic, auto_create, verdict) in [
        (existing(3, &[]), Some("false"), "pass"),
        (unled, Some("true"), "fail"),
        (missing(Creation::NotConfigured), Some("true"), "pass"),
        (missing(Creation::NotConfigured), Some("false"), "fail"),
        (missing(Creation::NotConfigured), None, "warn"),
        (missing(Creation::Allowed), Some("false"), "pass"),
        (missing(Creation::Refused("x".into())), Some("true"), "fail"),
        (in_state(TopicState::Unknown("x".into())), None, "warn"),
    ] {
        let check = check_of(topic, auto_create, |of| of.topics());
        assert_eq!(check.verdict.name(), verdict, "{check:?}");
    }
}

#[test]
fn missing_privileges_are_named() {
    let unwritable = in_state(TopicState::Exists {
        replicas: 3,
        leaderless: Vec::new(),
        writable: Some(false),
    });
    for (topic, words) in [
        (unwritable, "User:relay --operation Write --topic orders"),
        (in_state(TopicState::Denied), "Describe --operation Write"),
        (missing(Creation::Denied), "--operation Create"),
    ] {
        let check = check_of(topic, Some("true"), |of| of.access());
        assert_eq!(check.verdict.name(), "fail", "{check:?}");
        let remedy = check.remedy.unwrap();
        assert!(remedy.contains(words), "{remedy}");
    }
    let check = check_of(existing(3, &[]), Some("true"), |of| of.access());
    assert_eq!(check.verdict.name(), "pass", "{check:?}");
}

#[test]
fn replicas_and_in_sync_replicas() {
    let least = |replicas, value| existing(replicas, &[("min.insync.replicas", value)]);
    let size = ("max.message.bytes", "1000");
    for (replicas, value, verdict) in [
        (3, "2", "pass"),
        (3, "1", "warn"),
        (3, "3", "warn"),
        (3, "4", "warn"),
        (1, "1", "pass"),
        // Partition.effectiveMinIsr of Kafka 4 is the smaller of both.
        (1, "2", "warn"),
    ] {
        let mut topic = least(replicas, value);
        if let Some(Ok(settings)) = &mut topic.settings {
            settings.insert(size.0.into(), size.1.into());
        }
        let check = check_of(topic.clone(), Some("true"), |of| of.in_sync_replicas());
        assert_eq!(check.verdict.name(), verdict, "{check:?}");
        let check = check_of(topic, Some("true"), |of| of.replication_factor());
        assert_eq!(check.verdict == Verdict::Pass, replicas >= 3, "{check:?}");
    }
    // New topics take the defaults of the brokers.
    let new = missing(Creation::NotConfigured);
    let check = check_of(new, Some("true"), |of| of.replication_factor());
    assert!(check.finding.contains("new topics: 1"), "{check:?}");
}

#[test]
fn a_row_has_to_fit_both_limits() {
    let topic = || existing(3, &[("max.message.bytes", "1000")]);
    for (client, largest, verdict, words) in [
        (1000, Ok(None), "pass", ""),
        (1000, Ok(Some(1000)), "pass", ""),
        (1000, Ok(Some(1001)), "warn", "[sink.kafka]"),
        (2000, Ok(Some(1001)), "warn", "max.message.bytes=3000"),
        (2000, Ok(Some(1)), "warn", "max.message.bytes=3000"),
    ] {
        let check = check_of(topic(), Some("true"), |cluster| {
            cluster.message_size(Some(client), &largest)
        });
        assert_eq!(check.verdict.name(), verdict, "{check:?}");
        assert!(check.remedy.unwrap_or_default().contains(words));
    }
    let new = missing(Creation::NotConfigured);
    let check = check_of(new, Some("true"), |cluster| {
        cluster.message_size(Some(2000), &Ok(None))
    });
    let remedy = check.remedy.unwrap();
    assert!(remedy.contains("brokers --entity-default --add-config message.max.bytes="));
}
