//! The context of a scenario: servers, load, relays, marks of faults, and the final check.

mod config;
mod evidence;
mod recovery;

pub(crate) use config::Config;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use walrelay_lsn::Lsn;
use walrelay_testkit::{
    ChaosProxy, CommitLog, Committed, Db, Delivered, EarlyWatch, History, Kafka, KafkaCluster,
    LoggedRow, Running, Sighting, SlotWatch, Workload, check, confirmed_early, eventually,
    eventually_while_moving, lock, millis_now, rng_of, servers,
};
use walrelay_throwaway::Postgres;

use crate::destination::{Destination, Servers, stamping};
use crate::outcome::Outcome;
use crate::rig::{PATIENCE, Relay, create_slot, run_command, unique};

use recovery::{Fault, recoveries};

/// Whether repeats may leave rows out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ragged {
    No,
    /// After SIGKILL of the relay, or when a new producer replaced one whose connections were cut:
    /// the broker may still process requests of the old producer.
    Allowed,
}

/// Servers of the lane or of the scenario, with a database, slot, publication and topics of the
/// scenario's own.
///
/// A scenario calls [`own_postgres`](Self::own_postgres) and the like first, then
/// [`outbox`](Self::outbox), starts a relay and a load, marks faults with
/// [`fault_begins`](Self::fault_begins) and [`fault_ends`](Self::fault_ends), and finally calls
/// [`judge`](Self::judge).
pub(crate) struct Context {
    pub(crate) major: u32,
    /// Seeded by the run's seed, the scenario and the version.
    pub(crate) rng: Rng,
    pub(crate) postgres: Arc<Postgres>,
    /// Relays may delete rows, so they record what their slot carries: in every other scenario, by the run's
    /// seed.
    records: bool,
    /// Relays note each position in the database before it is confirmed.
    notes: bool,
    /// The server that relays write to.
    pub(crate) destination: Arc<dyn Destination>,
    /// The same, if it is Kafka.
    kafka: Option<Arc<Kafka>>,
    /// Three brokers instead of one: [`own_cluster`](Self::own_cluster).
    cluster: Option<Arc<KafkaCluster>>,
    /// Directory of logs and configuration. It is kept if the scenario fails.
    pub(crate) dir: PathBuf,
    /// Name of the database, the slot and the publication.
    pub(crate) name: String,
    /// Prefix of the topics.
    pub(crate) prefix: String,
    database: bool,
    commits: Option<CommitLog>,
    watch: Option<EarlyWatch>,
    /// Positions of the slot on servers that had it before.
    seen: Vec<Sighting>,
    fault_begin: Mutex<Option<Lsn>>,
    faults: Mutex<Vec<Fault>>,
}

impl Context {
    pub(crate) fn new(
        major: u32,
        seed: u64,
        scenario: &str,
        dir: PathBuf,
        postgres: Arc<Postgres>,
        servers: Servers,
    ) -> Self {
        let number = unique();
        fs::create_dir_all(&dir).expect("a directory for the scenario");
        Self {
            major,
            rng: rng_of(seed, &format!("faults::{scenario}-{major}")),
            records: rng_of(seed, &format!("notes::{scenario}-{major}")).bool(),
            notes: true,
            postgres,
            destination: servers.destination,
            kafka: servers.kafka,
            cluster: None,
            dir,
            name: format!("f{number}"),
            prefix: format!("f{}-{number}.", std::process::id()),
            database: false,
            commits: None,
            watch: None,
            seen: Vec::new(),
            fault_begin: Mutex::new(None),
            faults: Mutex::new(Vec::new()),
        }
    }

    /// Starts a Postgres of the scenario's own with these settings, instead of the lane's.
    pub(crate) fn own_postgres(&mut self, settings: &[(&str, &str)]) {
        self.postgres = Arc::new(servers::postgres_with(self.major, settings));
    }

    /// Starts three brokers of the scenario's own, instead of the lane's single one.
    pub(crate) fn own_cluster(&mut self) -> Arc<KafkaCluster> {
        let cluster = stamping(Kafka::builder()).start_cluster();
        Arc::clone(self.cluster.insert(Arc::new(cluster)))
    }

    /// Uses this broker instead of the lane's.
    pub(crate) fn own_kafka(&mut self, kafka: Kafka) {
        let kafka = Arc::new(kafka);
        self.destination = Arc::clone(&kafka) as _;
        self.kafka = Some(kafka);
    }

