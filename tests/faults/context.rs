//! What a scenario works with.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use serde_json::json;
use walrelay_lab::servers::{Builder, Postgres};
use walrelay_lsn::Lsn;
use walrelay_testkit::{
    CommitLog, Committed, Db, Delivered, EarlyWatch, History, Kafka, KafkaCluster, LoggedRow,
    Running, Sighting, SlotWatch, Workload, check, confirmed_early, eventually, millis_now,
    servers,
};

use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay};

static CONTEXTS: AtomicU32 = AtomicU32::new(0);

/// What lets the judge tell when a record was appended.
const APPEND_TIME: (&str, &str) = ("log.message.timestamp.type", "LogAppendTime");

/// The broker of a lane: it stamps what it appends, which the judge needs.
pub(crate) fn broker() -> Kafka {
    stamping(Kafka::builder().proxied()).start()
}

/// A broker by whose records the judge can tell when they were appended.
pub(crate) fn stamping(builder: walrelay_testkit::KafkaBuilder) -> walrelay_testkit::KafkaBuilder {
    builder.setting(APPEND_TIME.0, APPEND_TIME.1)
}

/// Whether repeats may leave rows out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ragged {
    No,
    /// A broker may still work off requests of a producer that is gone: after SIGKILL of the relay,
    /// or when a fresh producer replaced one whose connections were cut.
    Allowed,
}

/// A fault as it was, for the time that recovery took.
#[derive(Debug, Clone, Copy)]
struct Fault {
    /// The log's end when it had struck: what is committed from here on is new.
    struck: Lsn,
    /// When it was over, in milliseconds since 1970.
    over: i64,
    /// The log's end then.
    backlog: Option<Lsn>,
}

/// Servers of the lane, or of the scenario's own, and a database, slot, publication and topics of the
/// scenario's own in them.
///
/// First [`own_postgres`](Self::own_postgres) and the like, then [`outbox`](Self::outbox), then a
/// relay and a load, the faults with [`struck`](Self::struck) and [`over`](Self::over), at last
/// [`judge`](Self::judge).
pub(crate) struct Context {
    pub(crate) major: u32,
    /// Of the seed, the scenario and the version.
    pub(crate) rng: Rng,
    pub(crate) postgres: Arc<Postgres>,
    pub(crate) kafka: Arc<Kafka>,
    /// Three brokers instead of that one: [`own_cluster`](Self::own_cluster).
    cluster: Option<Arc<KafkaCluster>>,
    /// Logs and configuration. It is kept if the scenario fails.
    pub(crate) dir: PathBuf,
    /// Of the database, the slot and the publication.
    pub(crate) name: String,
    /// Topics begin so.
    pub(crate) prefix: String,
    /// For what is awaited of the judge.
    pub(crate) patience: Duration,
    database: bool,
    commits: Option<CommitLog>,
    watch: Option<EarlyWatch>,
    /// Of servers that had the slot before.
    seen: Vec<Sighting>,
    relays: AtomicU32,
    struck: Mutex<Option<Lsn>>,
    faults: Mutex<Vec<Fault>>,
}

