//! Kafka. Its sections are in `walrelay-kafka-sink`.

use walrelay_failure::Failure;
use walrelay_kafka_sink::section::{PASS_THROUGH, TokenKeys, TopicsSection};
use walrelay_kafka_sink::{KafkaKind, KafkaOptions, KafkaSection, topic_name_problem};
use walrelay_settings::{AlreadyReported, Reader, Row, Section as _, ValueKind};
use walrelay_sink_kind::{KindDescription, SinkKind};

use super::{Delivery, Poison, Sample, SinkSection, SinkSettings};

impl SinkSection for KafkaSection {
    const DESCRIPTION: &'static KindDescription = &KafkaKind::DESCRIPTION;
    const OPEN: &'static [(&'static str, ValueKind)] = &[(PASS_THROUGH, ValueKind::Scalar)];

    const SAMPLE: Option<Sample> = Some(Sample {
        question: "Kafka brokers (host:port,…): ",
        option: "--brokers",
        lines: |servers| {
            format!(
                "[sink.kafka]\n\
                 # Properties of librdkafka, by their own names.\n\
                 \"bootstrap.servers\" = {servers}\n\
                 # \"security.protocol\" = \"SASL_SSL\"\n\
                 # \"sasl.mechanism\" = \"SCRAM-SHA-512\"\n\
                 # \"sasl.username\" = \"relay\"\n\
                 # \"sasl.password\" = \"${{KAFKA_PASSWORD}}\"\n\
                 \n\
                 # Create missing topics; otherwise the broker may.\n\
                 # [sink.topics]\n\
                 # create = true\n"
            )
        },
    });

    fn rows(rows: &mut Vec<Row>) {
        TokenKeys::declare(rows);
        TopicsSection::declare(rows);
    }

    fn read(reader: &mut Reader<'_>, chosen: bool) -> Result<Self, AlreadyReported> {
        Self::read(reader, chosen)
    }

    fn topic_problem(topic: &str) -> Option<String> {
        topic_name_problem(topic)
    }
}

impl SinkSettings for KafkaSection {
    fn make(&self, delivery: &Delivery, poison: &Poison) -> Result<Box<dyn SinkKind>, Failure> {
        let options = KafkaOptions {
            max_in_flight_records: u64::from(delivery.max_in_flight_records),
            max_in_flight_bytes: delivery.max_in_flight_bytes,
            max_retrying_keys: delivery.max_retrying_keys,
            max_retrying_bytes: delivery.max_retrying_bytes,
            bulk_linger: Some(delivery.bulk_linger),
            retry_for: poison.retry_for,
            topics: None,
        };
        Ok(Box::new(KafkaKind::new(self, options)?))
    }
}
