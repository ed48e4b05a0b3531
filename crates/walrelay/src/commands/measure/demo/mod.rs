//! `walrelay demo`: runs the relay between a throwaway Postgres, in which orders are placed, and a
//! Kafka broker or an HTTP receiver inside this process, or a throwaway RabbitMQ.
//!
//! - [`destination`]: the server of each kind of sink, and how its events are read.
//! - [`event`]: an event that has arrived, and the trait of who reads them. [`receiver`]: the HTTP receiver.
//! - [`writer`]: places orders, some of which roll back.
//! - [`viewer`]: reads and shows the events that arrive, and compares them with the commits.
//! - [`tracker`]: what writer and viewer know of each event.
//! - [`drill`]: with `--drill`, injects faults and prints what the relay shows of them.

mod destination;
mod drill;
mod event;
#[cfg(feature = "http")]
mod receiver;
mod tracker;
mod viewer;
mod writer;

use std::io::{ErrorKind, IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::Level;
use walrelay_failure::{Exit, Failure};
use walrelay_observe::{RecentErrors, RunObserver, colours, log_to_stderr};
use walrelay_postgres_source::OutboxTable;
use walrelay_relay::TableName;
use walrelay_sink::lock;
use walrelay_throwaway::{Postgres, PostgresBinaries};
use walrelay_walsender::ConnInfo;

use crate::cli::{DemoArgs, DemoSink};
use crate::commands::assembly::{block_on, sql_session};
use crate::commands::delivery::relay::{CommitToAck, RelayRun};
use crate::commands::{CommandResult, EnvVars};
use crate::config::{Config, Log, LogFormat};
use destination::Destination;
use drill::Drill;
use tracker::EventTracker;

/// The address of the status page, if the port is free.
const PAGE: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 9187);
/// Types of the aggregates; each has a topic of its own.
const AGGREGATES: [&str; 3] = ["Order", "Payment", "Shipment"];
const PARTITIONS: i32 = 4;
/// Longest time from the end of the writer until all committed events have arrived.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(15);

fn outbox() -> TableName {
    TableName {
        schema: "public".to_owned(),
        name: "outbox".to_owned(),
    }
}

/// Runs `walrelay demo`.
pub(crate) fn demo(args: &DemoArgs, env: EnvVars<'_>) -> CommandResult {
    let log = Log {
        level: Level::WARN,
        format: LogFormat::Text,
    };
    let errors = log_to_stderr(log, &[], env);
    if demonstrate(args, env, errors)? {
        return Ok(());
    }
    let failure = Failure::new(
        "demo",
        Exit::Data,
        "the demonstration did not come out as it must",
    );
    Err(failure
        .remedy("this is a bug: please report it with the lines above")
        .into())
}

