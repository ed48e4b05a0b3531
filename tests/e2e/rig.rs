//! A relay with its servers.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use walrelay_lab::servers::{ChildGuard, Postgres, Signal, end_with_owner};
use walrelay_testkit::{
    ChaosProxy, Db, History, Kafka, SlotWatch, Verdict, Workload, eventually, eventually_some,
    servers,
};

/// Long enough for a busy machine; nothing waits for it in vain.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
pub(crate) const SLOT: &str = "walrelay";

pub(crate) static TESTS: AtomicU32 = AtomicU32::new(0);

/// The broker that tests share. It goes when the last of them does.
pub(crate) fn shared_kafka() -> std::sync::Arc<Kafka> {
    static KAFKA: Mutex<Weak<Kafka>> = Mutex::new(Weak::new());
    let mut shared = KAFKA.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let kafka = std::sync::Arc::new(Kafka::start());
        *shared = std::sync::Arc::downgrade(&kafka);
        kafka
    })
}

/// Postgres, a configuration, and where the broker is.
pub(crate) struct Rig {
    pub(crate) postgres: Postgres,
    pub(crate) bootstrap: String,
    /// Topics of this test begin so.
    pub(crate) prefix: String,
    dir: TempDir,
    kafka: Option<std::sync::Arc<Kafka>>,
}

impl Rig {
    /// With the shared broker.
    pub(crate) fn new(major: u32) -> Self {
        let kafka = shared_kafka();
        let bootstrap = kafka.bootstrap_servers();
        let mut rig = Self::with(servers::postgres(major), bootstrap);
        rig.kafka = Some(kafka);
        rig
    }

    /// With the shared broker and the table `public.outbox`.
    pub(crate) fn with_outbox(major: u32) -> Self {
        let rig = Self::new(major);
        rig.workload().create_tables();
        rig
    }

    /// With a broker's address where nothing listens.
    pub(crate) fn without_broker(major: u32) -> Self {
        Self::with(servers::postgres(major), "127.0.0.1:9".to_owned())
    }

    /// With servers of the test's own.
    pub(crate) fn with(postgres: Postgres, bootstrap: String) -> Self {
        let number = TESTS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("t{}-{number}.", std::process::id());
        let dir = TempDir::with_prefix("walrelay-e2e-").expect("a directory");
        Self {
            postgres,
            bootstrap,
            prefix,
            dir,
            kafka: None,
        }
    }

    /// The shared broker.
    pub(crate) fn kafka(&self) -> &Kafka {
        self.kafka.as_deref().expect("a rig with the shared broker")
    }

    pub(crate) fn workload(&self) -> Workload {
        Workload::new(&self.postgres.url())
    }

    pub(crate) fn slot(&self) -> SlotWatch {
        SlotWatch::new(&self.postgres.url(), SLOT)
    }

    /// Postgres by TCP, as this role.
    pub(crate) fn url_as(&self, user: &str, password: &str, database: &str) -> String {
        let url = self.postgres.url_tcp_for(user, Some(password), database);
        url.expect("a TCP port")
    }

    /// A proxy before Postgres, and the URL that leads through it.
    pub(crate) fn proxy(&self) -> (ChaosProxy, String) {
        let port = self.postgres.port();
        let proxy = ChaosProxy::start(("127.0.0.1", port));
        let url = self.postgres.url_tcp().expect("a TCP port");
        let url = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        (proxy, url)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The configuration that most tests use.
    pub(crate) fn config(&self) -> PathBuf {
        self.config_with(&self.postgres.url(), "")
    }

    /// With another URL, and more lines at the end.
    pub(crate) fn config_with(&self, url: &str, more: &str) -> PathBuf {
        let text = format!(
            "[source]\nurl = \"{url}\"\ntables = [\"public.outbox\"]\n\n\
             [router.debezium]\n\"route.topic.replacement\" = \"{}${{routedByValue}}\"\n\n\
             [log]\nformat = \"json\"\n\n\
             [sink.kafka]\n\"bootstrap.servers\" = \"{}\"\n{more}",
            self.prefix, self.bootstrap
        );
        let path = self.path("walrelay.toml");
        fs::write(&path, text).expect("the configuration is written");
        path
    }

    /// Has the relay of this configuration log what is for developers, too.
    pub(crate) fn log_debug(config: &Path) {
        let text = fs::read_to_string(config).expect("it is there");
        let text = text.replace("[log]\n", "[log]\nlevel = \"debug\"\n");
        fs::write(config, text).expect("it is written");
    }

    /// Starts `walrelay run` and waits until the slot is read.
    pub(crate) fn relay(&self) -> Relay {
        self.streaming(&self.config())
    }

    /// The same with this configuration.
    #[track_caller]
    pub(crate) fn streaming(&self, config: &Path) -> Relay {
        let relay = self.start(config);
        relay.streaming();
        relay
    }

    pub(crate) fn start(&self, config: &Path) -> Relay {
        let number = TESTS.fetch_add(1, Ordering::Relaxed);
        Relay::start(config, &self.path(&format!("relay-{number}.log")))
    }

    /// The same with more arguments.
    pub(crate) fn start_with(&self, config: &Path, arguments: &[&str]) -> Relay {
        let number = TESTS.fetch_add(1, Ordering::Relaxed);
        let log = self.path(&format!("relay-{number}.log"));
        Relay::spawn(Relay::command(config).args(arguments), &log)
    }

    /// Waits until the slot has reached the end of the log as of now.
    pub(crate) fn caught_up(&self) {
        let slot = self.slot();
        slot.wait_until(slot.wal_end(), PATIENCE);
    }

    /// Reads both sides.
    pub(crate) fn history(&self) -> History {
        self.history_within(PATIENCE)
    }

    /// The same, where not everything is expected to arrive.
    pub(crate) fn history_within(&self, limit: Duration) -> History {
        History::collect(
            &self.postgres.url(),
            "public.outbox",
            &self.bootstrap,
            &self.prefix,
            limit,
        )
    }

    pub(crate) fn verdict(&self) -> Verdict {
        self.history().check()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.dir.disable_cleanup(true);
            eprintln!(
                "logs and configuration are left in {}",
                self.dir.path().display()
            );
        }
    }
}

