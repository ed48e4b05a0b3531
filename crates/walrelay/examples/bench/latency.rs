//! From the commit to the broker's log, and to a consumer, at a steady rate.
//!
//! Rows are written on a fixed schedule, whatever the contender does (an open loop), and each one's
//! time counts from its own commit: a contender that stalls is late with all that was written
//! meanwhile. The commit's time is the one in the WAL (`track_commit_timestamp`), which Postgres takes
//! before it flushes. One clock serves for all, as everything runs on one machine; the broker's own
//! (`LogAppendTime`) counts whole milliseconds.

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use walrelay_testkit::{Db, SlotWatch};

use crate::polling::{self, Sent};
use crate::proc::Quiet;
use crate::rig::{PARTITIONS, PATIENCE, Rig};

/// Rows a second, and for how long.
pub(crate) const RATES: [(u64, Duration); 3] = [
    (100, Duration::from_secs(15)),
    (1_000, Duration::from_secs(15)),
    (10_000, Duration::from_secs(10)),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    RelayTcp,
    RelayUnix,
    Polling,
}

impl Contender {
    pub(crate) const ALL: [Self; 3] = [Self::RelayTcp, Self::RelayUnix, Self::Polling];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RelayTcp => "walrelay, TCP",
            Self::RelayUnix => "walrelay, unix socket",
            Self::Polling => "polling every 50 ms, UPDATE",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::RelayTcp => "tcp",
            Self::RelayUnix => "unix",
            Self::Polling => "polling",
        }
    }

    fn table(self) -> &'static str {
        match self {
            Self::RelayTcp | Self::RelayUnix => "outbox",
            Self::Polling => "polled",
        }
    }
}

/// Milliseconds: p50, p90, p99 and the longest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread(pub(crate) [f64; 4]);

pub(crate) struct Latency {
    pub(crate) contender: Contender,
    pub(crate) rate: u64,
    pub(crate) rows: u64,
    pub(crate) append: Spread,
    pub(crate) consumer: Spread,
    /// Milliseconds that the last writer was late at the most: above a rate of its own the load is
    /// not what it says.
    pub(crate) behind: f64,
}

/// When a record was appended, and when a consumer had it; microseconds since 1970.
struct Seen {
    appended: i64,
    consumed: i64,
}

pub(crate) fn run(
    rig: &Rig,
    contender: Contender,
    rate: u64,
    load: Duration,
    quiet: &mut Quiet,
) -> Latency {
    let slot = format!("latency_{}_{rate}", contender.word());
    let prefix = format!("{slot}.");
    let topic = format!("{prefix}order");
    rig.create_topic_with(&topic, &[("message.timestamp.type", "LogAppendTime")]);
    let table = contender.table();
    let before = rig.rows_numbered(table);
    let tcp = || rig.postgres.url_tcp().expect("the server listens at TCP");
    let relay = match contender {
        Contender::Polling => {
            rig.empty_polled();
            let (url, kafka) = (tcp(), rig.kafka.bootstrap_servers());
            let arguments = polling::arguments(&url, &kafka, &topic, 0, Sent::Update);
            rig.spawn(&rig.own, &arguments, polling::BEGINS)
        }
        Contender::RelayTcp | Contender::RelayUnix => {
            rig.slot_at_end(&slot);
            let url = match contender {
                Contender::RelayUnix => rig.postgres.url(),
                _ => tcp(),
            };
            let relay = rig.relay(&url, &slot, &prefix);
            SlotWatch::new(&rig.postgres.url(), &slot).wait_active(PATIENCE);
            relay
        }
    };
    quiet.wait();
    let rows = rate * load.as_secs();
    let kafka = rig.kafka.bootstrap_servers();
    let (ready, stop) = (Barrier::new(2), AtomicBool::new(false));
    let (seen, behind) = thread::scope(|scope| {
        let consumer = scope.spawn(|| consume(&kafka, &topic, rows, &ready, &stop));
        ready.wait();
        let behind = write(&rig.postgres.url(), table, before, rows, rate);
        // Everything has to come; this is how long it may take.
        let begun = Instant::now();
        while !consumer.is_finished() && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        (consumer.join().expect("the consumer ends well"), behind)
    });
    match contender {
        Contender::Polling => drop(relay),
        Contender::RelayTcp | Contender::RelayUnix => {
            relay.terminate();
            rig.drop_slot(&slot);
        }
    }
    let committed = rig.commit_times(table, before);
    assert_eq!(committed.len() as u64, rows, "rows written");
    let mut append = Vec::with_capacity(committed.len());
    let mut consumer = Vec::with_capacity(committed.len());
    for (id, committed) in &committed {
        let seen = seen
            .get(id)
            .unwrap_or_else(|| panic!("{} never arrived", contender.name()));
        append.push(seen.appended - committed);
        consumer.push(seen.consumed - committed);
    }
    Latency {
        contender,
        rate,
        rows,
        append: spread(append),
        consumer: spread(consumer),
        behind: behind.as_secs_f64() * 1e3,
    }
}

fn spread(mut micros: Vec<i64>) -> Spread {
    micros.sort_unstable();
    let last = micros.len() - 1;
    let at = |share: f64| micros[(last as f64 * share).round() as usize] as f64 / 1e3;
    Spread([at(0.5), at(0.9), at(0.99), at(1.0)])
}

/// Reads until all rows were seen, by the id in their header.
fn consume(
    kafka: &str,
    topic: &str,
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
    for partition in 0..PARTITIONS {
        partitions
            .add_partition_offset(topic, partition, Offset::Beginning)
            .expect("an offset");
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

/// Writes at a rate that does not heed how long a commit takes. How late a row was at the most.
fn write(url: &str, table: &str, first: i64, rows: u64, rate: u64) -> Duration {
    let writers = if rate > 2_000 { 32 } else { 8 };
    let together = Barrier::new(writers);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..writers)
            .map(|writer| {
                let together = &together;
                scope.spawn(move || {
                    let db = Db::connect(url);
                    let put = Rig::prepare_put(&db, table);
                    together.wait();
                    let begun = Instant::now();
                    let mut behind = Duration::ZERO;
                    for row in (writer as u64..rows).step_by(writers) {
                        let due = Duration::from_secs_f64(row as f64 / rate as f64);
                        thread::sleep(due.saturating_sub(begun.elapsed()));
                        behind = behind.max(begun.elapsed().saturating_sub(due));
                        Rig::put(&db, &put, first + row as i64);
                    }
                    behind
                })
            })
            .collect();
        let late = writers
            .into_iter()
            .map(|writer| writer.join().expect("a writer ends well"));
        late.max().unwrap_or_default()
    })
}
