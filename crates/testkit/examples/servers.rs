//! Runs a command beside a Postgres and a Kafka broker of its own, which end with it:
//!
//! ```text
//! cargo run -p walrelay-testkit --example servers -- 17 sh -c 'psql "$WALRELAY_EXAMPLE_POSTGRES"'
//! ```
//!
//! With `--rabbitmq`, `--redis` or `--nats` before it, that server too, if there is one. Their ports are in
//! `WALRELAY_EXAMPLE_RABBITMQ`, whose user and password are `guest`, `WALRELAY_EXAMPLE_REDIS` and
//! `WALRELAY_EXAMPLE_NATS`. The next argument is the major version of Postgres. The database has the SQL of
//! `migrations/` for services and consumers. `WALRELAY_EXAMPLE_KAFKA` has the brokers' addresses. For
//! `scripts/test-examples.sh` and `scripts/example.sh`.
//!
//! `WALRELAY_EXAMPLE_CRASH` has an address. A line `postgres` or `kafka` sent there kills that server by
//! SIGKILL and starts it again with its data; the answer is a line, when it is ready.

use std::error::Error;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, fs, io, thread};

use walrelay_testkit::{Db, Kafka, Nats, Redis, servers};
use walrelay_throwaway::{Postgres, RabbitMqBinaries, RabbitMqOptions, RabbitMqServer};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = env::args().skip(1).peekable();
    let (mut rabbitmq, mut redis, mut nats) = (false, false, false);
    while let Some(server) = arguments.next_if(|argument| argument.starts_with("--")) {
        match server.as_str() {
            "--rabbitmq" => rabbitmq = true,
            "--redis" => redis = Redis::is_wanted(),
            "--nats" => nats = Nats::is_wanted(),
            _ => return Err(format!("there is no server {server}").into()),
        }
    }
    let major = arguments.next().and_then(|major| major.parse().ok());
    let (Some(major), Some(program)) = (major, arguments.next()) else {
        return Err("usage: servers MAJOR COMMAND [ARGUMENT…]".into());
    };
    let postgres = servers::postgres(major);
    let db = Db::connect(&postgres.url());
    for script in [
        "0002_emit",
        "0004_processed_events",
        "0005_uuidv7",
        "0006_emit_all",
    ] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations");
        let script = format!("{folder}/{script}.sql");
        db.batch(&fs::read_to_string(script)?);
    }
    let rabbitmq = rabbitmq.then(|| RabbitMqBinaries::find().ok()).flatten();
    let rabbitmq =
        rabbitmq.map(|binaries| RabbitMqServer::start(&binaries, RabbitMqOptions::default()));
    let rabbitmq = rabbitmq.transpose()?;
    let redis = redis.then(Redis::start);
    let nats = nats.then(Nats::start);
    // Consumers of the tests are killed: their groups go on after a short time-out. The first group waits
    // until all partitions of the internal topic are created.
    let kafka = Kafka::builder()
        .setting("group.min.session.timeout.ms", "1000")
        .setting("offsets.topic.num.partitions", "3")
        .start();
    let crashes = TcpListener::bind("127.0.0.1:0")?;
    crashes.set_nonblocking(true)?;
    let mut command = Command::new(program);
    for (name, port) in [
        ("RABBITMQ", rabbitmq.as_ref().map(RabbitMqServer::port)),
        ("REDIS", redis.as_ref().map(Redis::port)),
        ("NATS", nats.as_ref().map(Nats::port)),
    ] {
        if let Some(port) = port {
            command.env(format!("WALRELAY_EXAMPLE_{name}"), port.to_string());
        }
    }
    let mut command = command
        .args(arguments)
        .env("WALRELAY_EXAMPLE_POSTGRES", postgres.url_tcp())
        .env("WALRELAY_EXAMPLE_KAFKA", kafka.bootstrap_servers())
        .env("WALRELAY_EXAMPLE_CRASH", crashes.local_addr()?.to_string())
        .spawn()?;
    let status = loop {
        match crashes.accept() {
            Ok((client, _)) => crash(&client, &postgres, &kafka)?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error.into()),
        }
        if let Some(status) = command.try_wait()? {
            break status;
        }
    };
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Kills the server that the client names, starts it again, and answers.
fn crash(mut client: &TcpStream, postgres: &Postgres, kafka: &Kafka) -> Result<(), Box<dyn Error>> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut server = String::new();
    BufReader::new(client).read_line(&mut server)?;
    match server.trim_end() {
        "postgres" => {
            postgres.kill()?;
            postgres.start_again()?;
        }
        "kafka" => {
            kafka.kill();
            kafka.start_again();
        }
        other => return Err(format!("there is no server {other}").into()),
    }
    // The client may have ended meanwhile: then the command's status says why.
    let _: io::Result<()> = client.write_all(b"ready\n");
    Ok(())
}
