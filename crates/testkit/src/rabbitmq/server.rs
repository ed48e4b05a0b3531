//! A RabbitMQ server for tests, with users.

use std::fs;
use std::net::TcpStream;
use std::ops::Deref;
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::thread;

use walrelay_throwaway::{
    Port, RabbitMqBinaries, RabbitMqOptions, RabbitMqServer, Signal, ThrowawayError,
};

use super::client::AmqpClient;
use crate::Authority;
use crate::threads::lock;
use crate::wait::{PATIENCE, eventually};

/// A RabbitMQ server, which ends with its owner. All calls panic if the server fails.
#[derive(Debug)]
pub struct RabbitMq {
    server: RabbitMqServer,
    /// The port of its management interface, or of TLS.
    _other_port: Option<Port>,
}

/// The variable of the environment that says `skip` where no RabbitMQ can be had.
const SETTING: &str = "WALRELAY_TEST_RABBITMQ";

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
    /// Returns true if tests with RabbitMQ are to run. Otherwise says that they do not.
    #[expect(
        clippy::print_stderr,
        reason = "the log of the tests says what was left out"
    )]
    pub fn is_wanted() -> bool {
        let skip = std::env::var_os(SETTING).is_some_and(|value| value == "skip");
        if skip {
            eprintln!("skipped: {SETTING} is \"skip\"");
        }
        !skip
    }

    /// Returns the server that tests of this process share. Nobody stops it.
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<RabbitMq> = LazyLock::new(RabbitMq::start);
        &SHARED
    }

    /// Lends the server that one test of this process has at a time, and may stop, kill or pause.
    pub fn in_turn() -> RabbitMqInTurn {
        let mut server = lock(&IN_TURN);
        if server.as_ref().is_none_or(|server| !server.answers()) {
            // The former one first, because it holds memory.
            *server = None;
            *server = Some(Self::start());
        }
        RabbitMqInTurn(server)
    }

    /// Starts a server with the users `guest`, who may do all, and `weak`, who may only read, and
    /// without data, and waits until it takes connections.
    pub fn start() -> Self {
        Self::with(RabbitMqOptions {
            settings: DEFINITIONS,
            files: &[("users.json", USERS)],
            ..RabbitMqOptions::default()
        })
    }

    /// Starts a server like that of [`start`](Self::start) with its management interface; returns it
    /// and the port of that.
    pub fn start_managed() -> (Self, u16) {
        let port = Port::free().expect("a free port");
        let settings =
            format!("{DEFINITIONS}management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n");
        let server = Self::with(RabbitMqOptions {
            settings: &settings,
            plugins: &["rabbitmq_management"],
            files: &[("users.json", USERS)],
        });
        server.with_port(port)
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
        let server = Self::with(RabbitMqOptions {
            settings: &settings,
            plugins: &["rabbitmq_auth_mechanism_ssl"],
            files: &[
                ("users.json", USERS),
                ("ca.pem", &ca),
                ("server.pem", &issued.certificate),
                ("key.pem", &issued.key),
            ],
        });
        server.with_port(port)
    }

    fn with(options: RabbitMqOptions<'_>) -> Self {
        let binaries = RabbitMqBinaries::find().unwrap_or_else(|error| {
            panic!("RabbitMQ is needed (make test fetches it), or {SETTING}=skip: {error}")
        });
        Self {
            server: worked(RabbitMqServer::start(&binaries, options)),
            _other_port: None,
        }
    }

    fn with_port(self, port: Port) -> (Self, u16) {
        let number = port.number();
        let server = Self {
            _other_port: Some(port),
            ..self
        };
        (server, number)
    }

    /// Returns the port of AMQP, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.server.pid().expect("the server runs")
    }

    /// Connects a client.
    pub fn client(&self) -> AmqpClient {
        AmqpClient::connect(self.port())
    }

    fn answers(&self) -> bool {
        self.server.is_running() && TcpStream::connect(("127.0.0.1", self.port())).is_ok()
    }

    /// Starts the server after [`kill`](Self::kill), with the same data.
    pub fn start_again(&self) {
        worked(self.server.start_again());
    }

    /// Ends the server by SIGKILL.
    pub fn kill(&self) {
        worked(self.server.kill());
    }

    /// Waits until a quorum queue or stream of the virtual host `/` outlives [`kill`](Self::kill).
    ///
    /// RabbitMQ 3.10 writes the name of a new Raft server to `names.dets` some time after it is
    /// made, and by then confirms messages. Killed before, it starts an empty quorum queue of that
    /// name. All streams have one Raft server; killed before, they do not exist.
    pub fn outlives_kill(&self, queue: &str, queue_type: &str) {
        let node = self.server.node();
        let (system, entry) = match queue_type {
            "stream" => ("coordination", "rabbit_stream_coordinator".to_owned()),
            // The tag of a binary follows the name.
            "quorum" => ("quorum", format!("%2F_{queue}m")),
            _ => return,
        };
        let names = self.server.dir().join("mnesia").join(&node);
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

    /// Stops the server by SIGSTOP: it answers nothing.
    pub fn pause(&self) {
        worked(self.server.signal(Signal::Stop));
    }

    /// Lets the server go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        worked(self.server.signal(Signal::Cont));
    }

    /// Runs `rabbitmqctl` with these arguments.
    pub fn control(&self, arguments: &[&str]) {
        let output = self.server.command("rabbitmqctl").args(arguments).output();
        let output = output.expect("rabbitmqctl can be run");
        assert!(
            output.status.success(),
            "rabbitmqctl {arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Returns what the server has logged.
    pub fn log(&self) -> String {
        let log = fs::read(self.server.log()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }
}

#[track_caller]
fn worked<T>(result: Result<T, ThrowawayError>) -> T {
    result.unwrap_or_else(|error| panic!("RabbitMQ: {error}"))
}

static IN_TURN: Mutex<Option<RabbitMq>> = Mutex::new(None);

/// The server of [`RabbitMq::in_turn`]. The next test gets it as it is at the end of a test that
/// passed.
#[derive(Debug)]
pub struct RabbitMqInTurn(MutexGuard<'static, Option<RabbitMq>>);

impl Deref for RabbitMqInTurn {
    type Target = RabbitMq;

    fn deref(&self) -> &RabbitMq {
        self.0.as_ref().expect("it is there until the drop")
    }
}

impl Drop for RabbitMqInTurn {
    fn drop(&mut self) {
        if thread::panicking() {
            *self.0 = None;
        } else if self.0.as_ref().is_some_and(|it| it.server.is_running()) {
            // Does nothing unless the test has paused it.
            self.resume();
        }
    }
}
