//! No relay: each writer sends what it has committed, as services do without an outbox.
//!
//! A writer that dies between commit and send loses the event. These figures are the lower bound:
//! the same load, broker and consumer, with nothing between the commit and the producer.

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, ThreadedProducer};
use tokio_postgres::Row;

/// Returns producer settings as safe as walrelay's, with this `linger.ms`.
pub(crate) fn safe(bootstrap: &str, linger: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", linger)
        .set("partitioner", "murmur2_random");
    config
}

/// Returns the header `id` by which the consumer identifies a record.
pub(crate) fn id_header(id: &str) -> OwnedHeaders {
    let value = Some(id);
    OwnedHeaders::new_with_capacity(1).insert(Header { key: "id", value })
}

/// One producer shared by all writers, as within a service.
pub(crate) struct Writers {
    producer: ThreadedProducer<DefaultProducerContext>,
    prefix: String,
}

impl Writers {
    /// Creates a producer that does not linger.
    pub(crate) fn new(bootstrap: &str, prefix: &str) -> Self {
        Self {
            producer: safe(bootstrap, "0").create().expect("a producer"),
            prefix: prefix.to_owned(),
        }
    }

    /// Sends the rows of a transaction: id, key and payload of each.
    pub(crate) fn send(&self, kind: &str, rows: &[Row]) {
        let topic = format!("{}{kind}", self.prefix);
        for row in rows {
            let (id, key, payload): (String, String, String) = (row.get(0), row.get(1), row.get(2));
            let record = BaseRecord::to(&topic).key(&key).payload(&payload);
            let sent = self.producer.send(record.headers(id_header(&id)));
            sent.map_err(|(error, _)| error).expect("a record is taken");
        }
    }
}
