//! [`TestServer`]: the calls of tests that servers of every kind have.

use std::fmt;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;

use walrelay_throwaway::{ServerProcess, Signal, ThrowawayError};

use crate::threads::lock;

/// A kind of server, with what such a server needs besides its process.
pub trait ServerKind: Sized + Send + Sync + fmt::Debug + 'static {
    /// The name of the kind, for messages.
    const NAME: &'static str;
    /// The variable of the environment that says `skip` where no such server can be had.
    const SETTING: &'static str;
    /// The script that fetches the server.
    const SCRIPT: &'static str;

    /// Starts a server without data, and waits until it is ready.
    ///
    /// # Errors
    /// If it does not start.
    fn start() -> Result<Self, ThrowawayError>;

    /// Starts the server again, with the same data.
    ///
    /// # Errors
    /// If it does not start.
    fn start_again(&self) -> Result<(), ThrowawayError>;

    /// Returns the process.
    fn process(&self) -> &ServerProcess;

    /// Returns the port, on 127.0.0.1.
    fn port(&self) -> u16;

    /// Returns true if a server that runs takes connections.
    fn takes_connections(&self) -> bool;

    /// Returns the servers of this kind that the tests of this process share.
    fn servers() -> &'static SharedServers<Self>;
}

/// The servers of a kind that the tests of a process share.
#[derive(Debug)]
pub struct SharedServers<K> {
    shared: OnceLock<TestServer<K>>,
    in_turn: Mutex<Option<TestServer<K>>>,
}

impl<K> SharedServers<K> {
    /// Creates the place of the servers, which start when a test needs them.
    pub(crate) const fn new() -> Self {
        Self {
            shared: OnceLock::new(),
            in_turn: Mutex::new(None),
        }
    }
}

/// A server as an ordinary child process, which ends with its owner. All calls panic if the server fails.
#[derive(Debug)]
pub struct TestServer<K>(pub(crate) K);

impl<K: ServerKind> TestServer<K> {
    /// Returns true if tests with this kind are to run. Otherwise says that they do not.
    #[expect(
        clippy::print_stderr,
        reason = "the log of the tests says what was left out"
    )]
    pub fn is_wanted() -> bool {
        let skip = std::env::var_os(K::SETTING).is_some_and(|value| value == "skip");
        if skip {
            eprintln!("skipped: {} is \"skip\"", K::SETTING);
        }
        !skip
    }

    /// Returns the server that tests of this process share. No test stops it.
    pub fn shared() -> &'static Self {
        K::servers().shared.get_or_init(Self::start)
    }

    /// Lends the server that one test of this process has at a time, and may stop, kill or pause.
    pub fn in_turn() -> InTurn<K> {
        let mut server = lock(&K::servers().in_turn);
        if server.as_ref().is_none_or(|server| !server.answers()) {
            // The former one first, because it holds memory.
            *server = None;
            *server = Some(Self::start());
        }
        InTurn(server)
    }

    /// Starts a server without data, and waits until it answers.
    pub fn start() -> Self {
        Self::started(K::start())
    }

    /// Returns a started server; panics if it did not start.
    #[track_caller]
    pub(crate) fn started(result: Result<K, ThrowawayError>) -> Self {
        Self(result.unwrap_or_else(|error| {
            panic!(
                "{} does not start: {error}; {} fetches it (make test does), {}=skip leaves its tests out",
                K::NAME,
                K::SCRIPT,
                K::SETTING
            )
        }))
    }

    /// Starts the server after [`kill`](Self::kill), with the same data.
    #[track_caller]
    pub fn start_again(&self) {
        Self::done(self.0.start_again());
    }

    /// Ends the server by SIGKILL.
    #[track_caller]
    pub fn kill(&self) {
        Self::done(self.0.process().end_by(Signal::Kill));
    }

    /// Stops the server by SIGSTOP: it answers nothing.
    #[track_caller]
    pub fn pause(&self) {
        Self::done(self.0.process().signal(Signal::Stop));
    }

    /// Lets the server go on after [`pause`](Self::pause).
    #[track_caller]
    pub fn resume(&self) {
        Self::done(self.0.process().signal(Signal::Cont));
    }

    #[track_caller]
    fn done(result: Result<(), ThrowawayError>) {
        result.unwrap_or_else(|error| panic!("{}: {error}", K::NAME));
    }

    /// Returns the port, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.0.port()
    }

    /// Returns the process id of the server, which runs.
    pub fn pid(&self) -> u32 {
        self.0.process().pid().expect("the server runs")
    }

    /// Returns what the server has logged.
    pub fn log(&self) -> String {
        self.0.process().log()
    }

    pub(crate) fn answers(&self) -> bool {
        self.0.process().is_running() && self.0.takes_connections()
    }
}

/// The server of [`TestServer::in_turn`]. The next test gets it as it is at the end of a test that passed.
#[derive(Debug)]
pub struct InTurn<K: ServerKind>(MutexGuard<'static, Option<TestServer<K>>>);

impl<K: ServerKind> Deref for InTurn<K> {
    type Target = TestServer<K>;

    fn deref(&self) -> &TestServer<K> {
        self.0.as_ref().expect("it is there until the drop")
    }
}

impl<K: ServerKind> Drop for InTurn<K> {
    fn drop(&mut self) {
        if thread::panicking() {
            *self.0 = None;
        } else if let Some(server) = &*self.0
            && server.0.process().is_running()
        {
            // Does nothing unless the test has paused it.
            server.resume();
        }
    }
}
