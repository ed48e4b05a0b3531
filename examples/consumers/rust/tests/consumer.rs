//! The consumer against a real Postgres and Kafka: `WALRELAY_EXAMPLE_POSTGRES`, `WALRELAY_EXAMPLE_KAFKA`.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime};

use consumer::{Backoff, Options, SETTINGS, newest, process, prune, run};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _, StreamConsumer};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::Notify;
use tokio_postgres::{Client, NoTls, Transaction};

/// A loaded machine may take long; nothing waits for less.
const PATIENCE: Duration = Duration::from_secs(120);
const PARTITIONS: i32 = 4;

/// A topic of the test's own, and its workers.
struct Fixture {
    topic: String,
    client: Client,
    producer: FutureProducer,
    workers: Vec<Child>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

fn kafka() -> ClientConfig {
    let mut config = ClientConfig::new();
    let servers = std::env::var("WALRELAY_EXAMPLE_KAFKA").expect("WALRELAY_EXAMPLE_KAFKA");
    config.set("bootstrap.servers", servers);
    config
}

async fn connect() -> Client {
    let url = std::env::var("WALRELAY_EXAMPLE_POSTGRES").expect("WALRELAY_EXAMPLE_POSTGRES");
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Fixture {
    async fn new(name: &str) -> Self {
        let client = connect().await;
        let table = "SELECT pg_advisory_xact_lock(1); \
                     CREATE TABLE IF NOT EXISTS rust_effects (n serial, topic text, key text, number int)";
        client.batch_execute(table).await.unwrap();
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let topic = format!("rust-{name}-{now}");
        let admin: AdminClient<DefaultClientContext> = kafka().create().unwrap();
        let new = NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(1));
        let created = admin
            .create_topics(&[new], &AdminOptions::new())
            .await
            .unwrap();
        assert!(created.iter().all(Result::is_ok), "{created:?}");
        let producer = kafka().create().unwrap();
        Self {
            topic,
            client,
            producer,
            workers: Vec::new(),
        }
    }

    fn options(&self) -> Options<'_> {
        Options {
            name: &self.topic,
            id_header: "id",
            dead_letters: "no-such-topic",
            attempts: 3,
            pause: Duration::from_secs(3600),
        }
    }

    async fn send_as(&self, number: i32, key: &str, id: &str) {
        let headers = OwnedHeaders::new().insert(Header {
            key: "id",
            value: Some(id),
        });
        let value = number.to_string();
        let record = FutureRecord::to(&self.topic)
            .key(key)
            .payload(&value)
            .headers(headers);
        self.producer.send(record, Timeout::Never).await.unwrap();
    }

    async fn send(&self, number: i32) {
        self.send_as(number, "k", &format!("{}-{number}", self.topic))
            .await;
    }

    fn worker(&mut self, crash: &str) -> usize {
        let mut command = Command::new(env!("CARGO_BIN_EXE_worker"));
        let worker = command
            .arg(&self.topic)
            .env("CRASH", crash)
            .spawn()
            .unwrap();
        self.workers.push(worker);
        self.workers.len() - 1
    }

