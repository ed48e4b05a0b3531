use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig, Message as _, Offset, Timestamp, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    message::{BorrowedMessage, Headers as _},
};
use walrelay_throwaway::Pauses;

use super::Delivered;
use crate::wait::PATIENCE;

/// Interval of the searches for new topics.
const REFRESH: Duration = Duration::from_millis(300);
/// Timeout of one request to the broker.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn records(
    bootstrap_servers: &str,
    prefix: &str,
    distinct: usize,
    limit: Duration,
) -> Vec<Delivered> {
    let consumer = consumer(bootstrap_servers);
    let mut read = Reading {
        records: Vec::new(),
        ids: HashSet::new(),
        next: BTreeMap::new(),
        moved_at: Instant::now(),
    };
    let mut refreshed: Option<Instant> = None;
    while read.ids.len() < distinct && read.moved_at.elapsed() < limit {
        if refreshed.is_none_or(|at| at.elapsed() >= REFRESH) {
            assign_new(&consumer, prefix, &mut read.next);
            refreshed = Some(Instant::now());
        }
        read.poll(&consumer);
    }
    // Then read to the end: there may be duplicates, and records that should not exist.
    assign_new(&consumer, prefix, &mut read.next);
    let mut ends = BTreeMap::new();
    for (topic, partition) in read.next.keys() {
        let (low, high) = retry(|| consumer.fetch_watermarks(topic, *partition, REQUEST_TIMEOUT));
        assert_eq!(
            low, 0,
            "{topic}[{partition}] has lost its beginning: it proves nothing"
        );
        ends.insert((topic.clone(), *partition), high);
    }
    read.moved_at = Instant::now();
    while ends.iter().any(|(at, end)| read.next[at] < *end) {
        assert!(
            read.moved_at.elapsed() < PATIENCE,
            "the broker's records cannot be read to their end"
        );
        if !read.poll(&consumer) {
            read.take_positions(&consumer);
        }
    }
    read.records
}

/// Returns the number of records in the topics with this prefix; `None` if the broker does not
/// answer.
pub(super) fn count(bootstrap_servers: &str, prefix: &str) -> Option<i64> {
    let consumer = consumer(bootstrap_servers);
    let metadata = consumer.fetch_metadata(None, REQUEST_TIMEOUT).ok()?;
    let topics = metadata.topics().iter();
    topics
        .filter(|topic| topic.name().starts_with(prefix))
        .flat_map(|topic| {
            topic
                .partitions()
                .iter()
                .map(|part| (topic.name(), part.id()))
        })
        .map(|(topic, partition)| {
            let ends = consumer.fetch_watermarks(topic, partition, REQUEST_TIMEOUT);
            ends.ok().map(|(low, high)| high - low)
        })
        .sum()
}

fn consumer(bootstrap_servers: &str) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", bootstrap_servers)
        .set("group.id", "walrelay-testkit")
        .set("enable.auto.commit", "false")
        .set("allow.auto.create.topics", "false")
        .set("auto.offset.reset", "error")
        .set("fetch.wait.max.ms", "20")
        .set("reconnect.backoff.max.ms", "500")
        .create()
        .expect("a consumer can be made")
}

struct Reading {
    records: Vec<Delivered>,
    ids: HashSet<String>,
    /// Next offset of each partition that is read.
    next: BTreeMap<(String, i32), i64>,
    /// The time when the last record was read.
    moved_at: Instant,
}

impl Reading {
    fn poll(&mut self, consumer: &BaseConsumer) -> bool {
        match consumer.poll(Duration::from_millis(50)) {
            Some(Ok(message)) => {
                let record = delivered(&message);
                let at = (record.topic.clone(), record.partition);
                self.next.insert(at, record.offset + 1);
                if let Some(id) = &record.id {
                    self.ids.insert(id.clone());
                }
                self.records.push(record);
                self.moved_at = Instant::now();
                true
            }
            // The broker may come back; otherwise the limit passes.
            Some(Err(_)) | None => false,
        }
    }

    /// Advances the offsets over the transaction markers of a producer, which consumers never
    /// receive.
    fn take_positions(&mut self, consumer: &BaseConsumer) {
        let Ok(positions) = consumer.position() else {
            return;
        };
        for element in positions.elements() {
            if let Offset::Offset(offset) = element.offset() {
                let at = (element.topic().to_owned(), element.partition());
                let next = self.next.entry(at);
                next.and_modify(|next| *next = offset.max(*next));
            }
        }
    }
}

/// Assigns partitions of matching topics that are not read yet, from their beginning.
fn assign_new(consumer: &BaseConsumer, prefix: &str, next: &mut BTreeMap<(String, i32), i64>) {
    let metadata = retry(|| consumer.fetch_metadata(None, REQUEST_TIMEOUT));
    let mut new = TopicPartitionList::new();
    let topics = metadata.topics().iter();
    for topic in topics.filter(|topic| topic.name().starts_with(prefix)) {
        for partition in topic.partitions() {
            let at = (topic.name().to_owned(), partition.id());
            if next.contains_key(&at) {
                continue;
            }
            new.add_partition_offset(topic.name(), partition.id(), Offset::Beginning)
                .expect("beginning is an offset");
            next.insert(at, 0);
        }
    }
    if new.count() > 0 {
        consumer
            .incremental_assign(&new)
            .expect("partitions can be assigned");
    }
}

/// Repeats a request: a broker that has just started may have no leaders for a moment.
#[track_caller]
fn retry<T, E: std::fmt::Display>(mut ask: impl FnMut() -> Result<T, E>) -> T {
    let mut pauses = Pauses::new();
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(error) if pauses.waited() >= PATIENCE / 2 => {
                panic!("the broker does not answer: {error}")
            }
            Err(_) => pauses.pause(),
        }
    }
}

fn delivered(message: &BorrowedMessage<'_>) -> Delivered {
    let (appended, created) = match message.timestamp() {
        Timestamp::LogAppendTime(millis) => (Some(millis), None),
        Timestamp::CreateTime(millis) => (None, Some(millis)),
        Timestamp::NotAvailable => (None, None),
    };
    let headers = message
        .headers()
        .into_iter()
        .flat_map(|headers| headers.iter());
    let headers = headers.map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)));
    let mut record = Delivered {
        id: None,
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        payload: message.payload().map(<[u8]>::to_vec),
        headers: headers.collect(),
        appended,
        created,
    };
    record.id = record.header("id").map(str::to_owned);
    record
}
