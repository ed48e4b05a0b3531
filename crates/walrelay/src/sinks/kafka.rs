//! Kafka as a [`SinkKind`].

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use walrelay_kafka_sink::dlq::{DlqWatcher, OpenDeadLetters};
use walrelay_kafka_sink::{
    KafkaConfig, KafkaOptions, KafkaSection, KafkaSinkFactory, was_written_to,
};
use walrelay_postgres_source::{OpenDeadLetter, ReadOpen};
use walrelay_sink::{AnySinkFactory, Parking, SinkStats, any_factory};

use super::kind::{DeadLetterStore, Epoch, SinkKind};
use crate::cli::Failure;
use crate::config::Delivery;
use crate::failures;

/// Timeout of one request about dead letters to a broker. A stop waits for it.
const DEAD_LETTERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes the configuration of the Kafka clients.
pub(crate) fn kafka(section: &KafkaSection, delivery: &Delivery) -> Result<KafkaConfig, Failure> {
    let options = KafkaOptions {
        max_in_flight_records: u64::from(delivery.max_in_flight_records),
        max_in_flight_bytes: delivery.max_in_flight_bytes,
        bulk_linger: Some(delivery.bulk_linger),
        topics: None,
    };
    let config = section.config(options);
    config.map_err(|error| failures::kafka(&error))
}

/// A Kafka cluster.
pub(super) struct KafkaKind(KafkaConfig);

impl KafkaKind {
    pub(super) fn new(section: &KafkaSection, delivery: &Delivery) -> Result<Self, Failure> {
        kafka(section, delivery).map(Self)
    }
}

impl SinkKind for KafkaKind {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn servers(&self) -> Option<String> {
        Some(self.0.bootstrap_servers().to_owned())
    }

    fn warnings(&self) -> Vec<String> {
        self.0
            .warnings()
            .into_iter()
            .map(ToString::to_string)
            .collect()
    }

    fn factory(&self, stats: Option<Arc<SinkStats>>) -> (AnySinkFactory, Option<Arc<SinkStats>>) {
        let mut factory = KafkaSinkFactory::new(self.0.clone());
        if let Some(stats) = stats {
            factory = factory.with_stats(stats);
        }
        let stats = factory.stats();
        (any_factory(factory), Some(stats))
    }

    fn was_written_to(&self, topic: &str, timeout: Duration) -> Result<bool, Failure> {
        Ok(was_written_to(&self.0, topic, timeout)?)
    }

    fn watch_dead_letters(
        &self,
        store: &DeadLetterStore<'_>,
        parking: Arc<Parking>,
    ) -> Result<Box<dyn Any>, Failure> {
        let watcher = DlqWatcher::start(&self.0, store.topic, store.slot, parking)?;
        Ok(Box::new(watcher))
    }

    fn read_dead_letters(
        &self,
        store: &DeadLetterStore<'_>,
        writes: bool,
        epoch: Epoch,
    ) -> Option<ReadOpen> {
        let (topic, slot) = (store.topic.to_owned(), store.slot.to_owned());
        let mut open = OpenDeadLetters::new(self.0.clone(), topic, slot, DEAD_LETTERS_TIMEOUT);
        Some(Box::new(move || match open.read(epoch()) {
            Ok(()) => {
                let events = open.events().map(|event| OpenDeadLetter {
                    table: event.table.clone(),
                    id: event.event_id.clone(),
                    xid: event.xid,
                });
                Ok(events.collect())
            }
            // A relay that writes no dead letters needs no right to read them.
            Err(error) if error.is_denied() && !writes => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }))
    }
}
