//! Kafka's sink keeps the promises of every sink.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use walrelay_kafka_sink::{KafkaConfig, KafkaOptions, KafkaSinkFactory};
use walrelay_sink::{AnySinkFactory, Poison, any_factory};
use walrelay_testkit::conformance::{Bounds, Destination, Refusal, Stored};
use walrelay_testkit::{History, PATIENCE, conformance, lock};

use crate::rig::{KafkaInTurn, kafka_in_turn};

/// `max.message.bytes` of the topics.
const MAX_RECORD: usize = 100_000;

/// A broker of the test's own.
struct Broker(KafkaInTurn);

conformance!(Broker(kafka_in_turn()));

impl Broker {
    fn factory_with(&self, options: KafkaOptions) -> AnySinkFactory {
        let servers = ("bootstrap.servers".to_owned(), self.0.bootstrap_servers());
        let config = KafkaConfig::new(BTreeMap::from([servers]), options);
        any_factory(KafkaSinkFactory::new(config.expect("valid")))
    }
}

impl Destination for Broker {
    fn factory(&self, bounds: Bounds) -> AnySinkFactory {
        let options = KafkaOptions {
            max_in_flight_records: u64::from(bounds.records),
            max_in_flight_bytes: bounds.bytes,
            ..KafkaOptions::default()
        };
        self.factory_with(options)
    }

    /// A broker creates no topic whose name differs from another one's by dot and underscore alone.
    fn patient(&self, retry_for: Duration) -> Option<(AnySinkFactory, Refusal)> {
        // A broker serves several tests in turn.
        static HAVE_TOPIC: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        if lock(&HAVE_TOPIC).insert(self.0.bootstrap_servers()) {
            self.0.create_topic("is_refused", 1, &[]);
        }
        let refusal = Refusal {
            poison: Poison::Unroutable,
            in_place: true,
            spoil: |event| "is.refused".clone_into(&mut event.topic),
        };
        let options = KafkaOptions {
            retry_for,
            ..KafkaOptions::default()
        };
        Some((self.factory_with(options), refusal))
    }

    fn create_topic(&self, topic: &str) {
        let limit = MAX_RECORD.to_string();
        self.0
            .create_topic(topic, 3, &[("max.message.bytes", &*limit)]);
    }

    fn stored(&self, topic: &str) -> Vec<Stored> {
        let mut records = History::records(&self.0.bootstrap_servers(), topic, 0, PATIENCE);
        records.sort_by_key(|record| (record.partition, record.offset));
        let records = records.into_iter().map(|record| Stored {
            key: record.key,
            value: record.payload,
            id: record.id.unwrap_or_default(),
        });
        records.collect()
    }

    fn pause(&self) {
        self.0.pause();
    }

    fn resume(&self) {
        self.0.resume();
    }

    fn kill(&self) {
        self.0.kill();
    }

    fn start(&self) {
        self.0.start_again();
    }

    fn refusals(&self) -> Vec<Refusal> {
        vec![
            // By the broker.
            Refusal {
                poison: Poison::Oversize,
                in_place: false,
                spoil: |event| event.value = vec![b'x'; 2 * MAX_RECORD],
            },
            // By the client, whose `message.max.bytes` is a million.
            Refusal {
                poison: Poison::Oversize,
                in_place: true,
                spoil: |event| event.value = vec![b'x'; 1_500_000],
            },
            Refusal {
                poison: Poison::Unroutable,
                in_place: true,
                spoil: |event| "no topic can have this name".clone_into(&mut event.topic),
            },
        ]
    }
}