/// `walrelay run` in a process of its own. Dropped, it is killed.
pub(crate) struct Relay {
    child: ChildGuard,
    log: PathBuf,
}

/// The binary, with arguments. It is killed when this process ends, also by SIGKILL.
pub(crate) fn walrelay(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_walrelay"));
    command
        .args(args)
        .env_remove("WALRELAY_CONFIG")
        .env("NO_COLOR", "1");
    end_with_owner(&mut command).expect("a shell");
    command
}

/// Inserts an event whose payload is `{"number": …}`.
pub(crate) fn insert(db: &Db, number: u32) {
    db.batch(&format!(
        "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'key', 'T', '{{\"number\": {number}}}')"
    ));
}

/// Runs a command with this configuration to its end.
pub(crate) fn output_with(command: &str, config: &Path, more: &[&str]) -> Output {
    let config = config.to_str().expect("a path that is text");
    output(&[&[command, "--config", config], more].concat())
}

/// What a command said on both streams.
pub(crate) fn said(output: &Output) -> String {
    let said = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8(said).expect("text")
}

/// What `walrelay check` found.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) code: Option<i32>,
    checks: Vec<Value>,
}

impl Checked {
    /// Runs it with this configuration.
    #[track_caller]
    pub(crate) fn of(config: &Path, more: &[&str]) -> Self {
        Self::read(&output_with(
            "check",
            config,
            &[&["--output", "json"], more].concat(),
        ))
    }

    #[track_caller]
    pub(crate) fn read(output: &Output) -> Self {
        let document: Value = match serde_json::from_slice(&output.stdout) {
            Ok(document) => document,
            Err(error) => panic!("{error}: {output:?}"),
        };
        let checks = document["checks"].as_array().expect("checks").clone();
        Self {
            code: output.status.code(),
            checks,
        }
    }

    /// The lines of an item, written as group/item.
    pub(crate) fn all(&self, item: &str) -> Vec<&Value> {
        let (group, item) = item.split_once('/').expect("group/item");
        let found = self.checks.iter();
        found
            .filter(|check| check["group"] == group && check["item"] == item)
            .collect()
    }

    /// The worst line of an item.
    #[track_caller]
    pub(crate) fn worst(&self, item: &str) -> &Value {
        let rank = |check: &&&Value| {
            ["pass", "warn", "fail"]
                .iter()
                .position(|verdict| check["verdict"] == *verdict)
        };
        let all = self.all(item);
        let worst = all.iter().max_by_key(rank);
        worst.unwrap_or_else(|| panic!("no {item} in {self:#?}"))
    }

    /// The verdict of an item is this, with these words in what is said of it.
    #[track_caller]
    pub(crate) fn is(&self, item: &str, verdict: &str, words: &[&str]) -> &Value {
        let found = self.worst(item);
        assert_eq!(found["verdict"], verdict, "{item}: {found:#}");
        assert_eq!(found["remedy"].is_null(), verdict == "pass", "{found:#}");
        let text = |member: &str| found[member].as_str().unwrap_or_default();
        let said = format!("{} {} [{}]", text("finding"), text("remedy"), text("id"));
        for word in words {
            assert!(said.contains(word), "{word:?} is not in {found:#}");
        }
        found
    }

