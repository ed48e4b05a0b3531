//! A RabbitMQ server for tests, with users.

use std::fs;
use std::net::TcpStream;

use walrelay_throwaway::{
    Port, RabbitMqBinaries, RabbitMqOptions, RabbitMqServer, ServerProcess, ThrowawayError,
};

use super::client::AmqpClient;
use crate::Authority;
use crate::server::{ServerKind, SharedServers, TestServer};
use crate::wait::{PATIENCE, eventually};

/// A RabbitMQ server with the users `guest`, who may do all, and `weak`, who may only read.
pub type RabbitMq = TestServer<AmqpServer>;

/// The parts of a [`RabbitMq`].
#[derive(Debug)]
pub struct AmqpServer {
    server: RabbitMqServer,
    /// The port of its management interface, or of TLS.
    _other_port: Option<Port>,
}

/// The line of `rabbitmq.conf` that names [`USERS`].
const DEFINITIONS: &str = "load_definitions = {dir}/users.json\n";

/// The definitions of the users. The password of each is its name; its hash is the salt 1, 2, 3, 4
/// and SHA-256 of salt and password.
const USERS: &str = r#"{
    "users": [
        {"name": "guest", "tags": "administrator",
         "password_hash": "AQIDBEMMOXwY6PKx/JKP9PAqfsb4ozuD0Ta3pxxa9gEYBMmD",
         "hashing_algorithm": "rabbit_password_hashing_sha256"},
        {"name": "weak", "tags": "",
         "password_hash": "AQIDBE3ADeobBC8bTOTRuFPpL4upq90JVrBaIgEEQ1cplSjq",
         "hashing_algorithm": "rabbit_password_hashing_sha256"}
    ],
    "vhosts": [{"name": "/"}],
    "permissions": [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
        {"user": "weak", "vhost": "/", "configure": "", "write": "", "read": ".*"}
    ]
}
"#;

impl RabbitMq {
    /// Starts a server like that of [`start`](Self::start) with its management interface; returns it
    /// and the port of that.
    pub fn start_managed() -> (Self, u16) {
        let port = Port::free().expect("a free port");
        let settings =
            format!("{DEFINITIONS}management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n");
        let options = RabbitMqOptions {
            settings: &settings,
            plugins: &["rabbitmq_management"],
            files: &[("users.json", USERS)],
        };
        Self::start_with(options, port)
    }

    /// Starts a server like that of [`start`](Self::start) that listens for TLS, too; returns it and the
    /// port. A client with a certificate of this authority may log in by it (EXTERNAL), as the user
    /// that its common name says.
    pub fn start_secure(authority: &Authority, host: &str) -> (Self, u16) {
        let issued = authority.server(host);
        let ca = authority.pem();
        let port = Port::free().expect("a free port");
        let settings = format!(
            "{DEFINITIONS}listeners.ssl.default = 127.0.0.1:{port}\n\
             ssl_options.cacertfile = {{dir}}/ca.pem\nssl_options.certfile = {{dir}}/server.pem\n\
             ssl_options.keyfile = {{dir}}/key.pem\nssl_options.verify = verify_peer\n\
             ssl_options.fail_if_no_peer_cert = false\nssl_cert_login_from = common_name\n\
             auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\n"
        );
        let options = RabbitMqOptions {
            settings: &settings,
            plugins: &["rabbitmq_auth_mechanism_ssl"],
            files: &[
                ("users.json", USERS),
                ("ca.pem", &ca),
                ("server.pem", &issued.certificate),
                ("key.pem", &issued.key),
            ],
        };
        Self::start_with(options, port)
    }

    /// Starts a server that listens at this port, too.
    fn start_with(options: RabbitMqOptions<'_>, port: Port) -> (Self, u16) {
        let number = port.number();
        let server = Self::started(AmqpServer::start_with(options, Some(port)));
        (server, number)
    }

    /// Connects a client.
    pub fn client(&self) -> AmqpClient {
        AmqpClient::connect(self.port())
    }

