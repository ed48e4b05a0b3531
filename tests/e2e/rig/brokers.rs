//! Brokers that tests share. Each is started when it is first needed, and ends with this process.

use std::net::TcpStream;
use std::ops::Deref;
use std::sync::{LazyLock, Mutex};
use std::thread;

use walrelay_testkit::{Kafka, SecureKafka, lock};

/// The broker that creates topics on demand. Nobody stops it.
pub(crate) fn shared_kafka() -> &'static Kafka {
    static KAFKA: LazyLock<Kafka> = LazyLock::new(Kafka::start);
    &KAFKA
}

/// The broker that creates no topics on demand. Nobody stops it.
pub(crate) fn strict_kafka() -> &'static Kafka {
    static KAFKA: LazyLock<Kafka> =
        LazyLock::new(|| Kafka::builder().without_auto_create().start());
    &KAFKA
}

/// The broker with TLS, logins and access control. Nobody stops it.
pub(crate) fn secure_kafka() -> &'static SecureKafka {
    static KAFKA: LazyLock<SecureKafka> = LazyLock::new(SecureKafka::start);
    &KAFKA
}

/// A broker that the test has to itself, and may stop, kill or pause. The next test takes it over
/// if it runs at the end of a test that passed.
pub(crate) struct KafkaInTurn(Option<Kafka>);

/// Brokers that no test has at the moment.
static FREE: Mutex<Vec<Kafka>> = Mutex::new(Vec::new());

/// Takes a free broker that answers, or starts one.
pub(crate) fn kafka_in_turn() -> KafkaInTurn {
    loop {
        let free = lock(&FREE).pop();
        let kafka = free.unwrap_or_else(|| Kafka::builder().start());
        if TcpStream::connect(kafka.bootstrap_servers()).is_ok() {
            return KafkaInTurn(Some(kafka));
        }
        eprintln!("a free broker has ended by itself: {}", kafka.log());
    }
}

impl Deref for KafkaInTurn {
    type Target = Kafka;

    fn deref(&self) -> &Kafka {
        self.0.as_ref().expect("it is there until the drop")
    }
}

impl Drop for KafkaInTurn {
    fn drop(&mut self) {
        let kafka = self.0.take();
        let runs = |kafka: &Kafka| kafka.pid().is_some();
        if let Some(kafka) = kafka.filter(|kafka| runs(kafka) && !thread::panicking()) {
            // Does nothing unless the test has paused it.
            kafka.resume();
            lock(&FREE).push(kafka);
        }
    }
}
