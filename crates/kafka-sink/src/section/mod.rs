//! The sections of the configuration that are about Kafka.

mod bearer;
mod properties;

use std::sync::Arc;

use walrelay_settings::{AlreadyReported, Reader, Section as _, boolean, integer, section};

use crate::{KafkaConfig, KafkaConfigError, KafkaOptions, TokenSource, TopicCreation};

pub use bearer::{Bearer, TokenKeys, TokenOrigin};
pub use properties::{KafkaProperties, PASS_THROUGH};

/// `[sink.kafka]`, `[sink.topics]` and `[sink.oauthbearer]`.
#[derive(Debug, Clone)]
pub struct KafkaSection {
    /// Properties of librdkafka.
    pub properties: KafkaProperties,
    /// Whether and how topics are created.
    pub topics: TopicsSection,
    /// Where OAUTHBEARER tokens come from; `None`: no tokens.
    pub bearer: Option<Bearer>,
}

section! {
/// `[sink.topics]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicsSection at "sink.topics" {
    /// Whether the relay creates topics; otherwise the broker may.
    "create" create: bool = boolean().or("false");
    /// The partitions of a created topic. Unset: the broker's default.
    "partitions" partitions: Option<i32> = integer::<i32>(1..=100_000).optional();
    /// The replicas of a created topic. Unset: the broker's default.
    "replication_factor" replication_factor: Option<i16> = integer::<i16>(1..=1_000).optional();
}
}

impl TopicsSection {
    /// Returns how topics are created, also if `create` is false.
    pub fn creation(&self) -> TopicCreation {
        TopicCreation {
            // -1 is the broker's default, in both.
            partitions: self.partitions.unwrap_or(-1),
            replication_factor: self.replication_factor.map_or(-1, i32::from),
            properties: std::collections::BTreeMap::new(),
        }
    }
}

impl KafkaSection {
    /// Reads the sections. `in_use`: the properties are checked, and their problems reported, each
    /// at its place. Otherwise they may stay in the file as they are.
    ///
    /// # Errors
    /// If a problem was reported to `reader` that leaves a key without a value.
    pub fn read(reader: &mut Reader<'_>, in_use: bool) -> Result<Self, AlreadyReported> {
        let properties = properties::properties(reader);
        let bearer = bearer::bearer(reader);
        let topics = topics(reader);
        if in_use {
            properties::check(reader, &properties);
        }
        Ok(Self {
            properties,
            topics: topics?,
            bearer: bearer?,
        })
    }

    /// Makes the configuration of Kafka clients. `options`: those that other sections decide.
    ///
    /// # Errors
    /// If librdkafka does not accept a property, or the relay forbids its value.
    pub fn config(&self, mut options: KafkaOptions) -> Result<KafkaConfig, KafkaConfigError> {
        options.topics = self.topics.create.then(|| self.topics.creation());
        let tokens = self.bearer.clone();
        let tokens = tokens.map(|bearer| Arc::new(bearer) as Arc<dyn TokenSource>);
        KafkaConfig::with_tokens(self.properties.0.clone(), options, tokens)
    }
}

fn topics(reader: &mut Reader<'_>) -> Result<TopicsSection, AlreadyReported> {
    let topics = TopicsSection::read(reader)?;
    if !topics.create {
        for path in ["sink.topics.partitions", "sink.topics.replication_factor"] {
            reader.no_effect(path, "while `sink.topics.create` is false");
        }
    }
    Ok(topics)
}