    /// The broker, of a scenario for Kafka alone.
    pub(crate) fn kafka(&self) -> &Kafka {
        self.kafka.as_ref().expect("a scenario for Kafka alone")
    }

    /// The proxy before the server that relays write to.
    pub(crate) fn sink_proxy(&self) -> &ChaosProxy {
        self.destination.proxy()
    }

    /// The number of records in the scenario's topics; `None` if the server does not answer.
    fn count(&self) -> Option<i64> {
        match &self.cluster {
            Some(cluster) => History::count(&cluster.bootstrap_servers(), &self.prefix),
            None => self.destination.count(&self.prefix),
        }
    }

    /// Creates the database with the outbox of [`Workload`], and begins to watch it.
    pub(crate) fn outbox(&mut self) {
        self.database();
        self.workload().create_tables();
        self.watch(&["outbox"], false);
        let topics = ["order", "payment", "customer"];
        let topics = topics.map(|name| format!("{}{name}", self.prefix));
        self.destination.create(&topics);
    }

    /// Creates an empty database.
    pub(crate) fn database(&mut self) {
        Db::connect(&self.postgres.url()).batch(&format!("CREATE DATABASE {}", self.name));
        self.database = true;
    }

    /// Begins to watch commits to these tables, and the slot. With `root`, rows of partitions count
    /// for their root.
    pub(crate) fn watch(&mut self, tables: &[&str], root: bool) {
        let name = format!("judge_{}", self.name);
        self.commits = Some(CommitLog::start(&self.url(), &name, tables, root));
        self.watch = Some(EarlyWatch::start(&self.url(), &self.name));
    }

    /// The same as [`outbox`](Self::outbox), with publication and slot, and relays that may create nothing:
    /// they note no positions, and open no connection for that.
    pub(crate) fn outbox_without_notes(&mut self) {
        self.outbox();
        self.create_publication();
        create_slot(&self.db(), &self.name);
        self.notes = false;
    }

    /// The same as [`outbox`](Self::outbox) with failover slots, of which standbys have copies
    /// (Postgres 17 and newer). Also creates the relay's slot and publication.
    pub(crate) fn outbox_for_failover(&mut self) {
        self.database();
        self.workload().create_tables();
        self.create_publication();
        // Write nothing between the creation of the slots and their copy: a standby can copy a slot
        // that does not advance only as long as no transaction followed.
        let url = self.url();
        let judge = format!("judge_{}", self.name);
        self.commits = Some(CommitLog::start_for_failover(&url, &judge, &["outbox"]));
        self.db().query(
            "SELECT FROM pg_create_logical_replication_slot($1, 'pgoutput', failover => true)",
            &[&self.name],
        );
        self.watch = Some(EarlyWatch::start(&url, &self.name));
    }

    /// Creates the relay's publication.
    pub(crate) fn create_publication(&self) {
        self.db().batch(&format!(
            "CREATE PUBLICATION {} FOR TABLE outbox WITH (publish = 'insert')",
            self.name
        ));
    }

    /// Moves the scenario to this server, a standby that was promoted. At `parted` its WAL departs
    /// from the former primary's.
    pub(crate) fn move_to(&mut self, server: Postgres, parted: Lsn) {
        self.seen = self.sightings();
        // Positions beyond have another meaning on the new timeline.
        self.seen.retain(|seen| seen.confirmed <= parted);
        self.postgres = Arc::new(server);
        let url = self.url();
        if let Some(commits) = &mut self.commits {
            commits.follow(&url);
        }
        self.watch = Some(EarlyWatch::start(&url, &self.name));
    }

    /// Advances of the slot. A copy of the slot that goes back is no advance.
    pub(crate) fn sightings(&self) -> Vec<Sighting> {
        let mut all = self.seen.clone();
        for seen in self.watch.iter().flat_map(EarlyWatch::sightings) {
            let last = all.last();
            if last.is_none_or(|last| last.confirmed < seen.confirmed) {
                all.push(seen);
            }
        }
        all
    }

    /// URL of the superuser at the scenario's database, by the Unix socket.
    pub(crate) fn url(&self) -> String {
        let password = self.postgres.superuser_password();
        self.postgres
            .url_for("postgres", Some(password), &self.name)
    }

