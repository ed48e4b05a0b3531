//! Survey of a cluster and its topics, for a configuration check. Changes nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_executor::block_on;
use rdkafka::admin::ResourceSpecifier;
use rdkafka::metadata::{Metadata, MetadataPartition};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::{Client, authorised_client, new_topic, options};
use crate::answers::TopicRights;
use crate::ffi;
use crate::{KafkaConfig, KafkaError, TopicCreation};

const NO_ANSWER: &str = "the broker did not answer";

/// The state of a cluster and of the requested topics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSurvey {
    /// The number of brokers that are up.
    pub brokers: usize,
    /// The settings of a broker, such as `auto.create.topics.enable`, `default.replication.factor`
    /// and other defaults of new topics; or why they cannot be read.
    pub defaults: Result<KafkaSettings, String>,
    /// The requested topics, in the order of the request.
    pub topics: Vec<TopicSurvey>,
}

/// Settings by Kafka's names.
pub type KafkaSettings = BTreeMap<String, String>;

/// The state of one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSurvey {
    /// The topic's name.
    pub name: String,
    /// Whether the topic can be written to.
    pub state: TopicState,
    /// The topic's settings, or why they cannot be read. `None` if the topic does not exist.
    pub settings: Option<Result<KafkaSettings, String>>,
}

/// The state of a topic, as far as it can be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicState {
    /// The topic exists.
    Exists {
        /// The smallest number of replicas of a partition.
        replicas: usize,
        /// Partitions without a leader, which cannot be written to.
        leaderless: Vec<i32>,
        /// Whether the principal may write; `None` if the broker does not report it.
        writable: Option<bool>,
    },
    /// The topic does not exist, as far as the principal may see.
    Missing {
        /// Whether the configured creation of topics would create it.
        creation: Creation,
    },
    /// The principal may not see the topic.
    Denied,
    /// The broker reported this other error.
    Unknown(String),
}

/// The result that creating a missing topic would have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Creation {
    /// The producer creates no topics.
    NotConfigured,
    /// The topic would be created.
    Allowed,
    /// The principal may not create the topic.
    Denied,
    /// The cluster would refuse to create the topic, with the broker's reason.
    Refused(String),
}

/// Surveys the cluster and these topics, which need not exist. Creates no topic.
///
/// **Blocks** for `timeout` at most for each of a handful of requests.
///
/// # Errors
/// If no client can be created or authorised, or no broker answers a request for metadata. Other
/// refusals are part of the survey.
pub fn survey(
    config: &KafkaConfig,
    topics: &[String],
    timeout: Duration,
) -> Result<ClusterSurvey, KafkaError> {
    let client = authorised_client(config)?;
    let surveyor = Surveyor {
        metadata: metadata(&client, timeout)?,
        rights: rights(&client, topics, timeout),
        client,
        creation: config.options().topics.as_ref(),
        timeout,
    };
    Ok(ClusterSurvey {
        brokers: surveyor.metadata.brokers().len(),
        defaults: surveyor.defaults(),
        topics: topics.iter().map(|name| surveyor.topic(name)).collect(),
    })
}

struct Surveyor<'a> {
    client: Client,
    metadata: Metadata,
    rights: Vec<TopicRights>,
    /// The configured creation of topics.
    creation: Option<&'a TopicCreation>,
    /// Timeout of each request.
    timeout: Duration,
}

impl Surveyor<'_> {
    fn defaults(&self) -> Result<KafkaSettings, String> {
        match self.metadata.brokers().first() {
            Some(broker) => self.settings(ResourceSpecifier::Broker(broker.id())),
            None => Err("no broker is up".to_owned()),
        }
    }

    fn topic(&self, name: &str) -> TopicSurvey {
        let state = self.state(name);
        let exists = matches!(state, TopicState::Exists { .. });
        TopicSurvey {
            name: name.to_owned(),
            state,
            settings: exists.then(|| self.settings(ResourceSpecifier::Topic(name))),
        }
    }

    fn state(&self, name: &str) -> TopicState {
        let mut topics = self.metadata.topics().iter();
        let found = topics.find(|topic| topic.name() == name && topic.error().is_none());
        let rights = self.rights.iter().find(|rights| rights.name == name);
        if let Some(topic) = found {
            let partitions = topic.partitions().iter();
            let replicas = partitions.clone().map(|p| p.replicas().len()).min();
            let leaderless = partitions.filter(|p| p.leader() < 0);
            return TopicState::Exists {
                replicas: replicas.unwrap_or(0),
                leaderless: leaderless.map(MetadataPartition::id).collect(),
                writable: rights.and_then(|rights| rights.write),
            };
        }
        match rights.and_then(|rights| rights.error) {
            Some(Code::TopicAuthorizationFailed) => TopicState::Denied,
            None | Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => {
                TopicState::Missing {
                    creation: self.creation(name),
                }
            }
            Some(code) => TopicState::Unknown(code.to_string()),
        }
    }

    /// Checks whether the brokers would create the topic.
    fn creation(&self, name: &str) -> Creation {
        let Some(creation) = self.creation else {
            return Creation::NotConfigured;
        };
        let new = [new_topic(name, creation)];
        let options = options(self.timeout).validate_only(true);
        let answers = match block_on(self.client.create_topics(&new, &options)) {
            Ok(answers) => answers,
            Err(error) => return Creation::Refused(error.to_string()),
        };
        match answers.into_iter().next() {
            Some(Ok(_) | Err((_, Code::TopicAlreadyExists))) => Creation::Allowed,
            Some(Err((_, Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed))) => {
                Creation::Denied
            }
            Some(Err((_, code))) => Creation::Refused(code.to_string()),
            None => Creation::Refused(NO_ANSWER.to_owned()),
        }
    }

    fn settings(&self, of: ResourceSpecifier<'_>) -> Result<KafkaSettings, String> {
        let of = [of];
        let answers = block_on(self.client.describe_configs(&of, &options(self.timeout)));
        let answers = answers.map_err(|error| error.to_string())?;
        let answer = answers.into_iter().next().ok_or(NO_ANSWER)?;
        let resource = answer.map_err(|code| code.to_string())?;
        // rdkafka drops the reason why a resource is not described.
        if resource.entries.is_empty() {
            return Err("the broker does not tell them".to_owned());
        }
        let entries = resource.entries.into_iter();
        Ok(entries
            .filter(|entry| !entry.is_sensitive)
            .filter_map(|entry| Some((entry.name, entry.value?)))
            .collect())
    }
}

/// Returns the metadata of all topics: a request for a single topic can create it. Retries until
/// `timeout`, because the client may have no connection yet.
fn metadata(client: &Client, timeout: Duration) -> Result<Metadata, KafkaError> {
    let deadline = Instant::now() + timeout;
    loop {
        match client.inner().fetch_metadata(None, timeout) {
            Ok(metadata) => return Ok(metadata),
            Err(error) if Instant::now() >= deadline => return Err(KafkaError::Tail(error)),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Returns the principal's rights on the topics. Brokers before Kafka 2.3 do not report them.
fn rights(client: &Client, topics: &[String], timeout: Duration) -> Vec<TopicRights> {
    if topics.is_empty() {
        return Vec::new();
    }
    ffi::topic_rights(client.inner(), topics, timeout).unwrap_or_else(|code| {
        tracing::debug!(%code, "the brokers do not report the rights on topics");
        Vec::new()
    })
}