/// Prints a line on standard output. Returns false if its reader has gone away.
fn print(line: &str) -> bool {
    let written = writeln!(std::io::stdout(), "{line}");
    !written.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Ends the writer once it is dropped or taken.
type Finish = Arc<Mutex<Option<oneshot::Sender<()>>>>;

/// Runs the demonstration; returns whether each committed event arrived, in order, and no other
/// did.
fn demonstrate(
    args: &DemoArgs,
    env: EnvVars<'_>,
    errors: RecentErrors,
) -> Result<bool, Vec<Failure>> {
    if args.drill && args.sink != DemoSink::Kafka {
        let what = "the drill stops the broker of Kafka that is inside this process";
        let failure = Failure::new("demo-drill", Exit::Usage, what);
        return Err(failure.remedy("leave out --sink, or --drill").into());
    }
    let servers = Servers::start(args.sink)?;
    let (page, _claim) = page_address()?;
    let sections = servers.destination.sections();
    let config = Arc::new(demo_config(&servers.postgres.url(), &sections, page)?);
    print(&format!(
        "Orders are placed at {} a second in table outbox; {} of 100 transactions roll back.\n\
         Status page: http://{page}/",
        args.rate, args.rollbacks
    ));
    if !args.drill {
        print("\n   latency  topic                  key          value");
    }

    let tracker = Arc::new(EventTracker::default());
    let (ready, relay_ready) = oneshot::channel();
    let (stop_relay, relay_stopped) = oneshot::channel::<()>();
    let relay = spawn("relay", {
        let config = Arc::clone(&config);
        move || relay(&config, errors, ready, relay_stopped)
    })?;
    // An error of the relay closes the channel; it is reported when the thread is joined.
    let streaming = block_on(relay_ready)?.is_ok();

    let done = Arc::new(AtomicBool::new(!streaming));
    let (finish, finished) = oneshot::channel();
    let finish: Finish = Arc::new(Mutex::new(Some(finish)));
    let viewer = spawn("viewer", {
        let (tracker, done) = (Arc::clone(&tracker), Arc::clone(&done));
        let finish = Arc::clone(&finish);
        let colours = (!args.drill).then(|| colours(std::io::stdout().is_terminal(), env));
        let open = servers.destination.reader();
        move || viewer::watch(open()?.as_mut(), &tracker, &done, colours, &finish)
    })?;
    let written = if streaming {
        servers.place_orders(args, &config, &tracker, &finish, finished)?
    } else {
        Ok(())
    };
    wait_for_arrivals(&tracker, &done);
    done.store(true, Ordering::Release);
    // Sending fails if the relay has ended with an error.
    let _ = stop_relay.send(());
    let commit_to_ack = join_result(relay.join())??;
    let totals = join_result(viewer.join())??;
    written.map_err(Failure::from)?;

    let destination = &servers.destination;
    print(&tracker.summary(&totals, destination.commit_to_ack(), commit_to_ack));
    print(&how_to(destination));
    Ok(tracker.is_correct(&totals))
}

/// The servers of the demonstration; dropping them stops both.
struct Servers {
    destination: Destination,
    postgres: Postgres,
    info: ConnInfo,
}

impl Servers {
    /// Starts both, and creates topics and tables.
    fn start(sink: DemoSink) -> Result<Self, Failure> {
        let binaries = PostgresBinaries::find(None).map_err(|error| no_postgres(&error))?;
        let destination = Destination::start(sink, &binaries.version().to_string())?;
        let postgres = Postgres::builder()
            .binaries(binaries)
            .start()
            .map_err(|error| no_postgres(&error))?;
        let info: Result<ConnInfo, _> = postgres.url().parse();
        let info = info.map_err(|error| walrelay_walsender::conn_info_failure(&error))?;
        block_on(create_tables(&info))??;
        Ok(Self {
            destination,
            postgres,
            info,
        })
    }

    /// Places orders until the end of the demonstration, which is that of the drill if there is
    /// one, or until nobody reads the output any more.
    fn place_orders(
        &self,
        args: &DemoArgs,
        config: &Config,
        tracker: &EventTracker,
        finish: &Finish,
        finished: oneshot::Receiver<()>,
    ) -> Result<Result<(), walrelay_walsender::Error>, Failure> {
        let write = || block_on(writer::write(&self.info, args, tracker, finished));
        let Some(broker) = self.destination.broker().filter(|_| args.drill) else {
            return write();
        };
        let writing = AtomicBool::new(true);
        let drill = Drill {
            config,
            broker,
            info: &self.info,
            writing: &writing,
            tracker,
            pause: args.pause,
        };
        thread::scope(|scope| {
            let drill = scope.spawn(move || {
                let result = drill.run();
                drop(lock(finish).take());
                result
            });
            let written = write();
            writing.store(false, Ordering::Release);
            join_result(drill.join())??;
            written
        })
    }
}

/// Waits until all committed events have arrived, or [`ARRIVAL_TIMEOUT`] is over.
fn wait_for_arrivals(tracker: &EventTracker, done: &AtomicBool) {
    let limit = Instant::now() + ARRIVAL_TIMEOUT;
    while !tracker.all_arrived() && !done.load(Ordering::Acquire) && Instant::now() < limit {
        tracker.wait_for_arrival(Duration::from_millis(100));
    }
}

fn no_postgres(error: &walrelay_throwaway::ThrowawayError) -> Failure {
    Failure::new(
        "demo-postgres",
        Exit::Unavailable,
        "a throwaway Postgres cannot be started",
    )
    .caused_by(error.to_string())
    .remedy(
        "make demo installs missing tools where it can; on Debian: apt-get install postgresql. \
         WALRELAY_POSTGRES_BIN names a directory with initdb and postgres",
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
            Failure::new("demo-thread", Exit::Unavailable, "cannot start a thread")
                .caused_by(error)
                .remedy("raise the limit of threads (ulimit -u), or end other programs: the demonstration needs some fifty")
        })
}

