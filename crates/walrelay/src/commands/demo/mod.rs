//! `walrelay demo`: a throwaway Postgres, a broker inside this process, orders being placed, and the
//! relay between them.
//!
//! - [`writer`]: places orders, some of which roll back.
//! - [`viewer`]: reads the broker, shows what arrives and holds it against what was committed.
//! - [`ledger`]: what both know of each event.

mod ledger;
mod viewer;
mod writer;

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use walrelay_event_router::{Options, Router};
use walrelay_kafka_sink::embedded::EmbeddedBroker;
use walrelay_kafka_sink::{KafkaConfig, KafkaOptions, KafkaSinkFactory};
use walrelay_lab::servers::{Postgres, PostgresBinaries};
use walrelay_relay::{OnUpdate, Outcome, Pipeline, PoisonPolicy, Settings, TableName};
use walrelay_walsender::{ConnInfo, Session, SessionKind};

use super::connect::block_on;
use super::{Ended, Env};
use crate::cli::{DemoArgs, Exit, Failure, colours};
use crate::config::{Log, LogFormat, LogLevel};
use crate::failures;
use crate::postgres::{PostgresSource, SourceOptions, Wanted, script};
use crate::telemetry::{World, log_to_stderr};
use ledger::Ledger;

/// Aggregates of the demo and so its topics.
const AGGREGATES: [&str; 3] = ["Order", "Payment", "Shipment"];
const PARTITIONS: i32 = 4;
/// How long what was committed may take to arrive after the writer has stopped.
const ARRIVAL_PATIENCE: Duration = Duration::from_secs(15);

fn topic(aggregate: &str) -> String {
    format!("outbox.event.{aggregate}")
}

fn outbox() -> TableName {
    TableName {
        schema: "public".to_owned(),
        name: "outbox".to_owned(),
    }
}

/// `walrelay demo`.
pub(crate) fn demo(args: &DemoArgs, env: Env<'_>) -> Ended {
    log_to_stderr(
        Log {
            level: LogLevel::Warn,
            format: LogFormat::Text,
        },
        env,
    );
    let shown = demonstrate(args, env)?;
    if shown {
        Ok(())
    } else {
        Err(vec![verdict_failed()])
    }
}

fn verdict_failed() -> Failure {
    Failure::new(
        "demo",
        Exit::Data,
        "the demonstration did not come out as it must",
    )
    .remedy("this is a bug: please report it with the lines above")
}

fn say(line: &str) {
    // Nobody is left to be told when standard output is closed.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn demonstrate(args: &DemoArgs, env: Env<'_>) -> Result<bool, Failure> {
    let binaries = PostgresBinaries::find(None).map_err(|error| no_postgres(&error))?;
    say(&format!(
        "Starting a throwaway Postgres {} and a broker …",
        binaries.version()
    ));
    let server = Postgres::builder()
        .binaries(binaries)
        .start()
        .map_err(|error| no_postgres(&error))?;
    let topics: Vec<String> = AGGREGATES
        .iter()
        .map(|aggregate| topic(aggregate))
        .collect();
    let created: Vec<(&str, i32)> = topics.iter().map(|t| (t.as_str(), PARTITIONS)).collect();
    let broker = EmbeddedBroker::start(&created).map_err(|error| failures::kafka_client(&error))?;
    let info: ConnInfo = server
        .url()
        .parse()
        .map_err(|error| failures::conn_info(&error))?;
    block_on(prepare(&info))??;
    say(&format!(
        "Orders are placed at {} a second in table outbox; {} of 100 transactions roll back.\n\n   latency  topic                  key          value",
        args.rate, args.rollbacks
    ));

    let ledger = Arc::new(Ledger::default());
    let (ready, relay_ready) = oneshot::channel();
    let (stop_relay, relay_stopped) = oneshot::channel::<()>();
    let relay = spawn("relay", {
        let (info, broker) = (info.clone(), broker.bootstrap_servers().to_owned());
        move || relay(info, &broker, ready, relay_stopped)
    })?;
    // An error of the relay closes the channel; it is reported when the thread is joined.
    let streaming = block_on(relay_ready)?.is_ok();

    let done = Arc::new(AtomicBool::new(!streaming));
    let viewer = spawn("viewer", {
        let (ledger, done, broker) = (
            Arc::clone(&ledger),
            Arc::clone(&done),
            broker.bootstrap_servers().to_owned(),
        );
        let topics = topics.clone();
        let coloured = colours(std::io::stdout().is_terminal(), env);
        move || viewer::watch(&broker, &topics, &ledger, &done, coloured)
    })?;
    let written = if streaming {
        block_on(writer::write(&info, args, Arc::clone(&ledger)))?
            .map_err(|error| failures::postgres(error.into()))
    } else {
        Ok(())
    };
    await_arrival(&ledger, &done);
    done.store(true, Ordering::Release);
    // The relay may have ended by an error of its own.
    let _ = stop_relay.send(());
    let relayed = joined(relay)??;
    let seen = joined(viewer)?.map_err(|error| failures::kafka_client(&error))?;
    written?;

    say(&ledger.summary(&seen, &relayed));
    say(HOW_TO);
    Ok(ledger.verdict(&seen) && relayed.drained)
}

