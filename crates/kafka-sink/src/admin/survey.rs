//! What a cluster says of topics and of itself, for a configuration check. Changes nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_executor::block_on;
use rdkafka::admin::{ConfigResource, ResourceSpecifier};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::{Client, new_topic, options};
use crate::answers::TopicRights;
use crate::ffi;
use crate::{KafkaConfig, KafkaError, TopicCreation};

/// What a cluster said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSurvey {
    /// How many brokers are up.
    pub brokers: usize,
    /// The settings of a broker: `auto.create.topics.enable`, `default.replication.factor` and what else
    /// new topics get. Or why they are not seen.
    pub defaults: Result<KafkaSettings, String>,
    /// Each topic that was asked for, in that order.
    pub topics: Vec<TopicSurvey>,
}

/// Settings by Kafka's names.
pub type KafkaSettings = BTreeMap<String, String>;

/// What a cluster said of one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSurvey {
    /// Its name.
    pub name: String,
    /// Whether it can be written to.
    pub state: TopicState,
    /// Its settings, or why they are not seen. `None` where there is no such topic.
    pub settings: Option<Result<KafkaSettings, String>>,
}

/// Whether a topic can be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicState {
    /// It exists.
    Exists {
        /// How many replicas the partition has that has the fewest.
        replicas: usize,
        /// Partitions without a leader, which take nothing.
        leaderless: Vec<i32>,
        /// Whether the principal may write; `None` where the broker does not say.
        writable: Option<bool>,
    },
    /// It does not exist, as far as the principal may see.
    Missing {
        /// Whether the configured creation of topics would make it.
        creation: Creation,
    },
    /// The principal may not even see it.
    Denied,
    /// The broker said something else of it.
    Unknown(String),
}

/// What would come of the creation of a missing topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Creation {
    /// The producer creates no topics.
    NotConfigured,
    /// It would be created.
    Allowed,
    /// The principal may not create it.
    Denied,
    /// The cluster would not create it, in the words of the broker.
    Refused(String),
}

/// Asks the cluster about itself and about these topics, which need not exist. Creates none.
///
/// **Blocks**, for `timeout` at most for each of a handful of requests.
///
/// # Errors
/// No broker answered a request for metadata. What is refused besides is part of the survey.
pub fn survey(
    config: &KafkaConfig,
    topics: &[String],
    timeout: Duration,
) -> Result<ClusterSurvey, KafkaError> {
    let client = super::client(config).map_err(|error| KafkaError::of_creation(config, &error))?;
    config
        .authorise(client.inner())
        .map_err(|reason| KafkaError::Token { reason })?;
    // Not topic by topic: asking for a single one can create it. An answer may need a connection first.
    let deadline = Instant::now() + timeout;
    let metadata = loop {
        match client.inner().fetch_metadata(None, timeout) {
            Ok(metadata) => break metadata,
            Err(error) if Instant::now() >= deadline => return Err(KafkaError::Tail(error)),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let rights = rights(&client, topics, timeout);
    let broker = metadata
        .brokers()
        .first()
        .map(rdkafka::metadata::MetadataBroker::id);
    let defaults = match broker {
        Some(id) => settings(&client, ResourceSpecifier::Broker(id), timeout),
        None => Err("no broker is up".to_owned()),
    };
    let creation = config.options().topics.as_ref();
    let topics = topics.iter().map(|name| {
        let found = metadata.topics().iter().find(|topic| topic.name() == name);
        let found = found.filter(|topic| topic.error().is_none());
        let right = rights.iter().find(|right| right.name == *name);
        let state = match (found, right.and_then(|right| right.error)) {
            (Some(topic), _) => TopicState::Exists {
                replicas: topic
                    .partitions()
                    .iter()
                    .map(|partition| partition.replicas().len())
                    .min()
                    .unwrap_or(0),
                leaderless: topic
                    .partitions()
                    .iter()
                    .filter(|partition| partition.leader() < 0)
                    .map(rdkafka::metadata::MetadataPartition::id)
                    .collect(),
                writable: right.and_then(|right| right.write),
            },
            (None, Some(Code::TopicAuthorizationFailed)) => TopicState::Denied,
            (None, None | Some(Code::UnknownTopicOrPartition | Code::UnknownTopic)) => {
                TopicState::Missing {
                    creation: match creation {
                        None => Creation::NotConfigured,
                        Some(creation) => creatable(&client, name, creation, timeout),
                    },
                }
            }
            (None, Some(code)) => TopicState::Unknown(code.to_string()),
        };
        let exists = matches!(state, TopicState::Exists { .. });
        TopicSurvey {
            name: name.clone(),
            state,
            settings: exists.then(|| settings(&client, ResourceSpecifier::Topic(name), timeout)),
        }
    });
    Ok(ClusterSurvey {
        brokers: metadata.brokers().len(),
        defaults,
        topics: topics.collect(),
    })
}

/// Brokers before Kafka 2.3 do not say; nothing follows from that.
fn rights(client: &Client, topics: &[String], timeout: Duration) -> Vec<TopicRights> {
    if topics.is_empty() {
        return Vec::new();
    }
    ffi::topic_rights(client.inner(), topics, timeout).unwrap_or_else(|code| {
        tracing::debug!(%code, "the brokers do not say what may be done with topics");
        Vec::new()
    })
}

/// Whether the brokers would create the topic.
fn creatable(client: &Client, name: &str, creation: &TopicCreation, timeout: Duration) -> Creation {
    let new = [new_topic(name, creation)];
    let options = options(timeout).validate_only(true);
    let answers = match block_on(client.create_topics(&new, &options)) {
        Ok(answers) => answers,
        Err(error) => return Creation::Refused(error.to_string()),
    };
    match answers.into_iter().next() {
        Some(Ok(_) | Err((_, Code::TopicAlreadyExists))) => Creation::Allowed,
        Some(Err((_, Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed))) => {
            Creation::Denied
        }
        Some(Err((_, code))) => Creation::Refused(code.to_string()),
        None => Creation::Refused("the broker did not answer".to_owned()),
    }
}

fn settings(
    client: &Client,
    of: ResourceSpecifier<'_>,
    timeout: Duration,
) -> Result<KafkaSettings, String> {
    let of = [of];
    let answers = block_on(client.describe_configs(&of, &options(timeout)));
    let answer = answers
        .map_err(|error| error.to_string())?
        .into_iter()
        .next();
    let resource: ConfigResource = match answer {
        Some(Ok(resource)) => resource,
        Some(Err(code)) => return Err(code.to_string()),
        None => return Err("the broker did not answer".to_owned()),
    };
    // rdkafka drops the reason why one resource is not described.
    if resource.entries.is_empty() {
        return Err("the broker does not tell them".to_owned());
    }
    let entries = resource.entries.into_iter();
    Ok(entries
        .filter(|entry| !entry.is_sensitive)
        .filter_map(|entry| Some((entry.name, entry.value?)))
        .collect())
}
