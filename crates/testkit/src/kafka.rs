use std::{
    env,
    fmt::Write as _,
    fs,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer as _},
};
use walrelay_throwaway::{Process, Scratch, Signal, ThrowawayError, cache_dir};

use crate::ChaosProxy;

/// As in `scripts/fetch-servers.sh`.
const VERSION: &str = "4.1.0";
/// Any will do; Kafka wants 16 bytes in base64.
const CLUSTER_ID: &str = "d2FscmVsYXktdGVzdGtpdA";
/// A JVM on a busy machine of two cores takes its time.
const START_LIMIT: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// What a [`Kafka`] is to be like.
#[derive(Debug, Clone)]
pub struct KafkaBuilder {
    partitions: u32,
    auto_create: bool,
    proxied: bool,
    full_speed: bool,
    settings: Vec<(String, String)>,
}

impl KafkaBuilder {
    /// How many partitions a topic gets that is created on demand. Default: 3.
    #[must_use]
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// Whether the broker creates topics on demand. Default: yes.
    #[must_use]
    pub fn auto_create(mut self, auto_create: bool) -> Self {
        self.auto_create = auto_create;
        self
    }

    /// With a second listener that is reached, and advertised, through a [`ChaosProxy`].
    #[must_use]
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// With the JVM's optimising compiler: for measurements. Without, a broker is up in half the
    /// time, which is what tests need.
    #[must_use]
    pub fn full_speed(mut self) -> Self {
        self.full_speed = true;
        self
    }

    /// A line of `server.properties`; overrides what is there by default.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// A broker of one's own, ready. (`WALRELAY_TEST_KAFKA` does not count here: who builds, wants
    /// these settings.)
    ///
    /// # Panics
    /// If the servers were not fetched, there is no Java 17, or it does not start.
    #[track_caller]
    pub fn start(self) -> Kafka {
        match Own::start(&self) {
            Ok(own) => Kafka {
                server: Server::Own(Box::new(own)),
            },
            Err(error) => panic!("Kafka does not start: {error}"),
        }
    }
}

/// A real Apache Kafka, one broker in KRaft mode.
///
/// Dropping it kills it and removes its data.
#[derive(Debug)]
pub struct Kafka {
    server: Server,
}

#[derive(Debug)]
enum Server {
    Own(Box<Own>),
    /// Named by `WALRELAY_TEST_KAFKA`.
    Foreign(String),
}

#[derive(Debug)]
struct Own {
    // Before `scratch`: the process goes first, then its directory.
    process: Mutex<Option<Process>>,
    scratch: Scratch,
    port: u16,
    proxy: Option<ChaosProxy>,
    full_speed: bool,
    java: PathBuf,
    libs: PathBuf,
}

impl Kafka {
    /// What it is to be like.
    pub fn builder() -> KafkaBuilder {
        KafkaBuilder {
            partitions: 3,
            auto_create: true,
            proxied: false,
            full_speed: false,
            settings: Vec::new(),
        }
    }

    /// The running broker that `WALRELAY_TEST_KAFKA` names (`host:port`), else one of its own with
    /// the builder's defaults.
    ///
    /// # Panics
    /// As [`KafkaBuilder::start`].
    #[track_caller]
    pub fn start() -> Self {
        match env::var("WALRELAY_TEST_KAFKA") {
            Ok(servers) if !servers.is_empty() => Self {
                server: Server::Foreign(servers),
            },
            _ => Self::builder().start(),
        }
    }

    /// Whether it may be stopped: a broker that the environment names may not.
    pub fn is_own(&self) -> bool {
        matches!(self.server, Server::Own(_))
    }

    /// For `bootstrap.servers`.
    pub fn bootstrap_servers(&self) -> String {
        match &self.server {
            Server::Own(own) => format!("127.0.0.1:{}", own.port),
            Server::Foreign(servers) => servers.clone(),
        }
    }

    /// The proxy before the second listener; its address is for `bootstrap.servers` too.
    ///
    /// # Panics
    /// Without [`KafkaBuilder::proxied`].
    #[track_caller]
    pub fn proxy(&self) -> &ChaosProxy {
        self.own().proxy.as_ref().expect("built with proxied()")
    }

    /// Stops it in order (SIGTERM) and waits for its end.
    ///
    /// # Panics
    /// If it does not end within a minute.
    #[track_caller]
    pub fn stop(&self) {
        self.own().end_by(Signal::Term);
    }

