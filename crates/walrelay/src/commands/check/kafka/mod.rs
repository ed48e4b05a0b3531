//! The checks of the cluster: brokers, topics, rights, settings.

mod settings;
mod topics;

use std::time::Duration;

use walrelay_kafka_sink::{
    ClusterSurvey, KafkaConfig, KafkaSettings, TopicState, TopicSurvey, probe, survey,
    topic_name_problem,
};

use super::item::{Check, Item};
use super::postgres::Largest;
use crate::config::{Config, KafkaSink};
use crate::failures;

/// How long a broker may take to answer.
const BROKER_DEADLINE: Duration = Duration::from_secs(10);
/// How many topics are asked about.
const TOPICS: usize = 50;
/// How topics that do not exist yet are called.
const NEW: &str = "new topics";

/// Asks the cluster and checks all of it. `topics`: those that are known beforehand.
pub(super) fn look(
    config: &Config,
    sink: &KafkaSink,
    kafka: &KafkaConfig,
    mut topics: Vec<String>,
    largest: &Largest,
) -> Vec<Check> {
    let cluster = match probe(kafka, BROKER_DEADLINE) {
        Ok(cluster) => cluster,
        Err(error) => {
            return vec![Check::failed(
                Item::Brokers,
                &failures::kafka_client(&error),
            )];
        }
    };
    let dead_letters = config
        .poison
        .writes_dead_letters()
        .then_some(&config.poison.topic);
    topics.retain(|topic| topic_name_problem(topic).is_none());
    topics.truncate(TOPICS);
    topics.extend(
        dead_letters
            .filter(|topic| !topics.contains(topic))
            .cloned(),
    );
    let survey = match survey(kafka, &topics, BROKER_DEADLINE) {
        Ok(survey) => survey,
        Err(error) => {
            return vec![Check::failed(
                Item::Brokers,
                &failures::kafka_client(&error),
            )];
        }
    };
    let count = cluster.brokers.len();
    let mut checks = vec![Check::pass(
        Item::Brokers,
        format!("{count} broker(s) answer"),
    )];
    let of = Cluster {
        survey: &survey,
        bootstrap: kafka.bootstrap_servers(),
        principal: sink
            .properties
            .0
            .get("sasl.username")
            .map_or("…", |name| name),
        subjects: subjects(&survey, sink),
    };
    checks.push(of.topics());
    checks.push(of.access());
    checks.push(of.settings());
    checks.push(of.message_size(kafka.message_max_bytes().parse().ok(), largest));
    checks.push(of.replication_factor());
    checks.push(of.in_sync_replicas());
    checks.push(of.unclean_election());
    checks.push(of.dead_letters(dead_letters));
    checks
}

/// What the checks look at.
struct Cluster<'a> {
    survey: &'a ClusterSurvey,
    bootstrap: &'a str,
    /// Who the relay is, where the configuration says so.
    principal: &'a str,
    subjects: Vec<Subject<'a>>,
}

/// A topic whose settings are seen, or what new ones will be like.
#[derive(Debug)]
struct Subject<'a> {
    name: &'a str,
    replicas: Option<u64>,
    settings: &'a KafkaSettings,
    max_message_bytes: Option<u64>,
}

impl<'a> Subject<'a> {
    fn setting(&self, name: &str) -> Option<&'a str> {
        self.settings.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.setting(name)?.parse().ok()
    }
}

/// The existing topics; and, where one is missing or none is known, what new ones will be like.
fn subjects<'a>(survey: &'a ClusterSurvey, sink: &KafkaSink) -> Vec<Subject<'a>> {
    let existing = survey.topics.iter().filter_map(|topic| {
        let settings = topic.settings.as_ref()?.as_ref().ok()?;
        let TopicState::Exists { replicas, .. } = topic.state else {
            return None;
        };
        Some(Subject {
            name: &topic.name,
            replicas: u64::try_from(replicas).ok(),
            settings,
            max_message_bytes: settings.get("max.message.bytes")?.parse().ok(),
        })
    });
    let mut subjects: Vec<Subject<'a>> = existing.collect();
    let missing = |topic: &TopicSurvey| matches!(topic.state, TopicState::Missing { .. });
    if (survey.topics.is_empty() || survey.topics.iter().any(missing))
        && let Ok(settings) = &survey.defaults
    {
        let number = |name: &str| settings.get(name)?.parse().ok();
        let configured = sink.topics.create.then_some(sink.topics.replication_factor);
        subjects.push(Subject {
            name: NEW,
            replicas: configured
                .flatten()
                .map(|factor| u64::try_from(factor).unwrap_or(0))
                .or_else(|| number("default.replication.factor")),
            settings,
            max_message_bytes: number("message.max.bytes"),
        });
    }
    subjects
}

#[cfg(test)]
mod tests;
