//! A consumer that notes the time of each record.

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::harness::WARM_UP_RECORDS;
use crate::load_kind::PARTITIONS;

/// The times when a record was appended to the Kafka log and when the consumer received it, in
/// microseconds since 1970.
pub(crate) struct Seen {
    pub(crate) appended: i64,
    pub(crate) consumed: i64,
}

/// Consumes until it has seen `rows` different ids (header `id`), or until `stop` is set.
pub(crate) fn consume(
    kafka: &str,
    topics: &[String],
    rows: u64,
    ready: &Barrier,
    stop: &AtomicBool,
) -> HashMap<String, Seen> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka)
        .set("group.id", "bench")
        .set("enable.auto.commit", "false")
        .set("fetch.min.bytes", "1")
        .set("fetch.queue.backoff.ms", "0")
        .create()
        .expect("a consumer can be made");
    let mut partitions = TopicPartitionList::new();
    for topic in topics {
        for partition in 0..PARTITIONS {
            let first = Offset::Offset(WARM_UP_RECORDS);
            partitions
                .add_partition_offset(topic, partition, first)
                .expect("an offset");
        }
    }
    consumer.assign(&partitions).expect("an assignment");
    // The first poll opens the connections, whose time must not count for the contender.
    let _ = consumer.poll(Duration::from_secs(1));
    ready.wait();
    let mut seen = HashMap::with_capacity(rows as usize);
    while (seen.len() as u64) < rows && !stop.load(Ordering::Relaxed) {
        let Some(Ok(record)) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        let consumed = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970");
        let id = record.headers().and_then(|headers| {
            let id = headers.iter().find(|header| header.key == "id")?;
            String::from_utf8(id.value?.to_vec()).ok()
        });
        let at = Seen {
            appended: record.timestamp().to_millis().expect("LogAppendTime") * 1000,
            consumed: consumed.as_micros() as i64,
        };
        // Of a record that is repeated, the first counts.
        seen.entry(id.expect("an id")).or_insert(at);
    }
    seen
}