    /// SIGKILL.
    #[track_caller]
    pub fn kill(&self) {
        self.own().end_by(Signal::Kill);
    }

    /// SIGSTOP: connections stay open, nothing is answered.
    #[track_caller]
    pub fn pause(&self) {
        self.own().signal(Signal::Stop);
    }

    /// SIGCONT.
    #[track_caller]
    pub fn resume(&self) {
        self.own().signal(Signal::Cont);
    }

    /// Starts it again on the same ports with the same data, and waits until it answers.
    ///
    /// # Panics
    /// If it runs, or does not start.
    #[track_caller]
    pub fn start_again(&self) {
        let own = self.own();
        let mut slot = own.process();
        assert!(slot.is_none(), "Kafka is running already");
        match own.launch() {
            Ok(process) => *slot = Some(process),
            Err(error) => panic!("Kafka does not start again: {error}"),
        }
    }

    /// Its process id, if it is one's own and runs.
    pub fn pid(&self) -> Option<u32> {
        let Server::Own(own) = &self.server else {
            return None;
        };
        own.process().as_ref().map(Process::pid)
    }

    /// What it logged, from WARN upwards.
    #[track_caller]
    pub fn log(&self) -> String {
        fs::read_to_string(self.own().scratch.path().join("log")).unwrap_or_default()
    }

    /// Creates a topic with these settings, such as `("max.message.bytes", "1000")`.
    ///
    /// # Panics
    /// If the broker refuses.
    #[track_caller]
    pub fn create_topic(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
            .set("bootstrap.servers", self.bootstrap_servers())
            .create()
            .expect("an admin client can be made");
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(10)));
        let done = futures_executor::block_on(admin.create_topics([&topic], &options));
        for result in done.expect("the broker answers") {
            if let Err((topic, code)) = result {
                panic!("topic {topic}: {code}");
            }
        }
    }

    #[track_caller]
    fn own(&self) -> &Own {
        match &self.server {
            Server::Own(own) => own,
            Server::Foreign(servers) => panic!(
                "this test controls its broker; it cannot use {servers} of WALRELAY_TEST_KAFKA, \
                 and starts its own with Kafka::builder()"
            ),
        }
    }
}

impl Own {
    fn start(builder: &KafkaBuilder) -> Result<Self, ThrowawayError> {
        let libs = cache_dir().join(format!("kafka-{VERSION}")).join("libs");
        assert!(
            libs.join(format!("kafka_2.13-{VERSION}.jar")).is_file(),
            "Kafka {VERSION} is needed, and not in {}: run scripts/fetch-servers.sh (make test does)",
            libs.display()
        );
        let java = env::var_os("JAVA_HOME")
            .filter(|home| !home.is_empty())
            .map_or_else(
                || "java".into(),
                |home| PathBuf::from(home).join("bin").join("java"),
            );
        let mut tries = 0;
        loop {
            match Self::start_on_free_ports(builder, java.clone(), libs.clone()) {
                // Between our looking for free ports and the broker's taking them.
                Err(ThrowawayError::Ended { log_tail, .. })
                    if log_tail.contains("Address already in use") && tries < 5 =>
                {
                    tries += 1;
                }
                done => return done,
            }
        }
    }

    fn start_on_free_ports(
        builder: &KafkaBuilder,
        java: PathBuf,
        libs: PathBuf,
    ) -> Result<Self, ThrowawayError> {
        let io = |what: &'static str| {
            move |source| ThrowawayError::Io {
                what: what.into(),
                source,
            }
        };
        let scratch = Scratch::new("walrelay-kafka-", None)
            .map_err(io("make a temporary directory for Kafka"))?;
        // Held together, so that the three differ.
        let held: Vec<TcpListener> = (0..3)
            .map(|_| TcpListener::bind(("127.0.0.1", 0)))
            .collect::<Result<_, _>>()
            .map_err(io("find free ports"))?;
        let ports: Vec<u16> = held
            .iter()
            .map(|listener| Ok(listener.local_addr()?.port()))
            .collect::<Result<_, _>>()
            .map_err(io("find free ports"))?;
        let [port, controller, behind] = ports[..] else {
            unreachable!("three were bound")
        };
        let proxy = builder
            .proxied
            .then(|| ChaosProxy::start(("127.0.0.1", behind)));
        drop(held);