    /// A proxy before Postgres, and the URL through it.
    pub(crate) fn proxy(&self) -> (ChaosProxy, String) {
        let port = self.postgres.port();
        let proxy = ChaosProxy::start(("127.0.0.1", port));
        let password = self.postgres.superuser_password();
        let url = self
            .postgres
            .url_tcp_for("postgres", Some(password), &self.name);
        let url = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        (proxy, url)
    }

    pub(crate) fn db(&self) -> Db {
        Db::connect(&self.url())
    }

    pub(crate) fn slot(&self) -> SlotWatch {
        SlotWatch::new(&self.url(), &self.name)
    }

    /// Six writers, three aggregate types, a hundred keys of each; some transactions are rolled
    /// back, some to a savepoint.
    pub(crate) fn workload(&self) -> Workload {
        Workload::new(&self.url()).writers(6)
    }

    /// Starts a load of at most 1,500 rows per second, until it is stopped.
    pub(crate) fn load(&mut self) -> Running {
        let seed = self.rng.u64(..);
        self.workload().rate(1_500.0).seed(seed).start()
    }

    /// Waits until a random number of further rows is written: the moment of a fault. It first
    /// waits until the relay has caught up after the previous fault, so that the recovery of one
    /// fault is measured and not of two.
    pub(crate) fn wait_rows(&mut self, load: &Running, rows: std::ops::Range<u64>) {
        let last = lock(&self.faults).last().copied();
        if lock(&self.fault_begin).is_none()
            && let Some(backlog) = last.and_then(|fault| fault.wal_end)
        {
            self.slot().wait_until(backlog, PATIENCE);
        }
        let written = || load.written().rows;
        let next = written() + self.rng.u64(rows);
        eventually_while_moving(written, || written() >= next);
    }

    pub(crate) fn config(&self) -> Config {
        let Self { name, prefix, .. } = self;
        let url = self.url();
        let address = match &self.cluster {
            Some(cluster) => cluster.bootstrap_servers(),
            None => self.destination.address(),
        };
        let text = format!(
            "[source]\nurl = \"{url}\"\nslot = \"{name}\"\npublication = \"{name}\"\n\
             tables = [\"public.outbox\"]\n\n\
             [router.debezium]\n\"route.topic.replacement\" = \"{prefix}${{routedByValue}}\"\n\n\
             [log]\nformat = \"json\"\n"
        );
        let config = Config::new(self.dir.join("walrelay.toml"), &text);
        let config = match (self.notes, self.records) {
            (false, _) => config.set("source.create = false"),
            (true, true) => config.set("prune.before_slot = true"),
            (true, false) => config,
        };
        config
            .set(self.destination.settings())
            .set(&self.destination.address_setting(&address))
    }

    /// The usual configuration, of a relay that writes through the proxy.
    pub(crate) fn proxied_config(&self) -> Config {
        let address = self.sink_proxy().address().to_string();
        self.config()
            .set(&self.destination.address_setting(&address))
    }

    /// Starts a relay with the usual configuration; returns when it streams.
    pub(crate) fn relay(&self) -> Relay {
        self.streaming(&self.config())
    }

    /// Starts a relay with this configuration; returns when it streams.
    pub(crate) fn streaming(&self, config: &Config) -> Relay {
        let relay = self.start(config);
        relay.streaming();
        relay
    }

    /// Starts a relay, without waiting for it.
    pub(crate) fn start(&self, config: &Config) -> Relay {
        self.start_with(config, |_| {})
    }

    /// Starts a relay after changes to its command.
    pub(crate) fn start_with(&self, config: &Config, change: impl FnOnce(&mut Command)) -> Relay {
        let mut command = run_command(config.write());
        change(&mut command);
        let log = self.dir.join(format!("relay-{}.log", unique()));
        Relay::spawn(&mut command, &log)
    }

    /// Marks the begin of a fault. Rows that are committed from here on cannot have been delivered
    /// before the fault. For a fault of Postgres itself, call it just before.
    pub(crate) fn fault_begins(&self) {
        *lock(&self.fault_begin) = Some(self.db().insert_lsn());
    }

    /// Marks the end of a fault.
    pub(crate) fn fault_ends(&self) {
        let end = millis_now();
        let begin = lock(&self.fault_begin).take().expect("a fault that began");
        let db = Db::try_connect(&self.url()).ok();
        let wal_end = db.as_ref().map(Db::insert_lsn);
        lock(&self.faults).push(Fault {
            begin,
            end,
            wal_end,
        });
    }

