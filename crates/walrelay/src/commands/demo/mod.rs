//! `walrelay demo`: a throwaway Postgres, a broker inside this process, orders being placed, and the
//! relay between them.
//!
//! - [`writer`]: places orders, some of which roll back.
//! - [`viewer`]: reads the broker, shows what arrives and holds it against what was committed.
//! - [`ledger`]: what both know of each event.
//! - [`drill`]: with `--drill`, faults one after the other, and what the relay shows of them.

mod drill;
mod ledger;
mod viewer;
mod writer;

use std::io::{IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use walrelay_kafka_sink::embedded::EmbeddedBroker;
use walrelay_lab::servers::{Postgres, PostgresBinaries};
use walrelay_relay::TableName;
use walrelay_walsender::{ConnInfo, Session, SessionKind};

use super::connect::block_on;
use super::run::{CommitToAck, Run};
use super::{Ended, Env};
use crate::cli::{DemoArgs, Exit, Failure, colours};
use crate::config::{Config, Log, LogFormat, LogLevel};
use crate::failures;
use crate::postgres::script;
use crate::telemetry::{RecentErrors, World, log_to_stderr};
use drill::Drill;
use ledger::Ledger;

/// Where the status page is, if the port is free.
const PAGE: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 9187);
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
    let log = Log {
        level: LogLevel::Warn,
        format: LogFormat::Text,
    };
    let errors = log_to_stderr(log, None, env);
    let shown = demonstrate(args, env, errors)?;
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

fn demonstrate(args: &DemoArgs, env: Env<'_>, errors: RecentErrors) -> Result<bool, Vec<Failure>> {
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
    let page = page_address()?;
    let config = Arc::new(configured(&server.url(), broker.bootstrap_servers(), page)?);
    say(&format!(
        "Orders are placed at {} a second in table outbox; {} of 100 transactions roll back.\n\
         Status page: http://{page}/",
        args.rate, args.rollbacks
    ));
    if !args.drill {
        say("\n   latency  topic                  key          value");
    }

    let ledger = Arc::new(Ledger::default());
    let (ready, relay_ready) = oneshot::channel();
    let (stop_relay, relay_stopped) = oneshot::channel::<()>();
    let relay = spawn("relay", {
        let config = Arc::clone(&config);
        move || relay(&config, errors, ready, relay_stopped)
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
        let shows = (!args.drill).then(|| colours(std::io::stdout().is_terminal(), env));
        move || viewer::watch(&broker, &topics, &ledger, &done, shows)
    })?;
    let written = if args.drill && streaming {
        let writes = AtomicBool::new(true);
        let drill = Drill::new(&config, &broker, &info, &writes);
        let (finish, finished) = oneshot::channel::<()>();
        thread::scope(|scope| {
            let drilled = scope.spawn(move || {
                let drilled = drill.run();
                drop(finish);
                drilled
            });
            let written = block_on(writer::write(&info, args, Arc::clone(&ledger), finished));
            writes.store(false, Ordering::Release);
            joined(drilled.join())??;
            written
        })?
    } else if streaming {
        let (_finish, finished) = oneshot::channel::<()>();
        block_on(writer::write(&info, args, Arc::clone(&ledger), finished))?
    } else {
        Ok(())
    };
    await_arrival(&ledger, &done);
    done.store(true, Ordering::Release);
    // The relay may have ended by an error of its own.
    let _ = stop_relay.send(());
    let commit_to_ack = joined(relay.join())??;
    let seen = joined(viewer.join())?.map_err(|error| failures::kafka_client(&error))?;
    written.map_err(|error| failures::postgres(error.into()))?;

    say(&ledger.summary(&seen, commit_to_ack));
    say(HOW_TO);
    Ok(ledger.verdict(&seen))
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

fn joined<T>(ended: thread::Result<T>) -> Result<T, Failure> {
    ended.map_err(|_| Failure::new("demo-thread", Exit::Internal, "a thread panicked"))
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

/// The same relay as `walrelay run`, until `stop` is sent or dropped.
fn relay(
    config: &Config,
    errors: RecentErrors,
    ready: oneshot::Sender<()>,
    stop: oneshot::Receiver<()>,
) -> Result<CommitToAck, Failure> {
    let run = Run {
        config,
        env: &|_| None,
        accept_gap: false,
        errors,
    };
    run.until(World::announcing(ready), || {
        Ok(async {
            // Dropped by a demo that ends early: stop in both cases.
            let _ = stop.await;
        })
    })
}

/// The configuration of the demonstration's relay.
fn configured(server: &str, broker: &str, page: SocketAddr) -> Result<Config, Vec<Failure>> {
    let text = format!(
        "[source]\nurl = \"{server}\"\ntables = [\"public.outbox\"]\n\
         [sink.kafka]\n\"bootstrap.servers\" = \"{broker}\"\n\
         [poison]\nunroutable = \"dead-letter\"\ntopic = \"walrelay.dlq\"\n\
         [http]\nlisten = \"{page}\"\n"
    );
    Ok(Config::parse(&text, "demo", &[], &|_| None)?)
}

/// The usual address of the page, or one that is free.
fn page_address() -> Result<SocketAddr, Failure> {
    let bound = TcpListener::bind(PAGE).or_else(|_| TcpListener::bind((PAGE.0, 0)));
    bound
        .and_then(|listener| listener.local_addr())
        .map_err(|error| {
            Failure::new(
                "demo",
                Exit::Unavailable,
                "no port is free for the status page",
            )
            .caused_by(error)
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
