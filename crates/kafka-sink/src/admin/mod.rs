//! Topics as objects of administration: names, creation, removal; what a cluster says of them.

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

pub use survey::{ClusterSurvey, Creation, KafkaSettings, TopicState, TopicSurvey, survey};
pub use temporary_topics::TemporaryTopics;
pub use topic_name::problem as topic_name_problem;

type Client = AdminClient<DefaultClientContext>;

/// A client that asks for changes of topics.
fn client(config: &KafkaConfig) -> Result<Client, ClientError> {
    let mut client = config.client_config();
    // rdkafka's admin client never reads its log, which would grow in memory; what is wrong
    // with the brokers the producer tells as well.
    client.remove("debug").remove("statistics.interval.ms");
    client.set_log_level(RDKafkaLogLevel::Emerg);
    client.create()
}

fn new_topic<'a>(name: &'a str, creation: &'a TopicCreation) -> NewTopic<'a> {
    let replication = TopicReplication::Fixed(creation.replication_factor);
    let topic = NewTopic::new(name, creation.partitions, replication);
    let properties = creation.properties.iter();
    properties.fold(topic, |topic, (k, v)| topic.set(k, v))
}

/// `timeout` for the request, and for the brokers to do what it asks for.
fn options(timeout: Duration) -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(timeout))
        .operation_timeout(Some(timeout))
}
