//! Creates and deletes the topics of a benchmark.

use std::fmt;
use std::time::{Duration, Instant};

use futures_executor::block_on;
use rdkafka::admin::TopicResult;
use rdkafka::error::KafkaResult;
use rdkafka::metadata::MetadataPartition;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::{Client, authorised_client, new_topic, options};
use crate::{KafkaConfig, KafkaError, TopicCreation};

/// Interval of the requests that check whether a new topic has leaders.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Creates and deletes topics by name, with the producer's configuration.
pub struct TemporaryTopics {
    client: Client,
    timeout: Duration,
}

impl TemporaryTopics {
    /// Creates the client; does not connect yet. **Blocks** if a token must be fetched first.
    ///
    /// `timeout` applies to each of the calls below.
    pub fn new(config: &KafkaConfig, timeout: Duration) -> Result<Self, KafkaError> {
        let client = authorised_client(config)?;
        Ok(Self { client, timeout })
    }

    /// Creates a topic that must not exist, and waits until it can be written to.
    ///
    /// **Blocks.**
    pub fn create(&self, name: &str, creation: &TopicCreation) -> Result<(), KafkaError> {
        let new = [new_topic(name, creation)];
        let created = self.client.create_topics(&new, &options(self.timeout));
        check_answer("created", name, block_on(created))?;
        let deadline = Instant::now() + self.timeout;
        loop {
            let metadata = self
                .client
                .inner()
                .fetch_metadata(Some(name), self.timeout)
                .map_err(KafkaError::Tail)?;
            let ready = metadata.topics().iter().any(|topic| {
                let led = |p: &MetadataPartition| p.leader() >= 0;
                let partitions = topic.partitions();
                topic.error().is_none() && !partitions.is_empty() && partitions.iter().all(led)
            });
            if ready {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(KafkaError::for_topic(name, Code::LeaderNotAvailable));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Deletes a topic. A topic that does not exist is no error.
    ///
    /// **Blocks.**
    pub fn delete(&self, name: &str) -> Result<(), KafkaError> {
        let deleted = self.client.delete_topics(&[name], &options(self.timeout));
        match check_answer("deleted", name, block_on(deleted)) {
            Err(KafkaError::Change {
                code: Code::UnknownTopicOrPartition | Code::UnknownTopic,
                ..
            }) => Ok(()),
            result => result,
        }
    }
}

impl fmt::Debug for TemporaryTopics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TemporaryTopics").finish_non_exhaustive()
    }
}

type Answers = KafkaResult<Vec<TopicResult>>;

fn check_answer(change: &'static str, topic: &str, answers: Answers) -> Result<(), KafkaError> {
    let failed = |code| KafkaError::Change {
        change,
        topic: topic.to_owned(),
        code,
    };
    match answers.map(|answers| answers.into_iter().next()) {
        Ok(Some(Ok(_))) => Ok(()),
        Ok(Some(Err((_, code)))) => Err(failed(code)),
        Ok(None) => Err(failed(Code::Fail)),
        Err(error) => Err(failed(error.rdkafka_error_code().unwrap_or(Code::Fail))),
    }
}
