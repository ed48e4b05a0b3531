//! Tests against librdkafka's mock cluster.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use walrelay_sink::dlq_headers;

use crate::KafkaConfig;
use crate::testing::proxy::Proxy;
use crate::testing::{Cluster, LONG, cluster, config_of, count_of, ends, eventually, read};

mod watching;
mod working;

const TOPIC: &str = "letters";

fn config(cluster: &Cluster) -> KafkaConfig {
    // Properties of producers: the consumer must neither warn about them nor fail.
    let of_producers = [
        ("linger.ms", "1"),
        ("message.max.bytes", "60000000"),
        ("receive.message.max.bytes", "70000000"),
    ];
    config_of(cluster, &of_producers)
}

/// Writes dead letters as the relay does.
struct Writer {
    producer: BaseProducer,
    /// `None`: the key decides.
    partition: Option<i32>,
}

/// A dead letter to be written.
#[derive(Clone)]
struct Draft<'a> {
    id: &'a str,
    slot: &'a str,
    class: &'a str,
    key: Option<&'a str>,
    value: Option<&'a str>,
    topic: Option<&'a str>,
    more: &'a [(&'a str, &'a str)],
}

fn draft<'a>(id: &'a str, key: &'a str) -> Draft<'a> {
    Draft {
        id,
        slot: "s",
        class: "rejected",
        key: Some(key),
        value: Some(id),
        topic: Some("orders"),
        more: &[],
    }
}

impl<'a> Draft<'a> {
    fn to(self, topic: Option<&'a str>) -> Self {
        Self { topic, ..self }
    }
}

impl Writer {
    fn new(cluster: &Cluster) -> Self {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", cluster.bootstrap_servers())
            .set("partitioner", "murmur2_random")
            .create()
            .expect("a producer");
        Self {
            producer,
            partition: None,
        }
    }

    fn with_partition(self, partition: i32) -> Self {
        let partition = Some(partition);
        Self { partition, ..self }
    }

    fn dead_letter(&self, draft: &Draft<'_>) {
        let (lsn, row) = draft.id.split_once(' ').expect("LSN and row");
        let mut headers = vec![
            ("id", draft.id),
            (dlq_headers::CLASS, draft.class),
            (dlq_headers::CAUSE, "no such topic"),
            (dlq_headers::SLOT, draft.slot),
            (dlq_headers::LSN, lsn),
            (dlq_headers::ROW, row),
            (dlq_headers::XID, "7"),
            (dlq_headers::TABLE, "public.outbox"),
        ];
        headers.extend(draft.topic.map(|topic| (dlq_headers::TOPIC, topic)));
        headers.extend(draft.more);
        self.write(draft.key, draft.value, &headers);
    }

    fn resolution(&self, key: Option<&str>, resolves: &str) {
        let headers = [
            (dlq_headers::RESOLVES, resolves),
            (dlq_headers::RESOLUTION, "redriven"),
        ];
        self.write(key, None, &headers);
    }

    fn write(&self, key: Option<&str>, value: Option<&str>, headers: &[(&str, &str)]) {
        let list = headers
            .iter()
            .fold(OwnedHeaders::new(), |list, (key, value)| {
                list.insert(Header {
                    key,
                    value: Some(*value),
                })
            });
        let mut record = BaseRecord::<str, str>::to(TOPIC).headers(list);
        record.key = key;
        record.payload = value;
        record.partition = self.partition;
        self.producer
            .send(record)
            .map_err(|(error, _)| error)
            .expect("queued");
        eventually("written", || {
            self.producer.poll(Duration::from_millis(5));
            self.producer.in_flight_count() == 0
        });
    }
}