impl Context {
    pub(crate) fn new(
        major: u32,
        seed: u64,
        scenario: &str,
        dir: PathBuf,
        postgres: Arc<Postgres>,
        kafka: Arc<Kafka>,
    ) -> Self {
        let number = CONTEXTS.fetch_add(1, Ordering::Relaxed);
        fs::create_dir_all(&dir).expect("a directory for the scenario");
        // FNV-1a: what a scenario does must not depend on which others run.
        let mixed = scenario
            .bytes()
            .chain([major as u8])
            .fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            });
        Self {
            major,
            rng: Rng::with_seed(mixed),
            postgres,
            kafka,
            cluster: None,
            dir,
            name: format!("f{number}"),
            prefix: format!("f{}-{number}.", std::process::id()),
            patience: PATIENCE,
            database: false,
            commits: None,
            watch: None,
            seen: Vec::new(),
            relays: AtomicU32::new(0),
            struck: Mutex::new(None),
            faults: Mutex::new(Vec::new()),
        }
    }

    /// A server of the scenario's own instead of the lane's.
    pub(crate) fn own_postgres(&mut self, build: impl FnOnce(Builder) -> Builder) {
        let server = build(servers::builder(self.major)).start();
        self.postgres = Arc::new(server.expect("Postgres starts"));
    }

    /// Three brokers of the scenario's own instead of the lane's one.
    pub(crate) fn own_cluster(&mut self) -> Arc<KafkaCluster> {
        let (name, value) = APPEND_TIME;
        let cluster = Kafka::builder().setting(name, value).start_cluster();
        Arc::clone(self.cluster.insert(Arc::new(cluster)))
    }

    /// For `bootstrap.servers`.
    fn bootstrap(&self) -> String {
        match &self.cluster {
            Some(cluster) => cluster.bootstrap_servers(),
            None => self.kafka.bootstrap_servers(),
        }
    }

    /// Makes the database with the outbox of [`Workload`], and begins to watch.
    pub(crate) fn outbox(&mut self) {
        self.database();
        self.workload().create_tables();
        self.watch(&["outbox"], false);
    }

    /// Makes an empty database.
    pub(crate) fn database(&mut self) {
        Db::connect(&self.postgres.url()).batch(&format!("CREATE DATABASE {}", self.name));
        self.database = true;
    }

    /// Begins to watch these tables, and the slot. `root`: partitions are known by their root.
    pub(crate) fn watch(&mut self, tables: &[&str], root: bool) {
        let name = format!("judge_{}", self.name);
        let tables: Vec<String> = tables.iter().map(|&table| table.to_owned()).collect();
        self.commits = Some(CommitLog::start(&self.url(), &name, &tables, root));
        self.watch = Some(EarlyWatch::start(&self.url(), &self.name));
    }

    /// The same as [`outbox`](Self::outbox) with slots of which standbys keep copies (Postgres 17 and
    /// newer), that of the relay among them, and its publication.
    pub(crate) fn outbox_for_failover(&mut self) {
        self.database();
        self.workload().create_tables();
        let (url, name) = (self.url(), self.name.clone());
        let db = self.db();
        db.batch(&format!(
            "CREATE PUBLICATION {name} FOR TABLE outbox WITH (publish = 'insert')"
        ));
        // Nothing is written between the slots and the moment in which the standby copies them: it
        // can copy a slot that does not advance only as long as no transaction followed.
        let judge = format!("judge_{name}");
        let tables = ["outbox".to_owned()];
        self.commits = Some(CommitLog::start_for_failover(&url, &judge, &tables));
        db.query(
            "SELECT FROM pg_create_logical_replication_slot($1, 'pgoutput', failover => true)",
            &[&name],
        );
        self.watch = Some(EarlyWatch::start(&url, &name));
    }

    /// Everything moved to this server, a standby that was promoted; here its log and the one before
    /// part.
    pub(crate) fn move_to(&mut self, server: Postgres, parted: Lsn) {
        self.seen = self.sightings();
        // What lies beyond means something else now.
        self.seen.retain(|seen| seen.confirmed <= parted);
        self.postgres = Arc::new(server);
        let url = self.url();
        if let Some(commits) = &mut self.commits {
            commits.follow(&url);
        }
        self.watch = Some(EarlyWatch::start(&url, &self.name));
    }

    /// Where the slot was seen. That a copy of it steps back is no news.
    pub(crate) fn sightings(&self) -> Vec<Sighting> {
        let mut all = self.seen.clone();
        for seen in self.watch.iter().flat_map(EarlyWatch::sightings) {
            if all
                .last()
                .is_none_or(|last| last.confirmed < seen.confirmed)
            {
                all.push(seen);
            }
        }
        all
    }

    /// The superuser at the scenario's database, by the Unix socket.
    pub(crate) fn url(&self) -> String {
        let password = self.postgres.superuser_password();
        self.postgres
            .url_for("postgres", Some(password), &self.name)
    }

    /// The same by TCP at another port, that of a proxy for one.
    pub(crate) fn url_at(&self, port: u16) -> String {
        let password = self.postgres.superuser_password();
        let url = self
            .postgres
            .url_tcp_for("postgres", Some(password), &self.name);
        let url = url.expect("it listens at a TCP port");
        url.replace(&format!(":{}/", self.postgres.port()), &format!(":{port}/"))
    }

    pub(crate) fn db(&self) -> Db {
        Db::connect(&self.url())
    }

    pub(crate) fn slot(&self) -> SlotWatch {
        SlotWatch::new(&self.url(), &self.name)
    }

    /// Six writers, three aggregate types, a hundred keys of each; some transactions are rolled back,
    /// some to a savepoint.
    pub(crate) fn workload(&self) -> Workload {
        Workload::new(&self.url()).writers(6)
    }

    /// A load of 1,500 rows a second at most, until it is stopped.
    pub(crate) fn load(&mut self) -> Running {
        let seed = self.rng.u64(..);
        self.workload().rate(1_500.0).seed(seed).start()
    }

    /// Waits until so many more rows are written: the moment of a fault. What a fault before left
    /// undone is waited for first, so that its recovery is measured and not that of two at once.
    pub(crate) fn more(&mut self, load: &Running, rows: std::ops::Range<u64>) {
        let last = lock(&self.faults).last().copied();
        if lock(&self.struck).is_none()
            && let Some(backlog) = last.and_then(|fault| fault.backlog)
        {
            self.slot().wait_until(backlog, self.patience);
        }
        let next = load.written().rows + self.rng.u64(rows);
        eventually(PATIENCE, || load.written().rows >= next);
    }

    pub(crate) fn config(&self) -> Config {
        Config {
            url: self.url(),
            bootstrap: self.bootstrap(),
            tables: vec!["public.outbox".to_owned()],
            name: self.name.clone(),
            prefix: self.prefix.clone(),
            path: self.dir.join("walrelay.toml"),
            source: String::new(),
            kafka: String::new(),
            more: String::new(),
        }
    }

    /// A relay with the usual configuration that streams.
    pub(crate) fn relay(&self) -> Relay {
        let relay = self.start(&self.config());
        relay.streaming();
        relay
    }

    /// A relay that is starting.
    pub(crate) fn start(&self, config: &Config) -> Relay {
        self.start_with(config, |_| {})
    }

    /// The same in other surroundings.
    pub(crate) fn start_with(&self, config: &Config, change: impl FnOnce(&mut Command)) -> Relay {
        let number = self.relays.fetch_add(1, Ordering::Relaxed);
        let mut command = Relay::command(&config.write());
        change(&mut command);
        Relay::spawn(&mut command, &self.dir.join(format!("relay-{number}.log")))
    }

    /// A fault has struck, just now: what is committed from here on cannot have been delivered before
    /// it. For a fault of Postgres itself: it is about to.
    pub(crate) fn struck(&self) {
        *lock(&self.struck) = Some(log_end(&self.db()));
    }

    /// It is over.
    pub(crate) fn over(&self) {
        let over = millis_now();
        let struck = lock(&self.struck).take().expect("a fault that has struck");
        let db = Db::try_connect(&self.url()).ok();
        let backlog = db.as_ref().map(log_end);
        lock(&self.faults).push(Fault {
            struck,
            over,
            backlog,
        });
    }

    /// Waits until the slot has reached the end of the log as of now.
    pub(crate) fn caught_up(&self) {
        let slot = self.slot();
        slot.wait_until(slot.wal_end(), self.patience);
    }

    /// Waits until everything is confirmed, and judges what was committed to `public.outbox` against
    /// what is in the topics. The load must have been stopped, the relay must run.
    pub(crate) fn judge(&self, ragged: Ragged) -> Outcome {
        self.caught_up();
        let committed = History::committed(&self.url(), "public.outbox", &self.prefix);
        self.judge_rows(&committed, ragged)
    }

    /// The end of most scenarios: no more load, the judgement, and a relay that drains.
    pub(crate) fn finish(&self, load: Running, relay: Relay, ragged: Ragged) -> Outcome {
        load.stop();
        let outcome = self.judge(ragged);
        relay.ends_well();
        outcome
    }

    /// The same against these rows.
    pub(crate) fn judge_rows(&self, committed: &[Committed], ragged: Ragged) -> Outcome {
        let commits = self.commit_log().ids();
        let logged: BTreeSet<&str> = commits.iter().map(|row| &*row.id).collect();
        let table: BTreeSet<&str> = committed.iter().map(|row| &*row.id).collect();
        assert!(
            logged == table,
            "the log has other rows than the table: a watch that proves nothing"
        );
        let records = self.records(committed.len());
        self.judge_records(committed, &commits, &records, ragged)
    }

    /// Judges these rows, whose commits lie here, against these records.
    pub(crate) fn judge_records(
        &self,
        committed: &[Committed],
        commits: &[LoggedRow],
        records: &[Delivered],
        ragged: Ragged,
    ) -> Outcome {
        let verdict = check(committed, records);
        let early = confirmed_early(commits, &self.sightings(), records);
        let mut outcome = Outcome::of(&verdict, Some(&early), ragged == Ragged::Allowed);
        let (first, caught_up) = recoveries(&lock(&self.faults), commits, records);
        (outcome.first, outcome.caught_up) = (first, caught_up);
        if !outcome.is_clean() {
            self.leave_history(committed, records, commits);
        }
        outcome
    }

    /// The records of the scenario's topics: until so many ids were seen, or patience is at its end.
    pub(crate) fn records(&self, distinct: usize) -> Vec<Delivered> {
        let bootstrap = self.bootstrap();
        History::records(&bootstrap, &self.prefix, distinct, self.patience)
    }

    /// Where each row was committed.
    pub(crate) fn commit_log(&self) -> &CommitLog {
        self.commits.as_ref().expect("a scenario that watches")
    }

    /// What the log says was inserted, numbered per key in the order of the commits; of tables with
    /// the columns of the outbox.
    pub(crate) fn committed_by_the_log(&self) -> Vec<Committed> {
        let mut numbers: HashMap<(String, Option<Vec<u8>>), i64> = HashMap::new();
        let rows = self.commit_log().rows();
        rows.into_iter()
            .map(|mut row| {
                let mut take = |name: &str| row.columns.remove(name).flatten();
                let aggregate = take("aggregatetype").expect("a topic");
                let aggregate = String::from_utf8(aggregate).expect("text");
                let topic = format!("{}{aggregate}", self.prefix);
                let key = take("aggregateid");
                let number = numbers.entry((topic.clone(), key.clone())).or_default();
                *number += 1;
                Committed {
                    id: row.id.clone(),
                    topic,
                    number: *number,
                    key,
                    payload: take("payload"),
                }
            })
            .collect()
    }

    fn leave_history(&self, committed: &[Committed], records: &[Delivered], commits: &[LoggedRow]) {
        let text = |bytes: &Option<Vec<u8>>| {
            bytes
                .as_deref()
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        let at: HashMap<&str, String> = commits
            .iter()
            .map(|row| (&*row.id, row.commit.to_string()))
            .collect();
        let mut lines = String::new();
        for row in committed {
            let line = json!({"row": row.id, "commit": at.get(&*row.id), "topic": row.topic,
                "key": text(&row.key), "number": row.number, "payload": text(&row.payload)});
            let _ = writeln!(lines, "{line}");
        }
        for record in records {
            let line = json!({"record": record.id, "topic": record.topic,
                "partition": record.partition, "offset": record.offset, "key": text(&record.key),
                "appended": record.appended, "payload": text(&record.payload)});
            let _ = writeln!(lines, "{line}");
        }
        fs::write(self.dir.join("history.jsonl"), lines).expect("the history is written");
    }

    /// What can still be had of a scenario that broke off.
    pub(crate) fn leave_evidence(&self) {
        let server = fs::read(self.postgres.log_path()).unwrap_or_default();
        let _ = fs::write(self.dir.join("postgres.log"), server);
        let _ = fs::write(self.dir.join("kafka.log"), self.kafka.log());
        if let Some(cluster) = &self.cluster {
            for broker in KafkaCluster::BROKERS {
                let path = self.dir.join(format!("broker-{broker}.log"));
                let _ = fs::write(path, cluster.log(broker));
            }
        }
        if self.dir.join("history.jsonl").exists() || self.commits.is_none() {
            return;
        }
        let committed = self.committed_by_the_log();
        let commits = self.commit_log().ids();
        let limit = Duration::from_secs(5);
        let bootstrap = self.bootstrap();
        let records = History::records(&bootstrap, &self.prefix, committed.len(), limit);
        self.leave_history(&committed, &records, &commits);
    }

    /// Leaves the servers as they were found.
    pub(crate) fn clean_up(&mut self) {
        self.watch = None;
        self.commits = None;
        if self.database {
            let db = Db::connect(&self.postgres.url());
            let name = &self.name;
            // Its relay is gone, its walsender may be about to notice.
            eventually(PATIENCE, || {
                db.try_batch(&format!(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
                     WHERE database = '{name}' AND active; \
                     SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                     WHERE database = '{name}'"
                ))
                .is_ok()
            });
            db.batch(&format!("DROP DATABASE {name} WITH (FORCE)"));
        }
        if std::env::var_os("FAULTS_KEEP").is_none() {
            fs::remove_dir_all(&self.dir).expect("the scenario's directory is removed");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn log_end(db: &Db) -> Lsn {
    let text = db.text("SELECT pg_current_wal_insert_lsn()::text");
    text.expect("a position").parse().expect("an LSN")
}

/// For each fault: from its end to the first record of a row committed after it had struck, and until
/// all that was committed when it ended was there.
fn recoveries(
    faults: &[Fault],
    commits: &[LoggedRow],
    records: &[Delivered],
) -> (Vec<Duration>, Vec<Duration>) {
    let mut appended: HashMap<&str, i64> = HashMap::new();
    for record in records {
        if let (Some(id), Some(at)) = (record.id.as_deref(), record.appended) {
            let first = appended.entry(id).or_insert(at);
            *first = at.min(*first);
        }
    }
    let since = |fault: &Fault, at: i64| Duration::from_millis((at - fault.over).max(0) as u64);
    let mut firsts = Vec::new();
    let mut all = Vec::new();
    for fault in faults {
        let new = commits.iter().filter(|row| row.commit >= fault.struck);
        let at = new.filter_map(|row| appended.get(&*row.id));
        if let Some(first) = at.filter(|at| **at >= fault.over).min() {
            firsts.push(since(fault, *first));
        }
        let Some(backlog) = fault.backlog else {
            continue;
        };
        let old = commits.iter().filter(|row| row.commit < backlog);
        if let Some(last) = old.filter_map(|row| appended.get(&*row.id)).max() {
            all.push(since(fault, *last));
        }
    }
    (firsts, all)
}

/// A relay's configuration.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) url: String,
    pub(crate) bootstrap: String,
    pub(crate) tables: Vec<String>,
    /// Of slot and publication.
    pub(crate) name: String,
    pub(crate) prefix: String,
    pub(crate) path: PathBuf,
    /// Lines of `[source]`.
    pub(crate) source: String,
    /// Lines of `[sink.kafka]`.
    pub(crate) kafka: String,
    /// Sections at the end.
    pub(crate) more: String,
}

impl Config {
    /// With a line more in `[source]`.
    pub(crate) fn source(mut self, line: &str) -> Self {
        self.source.push_str(line);
        self.source.push('\n');
        self
    }

    /// With a line more in `[sink.kafka]`.
    pub(crate) fn kafka(mut self, line: &str) -> Self {
        self.kafka.push_str(line);
        self.kafka.push('\n');
        self
    }

    /// With sections at the end.
    pub(crate) fn more(mut self, text: &str) -> Self {
        self.more.push_str(text);
        self.more.push('\n');
        self
    }

    /// Reaches Postgres by this URL.
    pub(crate) fn url(mut self, url: String) -> Self {
        self.url = url;
        self
    }

    /// Reaches the broker here.
    pub(crate) fn bootstrap(mut self, servers: String) -> Self {
        self.bootstrap = servers;
        self
    }

    fn write(&self) -> PathBuf {
        let Self {
            url,
            bootstrap,
            tables,
            name,
            prefix,
            path,
            source,
            kafka,
            more,
        } = self;
        let text = format!(
            "[source]\nurl = \"{url}\"\nslot = \"{name}\"\npublication = \"{name}\"\n\
             tables = {tables:?}\n{source}\n\
             [router.debezium]\n\"route.topic.replacement\" = \"{prefix}${{routedByValue}}\"\n\n\
             [log]\nformat = \"json\"\n\n\
             [sink.kafka]\n\"bootstrap.servers\" = \"{bootstrap}\"\n{kafka}\n{more}"
        );
        fs::write(path, text).expect("the configuration is written");
        path.clone()
    }
}