fn join_result<T>(result: thread::Result<T>) -> Result<T, Failure> {
    result.map_err(|_| {
        Failure::new("demo-thread", Exit::Internal, "a thread panicked")
            .remedy("this is a bug of the demonstration: please report it with the lines above")
    })
}

async fn create_tables(info: &ConnInfo) -> Result<(), Failure> {
    let mut session = sql_session(info).await?;
    session
        .query(&OutboxTable::default().create(&outbox()))
        .await?;
    session.query(writer::CREATE_AGGREGATES).await?;
    session.close().await;
    Ok(())
}

/// Runs the relay of `walrelay run` until `stop` is sent or dropped.
fn relay(
    config: &Config,
    errors: RecentErrors,
    ready: oneshot::Sender<()>,
    stop: oneshot::Receiver<()>,
) -> Result<CommitToAck, Failure> {
    let relay = RelayRun {
        config: &config.pipeline,
        process: &config.process,
        env: &|_| None,
        args: None,
        accept_gap: false,
        accept_loss: false,
        switches: false,
        errors,
    };
    relay.run_until(RunObserver::notifying(ready), || {
        Ok(async {
            // The sender is dropped by a demonstration that ends early: stop in both cases.
            let _ = stop.await;
        })
    })
}

/// Returns the configuration of the demonstration's relay.
fn demo_config(server: &str, sink: &str, page: SocketAddr) -> Result<Config, Vec<Failure>> {
    let text = format!(
        "[source]\nurl = \"{server}\"\ntables = [\"public.outbox\"]\n\
         {sink}[http]\nlisten = \"{page}\"\n"
    );
    Config::parse(&text, "demo", &[], &|_| None).map_err(crate::cli::from_config)
}

/// Returns the usual address of the status page, or another one with a free port; and the claim to it,
/// which is kept until the end: another demonstration that starts meanwhile takes another port. The relay
/// listens only later, and by TCP, so the UDP port of that number is the claim.
fn page_address() -> Result<(SocketAddr, Option<UdpSocket>), Failure> {
    let claim = UdpSocket::bind(PAGE).ok();
    let usual = claim.as_ref().and_then(|_| TcpListener::bind(PAGE).ok());
    usual
        .map_or_else(|| TcpListener::bind((PAGE.0, 0)), Ok)
        .and_then(|listener| Ok((listener.local_addr()?, claim)))
        .map_err(|error| {
            Failure::new(
                "demo",
                Exit::Unavailable,
                "no port is free for the status page",
            )
            .caused_by(error)
            .remedy("end a program that listens on 127.0.0.1, or raise the limit of open files (ulimit -n)")
        })
}

fn how_to(destination: &Destination) -> String {
    format!(
        "
The same against your own database and server, with walrelay.toml:

    [source]
    url = \"postgres://relay:${{PGPASSWORD}}@db.example:5432/app?sslmode=verify-full\"
    tables = [\"public.outbox\"]

{}

    walrelay init --dry-run     the SQL that prepares the database
    walrelay check              is everything ready?
    walrelay run                relay until stopped

{}",
        destination.example(),
        destination.page()
    )
}
