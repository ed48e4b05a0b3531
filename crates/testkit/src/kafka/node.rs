//! One Kafka process, the part that single brokers and clusters consist of.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs, io,
    net::TcpStream,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer as _},
    metadata::MetadataBroker,
};
use walrelay_throwaway::{
    Port, Scratch, ServerProcess, Signal, ThrowawayError, cache_dir, copy_dir,
};

use crate::threads::lock;

/// The version that `scripts/fetch-servers.sh` fetches.
const VERSION: &str = "4.1.0";
/// Any id will do; Kafka requires 16 bytes in base64.
const CLUSTER_ID: &str = "d2FscmVsYXktdGVzdGtpdA";
/// A JVM starts slowly on a busy machine with two cores.
const START_LIMIT: Duration = Duration::from_secs(240);

/// Options of the JVM.
#[derive(Debug, Clone, Copy)]
pub(super) struct Jvm {
    /// Maximum heap in MiB.
    pub(super) heap: u32,
    /// True if the optimising compiler is enabled.
    pub(super) full_speed: bool,
}

/// Role, `node.id` and arguments of a data directory that `StorageTool` formatted.
type Format = (&'static str, i32, Vec<String>);

/// A Kafka process with its data.
#[derive(Debug)]
pub(super) struct Node {
    process: ServerProcess,
    /// Name in messages.
    name: String,
    /// Port of the listener.
    pub(super) port: Port,
    /// True if the node is a broker. A mere controller serves no clients.
    broker: bool,
    jvm: Jvm,
    java: PathBuf,
    libs: PathBuf,
    /// Archive of Kafka's classes, with which a JVM starts in half the time, if there is one.
    classes: Option<PathBuf>,
}

impl Node {
    /// Creates a node with a port of its own, whose data directory is not formatted yet.
    pub(super) fn new(
        name: impl Into<String>,
        broker: bool,
        jvm: Jvm,
    ) -> Result<Self, ThrowawayError> {
        let libs = cache_dir().join(format!("kafka-{VERSION}")).join("libs");
        assert!(
            libs.join(format!("kafka_2.13-{VERSION}.jar")).is_file(),
            "Kafka {VERSION} is needed, and not in {}: run scripts/fetch-servers.sh (make test does)",
            libs.display()
        );
        let classes = cache_dir().join(format!("kafka-{VERSION}-classes/classes.jsa"));
        let home = env::var_os("JAVA_HOME").filter(|home| !home.is_empty());
        let java = home.map(|home| PathBuf::from(home).join("bin/java"));
        let java = java.unwrap_or_else(|| "java".into());
        Ok(Self {
            process: ServerProcess::new("walrelay-kafka-", None)?,
            name: name.into(),
            port: free_port()?,
            broker,
            jvm,
            java,
            libs,
            classes: classes.is_file().then_some(classes),
        })
    }

    /// Returns the data directory, for `log.dirs`.
    pub(super) fn data_dir(&self) -> PathBuf {
        self.process.dir().join("data")
    }

    /// Returns the log of all starts, from WARN upwards.
    pub(super) fn log(&self) -> String {
        self.process.log()
    }

    /// Returns the process id, if the node runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    fn run_format(&self, arguments: &[String]) -> Result<(), ThrowawayError> {
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

    /// Writes `server.properties` and formats the data directory. A JVM does that for the first node of
    /// this role and `node.id` with these arguments; later ones get a copy.
    pub(super) fn format(
        &self,
        (role, id): (&'static str, i32),
        properties: &str,
        arguments: &[String],
    ) -> Result<(), ThrowawayError> {
        static FORMATTED: Mutex<BTreeMap<Format, Scratch>> = Mutex::new(BTreeMap::new());
        fs::write(self.properties(), properties).map_err(failed_to("write server.properties"))?;
        let mut formatted = lock(&FORMATTED);
        let key = (role, id, arguments.to_vec());
        if let Some(first) = formatted.get(&key) {
            return copy_dir(&first.path().join("data"), &self.data_dir());
        }
        self.run_format(arguments)?;
        let first = Scratch::new("walrelay-kafka-", None)
            .map_err(failed_to("make a temporary directory for Kafka"))?;
        copy_dir(&self.data_dir(), &first.path().join("data"))?;
        formatted.insert(key, first);
        Ok(())
    }

    /// Starts the node and waits until it answers. A broker must also list itself among the brokers
    /// that are up.
    pub(super) fn start(&self) -> Result<(), ThrowawayError> {
        let mut command = self.java();
        command.arg("kafka.Kafka").arg(self.properties());
        let mut client: Option<BaseConsumer> = None;
        let port = self.port.number();
        self.process.start(&mut command, START_LIMIT, || {
            if TcpStream::connect(("127.0.0.1", port)).is_err() {
                return false;
            }
            if !self.broker {
                return true;
            }
            // Create the client only now: librdkafka is slow to retry an address that refused a
            // connection.
            let client = client.get_or_insert_with(|| consumer(&[port]));
            let metadata = client.fetch_metadata(None, Duration::from_millis(500));
            let is_this = |broker: &MetadataBroker| broker.port() == i32::from(port);
            metadata.is_ok_and(|up| up.brokers().iter().any(is_this))
        })
    }

    /// Starts the node after [`end_by`](Self::end_by), on the same port.
    #[track_caller]
    pub(super) fn start_again(&self) {
        self.done(self.start());
    }

    fn java(&self) -> Command {
        let mut command = Command::new(&self.java);
        if let Some(classes) = &self.classes {
            let mut option = OsString::from("-XX:SharedArchiveFile=");
            option.push(classes);
            command.arg(option);
        }
        command
            .arg(format!("-Xmx{}m", self.jvm.heap))
            .args(["-XX:+UseSerialGC", "-Djava.awt.headless=true"]);
        if !self.jvm.full_speed {
            command.arg("-XX:TieredStopAtLevel=1");
        }
        command
            .args(["-Dlog4j2.level=WARN", "-cp"])
            .arg(self.libs.join("*"))
            .current_dir(self.process.dir())
            .env_remove("JAVA_TOOL_OPTIONS")
            .env_remove("CLASSPATH");
        command
    }

    fn properties(&self) -> PathBuf {
        self.process.dir().join("server.properties")
    }

    /// Sends a signal and waits for the end.
    #[track_caller]
    pub(super) fn end_by(&self, signal: Signal) {
        self.done(self.process.end_by(signal));
    }

    #[track_caller]
    pub(super) fn signal(&self, signal: Signal) {
        self.done(self.process.signal(signal));
    }

    #[track_caller]
    fn done(&self, result: Result<(), ThrowawayError>) {
        result.unwrap_or_else(|error| panic!("{}: {error}", self.name));
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

pub(super) fn free_port() -> Result<Port, ThrowawayError> {
    Port::free().map_err(failed_to("find a free port"))
}

fn failed_to(what: &'static str) -> impl FnOnce(io::Error) -> ThrowawayError {
    move |source| ThrowawayError::Io {
        what: what.into(),
        source,
    }
}
