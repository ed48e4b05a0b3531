//! A producer for records that a test writes itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::{ClientConfig, ClientContext};

use crate::Committed;

/// Writes records to the partitions that Kafka's own clients choose.
#[expect(missing_debug_implementations, reason = "a `BaseProducer` has none")]
pub struct Producer(BaseProducer<Reports>);

/// A context that keeps whether a record was refused.
#[derive(Default)]
struct Reports(AtomicBool);

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        self.0.fetch_or(result.is_err(), Ordering::Relaxed);
    }
}

impl Producer {
    /// Creates a producer for these brokers; it connects when it is used.
    pub fn new(bootstrap_servers: &str) -> Self {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", bootstrap_servers)
            .set("enable.idempotence", "true")
            .set("partitioner", "murmur2_random")
            .set("reconnect.backoff.max.ms", "200");
        let producer = config.create_with_context(Reports::default());
        Self(producer.expect("a producer"))
    }

    /// Queues a record.
    pub fn send(
        &self,
        topic: &str,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, &str)],
    ) {
        let mut record = BaseRecord::<[u8], [u8]>::to(topic);
        record.key = key;
        record.payload = value;
        let mut list = OwnedHeaders::new();
        for (key, value) in headers {
            let value = Some(*value);
            list = list.insert(Header { key, value });
        }
        let sent = self.0.send(record.headers(list));
        sent.map_err(|(error, _)| error).expect("it is queued");
    }

    /// Queues the records of these rows, as an outbox event router makes them.
    pub fn send_rows(&self, rows: &[Committed]) {
        for row in rows {
            let (key, value) = (row.key.as_deref(), row.payload.as_deref());
            self.send(&row.topic, key, value, &[("id", &row.id)]);
        }
    }

    /// Returns whether the broker takes all queued records within the limit, and has refused none
    /// before.
    pub fn delivers(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.0.in_flight_count() > 0 && Instant::now() < deadline {
            self.0.poll(Duration::from_millis(10));
        }
        self.0.in_flight_count() == 0 && !self.0.context().0.load(Ordering::Relaxed)
    }
}