        let own = Self {
            process: Mutex::new(None),
            scratch,
            port,
            proxy,
            full_speed: builder.full_speed,
            java,
            libs,
        };
        fs::write(
            own.properties(),
            own.server_properties(builder, controller, behind),
        )
        .map_err(io("write server.properties"))?;
        let format = own
            .java()
            .arg("kafka.tools.StorageTool")
            .args(["format", "-t", CLUSTER_ID, "-c"])
            .arg(own.properties())
            .stdin(Stdio::null())
            .output()
            .map_err(io(
                "run java: Kafka needs Java 17 or newer in PATH or JAVA_HOME",
            ))?;
        assert!(
            format.status.success(),
            "Kafka's StorageTool ended with {}:\n{}{}",
            format.status,
            String::from_utf8_lossy(&format.stdout),
            String::from_utf8_lossy(&format.stderr)
        );
        *own.process() = Some(own.launch()?);
        Ok(own)
    }

    fn launch(&self) -> Result<Process, ThrowawayError> {
        let mut command = self.java();
        command.arg("kafka.Kafka").arg(self.properties());
        let log = self.scratch.path().join("log");
        // SIGKILL: these data are worth no orderly end.
        let process = Process::spawn("testkit-kafka", &command, &self.scratch, &log, Signal::Kill)?;
        let mut client: Option<BaseConsumer> = None;
        process.wait_ready(START_LIMIT, || {
            if TcpStream::connect(("127.0.0.1", self.port)).is_err() {
                return false;
            }
            // Made late: librdkafka is slow to try again what it has seen refuse.
            let client = client.get_or_insert_with(|| {
                ClientConfig::new()
                    .set("bootstrap.servers", format!("127.0.0.1:{}", self.port))
                    .create()
                    .expect("a consumer can be made")
            });
            client
                .fetch_metadata(None, Duration::from_millis(500))
                .is_ok_and(|metadata| {
                    metadata
                        .brokers()
                        .iter()
                        .any(|broker| broker.port() == i32::from(self.port))
                })
        })?;
        Ok(process)
    }

    fn java(&self) -> Command {
        let mut command = Command::new(&self.java);
        command.args(["-Xmx384m", "-XX:+UseSerialGC", "-Djava.awt.headless=true"]);
        if !self.full_speed {
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

    fn server_properties(&self, builder: &KafkaBuilder, controller: u16, behind: u16) -> String {
        let port = self.port;
        let mut listeners = format!("PLAINTEXT://127.0.0.1:{port}");
        let mut advertised = listeners.clone();
        if let Some(proxy) = &self.proxy {
            let _ = write!(listeners, ",PROXIED://127.0.0.1:{behind}");
            let _ = write!(advertised, ",PROXIED://127.0.0.1:{}", proxy.port());
        }
        let _ = write!(listeners, ",CONTROLLER://127.0.0.1:{controller}");
        let data = self.scratch.path().join("data");
        let defaults = [
            ("process.roles", "broker,controller".to_owned()),
            ("node.id", "1".to_owned()),
            (
                "controller.quorum.voters",
                format!("1@127.0.0.1:{controller}"),
            ),
            ("listeners", listeners),
            ("advertised.listeners", advertised),
            ("controller.listener.names", "CONTROLLER".to_owned()),
            ("inter.broker.listener.name", "PLAINTEXT".to_owned()),
            (
                "listener.security.protocol.map",
                "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
            ),
            ("log.dirs", data.display().to_string()),
            ("offsets.topic.replication.factor", "1".to_owned()),
            ("transaction.state.log.replication.factor", "1".to_owned()),
            ("transaction.state.log.min.isr", "1".to_owned()),
            ("group.initial.rebalance.delay.ms", "0".to_owned()),
            ("auto.create.topics.enable", builder.auto_create.to_string()),
            ("num.partitions", builder.partitions.to_string()),
        ];
        let mut text = String::new();
        for (name, value) in defaults {
            let _ = writeln!(text, "{name}={value}");
        }
        for (name, value) in &builder.settings {
            let _ = writeln!(text, "{name}={value}"); // of two equal names Java takes the later
        }
        text
    }

    #[track_caller]
    fn end_by(&self, signal: Signal) {
        let mut slot = self.process();
        let process = slot.as_ref().expect("Kafka is running");
        process.signal(signal).expect("Kafka can be signalled");
        let ended = process.wait(STOP_LIMIT);
        assert!(
            ended.is_some(),
            "Kafka had not ended {STOP_LIMIT:?} after {signal:?}"
        );
        *slot = None;
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        let slot = self.process();
        let process = slot.as_ref().expect("Kafka is running");
        process.signal(signal).expect("Kafka can be signalled");
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
