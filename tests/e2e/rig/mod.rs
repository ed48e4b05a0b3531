//! A relay with its servers. [`brokers`] are shared, [`relay`] is `walrelay run` as a process,
//! [`output`] is about commands that run to their end.

mod brokers;
mod output;
mod relay;

pub(crate) use brokers::*;
pub(crate) use output::*;
pub(crate) use relay::*;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;
pub(crate) use walrelay_testkit::PATIENCE;
use walrelay_testkit::{
    ChaosProxy, Db, Delivered, History, Kafka, Running, SlotWatch, Verdict, Workload, eventually,
    seed_setting, servers,
};
use walrelay_throwaway::{Postgres, Shutdown, copy_dir};

pub(crate) const SLOT: &str = "walrelay";
/// Address at which nothing listens.
pub(crate) const NOWHERE: &str = "127.0.0.1:9";

/// A number that nothing else in this process has.
pub(crate) fn unique() -> u32 {
    static NUMBERS: AtomicU32 = AtomicU32::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// Postgres, the address of a broker, and a directory for configuration and logs.
pub(crate) struct Rig {
    pub(crate) postgres: Postgres,
    pub(crate) bootstrap: String,
    /// Prefix of the topics of this test.
    pub(crate) prefix: String,
    dir: TempDir,
    kafka: Option<&'static Kafka>,
}

impl Rig {
    /// Uses the shared broker.
    pub(crate) fn new(major: u32) -> Self {
        Self::on(servers::postgres(major))
    }

    /// Uses the shared broker, with this server.
    pub(crate) fn on(postgres: Postgres) -> Self {
        let kafka = shared_kafka();
        let mut rig = Self::with(postgres, kafka.bootstrap_servers());
        rig.kafka = Some(kafka);
        rig
    }

    /// Uses the shared broker and creates the table `public.outbox`.
    pub(crate) fn with_outbox(major: u32) -> Self {
        Self::new(major).outbox()
    }

    /// Uses a broker's address at which nothing listens.
    pub(crate) fn without_broker(major: u32) -> Self {
        Self::with(servers::postgres(major), NOWHERE)
    }

    /// Uses a broker of the test's own and creates the table `public.outbox`.
    pub(crate) fn with_kafka(major: u32, kafka: &Kafka) -> Self {
        Self::with(servers::postgres(major), kafka.bootstrap_servers()).outbox()
    }

    /// Uses servers of the test's own.
    pub(crate) fn with(postgres: Postgres, bootstrap: impl Into<String>) -> Self {
        let number = unique();
        Self {
            postgres,
            bootstrap: bootstrap.into(),
            prefix: format!("t{}-{number}.", std::process::id()),
            dir: TempDir::with_prefix("walrelay-e2e-").expect("a directory"),
            kafka: None,
        }
    }

    /// Creates the table `public.outbox`.
    pub(crate) fn outbox(self) -> Self {
        self.workload().create_tables();
        self
    }

    /// Creates the publication of the outbox, and the relay's slot.
    pub(crate) fn create_slot(&self) {
        let db = self.db();
        db.batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert')");
        // In a statement of its own: a transaction that has written cannot create a slot.
        create_slot(&db, SLOT);
    }

    /// The shared broker.
    pub(crate) fn kafka(&self) -> &Kafka {
        self.kafka.expect("a rig with the shared broker")
    }

    /// Deletes topics of this test from the shared broker: they are large.
    pub(crate) fn delete_topics(&self, kinds: &[&str]) {
        let topics: Vec<String> = kinds
            .iter()
            .map(|kind| format!("{}{kind}", self.prefix))
            .collect();
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        self.kafka().delete_topics(&topics);
    }

    /// A connection of the superuser.
    pub(crate) fn db(&self) -> Db {
        Db::connect(&self.postgres.url())
    }

    pub(crate) fn workload(&self) -> Workload {
        Workload::new(&self.postgres.url())
    }

    pub(crate) fn slot(&self) -> SlotWatch {
        SlotWatch::new(&self.postgres.url(), SLOT)
    }

    /// URL of Postgres by TCP, with this role.
    pub(crate) fn url_as(&self, user: &str, password: &str, database: &str) -> String {
        self.postgres.url_tcp_for(user, Some(password), database)
    }

    /// A proxy before Postgres, and the URL through it.
    pub(crate) fn proxy(&self) -> (ChaosProxy, String) {
        let port = self.postgres.port();
        let proxy = ChaosProxy::start(("127.0.0.1", port));
        let url = self.postgres.url_tcp();
        let url = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        (proxy, url)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Writes the configuration that most tests use.
    pub(crate) fn config(&self) -> PathBuf {
        self.config_and("")
    }

    /// Writes the configuration with another URL, and more lines at the end.
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

    /// Writes the usual configuration with more lines at the end.
    pub(crate) fn config_and(&self, more: &str) -> PathBuf {
        self.config_with(&self.postgres.url(), more)
    }

    /// Writes the usual configuration with the log level debug.
    pub(crate) fn config_debug(&self, more: &str) -> PathBuf {
        let config = self.config_and(more);
        edit(&config, "[log]\n", "[log]\nlevel = \"debug\"\n");
        config
    }

    /// Starts `walrelay run` and waits until it streams.
    pub(crate) fn relay(&self) -> Relay {
        self.streaming(&self.config())
    }

    /// Starts `walrelay run` with this configuration and waits until it streams.
    #[track_caller]
    pub(crate) fn streaming(&self, config: &Path) -> Relay {
        let relay = self.start(config);
        relay.streaming();
        relay
    }

    pub(crate) fn start(&self, config: &Path) -> Relay {
        self.start_with(config, &[])
    }

    /// Starts a relay with more arguments, without waiting for it.
    pub(crate) fn start_with(&self, config: &Path, arguments: &[&str]) -> Relay {
        let number = unique();
        let log = self.path(&format!("relay-{number}.log"));
        Relay::spawn(run_command(config).args(arguments), &log)
    }

    /// Stops Postgres, copies its data, and starts it again.
    pub(crate) fn back_up(&self) {
        let data = self.postgres.data_dir();
        self.postgres.stop(Shutdown::Fast).expect("it stops");
        copy_dir(&data, &data.with_extension("backup")).expect("it is copied");
        self.postgres.start_again().expect("it starts again");
    }

    /// Stops Postgres, replaces its data by what was backed up, and starts it again.
    pub(crate) fn restore(&self) {
        let data = self.postgres.data_dir();
        self.postgres.stop(Shutdown::Fast).expect("it stops");
        fs::remove_dir_all(&data).expect("removed");
        fs::rename(data.with_extension("backup"), &data).expect("restored");
        self.postgres.start_again().expect("it starts again");
    }

    /// Waits until the slot has reached the current end of the WAL. An idle relay leaves less than 8 KiB
    /// without an event unconfirmed until more WAL comes, such as that of the next autovacuum, a minute
    /// after the server's start. So this writes some.
    pub(crate) fn caught_up(&self) {
        let slot = self.slot();
        let end = slot.wal_end();
        if slot.confirmed() < end {
            self.db()
                .batch("SELECT pg_logical_emit_message(true, 'more', repeat('x', 16384))");
        }
        slot.wait_until(end, PATIENCE);
    }

    /// Reads the outbox and the topics.
    pub(crate) fn history(&self) -> History {
        self.history_within(PATIENCE)
    }

    /// Reads the outbox and the topics, in tests in which not every row is expected to arrive.
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

    /// Waits until everything is confirmed, compares, and lets the relay drain.
    #[track_caller]
    pub(crate) fn finish(&self, relay: Relay) -> Verdict {
        // A new slot behind a snapshot has caught up before anybody reads it.
        relay.streaming();
        self.caught_up();
        let verdict = self.verdict();
        relay.ends_well();
        verdict
    }

    /// The records in the topics of this test, once so many different ids were read.
    #[track_caller]
    pub(crate) fn records(&self, distinct: usize) -> Vec<Delivered> {
        self.records_in(&self.prefix, distinct)
    }

    /// The records in the topics with this prefix.
    #[track_caller]
    pub(crate) fn records_in(&self, prefix: &str, distinct: usize) -> Vec<Delivered> {
        History::records(&self.bootstrap, prefix, distinct, PATIENCE)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.dir.disable_cleanup(true);
            eprintln!(
                "{}; logs and configuration are left in {}",
                seed_setting(),
                self.dir.path().display()
            );
        }
    }
}

/// Inserts an event whose payload is `{"number": …}`.
pub(crate) fn insert(db: &Db, number: u32) {
    insert_of(db, "order", "key", number);
}

/// The same with this aggregate type and key.
pub(crate) fn insert_of(db: &Db, kind: &str, key: &str, number: u32) {
    db.batch(&format!(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         VALUES (gen_random_uuid(), '{kind}', '{key}', 'T', '{{\"number\": {number}}}')"
    ));
}

/// Creates a logical slot.
pub(crate) fn create_slot(db: &Db, name: &str) {
    db.batch(&format!(
        "SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"
    ));
}

/// Waits until the load has written this many further rows.
pub(crate) fn wait_rows(load: &Running, rows: u64) {
    let next = load.written().rows + rows;
    eventually(PATIENCE, || load.written().rows >= next);
}

/// Runs statements one by one, as psql sends them: some may not share a transaction with others.
pub(crate) fn psql(db: &Db, script: &str) {
    let code: Vec<&str> = script
        .lines()
        .map(|line| line.split("--").next().unwrap_or(line).trim_end())
        .collect();
    for statement in code.join("\n").split(";\n") {
        if !statement.trim().is_empty() {
            db.batch(statement);
        }
    }
}

/// Replaces a text of a file, which must be there.
#[track_caller]
pub(crate) fn edit(path: &Path, old: &str, new: &str) {
    let text = fs::read_to_string(path).expect("the file is read");
    assert!(text.contains(old), "no {old:?} in {text}");
    fs::write(path, text.replace(old, new)).expect("the file is written");
}

/// Adds lines to `[source]` of a configuration.
#[track_caller]
pub(crate) fn with_source(config: PathBuf, lines: &str) -> PathBuf {
    edit(&config, "[source]\n", &format!("[source]\n{lines}\n"));
    config
}
