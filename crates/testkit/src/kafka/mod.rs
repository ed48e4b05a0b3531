use std::{env, fmt::Write as _, time::Duration};

use futures_executor::block_on;
use rdkafka::{
    ClientConfig,
    admin::{
        AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication,
        TopicResult,
    },
    client::DefaultClientContext,
    error::KafkaResult,
    metadata::MetadataPartition,
};
use walrelay_throwaway::{Port, Signal, ThrowawayError};

use crate::{ChaosProxy, PATIENCE, eventually};

use self::node::{Jvm, Node, addresses, free_port};

mod acl;
mod cluster;
mod node;
mod secure;

pub use cluster::KafkaCluster;
pub use secure::SecureKafka;

/// Options of a [`Kafka`] or a [`KafkaCluster`]. Listeners, advertised host, proxy and format
/// arguments apply to a single broker only.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct KafkaBuilder {
    proxied: bool,
    full_speed: bool,
    settings: Vec<(String, String)>,
    listeners: Vec<(String, String)>,
    advertised_host: Option<String>,
    format: Vec<String>,
}

/// Limit of one look at a broker's metadata.
const LOOK: Duration = Duration::from_secs(2);

impl KafkaBuilder {
    /// Sets the number of partitions of a topic that is created on demand. Default: 3.
    pub fn partitions(self, partitions: u32) -> Self {
        self.setting("num.partitions", partitions.to_string())
    }

    /// Makes the broker create no topics on demand.
    pub fn without_auto_create(self) -> Self {
        self.setting("auto.create.topics.enable", "false")
    }

    /// Adds a second listener that is reached, and advertised, through a [`ChaosProxy`].
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Enables the JVM's optimising compiler, for measurements. Without it a broker starts in half
    /// the time, which suits tests.
    pub fn full_speed(mut self) -> Self {
        self.full_speed = true;
        self
    }

    /// Adds a line of `server.properties`; overrides the defaults.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Sets the host that the first listener is advertised as. It listens at 127.0.0.1 all the
    /// same.
    pub fn advertised_host(mut self, host: impl Into<String>) -> Self {
        self.advertised_host = Some(host.into());
        self
    }

    /// Adds a listener: its name, in upper case, and its security protocol. It is advertised as
    /// `localhost`, see [`Kafka::listener`]; its settings are `listener.name.<name in lower
    /// case>.…`.
    pub fn listener(mut self, name: impl Into<String>, protocol: impl Into<String>) -> Self {
        self.listeners.push((name.into(), protocol.into()));
        self
    }

    /// Adds an argument of `kafka.tools.StorageTool format`, such as those that create SCRAM
    /// users.
    pub fn format_argument(mut self, argument: impl Into<String>) -> Self {
        self.format.push(argument.into());
        self
    }

    /// Starts a broker of the test's own; returns when it is ready. `WALRELAY_TEST_KAFKA` is
    /// ignored: it would not have these settings.
    #[track_caller]
    pub fn start(self) -> Kafka {
        match OwnBroker::start(&self) {
            Ok(own) => Kafka {
                servers: addresses(&[own.node.port.number()]),
                own: Some(own),
            },
            Err(error) => panic!("Kafka does not start: {error}"),
        }
    }

    /// Returns the text of `server.properties`. Of two equal names Java takes the later. Records of tests may
    /// have old timestamps, and are kept all the same.
    fn properties(
        &self,
        node: &Node,
        (role, id): (&str, i32),
        replicas: u32,
        more: &str,
    ) -> String {
        let mut text = format!(
            "process.roles={role}\n\
             node.id={id}\n\
             controller.listener.names=CONTROLLER\n\
             log.dirs={}\n\
             offsets.topic.replication.factor={replicas}\n\
             transaction.state.log.replication.factor={replicas}\n\
             transaction.state.log.min.isr={}\n\
             group.initial.rebalance.delay.ms=0\n\
             auto.create.topics.enable=true\n\
             num.partitions=3\n\
             log.retention.ms=-1\n\
             {more}",
            node.data_dir().display(),
            replicas.div_ceil(2),
        );
        for (name, value) in &self.settings {
            let _ = writeln!(text, "{name}={value}");
        }
        text
    }
}

/// A real Apache Kafka: one broker in KRaft mode.
///
/// Dropping it kills the broker and removes its data.
#[derive(Debug)]
pub struct Kafka {
    servers: String,
    /// `None` if `WALRELAY_TEST_KAFKA` names another broker.
    own: Option<OwnBroker>,
}