    /// No item of the group fails.
    #[track_caller]
    pub(crate) fn nothing_fails(&self, group: &str) {
        let of_group: Vec<&Value> = self
            .checks
            .iter()
            .filter(|check| check["group"] == group)
            .collect();
        assert!(!of_group.is_empty(), "nothing of {group} in {self:#?}");
        for check in of_group {
            assert_ne!(check["verdict"], "fail", "{check:#}");
        }
    }
}

/// Runs a command to its end.
pub(crate) fn output(args: &[&str]) -> Output {
    walrelay(args).output().expect("walrelay runs")
}

impl Relay {
    fn start(config: &Path, log: &Path) -> Self {
        Self::spawn(&mut Self::command(config), log)
    }

    /// What is run, for tests that change its surroundings first.
    pub(crate) fn command(config: &Path) -> Command {
        walrelay(&[
            "run",
            "--config",
            config.to_str().expect("a path that is text"),
        ])
    }

    /// Runs such a command; what it says goes to this file.
    pub(crate) fn spawn(command: &mut Command, log: &Path) -> Self {
        Self::spawn_to(command, Stdio::null(), log)
    }

    /// The same, with standard output going somewhere.
    pub(crate) fn spawn_to(command: &mut Command, stdout: impl Into<Stdio>, log: &Path) -> Self {
        let file = File::create(log).expect("a log file");
        command.stdin(Stdio::null()).stdout(stdout).stderr(file);
        let child = ChildGuard::spawn(command).expect("walrelay runs");
        Self {
            child,
            log: log.to_owned(),
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it says something.
    pub(crate) fn says(&self, words: &str) {
        let found = || self.log().contains(words);
        eventually_or(PATIENCE, found, || {
            format!("{words:?} was not said; log:\n{}", self.log())
        });
    }

    /// Waits until it has said something so many times.
    pub(crate) fn says_often(&self, words: &str, times: usize) {
        let found = || self.log().matches(words).count() >= times;
        eventually_or(PATIENCE, found, || {
            format!("{words:?} was not said {times} times; log:\n{}", self.log())
        });
    }

    pub(crate) fn streaming(&self) {
        self.says("\"streaming\"");
    }

    /// How often it has started to stream.
    pub(crate) fn streams(&self) -> usize {
        self.log().matches("\"streaming\"").count()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, named as the program `kill` names it.
    pub(crate) fn signal(&self, name: &str) {
        let signal = match name {
            "-TERM" => Signal::Term,
            "-INT" => Signal::Int,
            "-HUP" => Signal::Hup,
            "-KILL" => Signal::Kill,
            "-STOP" => Signal::Stop,
            "-CONT" => Signal::Cont,
            other => panic!("{other} is not in this list"),
        };
        self.child.signal(signal).expect("a signal is sent");
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        eventually_some(PATIENCE, || self.child.try_wait().expect("a child"))
    }

    /// SIGTERM, and the exit code.
    pub(crate) fn terminate(mut self) -> (Option<i32>, String) {
        self.signal("-TERM");
        let code = self.ended().code();
        (code, self.log())
    }

    /// SIGTERM, after which it must say that all is confirmed, by its exit code. Gives its log.
    #[track_caller]
    pub(crate) fn ends_well(self) -> String {
        let (code, log) = self.terminate();
        assert_eq!(code, Some(0), "{log}");
        log
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is killed");
        self.child.wait().expect("it is reaped");
    }

    /// The greatest resident memory it has had, in MiB: `VmHWM` of proc(5).
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM:"))
            .expect("VmHWM");
        let kib = line.split_whitespace().nth(1).expect("a number");
        kib.parse::<u64>().expect("a number") / 1024
    }
}

/// Waits until the relay ends with this code and this error; its log.
#[track_caller]
pub(crate) fn ends(relay: &mut Relay, code: i32, id: &str) -> String {
    let status = relay.ended();
    let log = relay.log();
    assert_eq!(status.code(), Some(code), "{log}");
    assert!(log.contains(&format!("[{id}]")), "not {id}: {log}");
    log
}

/// As [`eventually`], with words of its own for the failure.
#[track_caller]
pub(crate) fn eventually_or(
    limit: Duration,
    mut condition: impl FnMut() -> bool,
    words: impl Fn() -> String,
) {
    let met = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually(limit, &mut condition);
    }));
    assert!(met.is_ok(), "{}", words());
}

/// What a command said that ended well.
#[track_caller]
pub(crate) fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    said(output)
}

/// The command ended with this code, these words and a remedy.
#[track_caller]
pub(crate) fn refused(output: &Output, code: i32, words: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words.iter().chain(&["help: "]) {
        assert!(said.contains(word), "{word:?} is missing: {said}");
    }
}
