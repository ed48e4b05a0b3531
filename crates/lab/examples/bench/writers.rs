//! No relay at all: those who write send what they have committed, as is done without an outbox.
//!
//! Nobody should do it, for who dies in between has lost the event. Here it is the floor: the same load, the same
//! broker and consumer, and nothing between the commit and the producer.

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, ThreadedProducer};
use tokio_postgres::Row;

/// One producer for all who write, as within a service.
pub(crate) struct Writers {
    producer: ThreadedProducer<DefaultProducerContext>,
    prefix: String,
}

impl Writers {
    /// As safe as walrelay's own, and as much in a hurry.
    pub(crate) fn new(bootstrap: &str, prefix: &str) -> Self {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", bootstrap)
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("linger.ms", "0")
            .set("partitioner", "murmur2_random")
            .create()
            .expect("a producer");
        Self {
            producer,
            prefix: prefix.to_owned(),
        }
    }

    /// Sends the rows of a transaction: id, key and payload of each.
    pub(crate) fn send(&self, kind: &str, rows: &[Row]) {
        let topic = format!("{}{kind}", self.prefix);
        for row in rows {
            let (id, key, payload): (String, String, String) = (row.get(0), row.get(1), row.get(2));
            let headers = OwnedHeaders::new_with_capacity(1).insert(Header {
                key: "id",
                value: Some(&id),
            });
            let record = BaseRecord::to(&topic).key(&key).payload(&payload);
            let sent = self.producer.send(record.headers(headers));
            sent.map_err(|(error, _)| error).expect("a record is taken");
        }
    }
}