#[derive(Debug)]
struct OwnBroker {
    /// The port of the controller's listener.
    controller: Port,
    node: Node,
    /// The proxy, and the port of the broker behind it.
    proxy: Option<(ChaosProxy, Port)>,
    /// Names and ports.
    listeners: Vec<(String, Port)>,
}

impl Kafka {
    /// Returns a builder with the defaults.
    pub fn builder() -> KafkaBuilder {
        KafkaBuilder::default()
    }

    /// Uses the running broker that `WALRELAY_TEST_KAFKA` names (`host:port`), else starts one with
    /// the builder's defaults.
    #[track_caller]
    pub fn start() -> Self {
        match env::var("WALRELAY_TEST_KAFKA") {
            Ok(servers) if !servers.is_empty() => Self { servers, own: None },
            _ => Self::builder().start(),
        }
    }

    /// Returns the address for `bootstrap.servers`.
    pub fn bootstrap_servers(&self) -> String {
        self.servers.clone()
    }

    /// Returns the address of the controller's listener, at which no broker answers.
    #[track_caller]
    pub fn controller_address(&self) -> String {
        format!("127.0.0.1:{}", self.own().controller)
    }

    /// Returns `localhost` and the port of a listener that [`KafkaBuilder::listener`] added.
    #[track_caller]
    pub fn listener(&self, name: &str) -> String {
        let listeners = &self.own().listeners;
        let found = listeners.iter().find(|(listener, _)| listener == name);
        let (_, port) = found.expect("a listener of this name");
        format!("localhost:{port}")
    }

    /// Returns the proxy before the second listener. Its address may serve as `bootstrap.servers`.
    #[track_caller]
    pub fn proxy(&self) -> &ChaosProxy {
        &self.own().proxy.as_ref().expect("built with proxied()").0
    }

    /// Stops the broker in order (SIGTERM) and waits for its end.
    #[track_caller]
    pub fn stop(&self) {
        self.own().node.end_by(Signal::Term);
    }

    /// Sends SIGKILL and waits for the end.
    #[track_caller]
    pub fn kill(&self) {
        self.own().node.end_by(Signal::Kill);
    }

    /// Sends SIGSTOP: connections stay open, the broker answers nothing.
    #[track_caller]
    pub fn pause(&self) {
        self.own().node.signal(Signal::Stop);
    }

    /// Sends SIGCONT.
    #[track_caller]
    pub fn resume(&self) {
        self.own().node.signal(Signal::Cont);
    }

    /// Starts the broker again on the same ports with the same data, and waits until it answers.
    #[track_caller]
    pub fn start_again(&self) {
        self.own().node.start_again();
    }

    /// Returns the process id, if the test started the broker and it runs.
    pub fn pid(&self) -> Option<u32> {
        self.own.as_ref()?.node.pid()
    }

    /// Returns the log of the broker, from WARN upwards.
    #[track_caller]
    pub fn log(&self) -> String {
        self.own().node.log()
    }

    /// Creates a topic with these settings, such as `("max.message.bytes", "1000")`.
    #[track_caller]
    pub fn create_topic(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        self.create_topics(&[name], partitions, settings);
    }

    /// Creates several topics with the same settings.
    #[track_caller]
    pub fn create_topics(&self, names: &[&str], partitions: i32, settings: &[(&str, &str)]) {
        let topics = names.iter();
        let topics = topics.map(|name| NewTopic::new(name, partitions, TopicReplication::Fixed(1)));
        create_topics(&self.servers, topics, settings);
    }

    /// Changes a setting of a topic.
    #[track_caller]
    pub fn alter_topic(&self, name: &str, key: &str, value: &str) {
        let change = AlterConfig::new(ResourceSpecifier::Topic(name)).set(key, value);
        let admin = admin(&self.servers);
        let done = block_on(admin.alter_configs([&change], &options()));
        for result in done.expect("the broker answers") {
            result.map(drop).expect("the topic is altered");
        }
    }

    /// Deletes topics.
    #[track_caller]
    pub fn delete_topics(&self, names: &[&str]) {
        delete_topics(&self.servers, names);
    }

    #[track_caller]
    fn own(&self) -> &OwnBroker {
        self.own.as_ref().unwrap_or_else(|| {
            panic!(
                "this test controls its broker; it cannot use {} of WALRELAY_TEST_KAFKA, \
                 and starts its own with Kafka::builder()",
                self.servers
            )
        })
    }
}

