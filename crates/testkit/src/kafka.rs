use std::{env, fmt::Write as _, time::Duration};

use rdkafka::{
    ClientConfig,
    admin::{
        AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication,
    },
    client::DefaultClientContext,
};
use walrelay_lab::servers::{Signal, ThrowawayError};

use crate::ChaosProxy;

use self::node::{Jvm, Node, addresses, on_free_ports};

mod acl;
mod cluster;
mod node;
mod secure;

pub use cluster::{KafkaCluster, KafkaClusterBuilder};
pub use secure::SecureKafka;

/// What a [`Kafka`] is to be like.
#[derive(Debug, Clone)]
pub struct KafkaBuilder {
    partitions: u32,
    auto_create: bool,
    proxied: bool,
    full_speed: bool,
    settings: Vec<(String, String)>,
    listeners: Vec<(String, String)>,
    format: Vec<String>,
}

/// Listeners of a test's own, at most.
const LISTENERS: usize = 6;

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

    /// One more listener: its name, in upper case, and its security protocol. It is advertised as
    /// `localhost`, see [`Kafka::listener`]; its settings are `listener.name.<name in lower case>.…`.
    #[must_use]
    pub fn listener(mut self, name: impl Into<String>, protocol: impl Into<String>) -> Self {
        self.listeners.push((name.into(), protocol.into()));
        self
    }

    /// An argument of `kafka.tools.StorageTool format`, such as those that make SCRAM's users.
    #[must_use]
    pub fn format_argument(mut self, argument: impl Into<String>) -> Self {
        self.format.push(argument.into());
        self
    }

    /// A broker of one's own, ready. (`WALRELAY_TEST_KAFKA` does not count here: who builds, wants
    /// these settings.)
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
    node: Node,
    proxy: Option<ChaosProxy>,
    /// Names and ports.
    listeners: Vec<(String, u16)>,
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
            listeners: Vec::new(),
            format: Vec::new(),
        }
    }

    /// The running broker that `WALRELAY_TEST_KAFKA` names (`host:port`), else one of its own with
    /// the builder's defaults.
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
            Server::Own(own) => addresses(&[own.node.port()]),
            Server::Foreign(servers) => servers.clone(),
        }
    }

    /// `localhost` and the port of a listener that [`KafkaBuilder::listener`] added.
    #[track_caller]
    pub fn listener(&self, name: &str) -> String {
        let listeners = &self.own().listeners;
        let found = listeners.iter().find(|(listener, _)| listener == name);
        let (_, port) = found.expect("a listener of this name");
        format!("localhost:{port}")
    }

    /// The proxy before the second listener; its address is for `bootstrap.servers` too.
    #[track_caller]
    pub fn proxy(&self) -> &ChaosProxy {
        self.own().proxy.as_ref().expect("built with proxied()")
    }

    /// Stops it in order (SIGTERM) and waits for its end.
    #[track_caller]
    pub fn stop(&self) {
        self.own().node.end_by(Signal::Term);
    }

    /// SIGKILL.
    #[track_caller]
    pub fn kill(&self) {
        self.own().node.end_by(Signal::Kill);
    }

    /// SIGSTOP: connections stay open, nothing is answered.
    #[track_caller]
    pub fn pause(&self) {
        self.own().node.signal(Signal::Stop);
    }

    /// SIGCONT.
    #[track_caller]
    pub fn resume(&self) {
        self.own().node.signal(Signal::Cont);
    }

    /// Starts it again on the same ports with the same data, and waits until it answers.
    #[track_caller]
    pub fn start_again(&self) {
        self.own().node.start_again();
    }

    /// Its process id, if it is one's own and runs.
    pub fn pid(&self) -> Option<u32> {
        let Server::Own(own) = &self.server else {
            return None;
        };
        own.node.pid()
    }

    /// What it logged, from WARN upwards.
    #[track_caller]
    pub fn log(&self) -> String {
        self.own().node.log()
    }

    /// Creates a topic with these settings, such as `("max.message.bytes", "1000")`.
    #[track_caller]
    pub fn create_topic(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let one = TopicReplication::Fixed(1);
        create_topic(&self.bootstrap_servers(), name, partitions, one, settings);
    }

    /// Changes a setting of a topic.
    #[track_caller]
    pub fn alter_topic(&self, name: &str, key: &str, value: &str) {
        let admin = admin(&self.bootstrap_servers());
        let change = AlterConfig::new(ResourceSpecifier::Topic(name)).set(key, value);
        let options = AdminOptions::new();
        let done = futures_executor::block_on(admin.alter_configs([&change], &options));
        for result in done.expect("the broker answers") {
            if let Err((_, code)) = result {
                panic!("topic {name}: {code}");
            }
        }
    }

    /// Deletes a topic.
    #[track_caller]
    pub fn delete_topic(&self, name: &str) {
        let admin = admin(&self.bootstrap_servers());
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(10)));
        let done = futures_executor::block_on(admin.delete_topics(&[name], &options));
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
        on_free_ports(|ports: [u16; 3 + LISTENERS]| {
            let [port, controller, behind, others @ ..] = ports;
            let names = builder.listeners.iter().map(|(name, _)| name.clone());
            assert!(names.len() <= LISTENERS, "at most {LISTENERS} listeners");
            let listeners = names.zip(others).collect();
            let jvm = Jvm {
                heap: 384,
                full_speed: builder.full_speed,
            };
            let node = Node::new("Kafka", port, true, jvm)?;
            let proxy = builder
                .proxied
                .then(|| ChaosProxy::start(("127.0.0.1", behind)));
            let own = Self {
                node,
                proxy,
                listeners,
            };
            let properties = own.server_properties(builder, controller, behind);
            own.node.format(&properties, &builder.format)?;
            own.node.start()?;
            Ok(own)
        })
    }

    fn server_properties(&self, builder: &KafkaBuilder, controller: u16, behind: u16) -> String {
        let port = self.node.port();
        let mut listeners = format!("PLAINTEXT://127.0.0.1:{port}");
        let mut advertised = listeners.clone();
        if let Some(proxy) = &self.proxy {
            let _ = write!(listeners, ",PROXIED://127.0.0.1:{behind}");
            let _ = write!(advertised, ",PROXIED://127.0.0.1:{}", proxy.port());
        }
        let mut protocols = "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned();
        for ((name, port), (_, protocol)) in self.listeners.iter().zip(&builder.listeners) {
            let _ = write!(listeners, ",{name}://127.0.0.1:{port}");
            let _ = write!(advertised, ",{name}://localhost:{port}");
            let _ = write!(protocols, ",{name}:{protocol}");
        }
        let _ = write!(listeners, ",CONTROLLER://127.0.0.1:{controller}");
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
            ("listener.security.protocol.map", protocols),
            ("log.dirs", self.node.data_dir().display().to_string()),
            ("offsets.topic.replication.factor", "1".to_owned()),
            ("transaction.state.log.replication.factor", "1".to_owned()),
            ("transaction.state.log.min.isr", "1".to_owned()),
            ("group.initial.rebalance.delay.ms", "0".to_owned()),
            ("auto.create.topics.enable", builder.auto_create.to_string()),
            ("num.partitions", builder.partitions.to_string()),
        ];
        properties(&defaults, &builder.settings)
    }
}

/// Lines of `server.properties`. Of two equal names Java takes the later.
fn properties(defaults: &[(&str, String)], settings: &[(String, String)]) -> String {
    let mut text = String::new();
    for (name, value) in defaults {
        let _ = writeln!(text, "{name}={value}");
    }
    for (name, value) in settings {
        let _ = writeln!(text, "{name}={value}");
    }
    text
}

fn admin(bootstrap_servers: &str) -> AdminClient<DefaultClientContext> {
    ClientConfig::new()
        .set("bootstrap.servers", bootstrap_servers)
        .create()
        .expect("an admin client can be made")
}

#[track_caller]
fn create_topic(
    bootstrap_servers: &str,
    name: &str,
    partitions: i32,
    replicas: TopicReplication<'_>,
    settings: &[(&str, &str)],
) {
    let admin = admin(bootstrap_servers);
    let mut topic = NewTopic::new(name, partitions, replicas);
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