    /// Marks a fault that takes no time.
    pub(crate) fn fault_now(&self) {
        self.fault_begins();
        self.fault_ends();
    }

    /// Terminates the walsender of the relay's slot; returns its process id.
    pub(crate) fn terminate_walsender(&self) -> i32 {
        let walsender = self.slot().wait_active(PATIENCE);
        let terminate = format!("SELECT pg_terminate_backend({walsender})");
        self.db().batch(&terminate);
        walsender
    }

    /// Waits until the slot has reached the current end of the WAL, for as long as it advances or
    /// records arrive. It does not advance during a large transaction.
    pub(crate) fn caught_up(&self) {
        let slot = self.slot();
        let end = slot.wal_end();
        let confirmed = || slot.read().map(|state| state.confirmed_flush);
        eventually_while_moving(|| (confirmed(), self.count()), || confirmed() >= Some(end));
    }

    /// Waits until the first rows are confirmed, so that the broker has created the topics: a drain
    /// ends with exit code 75 while a topic is missing.
    pub(crate) fn wait_topics(&mut self, load: &Running) {
        self.wait_rows(load, 100..200);
        self.caught_up();
    }

    /// Waits until everything is confirmed, then compares the rows of `public.outbox` with the
    /// records in the topics. The load must have been stopped, the relay must run.
    pub(crate) fn judge(&self, ragged: Ragged) -> Outcome {
        self.caught_up();
        self.judge_rows(&self.committed("outbox"), ragged)
    }

    /// The rows of a table.
    pub(crate) fn committed(&self, table: &str) -> Vec<Committed> {
        History::committed(&self.url(), &format!("public.{table}"), &self.prefix)
    }

    /// The end of most scenarios: lets the load go on for a while, checks, and lets the relay
    /// drain.
    pub(crate) fn finish(&mut self, load: Running, relay: Relay, ragged: Ragged) -> Outcome {
        self.wait_rows(&load, 200..300);
        load.stop();
        let outcome = self.judge(ragged);
        relay.ends_well();
        outcome
    }

    /// Like [`judge`](Self::judge), with these rows.
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

    /// Compares these rows, whose commits are known, with these records.
    pub(crate) fn judge_records(
        &self,
        committed: &[Committed],
        commits: &[LoggedRow],
        records: &[Delivered],
        ragged: Ragged,
    ) -> Outcome {
        let verdict = check(committed, records);
        let early = self
            .destination
            .stamps()
            .then(|| confirmed_early(commits, &self.sightings(), records));
        let mut outcome =
            Outcome::from_verdict(&verdict, early.as_deref(), ragged == Ragged::Allowed);
        if self.destination.refuses_repeats() {
            outcome = outcome.nothing_repeated();
        }
        let (first, caught_up) = recoveries(&lock(&self.faults), commits, records);
        (outcome.first, outcome.caught_up) = (first, caught_up);
        if !outcome.is_clean() {
            self.leave_history(committed, records, commits);
        }
        outcome
    }

    /// Records of the scenario's topics, read until `distinct` ids were seen or no more arrive, and
    /// then to the present end.
    pub(crate) fn records(&self, distinct: usize) -> Vec<Delivered> {
        self.records_within(distinct, PATIENCE)
    }

    /// The same with another limit.
    pub(crate) fn records_within(&self, distinct: usize, limit: Duration) -> Vec<Delivered> {
        match &self.cluster {
            Some(cluster) => {
                let bootstrap = cluster.bootstrap_servers();
                History::records(&bootstrap, &self.prefix, distinct, limit)
            }
            None => self.destination.records(&self.prefix, distinct, limit),
        }
    }

    /// The log of the commits to the watched tables.
    pub(crate) fn commit_log(&self) -> &CommitLog {
        self.commits.as_ref().expect("a scenario that watches")
    }

    /// All rows that were inserted according to the WAL, numbered per key in commit order. The
    /// tables must have the columns of the outbox.
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

    /// Leaves the servers as they were found.
    pub(crate) fn clean_up(&mut self) {
        self.watch = None;
        self.commits = None;
        if self.database {
            let db = Db::connect(&self.postgres.url());
            let name = &self.name;
            // The relay has gone, but its walsender may notice that later.
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
