//! The checks of the Kafka cluster: brokers, topics, privileges, settings.

mod settings;
mod topics;

use std::time::Duration;

use walrelay_failure::ToFailure as _;
use walrelay_sink_kind::check::{Check, CheckInput, SinkChecks, Verdict};

use crate::{
    ClusterSurvey, KafkaConfig, KafkaError, KafkaSection, KafkaSettings, TopicState, TopicSurvey,
    probe, survey, topic_name_problem,
};

/// The names of the items, in the order of the report.
pub(crate) const ITEMS: [&str; 9] = [
    "brokers",
    "topics",
    "topic-access",
    "topic-settings",
    "message-size",
    "replication-factor",
    "min-insync-replicas",
    "unclean-election",
    "dead-letters",
];

/// Timeout of one request to the cluster.
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of topics that are checked at most.
const MOST_TOPICS: usize = 50;
/// The name in findings for topics that do not exist yet.
const NEW: &str = "new topics";

/// Surveys the cluster and checks it.
pub(crate) fn check(sink: &KafkaSection, kafka: &KafkaConfig, input: CheckInput<'_>) -> SinkChecks {
    let CheckInput {
        mut topics,
        dead_letters,
        largest_row,
        addresses: _,
    } = input;
    let failed = |error: KafkaError| vec![(ITEMS[0], Check::failed(error.to_failure()))];
    let brokers = match probe(kafka, BROKER_TIMEOUT) {
        Ok(cluster) => cluster.brokers.len(),
        Err(error) => return failed(error),
    };
    topics.retain(|topic| topic_name_problem(topic).is_none());
    topics.truncate(MOST_TOPICS);
    let another = dead_letters.filter(|topic| !topics.iter().any(|known| known == topic));
    topics.extend(another.map(str::to_owned));
    let survey = match survey(kafka, &topics, BROKER_TIMEOUT) {
        Ok(survey) => survey,
        Err(error) => return failed(error),
    };
    let cluster = Cluster {
        brokers,
        ..Cluster::new(&survey, sink, kafka)
    };
    let client = kafka.message_max_bytes().parse().ok();
    let checks = [
        Check::pass(format!("{brokers} broker(s) answer")),
        cluster.topics(),
        cluster.access(),
        cluster.settings(),
        cluster.message_size(client, &largest_row),
        cluster.replication_factor(),
        cluster.in_sync_replicas(),
        cluster.unclean_election(),
        cluster.dead_letters(dead_letters),
    ];
    ITEMS.into_iter().zip(checks).collect()
}

/// Returns why no record can be written to a topic; `None` also if the cluster does not answer.
pub(crate) fn topic_obstacle(
    sink: &KafkaSection,
    kafka: &KafkaConfig,
    topic: &str,
) -> Option<String> {
    let survey = survey(kafka, &[topic.to_owned()], BROKER_TIMEOUT).ok()?;
    let cluster = Cluster::new(&survey, sink, kafka);
    let mut checks = [cluster.topics(), cluster.access()].into_iter();
    let failed = checks.find(|check| matches!(check.verdict, Verdict::Fail { .. }));
    failed.map(|check| check.finding)
}

/// The input of the checks.
struct Cluster<'a> {
    survey: &'a ClusterSurvey,
    /// The number of brokers: no topic can have more replicas.
    brokers: usize,
    bootstrap: &'a str,
    /// The relay's user: `sasl.username`, or `…` if it is not configured.
    principal: &'a str,
    subjects: Vec<Subject<'a>>,
}

impl<'a> Cluster<'a> {
    fn new(survey: &'a ClusterSurvey, sink: &'a KafkaSection, kafka: &'a KafkaConfig) -> Self {
        let principal = sink.properties.0.get("sasl.username");
        Self {
            survey,
            brokers: survey.brokers,
            bootstrap: kafka.bootstrap_servers(),
            principal: principal.map_or("…", String::as_str),
            subjects: subjects(survey, sink),
        }
    }
}

/// A topic whose settings could be read, or the defaults of new topics.
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

/// Returns the existing topics; and, if one is missing or none is known, the defaults of new
/// topics.
fn subjects<'a>(survey: &'a ClusterSurvey, sink: &KafkaSection) -> Vec<Subject<'a>> {
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
