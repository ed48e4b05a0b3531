//! Runs the example for the topic of the first argument. `CRASH` says where it ends by SIGKILL.

use std::time::Duration;

use consumer::{Options, SETTINGS};
use rdkafka::ClientConfig;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::producer::FutureProducer;
use tokio_postgres::{NoTls, Transaction};

fn crash(place: &str) {
    if std::env::var("CRASH").is_ok_and(|wanted| wanted == place) {
        let me = std::process::id().to_string();
        let _ = std::process::Command::new("kill")
            .args(["-9", &me])
            .status();
        std::process::abort();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let topic = std::env::args().nth(1).ok_or("usage: worker TOPIC")?;
    let mut kafka = ClientConfig::new();
    kafka.set(
        "bootstrap.servers",
        std::env::var("WALRELAY_EXAMPLE_KAFKA")?,
    );
    let producer: FutureProducer = kafka.create()?;
    // A killed worker's partitions are given to another after the time-out.
    kafka
        .set("group.id", &topic)
        .set("session.timeout.ms", "2000")
        .set("heartbeat.interval.ms", "200");
    for (name, value) in SETTINGS {
        kafka.set(name, value);
    }
    let consumer: StreamConsumer = kafka.create()?;
    consumer.subscribe(&[&topic])?;
    let (mut client, connection) =
        tokio_postgres::connect(&std::env::var("WALRELAY_EXAMPLE_POSTGRES")?, NoTls).await?;
    tokio::spawn(connection);
    let dead_letters = format!("{topic}.dead");
    let options = Options {
        name: &topic,
        id_header: "id",
        dead_letters: &dead_letters,
        attempts: 3,
        pause: Duration::from_millis(10),
    };
    let stop = std::future::pending();
    consumer::run(
        &consumer,
        &mut client,
        &producer,
        options,
        effect,
        stop,
        || (),
    )
    .await?;
    Ok(())
}

/// The effect of the tests: one row for each event, and a crash where a test asks for it.
async fn effect(
    transaction: &Transaction<'_>,
    message: &BorrowedMessage<'_>,
) -> consumer::EffectResult {
    let text =
        |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
    let number: i32 = text(message.payload()).parse()?;
    if number < 0 {
        return Err("poison".into());
    }
    let insert = "INSERT INTO rust_effects (topic, key, number) VALUES ($1, $2, $3)";
    transaction
        .execute(insert, &[&message.topic(), &text(message.key()), &number])
        .await?;
    crash(&format!("before commit {number}"));
    Ok(())
}