    async fn effects(&self) -> Vec<(String, i32)> {
        let query = "SELECT key, number FROM rust_effects WHERE topic = $1 ORDER BY n";
        let rows = self.client.query(query, &[&self.topic]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Number of records whose offset is not committed; `None` while the group has no coordinator.
    fn lag(&self) -> Option<i64> {
        let mut config = kafka();
        let group: BaseConsumer = config.set("group.id", &self.topic).create().unwrap();
        let mut asked = TopicPartitionList::new();
        asked.add_partition_range(&self.topic, 0, PARTITIONS - 1);
        let committed = group.committed_offsets(asked, PATIENCE).ok()?;
        let lag = committed.elements().into_iter().map(|element| {
            let partition = element.partition();
            let (_, end) = group
                .fetch_watermarks(&self.topic, partition, PATIENCE)
                .ok()?;
            Some(match element.offset() {
                Offset::Offset(offset) => end - offset,
                _ => end,
            })
        });
        lag.sum()
    }

    async fn until_done(&self) {
        let ends = Instant::now() + PATIENCE;
        while self.lag() != Some(0) {
            assert!(
                Instant::now() < ends,
                "not done: {:?}",
                self.effects().await
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn all(numbers: &[i32]) -> Vec<(String, i32)> {
    numbers
        .iter()
        .map(|number| ("k".to_owned(), *number))
        .collect()
}

#[tokio::test]
async fn the_same_event_twice_has_one_effect() {
    let mut test = Fixture::new("twice").await;
    for number in [1, 2, 1, 2, 3] {
        test.send(number).await;
    }
    test.worker("");
    test.until_done().await;
    assert_eq!(test.effects().await, all(&[1, 2, 3]));
}

#[tokio::test]
async fn a_crash_between_effect_and_commit() {
    let mut test = Fixture::new("crash").await;
    for number in [1, 2, 3] {
        test.send(number).await;
    }
    let crashed = test.worker("before commit 2");
    let status = test.workers[crashed].wait().unwrap();
    assert_eq!(status.signal(), Some(9));
    assert_eq!(test.effects().await, all(&[1]));
    test.worker("");
    test.until_done().await;
    assert_eq!(test.effects().await, all(&[1, 2, 3]));
}

#[tokio::test]
async fn an_end_before_the_offset_repeats_nothing() {
    let mut test = Fixture::new("offset").await;
    for number in [1, 2, 3] {
        test.send(number).await;
    }
    let mut config = kafka();
    config
        .set("group.id", &test.topic)
        .set("session.timeout.ms", "2000")
        .set("heartbeat.interval.ms", "200");
    for (name, value) in SETTINGS {
        config.set(name, value);
    }
    let consumer: StreamConsumer = config.create().unwrap();
    consumer.subscribe(&[&test.topic]).unwrap();
    let effect = async |transaction: &Transaction<'_>,
                        message: &rdkafka::message::BorrowedMessage<'_>| {
        let insert =
            "INSERT INTO rust_effects (topic, key, number) VALUES ($1, 'k', $2::text::int)";
        let number = String::from_utf8_lossy(message.payload().unwrap()).into_owned();
        transaction
            .execute(insert, &[&message.topic(), &number])
            .await?;
        Ok(())
    };
    let mut client = connect().await;
    for _ in 0..3 {
        let message = consumer.recv().await.unwrap();
        assert!(
            process(&mut client, test.options(), &message, &effect)
                .await
                .unwrap()
        );
    }
    drop(consumer);
    assert_eq!(
        (test.effects().await, test.lag()),
        (all(&[1, 2, 3]), Some(3))
    );
    test.worker("");
    test.until_done().await;
    assert_eq!(test.effects().await, all(&[1, 2, 3]));
}

#[tokio::test]
async fn a_rebalance_loses_and_repeats_nothing() {
    let mut test = Fixture::new("rebalance").await;
    let first = test.worker("");
    let mut expected = Vec::new();
    for number in 0..300 {
        let key = format!("k{}", number % 7);
        test.send_as(number, &key, &format!("{}-{number}", test.topic))
            .await;
        expected.push((key, number));
        if number == 50 {
            let ends = Instant::now() + PATIENCE;
            while test.effects().await.len() <= 20 {
                assert!(Instant::now() < ends, "no effects");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            test.worker("");
        } else if number == 150 {
            test.workers[first].kill().unwrap();
        }
    }
    test.until_done().await;
    // The order of each key, and each event once.
    let mut effects = test.effects().await;
    effects.sort_by(|a, b| a.0.cmp(&b.0));
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(effects, expected);
}

#[tokio::test]
async fn poison_becomes_a_dead_letter_after_the_attempts() {
    let mut test = Fixture::new("poison").await;
    test.send(1).await;
    test.send_as(-1, "k", "poison").await;
    test.send(2).await;
    test.worker("");
    test.until_done().await;
    assert_eq!(test.effects().await, all(&[1, 2]));
    let mut config = kafka();
    config
        .set("group.id", format!("{}-letters", test.topic))
        .set("auto.offset.reset", "earliest");
    let letters: StreamConsumer = config.create().unwrap();
    letters
        .subscribe(&[&format!("{}.dead", test.topic)])
        .unwrap();
    let letter = tokio::time::timeout(PATIENCE, letters.recv())
        .await
        .unwrap()
        .unwrap();
    let header = |name: &str| {
        let mut headers = letter.headers().unwrap().iter();
        let found = headers.find(|header| header.key == name).unwrap();
        String::from_utf8(found.value.unwrap().to_vec()).unwrap()
    };
    assert_eq!(
        (letter.key(), letter.payload()),
        (Some(&b"k"[..]), Some(&b"-1"[..]))
    );
    assert_eq!(
        (header("id"), header("error")),
        ("poison".into(), "the effect failed: poison".into())
    );
    assert!(header("source").starts_with(&format!("{}[", test.topic)));
}

#[tokio::test]
async fn old_events_are_forgotten() {
    let test = Fixture::new("prune").await;
    let insert = "INSERT INTO processed_events (consumer, event_id, processed_at) \
                  SELECT $1, days, now() - make_interval(days => days) FROM generate_series(1, 40) AS days";
    test.client.execute(insert, &[&test.topic]).await.unwrap();
    assert_eq!(prune(&test.client, &test.topic, 30).await.unwrap(), 11);
}

#[tokio::test]
async fn a_stop_ends_the_pause_between_attempts_and_keeps_the_event() {
    let test = Fixture::new("stop").await;
    test.send(1).await;
    let mut config = kafka();
    config.set("group.id", &test.topic);
    for (name, value) in SETTINGS {
        config.set(name, value);
    }
    let consumer: StreamConsumer = config.create().unwrap();
    consumer.subscribe(&[&test.topic]).unwrap();
    let failed = Notify::new();
    let effect = async |_: &Transaction<'_>, _: &rdkafka::message::BorrowedMessage<'_>| {
        failed.notify_one();
        consumer::EffectResult::Err("poison".into())
    };
    let (mut client, stop) = (connect().await, failed.notified());
    let producer = &test.producer;
    let ended = run(
        &consumer,
        &mut client,
        producer,
        test.options(),
        effect,
        stop,
        || (),
    );
    tokio::time::timeout(PATIENCE, ended)
        .await
        .unwrap()
        .unwrap();
    assert_ne!(test.lag(), Some(0));
}

#[test]
fn pauses_grow_to_the_longest() {
    let mut backoff = Backoff::new(Duration::from_secs(1));
    for most in [1, 2, 4, 8, 16, 30, 30].map(Duration::from_secs) {
        let pause = backoff.next_pause();
        assert!(most / 2 <= pause && pause <= most, "{pause:?} of {most:?}");
    }
}

#[tokio::test]
async fn a_repeated_suffix_in_a_compacted_topic_changes_nothing() {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let topic = format!("rust-newest-{now}");
    let admin: AdminClient<DefaultClientContext> = kafka().create().unwrap();
    let new = NewTopic::new(&topic, 1, TopicReplication::Fixed(1)).set("cleanup.policy", "compact");
    let created = admin
        .create_topics(&[new], &AdminOptions::new())
        .await
        .unwrap();
    assert!(created.iter().all(Result::is_ok), "{created:?}");
    let sent = [
        ("a", Some(1_u64), Some("a1")),
        ("b", Some(2), Some("b2")),
        ("a", Some(3), Some("a3")),
        ("c", Some(4), Some("c4")),
        ("c", Some(5), None),
        // A crash of the relay: everything from 1 on again, and it is cut off before 3.
        ("a", Some(1), Some("a1")),
        ("b", Some(2), Some("b2")),
        ("c", Some(4), Some("c4")),
        // `walrelay resend` sends without a position.
        ("b", None, Some("old")),
        ("d", None, Some("old")),
        ("d", Some(6), Some("d6")),
        // After a move to a server whose log begins lower: the first byte is raised.
        ("a", Some(0x0100_0000_0000_0002), Some("a7")),
        ("a", Some(3), Some("a3")),
    ];
    let producer: FutureProducer = kafka().create().unwrap();
    for (key, position, value) in sent {
        let mut record: FutureRecord<'_, str, str> = FutureRecord::to(&topic).key(key);
        record.payload = value;
        if let Some(position) = position {
            record = record.headers(OwnedHeaders::new().insert(Header {
                key: newest::POSITION_HEADER,
                value: Some(&format!("{position:016X}/00000000")),
            }));
        }
        producer.send(record, Timeout::Never).await.unwrap();
    }
    let client = connect().await;
    let table = "DROP TABLE IF EXISTS newest; \
                 CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE \"C\", value text)";
    client.batch_execute(table).await.unwrap();
    let consumer: StreamConsumer = kafka().set("group.id", &topic).create().unwrap();
    let mut assigned = TopicPartitionList::new();
    assigned
        .add_partition_offset(&topic, 0, Offset::Beginning)
        .unwrap();
    consumer.assign(&assigned).unwrap();
    let mut applied = Vec::new();
    for _ in sent {
        let message = tokio::time::timeout(PATIENCE, consumer.recv())
            .await
            .unwrap()
            .unwrap();
        applied.push(newest::apply(&client, &message).await.unwrap());
    }
    let query = "SELECT key || ' ' || coalesce(value, 'null') FROM newest ORDER BY key";
    let rows = client.query(query, &[]).await.unwrap();
    let kept: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(kept, ["a a7", "b b2", "c null", "d d6"]);
    let is_newer = [
        true, true, true, true, true, false, false, false, false, true, true, true, false,
    ];
    assert_eq!(applied, is_newer);
}
