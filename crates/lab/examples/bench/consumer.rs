//! A consumer that notes when each record came.

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::rig::{BREAK_IN_RECORDS, PARTITIONS};

/// When a record was appended, and when a consumer had it; microseconds since 1970.
pub(crate) struct Seen {
    pub(crate) appended: i64,
    pub(crate) consumed: i64,
}

/// Reads until so many rows were seen, by the id in their header.
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
            let first = Offset::Offset(BREAK_IN_RECORDS);
            partitions
                .add_partition_offset(topic, partition, first)
                .expect("an offset");
        }
    }
    consumer.assign(&partitions).expect("an assignment");
    // The first poll makes the connections, whose time is not the contender's.
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
        // A repeat changes nothing: the first one counts.
        seen.entry(id.expect("an id")).or_insert(at);
    }
    seen
}
