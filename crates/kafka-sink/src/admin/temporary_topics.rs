//! Topics that are made for a while and removed again, as a benchmark needs them.

use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::types::RDKafkaErrorCode;

use super::{Client, new_topic, options};
use crate::{KafkaConfig, KafkaError, TopicCreation};

/// How often it is looked whether a topic has leaders.
const LOOK: Duration = Duration::from_millis(50);

/// Creates and deletes topics by name, with the producer's configuration.
pub struct TemporaryTopics {
    client: Client,
    timeout: Duration,
}

impl TemporaryTopics {
    /// Makes the client; talks to no broker yet. **Blocks** where a token must be got first.
    ///
    /// `timeout` is for each of the calls below.
    pub fn new(config: &KafkaConfig, timeout: Duration) -> Result<Self, KafkaError> {
        let client =
            super::client(config).map_err(|error| KafkaError::of_creation(config, &error))?;
        config
            .authorise(client.inner())
            .map_err(|reason| KafkaError::Token { reason })?;
        Ok(Self { client, timeout })
    }

    /// Creates a topic that must not exist, and waits until it can be written to.
    ///
    /// **Blocks.**
    pub fn create(&self, name: &str, creation: &TopicCreation) -> Result<(), KafkaError> {
        let new = [new_topic(name, creation)];
        let answers =
            futures_executor::block_on(self.client.create_topics(&new, &options(self.timeout)));
        judge("created", name, answers)?;
        let deadline = Instant::now() + self.timeout;
        loop {
            let metadata = self
                .client
                .inner()
                .fetch_metadata(Some(name), self.timeout)
                .map_err(KafkaError::Tail)?;
            let ready = metadata.topics().iter().any(|topic| {
                let led = |p: &rdkafka::metadata::MetadataPartition| p.leader() >= 0;
                topic.error().is_none()
                    && !topic.partitions().is_empty()
                    && topic.partitions().iter().all(led)
            });
            if ready {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(KafkaError::of_topic(
                    name,
                    RDKafkaErrorCode::LeaderNotAvailable,
                ));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Deletes a topic. One that is not there is no error.
    ///
    /// **Blocks.**
    pub fn delete(&self, name: &str) -> Result<(), KafkaError> {
        let deleted = self.client.delete_topics(&[name], &options(self.timeout));
        match judge("deleted", name, futures_executor::block_on(deleted)) {
            Err(KafkaError::Change {
                code: RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic,
                ..
            }) => Ok(()),
            judged => judged,
        }
    }
}

impl fmt::Debug for TemporaryTopics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TemporaryTopics").finish_non_exhaustive()
    }
}

type Answers = rdkafka::error::KafkaResult<Vec<Result<String, (String, RDKafkaErrorCode)>>>;

fn judge(change: &'static str, topic: &str, answers: Answers) -> Result<(), KafkaError> {
    let failed = |code| KafkaError::Change {
        change,
        topic: topic.to_owned(),
        code,
    };
    let answers = answers
        .map_err(|error| failed(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)))?;
    match answers.into_iter().next() {
        Some(Ok(_)) => Ok(()),
        Some(Err((_, code))) => Err(failed(code)),
        None => Err(failed(RDKafkaErrorCode::Fail)),
    }
}
