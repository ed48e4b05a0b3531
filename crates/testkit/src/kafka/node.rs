//! One Kafka process, the part that single brokers and clusters consist of.

use std::{
    collections::HashMap,
    env, fs, io,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer as _},
};
use walrelay_throwaway::{Process, Scratch, Signal, ThrowawayError, cache_dir, copy_dir};

use crate::threads::lock;

/// The version that `scripts/fetch-servers.sh` fetches.
const VERSION: &str = "4.1.0";
/// Any id will do; Kafka requires 16 bytes in base64.
const CLUSTER_ID: &str = "d2FscmVsYXktdGVzdGtpdA";
/// A JVM starts slowly on a busy machine with two cores.
const START_LIMIT: Duration = Duration::from_secs(240);
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// The text that a process logs when its port is taken.
const PORT_TAKEN: &str = "Address already in use";

/// Options of the JVM.
#[derive(Debug, Clone, Copy)]
pub(super) struct Jvm {
    /// Maximum heap in MiB.
    pub(super) heap: u32,
    /// True if the optimising compiler is enabled.
    pub(super) full_speed: bool,
}

/// A Kafka process with its data.
#[derive(Debug)]
pub(super) struct Node {
    // Before `scratch`: drop the process first, then its directory.
    process: Mutex<Option<Process>>,
    scratch: Scratch,
    /// Name in messages.
    name: String,
    /// Port of the listener.
    pub(super) port: u16,
    /// True if the node is a broker. A mere controller serves no clients.
    broker: bool,
    jvm: Jvm,
    java: PathBuf,
    libs: PathBuf,
}

impl Node {
    /// Creates a node whose data directory is not formatted yet.
    pub(super) fn new(
        name: impl Into<String>,
        port: u16,
        broker: bool,
        jvm: Jvm,
    ) -> Result<Self, ThrowawayError> {
        let libs = cache_dir().join(format!("kafka-{VERSION}")).join("libs");
        assert!(
            libs.join(format!("kafka_2.13-{VERSION}.jar")).is_file(),
            "Kafka {VERSION} is needed, and not in {}: run scripts/fetch-servers.sh (make test does)",
            libs.display()
        );
        let home = env::var_os("JAVA_HOME").filter(|home| !home.is_empty());
        let java = home.map(|home| PathBuf::from(home).join("bin/java"));
        let java = java.unwrap_or_else(|| "java".into());
        let scratch = Scratch::new("walrelay-kafka-", None)
            .map_err(failed_to("make a temporary directory for Kafka"))?;
        Ok(Self {
            process: Mutex::new(None),
            scratch,
            name: name.into(),
            port,
            broker,
            jvm,
            java,
            libs,
        })
    }

    /// Returns the data directory, for `log.dirs`.
    pub(super) fn data_dir(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    /// Returns the log of all starts, from WARN upwards.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Returns the process id, if the node runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Process::pid)
    }

    /// Writes `server.properties` and formats the data directory.
    pub(super) fn format(
        &self,
        properties: &str,
        arguments: &[String],
    ) -> Result<(), ThrowawayError> {
        self.write_properties(properties)?;
        let format = self
            .java()
            .arg("kafka.tools.StorageTool")
            .args(["format", "-t", CLUSTER_ID, "-c"])
            .arg(self.properties())
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(failed_to(
                "run java: Kafka needs Java 17 or newer in PATH or JAVA_HOME",
            ))?;
        assert!(
            format.status.success(),
            "Kafka's StorageTool ended with {}:\n{}{}",
            format.status,
            String::from_utf8_lossy(&format.stdout),
            String::from_utf8_lossy(&format.stderr)
        );
        Ok(())
    }

    /// Writes `server.properties` and gives the node a copy of the data directory that was formatted
    /// first with these arguments: a JVM less. All nodes that call it have the same `node.id`.
    pub(super) fn format_as_before(
        &self,
        properties: &str,
        arguments: &[String],
    ) -> Result<(), ThrowawayError> {
        static FORMATTED: Mutex<Option<HashMap<Vec<String>, Scratch>>> = Mutex::new(None);
        let mut formatted = lock(&FORMATTED);
        let formatted = formatted.get_or_insert_default();
        if let Some(first) = formatted.get(arguments) {
            self.write_properties(properties)?;
            return copy_dir(&first.path().join("data"), &self.data_dir());
        }
        self.format(properties, arguments)?;
        let first = Scratch::new("walrelay-kafka-", None)
            .map_err(failed_to("make a temporary directory for Kafka"))?;
        copy_dir(&self.data_dir(), &first.path().join("data"))?;
        formatted.insert(arguments.to_vec(), first);
        Ok(())
    }

    fn write_properties(&self, properties: &str) -> Result<(), ThrowawayError> {
        fs::write(self.properties(), properties).map_err(failed_to("write server.properties"))
    }

