//! Consumes events: each one has its effect in Postgres once. For rdkafka and tokio-postgres.
//!
//! The table `processed_events` comes from `walrelay init --consumer`. Copy this file, and write the effect.

pub mod newest;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::pin::pin;
use std::time::Duration;

use rdkafka::consumer::{CommitMode, Consumer as _, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use tokio_postgres::{Client, Transaction};

/// Settings of the consumer: the offset of a record is committed by [`run`], after its effect, and by
/// nothing else.
pub const SETTINGS: [(&str, &str); 3] = [
    ("enable.auto.commit", "false"),
    ("auto.offset.reset", "earliest"),
    ("isolation.level", "read_committed"),
];

/// Options of [`run`].
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// The consumer's name: each consumer of the same events has claims of its own.
    pub name: &'a str,
    /// The header with the id by which a repeat is known.
    pub id_header: &'a str,
    /// The topic for events whose effect has failed `attempts` times. `pause` is between the first two; the
    /// next ones double, up to half a minute.
    pub dead_letters: &'a str,
    pub attempts: u32,
    pub pause: Duration,
}

/// Why an event is not processed, or the consumer ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a record without the header {0}")]
    NoId(String),
    #[error("the effect failed: {0}")]
    Effect(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("Postgres: {0}")]
    Postgres(#[from] tokio_postgres::Error),
    #[error("Kafka: {0}")]
    Kafka(#[from] KafkaError),
}

/// The result of an effect. Its errors are boxed: `?` turns any error into one.
pub type EffectResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Pauses that double from the first to half a minute, with jitter.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    failures: u32,
}

impl Backoff {
    const LONGEST: Duration = Duration::from_secs(30);

    #[must_use]
    pub const fn new(first: Duration) -> Self {
        Self { first, failures: 0 }
    }

    /// Returns the next pause.
    pub fn next_pause(&mut self) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.failures.min(16));
        self.failures += 1;
        // Its keys are random.
        let random = RandomState::new().build_hasher().finish() % 1000;
        let half = doubled.min(Self::LONGEST) / 2;
        half + half * u32::try_from(random).unwrap_or_default() / 1000
    }

    pub const fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Returns the id by which a repeat is known. It is the same in every delivery of an event.
///
/// # Errors
/// [`Error::NoId`].
pub fn event_id(message: &BorrowedMessage<'_>, id_header: &str) -> Result<String, Error> {
    let mut headers = message.headers().into_iter().flat_map(|all| all.iter());
    let id = headers.find(|header| header.key == id_header);
    let id = id.and_then(|header| header.value);
    let id = id.ok_or_else(|| Error::NoId(id_header.to_owned()))?;
    Ok(String::from_utf8_lossy(id).into_owned())
}

/// Claims the event and has its effect, in one transaction. False: it was processed before.
///
/// # Errors
/// Of the effect, or of Postgres: then nothing is changed.
pub async fn process(
    client: &mut Client,
    options: Options<'_>,
    message: &BorrowedMessage<'_>,
    effect: &impl AsyncFn(&Transaction<'_>, &BorrowedMessage<'_>) -> EffectResult,
) -> Result<bool, Error> {
    let id = event_id(message, options.id_header)?;
    let transaction = client.transaction().await?;
    // A concurrent claim of the same event is waited for.
    let claim =
        "INSERT INTO processed_events (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    if transaction.execute(claim, &[&options.name, &id]).await? == 0 {
        return Ok(false);
    }
    effect(&transaction, message).await.map_err(Error::Effect)?;
    transaction.commit().await?;
    Ok(true)
}

/// Processes records one after another, which keeps the order of each key, until `stop` is ready. An event
/// that has begun is finished. Calls `on_progress` after each event.
///
/// # Errors
/// If a server does not answer. Then start it again with new clients: records whose offset is not
/// committed come again, and those that were processed are known.
pub async fn run(
    consumer: &StreamConsumer,
    client: &mut Client,
    producer: &FutureProducer,
    options: Options<'_>,
    effect: impl AsyncFn(&Transaction<'_>, &BorrowedMessage<'_>) -> EffectResult,
    stop: impl Future<Output = ()>,
    mut on_progress: impl FnMut(),
) -> Result<(), Error> {
    let mut stop = pin!(stop);
    loop {
        let message = tokio::select! {
            biased;
            () = &mut stop => return Ok(()),
            message = consumer.recv() => message?,
        };
        let mut attempt = 1;
        let mut backoff = Backoff::new(options.pause);
        while let Err(error) = process(client, options, &message, &effect).await {
            // A connection that is gone fails here: that is no event's fault.
            client.simple_query("SELECT 1").await?;
            // Not the error's text: it may quote the event.
            log::warn!(
                "{}: attempt {attempt} of {}",
                place(&message),
                options.attempts
            );
            if attempt == options.attempts {
                // Later events of its key go on without it.
                set_aside(producer, options.dead_letters, &message, &error).await?;
                log::error!(
                    "{} is a dead letter in {}",
                    place(&message),
                    options.dead_letters
                );
                break;
            }
            attempt += 1;
            tokio::select! {
                // The next process has the event again.
                () = &mut stop => return Ok(()),
                () = tokio::time::sleep(backoff.next_pause()) => {}
            }
        }
        // If it fails, the partition was given to another consumer meanwhile: that one begins with this
        // record, and finds that it was processed.
        if let Err(error) = consumer.commit_message(&message, CommitMode::Sync) {
            log::info!("{}: its offset is not committed: {error}", place(&message));
        }
        on_progress();
    }
}

fn place(message: &BorrowedMessage<'_>) -> String {
    let (topic, partition) = (message.topic(), message.partition());
    format!("{topic}[{partition}]@{}", message.offset())
}

/// Writes the record as it is, with the error, and waits for the acknowledgement.
async fn set_aside(
    producer: &FutureProducer,
    topic: &str,
    message: &BorrowedMessage<'_>,
    error: &Error,
) -> Result<(), Error> {
    let error = error.to_string();
    let source = place(message);
    let headers = message
        .headers()
        .map_or_else(OwnedHeaders::new, |all| all.detach());
    let headers =
        [("error", &error), ("source", &source)]
            .into_iter()
            .fold(headers, |all, (key, value)| {
                all.insert(Header {
                    key,
                    value: Some(value),
                })
            });
    let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(topic).headers(headers);
    record.key = message.key();
    record.payload = message.payload();
    let sent = producer.send(record, Timeout::Never).await;
    sent.map(drop).map_err(|(error, _)| Error::Kafka(error))
}

/// Forgets events that are older than the longest replay; returns their number. Run it once a day.
///
/// # Errors
/// Of Postgres.
pub async fn prune(client: &Client, name: &str, days: i32) -> Result<u64, Error> {
    let old = "DELETE FROM processed_events WHERE consumer = $1 AND processed_at < now() - make_interval(days => $2)";
    Ok(client.execute(old, &[&name, &days]).await?)
}
