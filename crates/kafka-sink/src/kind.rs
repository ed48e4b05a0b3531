//! Kafka as a [`SinkKind`].

use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::{Failure, ToFailure as _};
use walrelay_sink::{AnySinkFactory, DeliveryError, Record, SinkStats, any_factory};
use walrelay_sink_client::expiry_warning;
use walrelay_sink_kind::check::{Check, CheckInput, SinkChecks};
use walrelay_sink_kind::dead_letters::DeadLetterStore;
use walrelay_sink_kind::topics::{ReadableTopics, SinkTopics, TopicReader};
use walrelay_sink_kind::{KindDescription, SinkKind, SinkTerms};

use crate::dlq::KafkaDeadLetters;
use crate::producer::check_limits;
use crate::{
    KafkaConfig, KafkaOptions, KafkaSection, KafkaSinkFactory, Tail, TemporaryTopics, checks,
    was_written_to,
};

/// A Kafka cluster.
#[derive(Debug)]
pub struct KafkaKind {
    config: KafkaConfig,
    section: KafkaSection,
    dead_letters: KafkaDeadLetters,
}

impl KafkaKind {
    /// The facts about the kind.
    pub const DESCRIPTION: KindDescription = KindDescription {
        name: "kafka",
        title: "Kafka",
        settings_item: Some("kafka-properties"),
        items: &checks::ITEMS,
        cannot: &[],
    };

    /// Makes the cluster of a configuration. Does not connect. `options`: those that other sections
    /// decide.
    ///
    /// # Errors
    /// If librdkafka does not accept a property, or the relay forbids its value.
    pub fn new(section: &KafkaSection, options: KafkaOptions) -> Result<Self, Failure> {
        let config = section.config(options);
        let config = config.map_err(|error| error.to_failure())?;
        Ok(Self {
            dead_letters: KafkaDeadLetters::new(config.clone()),
            section: section.clone(),
            config,
        })
    }
}

impl SinkKind for KafkaKind {
    fn description(&self) -> &'static KindDescription {
        &Self::DESCRIPTION
    }

    fn servers(&self) -> Option<String> {
        Some(self.config.bootstrap_servers().to_owned())
    }

    fn terms(&self) -> SinkTerms {
        SinkTerms {
            endpoint: "broker",
            unavailable: "partitions without a leader",
        }
    }

    fn warnings(&self) -> Vec<Check> {
        let remedy = "remove the property from [sink.kafka], or set SASL_SSL";
        let warnings = self.config.warnings().into_iter();
        let expiry = self.config.certificate_file().and_then(expiry_warning);
        warnings
            .map(|warning| Check::warn(warning, remedy))
            .chain(expiry)
            .collect()
    }

    fn factory(&self, stats: Option<Arc<SinkStats>>) -> (AnySinkFactory, Option<Arc<SinkStats>>) {
        let mut factory = KafkaSinkFactory::new(self.config.clone());
        if let Some(stats) = stats {
            factory = factory.with_stats(stats);
        }
        let stats = factory.stats();
        (any_factory(factory), Some(stats))
    }

    fn refusal(&self, record: &Record<'_>) -> Option<DeliveryError> {
        check_limits(record, self.config.message_max_bytes())
    }

    fn check(&self, input: CheckInput<'_>) -> SinkChecks {
        checks::check(&self.section, &self.config, input)
    }

    fn dead_letter_obstacle(&self, topic: &str) -> Option<String> {
        checks::topic_obstacle(&self.section, &self.config, topic)
    }

    fn dead_letters(&self) -> Option<&dyn DeadLetterStore> {
        Some(&self.dead_letters)
    }

    fn readable_topics(&self) -> Result<&dyn ReadableTopics, &'static str> {
        Ok(self)
    }

    fn topics(&self) -> Option<&dyn SinkTopics> {
        Some(self)
    }
}

impl ReadableTopics for KafkaKind {
    fn reader(&self) -> Result<Box<dyn TopicReader>, Failure> {
        Ok(Box::new(Tail::with_config(&self.config)?))
    }
}

impl SinkTopics for KafkaKind {
    fn was_written_to(&self, topic: &str, timeout: Duration) -> Result<bool, Failure> {
        Ok(was_written_to(&self.config, topic, timeout)?)
    }

    fn create(&self, topic: &str, timeout: Duration) -> Result<(), Failure> {
        let admin = TemporaryTopics::new(&self.config, timeout)?;
        Ok(admin.create(topic, &self.section.topics.creation())?)
    }

    fn delete(&self, mut topics: Vec<String>, timeout: Duration) -> Vec<String> {
        if let Ok(admin) = TemporaryTopics::new(&self.config, timeout) {
            topics.retain(|topic| admin.delete(topic).is_err());
        }
        topics
    }

    fn delete_command(&self, topic: &str) -> String {
        format!("kafka-topics.sh --delete --topic {topic}")
    }
}