    /// Waits until a quorum queue or stream of the virtual host `/` outlives [`kill`](Self::kill).
    ///
    /// RabbitMQ 3.10 writes the name of a new Raft server to `names.dets` some time after it is
    /// made, and by then confirms messages. Killed before, it starts an empty quorum queue of that
    /// name. All streams have one Raft server; killed before, they do not exist.
    pub fn outlives_kill(&self, queue: &str, queue_type: &str) {
        let node = self.0.server.node();
        let (system, entry) = match queue_type {
            "stream" => ("coordination", "rabbit_stream_coordinator".to_owned()),
            // The tag of a binary follows the name.
            "quorum" => ("quorum", format!("%2F_{queue}m")),
            _ => return,
        };
        let names = self.0.process().dir().join("mnesia").join(&node);
        let names = names.join(system).join(&node).join("names.dets");
        eventually(PATIENCE, || {
            let names = fs::read(&names).unwrap_or_default();
            let mut parts = names.windows(entry.len());
            parts.any(|part| part == entry.as_bytes())
        });
    }

    /// Suspends the leader of a stream of the virtual host `/`, the process that writes it: messages to the
    /// stream are not confirmed until [`replace_leader`](Self::replace_leader).
    pub fn suspend_leader(&self, stream: &str) {
        // The process goes on when the one ends that suspends it.
        self.evaluate(
            stream,
            "Self = self(), spawn(fun() ->
                 erlang:suspend_process(Leader()), Self ! suspended, receive never -> ok end
             end),
             receive suspended -> ok end",
        );
    }

    /// Waits until a message is sent to a [suspended](Self::suspend_leader) leader, kills it, and waits
    /// until another one is there.
    pub fn replace_leader(&self, stream: &str) {
        self.evaluate(
            stream,
            "Old = Leader(),
             Until = fun Until(Is) ->
                 case Is() of true -> ok; _ -> timer:sleep(20), Until(Is) end
             end,
             Until(fun() -> process_info(Old, message_queue_len) > {message_queue_len, 0} end),
             exit(Old, kill),
             Until(fun() -> Leader() =/= Old end)",
        );
    }

    /// Runs an expression of Erlang in the server. `Leader()` is the leader of the stream.
    fn evaluate(&self, stream: &str, expression: &str) {
        let expression = format!(
            "Leader = fun() ->
                 Name = rabbit_misc:r(<<\"/\">>, queue, <<\"{stream}\">>),
                 {{ok, Queue}} = rabbit_amqqueue:lookup(Name), amqqueue:get_pid(Queue)
             end,
             {expression}."
        );
        self.control(&["eval", &expression]);
    }

    /// Runs `rabbitmqctl` with these arguments.
    pub fn control(&self, arguments: &[&str]) {
        let output = self
            .0
            .server
            .command("rabbitmqctl")
            .args(arguments)
            .output();
        let output = output.expect("rabbitmqctl can be run");
        assert!(
            output.status.success(),
            "rabbitmqctl {arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

impl AmqpServer {
    fn start_with(
        options: RabbitMqOptions<'_>,
        port: Option<Port>,
    ) -> Result<Self, ThrowawayError> {
        Ok(Self {
            server: RabbitMqServer::start(&RabbitMqBinaries::find()?, options)?,
            _other_port: port,
        })
    }
}

impl ServerKind for AmqpServer {
    const NAME: &'static str = "RabbitMQ";
    const SETTING: &'static str = "WALRELAY_TEST_RABBITMQ";
    const SCRIPT: &'static str = "scripts/fetch-rabbitmq.sh";

    fn start() -> Result<Self, ThrowawayError> {
        let options = RabbitMqOptions {
            settings: DEFINITIONS,
            files: &[("users.json", USERS)],
            ..RabbitMqOptions::default()
        };
        Self::start_with(options, None)
    }

    fn start_again(&self) -> Result<(), ThrowawayError> {
        self.server.start_again()
    }

    fn process(&self) -> &ServerProcess {
        self.server.process()
    }

    fn port(&self) -> u16 {
        self.server.port()
    }

    fn takes_connections(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.port())).is_ok()
    }

    fn servers() -> &'static SharedServers<Self> {
        static SERVERS: SharedServers<AmqpServer> = SharedServers::new();
        &SERVERS
    }
}
