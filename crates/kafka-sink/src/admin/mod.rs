//! Administration of topics: names, creation, deletion, survey.

pub(crate) mod creator;
mod survey;
mod temporary_topics;
mod topic_name;

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError as ClientError;

use crate::config::{KafkaConfig, TopicCreation};
use crate::error::KafkaError;

pub use survey::{ClusterSurvey, Creation, KafkaSettings, TopicState, TopicSurvey, survey};
pub use temporary_topics::TemporaryTopics;
pub use topic_name::problem as topic_name_problem;

type Client = AdminClient<DefaultClientContext>;

/// Creates an admin client.
fn client(config: &KafkaConfig) -> Result<Client, ClientError> {
    let mut client = config.client_config();
    // rdkafka's admin client never reads its log queue, which would grow in memory. The producer
    // logs errors of brokers, too.
    client.remove("debug").remove("statistics.interval.ms");
    client.set_log_level(RDKafkaLogLevel::Emerg);
    client.create()
}

/// Creates an admin client that has its token, if it needs one. **Blocks** until then.
fn authorised_client(config: &KafkaConfig) -> Result<Client, KafkaError> {
    let client = client(config).map_err(|error| config.creation_error(&error))?;
    let authorised = config.authorise(client.inner());
    authorised.map_err(|reason| KafkaError::Token { reason })?;
    Ok(client)
}

fn new_topic<'a>(name: &'a str, creation: &'a TopicCreation) -> NewTopic<'a> {
    let replication = TopicReplication::Fixed(creation.replication_factor);
    let topic = NewTopic::new(name, creation.partitions, replication);
    let properties = creation.properties.iter();
    properties.fold(topic, |topic, (k, v)| topic.set(k, v))
}

/// Options with `timeout` for the request and for the operation on the brokers.
fn options(timeout: Duration) -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(timeout))
        .operation_timeout(Some(timeout))
}