/// Waits until everything committed has arrived. A condition with a limit, not a delay.
fn await_arrival(ledger: &Ledger, done: &AtomicBool) {
    let limit = Instant::now() + ARRIVAL_PATIENCE;
    while !ledger.all_arrived() && !done.load(Ordering::Acquire) && Instant::now() < limit {
        ledger.wait_for_arrival(Duration::from_millis(100));
    }
}

fn no_postgres(error: &walrelay_lab::servers::ThrowawayError) -> Failure {
    Failure::new(
        "demo-postgres",
        Exit::Unavailable,
        "a throwaway Postgres cannot be started",
    )
    .caused_by(error.to_string())
    .remedy(
        "make demo installs what is missing where it can; on Debian: apt-get install \
             postgresql. WALRELAY_POSTGRES_BIN names a directory with initdb and postgres",
    )
}

fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<thread::JoinHandle<T>, Failure> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|error| {
            Failure::new("demo-thread", Exit::Unavailable, "cannot start a thread").caused_by(error)
        })
}

fn joined<T>(thread: thread::JoinHandle<T>) -> Result<T, Failure> {
    thread
        .join()
        .map_err(|_| Failure::new("demo-thread", Exit::Internal, "a thread panicked"))
}

async fn prepare(info: &ConnInfo) -> Result<(), Failure> {
    let create = async {
        let mut session = Session::connect(info, SessionKind::Sql, &[]).await?;
        session.query(&script::create_table(&outbox())).await?;
        session.query(writer::ORDERS).await?;
        session.close().await;
        Ok(())
    };
    create.await.map_err(failures::postgres)
}

/// What the relay's thread ends with.
pub(super) struct Relayed {
    /// Everything that was sent is confirmed in the slot.
    pub(super) drained: bool,
    /// Milliseconds from commit to acknowledgement: median and 99th percentile.
    pub(super) commit_to_ack: Option<(f64, f64)>,
}

/// The same pipeline as `walrelay run`.
fn relay(
    info: ConnInfo,
    broker: &str,
    ready: oneshot::Sender<()>,
    stop: oneshot::Receiver<()>,
) -> Result<Relayed, Failure> {
    let properties = [("bootstrap.servers".to_owned(), broker.to_owned())].into();
    let options = KafkaOptions {
        max_in_flight_records: 65_536,
        max_in_flight_bytes: 12 << 20,
        ..KafkaOptions::default()
    };
    let kafka = KafkaConfig::new(properties, options).map_err(|e| failures::kafka(&e))?;
    let router_options = Options::default();
    let wanted = Wanted {
        slot: "walrelay".to_owned(),
        publication: "walrelay".to_owned(),
        tables: vec![outbox()],
        columns: vec![
            router_options.payload.clone(),
            router_options.event_id.clone(),
        ],
        by_templates: false,
        messages: None,
        create: true,
        failover: false,
        snapshot: None,
    };
    let settings = Settings {
        tables: Arc::from([outbox()]),
        messages: None,
        max_in_flight_records: 65_536,
        status_interval: Duration::from_secs(1),
        receive_timeout: Duration::from_secs(5),
        drain_timeout: Duration::from_secs(30),
        backoff_initial: Duration::from_millis(100),
        backoff_max: Duration::from_secs(5),
        poison: PoisonPolicy::default(),
        on_update: OnUpdate::default(),
        schemas: None,
    };
    let options = SourceOptions {
        wal_sender_timeout: Duration::from_secs(5),
        state_file: None,
        accept_gap: false,
        retained_wal_warning: 0,
    };
    let mut pipeline = Pipeline::new(
        PostgresSource::new(info, wanted, options),
        Router::new(router_options),
        KafkaSinkFactory::new(kafka),
        World::announcing(ready),
        settings,
    );
    let outcome = block_on(pipeline.run(async {
        // Sent, or dropped by a demo that ends early: stop in both cases.
        let _ = stop.await;
    }))?
    .map_err(failures::pipeline)?;
    let latencies = pipeline.environment().latencies();
    Ok(Relayed {
        drained: matches!(outcome, Outcome::Drained { .. }),
        commit_to_ack: latencies.millis(0.5).zip(latencies.millis(0.99)),
    })
}

const HOW_TO: &str = "
The same against your own database and broker, with walrelay.toml:

    [source]
    url = \"postgres://relay:${PGPASSWORD}@db.example:5432/app?sslmode=verify-full\"
    tables = [\"public.outbox\"]

    [sink.kafka]
    \"bootstrap.servers\" = \"broker.example:9092\"

    walrelay init --dry-run     the SQL that prepares the database
    walrelay check              is everything ready?
    walrelay run                relay until stopped

README.md has the five minutes in full.";
