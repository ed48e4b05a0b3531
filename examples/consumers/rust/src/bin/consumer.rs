//! A whole consumer, which keeps each event in the table `received`: copy it, and write your effect.
//!
//! ```text
//! DATABASE_URL=postgres://… KAFKA_BROKERS=localhost:9094 cargo run --bin consumer
//! ```
//!
//! `TOPIC` and `GROUP` have defaults. With `-- --id-header=x-outbox-event-id` it reads another header than `id`. It
//! ends by SIGTERM or SIGINT after the current event, and starts again by itself, after growing pauses, when a server
//! does not answer.

use std::time::Duration;

use consumer::{Backoff, Error, Options, SETTINGS};
use log::{LevelFilter, Log, Metadata, Record};
use rdkafka::ClientConfig;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::producer::FutureProducer;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_postgres::{NoTls, Transaction};

/// With a lock: two processes may start at once.
const TABLE: &str = "SELECT pg_advisory_xact_lock(59);
    CREATE TABLE IF NOT EXISTS received (n serial, consumer text, topic text, key text, value text)";

fn variable(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

/// Returns the name of the header with the event's id.
fn id_header() -> Result<String, String> {
    match std::env::args().nth(1) {
        None => Ok(variable("ID_HEADER", "id")),
        Some(argument) => {
            let name = argument.strip_prefix("--id-header=").map(str::to_owned);
            name.ok_or_else(|| format!("{argument}: the only argument is --id-header=NAME"))
        }
    }
}

async fn effect(
    transaction: &Transaction<'_>,
    message: &BorrowedMessage<'_>,
) -> consumer::EffectResult {
    let text =
        |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let insert = "INSERT INTO received (consumer, topic, key, value) VALUES ($1, $2, $3, $4)";
    let (key, value) = (text(message.key()), text(message.payload()));
    let group = variable("GROUP", "example");
    transaction
        .execute(insert, &[&group, &message.topic(), &key, &value])
        .await?;
    Ok(())
}

async fn serve(
    id_header: &str,
    mut stop: watch::Receiver<bool>,
    on_progress: impl FnMut(),
) -> Result<(), Error> {
    let (topic, group) = (
        variable("TOPIC", "outbox.event.Order"),
        variable("GROUP", "example"),
    );
    let (mut client, connection) =
        tokio_postgres::connect(&variable("DATABASE_URL", ""), NoTls).await?;
    // Its error is that of the next statement, too.
    tokio::spawn(connection);
    client.batch_execute(TABLE).await?;
    let mut kafka = ClientConfig::new();
    kafka.set("bootstrap.servers", variable("KAFKA_BROKERS", ""));
    let producer: FutureProducer = kafka.create()?;
    kafka.set("group.id", &group).set(
        "session.timeout.ms",
        variable("SESSION_TIMEOUT_MS", "45000"),
    );
    for (name, value) in SETTINGS {
        kafka.set(name, value);
    }
    // Leaves the group when it is dropped: its partitions are given away at once.
    let consumer: StreamConsumer = kafka.create()?;
    consumer.subscribe(&[&topic])?;
    let dead_letters = format!("{topic}.dead");
    let options = Options {
        name: &group,
        id_header,
        dead_letters: &dead_letters,
        attempts: 5,
        pause: Duration::from_secs(1),
    };
    let stopped = async {
        // Fails when the sender is gone, which ends the process, too.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    consumer::run(
        &consumer,
        &mut client,
        &producer,
        options,
        effect,
        stopped,
        on_progress,
    )
    .await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let id_header = id_header().map_err(std::io::Error::other)?;
    log::set_logger(&Stderr).expect("the only logger");
    log::set_max_level(LevelFilter::Info);
    let (stopping, mut stop) = watch::channel(false);
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stopping.send_replace(true);
        stopping.closed().await;
    });
    let mut backoff = Backoff::new(Duration::from_millis(500));
    while !*stop.borrow() {
        if let Err(error) = serve(&id_header, stop.clone(), || backoff.reset()).await {
            let pause = backoff.next_pause();
            log::warn!("{error}; again in {pause:?}");
            let _ = tokio::time::timeout(pause, stop.wait_for(|stop| *stop)).await;
        }
    }
    log::info!("stopped");
    Ok(())
}

/// Writes the log to standard error; take the logger of your service.
struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        eprintln!("{} {}", record.level(), record.args());
    }

    fn flush(&self) {}
}