impl OwnBroker {
    fn start(builder: &KafkaBuilder) -> Result<Self, ThrowawayError> {
        let jvm = Jvm {
            heap: 384,
            full_speed: builder.full_speed,
        };
        let listener = |(name, _): &(String, String)| Ok((name.clone(), free_port()?));
        let proxy = |port: Port| (ChaosProxy::start(("127.0.0.1", port.number())), port);
        let own = Self {
            controller: free_port()?,
            node: Node::new("Kafka", true, jvm)?,
            proxy: builder.proxied.then(free_port).transpose()?.map(proxy),
            listeners: builder
                .listeners
                .iter()
                .map(listener)
                .collect::<Result<_, _>>()?,
        };
        let role = ("broker,controller", 1);
        let more = own.listener_properties(builder);
        let properties = builder.properties(&own.node, role, 1, &more);
        own.node.format(role, &properties, &builder.format)?;
        own.node.start()?;
        Ok(own)
    }

    /// Returns the properties of the listeners.
    fn listener_properties(&self, builder: &KafkaBuilder) -> String {
        let controller = &self.controller;
        let mut listeners = format!("PLAINTEXT://127.0.0.1:{}", self.node.port);
        let host = builder.advertised_host.as_deref().unwrap_or("127.0.0.1");
        let mut advertised = format!("PLAINTEXT://{host}:{}", self.node.port);
        if let Some((proxy, behind)) = &self.proxy {
            let _ = write!(listeners, ",PROXIED://127.0.0.1:{behind}");
            let _ = write!(advertised, ",PROXIED://127.0.0.1:{}", proxy.port());
        }
        let mut protocols = "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned();
        for ((name, port), (_, protocol)) in self.listeners.iter().zip(&builder.listeners) {
            let _ = write!(listeners, ",{name}://127.0.0.1:{port}");
            let _ = write!(advertised, ",{name}://localhost:{port}");
            let _ = write!(protocols, ",{name}:{protocol}");
        }
        format!(
            "controller.quorum.voters=1@127.0.0.1:{controller}\n\
             listeners={listeners},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners={advertised}\n\
             inter.broker.listener.name=PLAINTEXT\n\
             listener.security.protocol.map={protocols}\n"
        )
    }
}

fn admin(bootstrap_servers: &str) -> AdminClient<DefaultClientContext> {
    ClientConfig::new()
        .set("bootstrap.servers", bootstrap_servers)
        .create()
        .expect("an admin client can be made")
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(Duration::from_secs(120)))
}

#[track_caller]
fn delete_topics(bootstrap_servers: &str, names: &[&str]) {
    let admin = admin(bootstrap_servers);
    assert_accepted(block_on(admin.delete_topics(names, &options())));
}

#[track_caller]
fn create_topics<'a>(
    bootstrap_servers: &str,
    topics: impl Iterator<Item = NewTopic<'a>>,
    settings: &'a [(&'a str, &'a str)],
) {
    let set = |topic: NewTopic<'a>, (key, value): &(&'a str, &'a str)| topic.set(key, value);
    let topics = topics.map(|topic| settings.iter().fold(topic, set));
    let topics: Vec<NewTopic<'a>> = topics.collect();
    let admin = admin(bootstrap_servers);
    assert_accepted(block_on(admin.create_topics(&topics, &options())));
    // The controller answers before the broker knows them: a producer would find no topic for a moment.
    for topic in topics {
        eventually(PATIENCE, || is_served(&admin, topic.name));
    }
}

/// Returns true if the broker that is asked knows the topic, and a leader of each partition.
fn is_served(admin: &AdminClient<DefaultClientContext>, topic: &str) -> bool {
    let found = admin.inner().fetch_metadata(Some(topic), LOOK);
    let has_leader = |partition: &MetadataPartition| partition.leader() >= 0;
    found.is_ok_and(|found| {
        let topics = found.topics().iter();
        let mut topics = topics.filter(|of| of.name() == topic && of.error().is_none());
        topics.any(|of| !of.partitions().is_empty() && of.partitions().iter().all(has_leader))
    })
}

#[track_caller]
fn assert_accepted(answer: KafkaResult<Vec<TopicResult>>) {
    for result in answer.expect("the broker answers") {
        if let Err((topic, code)) = result {
            panic!("topic {topic}: {code}");
        }
    }
}