    /// Starts the node and waits until it answers. A broker must also list itself among the brokers
    /// that are up.
    pub(super) fn start(&self) -> Result<(), ThrowawayError> {
        let mut slot = self.process();
        assert!(slot.is_none(), "{} is running already", self.name);
        let process = self.launch()?;
        self.wait_ready(&process)?;
        *slot = Some(process);
        Ok(())
    }

    /// Starts the node after [`end_by`](Self::end_by), on the same port. Meanwhile the system may
    /// have given the port to an outgoing connection of another process, so it retries.
    #[track_caller]
    pub(super) fn start_again(&self) {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match self.start() {
                Ok(()) => return,
                Err(error) if port_taken(&error) && Instant::now() < deadline => {}
                Err(error) => panic!("{} does not start again: {error}", self.name),
            }
        }
    }

    fn launch(&self) -> Result<Process, ThrowawayError> {
        let mut command = self.java();
        command.arg("kafka.Kafka").arg(self.properties());
        // SIGKILL: these data need no orderly end.
        Process::spawn(&mut command, &self.scratch, &self.log_path(), Signal::Kill)
    }

    fn wait_ready(&self, process: &Process) -> Result<(), ThrowawayError> {
        let mut client: Option<BaseConsumer> = None;
        process.wait_ready(START_LIMIT, || {
            if TcpStream::connect(("127.0.0.1", self.port)).is_err() {
                return false;
            }
            if !self.broker {
                return true;
            }
            // Create the client only now: librdkafka is slow to retry an address that refused a
            // connection.
            let client = client.get_or_insert_with(|| consumer(&[self.port]));
            let metadata = client.fetch_metadata(None, Duration::from_millis(500));
            let port = i32::from(self.port);
            metadata.is_ok_and(|up| up.brokers().iter().any(|broker| broker.port() == port))
        })
    }

    fn java(&self) -> Command {
        let mut command = Command::new(&self.java);
        command
            .arg(format!("-Xmx{}m", self.jvm.heap))
            .args(["-XX:+UseSerialGC", "-Djava.awt.headless=true"]);
        if !self.jvm.full_speed {
            command.arg("-XX:TieredStopAtLevel=1");
        }
        command
            .args(["-Dlog4j2.level=WARN", "-cp"])
            .arg(self.libs.join("*"))
            .current_dir(self.scratch.path())
            .env_remove("JAVA_TOOL_OPTIONS")
            .env_remove("CLASSPATH");
        command
    }

    fn properties(&self) -> PathBuf {
        self.scratch.path().join("server.properties")
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    /// Sends a signal and waits for the end.
    #[track_caller]
    pub(super) fn end_by(&self, signal: Signal) {
        self.signal(signal);
        let mut slot = self.process();
        let ended = slot.as_ref().and_then(|process| process.wait(STOP_LIMIT));
        assert!(
            ended.is_some(),
            "{} had not ended {STOP_LIMIT:?} after {signal:?}",
            self.name
        );
        *slot = None;
    }

    #[track_caller]
    pub(super) fn signal(&self, signal: Signal) {
        let slot = self.process();
        let Some(process) = slot.as_ref() else {
            panic!("{} is not running", self.name)
        };
        process.signal(signal).expect("Kafka can be signalled");
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        lock(&self.process)
    }
}

/// Returns a client of the brokers at these ports.
pub(super) fn consumer(ports: &[u16]) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", addresses(ports))
        .set("reconnect.backoff.max.ms", "500")
        .create()
        .expect("a consumer can be made")
}

/// Returns the addresses for `bootstrap.servers`.
pub(super) fn addresses(ports: &[u16]) -> String {
    let addresses = ports.iter().map(|port| format!("127.0.0.1:{port}"));
    addresses.collect::<Vec<_>>().join(",")
}

/// Calls `start` with free ports, and again with others if another process takes one before `start`
/// does.
pub(super) fn on_free_ports<const N: usize, T>(
    mut start: impl FnMut([u16; N]) -> Result<T, ThrowawayError>,
) -> Result<T, ThrowawayError> {
    let mut tries = 0;
    loop {
        match start(free_ports().map_err(failed_to("find free ports"))?) {
            Err(error) if port_taken(&error) && tries < 5 => tries += 1,
            done => return done,
        }
    }
}

fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let mut ports = [0; N];
    // Hold all listeners until the end, so that the ports differ.
    let mut held = Vec::with_capacity(N);
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

fn port_taken(error: &ThrowawayError) -> bool {
    matches!(error, ThrowawayError::Ended { log_tail, .. } if log_tail.contains(PORT_TAKEN))
}

fn failed_to(what: &'static str) -> impl FnOnce(io::Error) -> ThrowawayError {
    move |source| ThrowawayError::Io {
        what: what.into(),
        source,
    }
}
