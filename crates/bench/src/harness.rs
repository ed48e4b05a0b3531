//! The harness of the benchmark: the servers, the outbox, and the relay as a process.

use std::cell::{Cell, LazyCell, OnceCell};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures_executor::block_on;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use tempfile::TempDir;
use tokio_postgres::{Error, Row, Statement};
use walrelay_lsn::Lsn;
use walrelay_measure::{load, proc};
use walrelay_testkit::{
    Authority, Db, Kafka, PATIENCE, Program, eventually, eventually_some, servers,
};
use walrelay_throwaway::Postgres;

use crate::load_kind::{Form, Load, ORDER, PARTITIONS};
use crate::programs;

/// Table of the ordinary load. Its publication has the same name.
pub(crate) const OUTBOX: &str = "outbox";
/// Warm-up records of each partition. They have no id, and values larger than the broker's
/// `index.interval.bytes`.
pub(crate) const WARM_UP_RECORDS: i64 = 2;
const WARM_UP_BYTES: usize = 5_000;
/// Host name in the server certificates.
const HOST: &str = "localhost";

/// Orders that are prepared in a table, so that writing them on a schedule costs the server little.
const POOL: i64 = 10_000;
/// Most rows of a transaction that writes such orders.
const MAX_ROWS: i64 = 1_000;
const COLUMNS: &str = "(aggregatetype, aggregateid, type, payload)";
pub(crate) struct Harness {
    pub(crate) postgres: Postgres,
    /// Started when it is needed first: not every sink is Kafka.
    pub(crate) kafka: LazyCell<Kafka, Box<dyn FnOnce() -> Kafka>>,
    pub(crate) db: Db,
    pub(crate) binary: PathBuf,
    /// An earlier walrelay, measured beside `binary`.
    pub(crate) baseline: Option<PathBuf>,
    /// True if Debezium Server takes part.
    pub(crate) peers: bool,
    pub(crate) recvlogical: PathBuf,
    /// Path of this program.
    pub(crate) bench_program: PathBuf,
    /// Kept open, so that reading end offsets opens no connection each time.
    offsets: OnceCell<BaseConsumer>,
    dir: TempDir,
    logs: Cell<u32>,
}

/// A backlog that the contenders drain.
pub(crate) struct Backlog {
    pub(crate) load: Load,
    /// Name of the table and of its publication.
    pub(crate) table: String,
    /// Slot before the backlog. It is never read itself but copied for each run.
    pub(crate) kept: String,
    /// Position at which the first half of the rows ends.
    pub(crate) half: Lsn,
    pub(crate) end: Lsn,
    pub(crate) wal_bytes: i64,
    /// Average bytes of the payload's text.
    pub(crate) payload_bytes: f64,
    /// `seq` of the first row and of the last.
    pub(crate) numbers: (i64, i64),
}

/// Creates an outbox table and a publication of the same name.
fn create_outbox(db: &Db, name: &str) {
    db.batch(&format!(
        "CREATE TABLE {name} (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), \
         aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, \
         payload jsonb NOT NULL, seq bigserial NOT NULL, \
         written xid NOT NULL DEFAULT pg_current_xact_id()::xid); \
         CREATE PUBLICATION {name} FOR TABLE {name} WITH (publish = 'insert')"
    ));
}

/// The contents of a relay's configuration.
pub(crate) struct RelayConfig<'a> {
    pub(crate) url: &'a str,
    /// Name of the table and of its publication.
    pub(crate) table: &'a str,
    pub(crate) slot: &'a str,
    /// Prefix of the topics.
    pub(crate) prefix: &'a str,
    /// True if the connection to the broker uses TLS.
    pub(crate) tls: bool,
    /// True if the events are messages.
    pub(crate) messages: bool,
}

impl Harness {
    pub(crate) fn start(peers: bool) -> Self {
        let binary = programs::binary();
        let baseline = programs::baseline();
        let programs = servers::binaries(15);
        let recvlogical = programs::recvlogical(&programs);
        let authority = Authority::new("benchmark");
        let issued = authority.server(HOST);
        let postgres = Postgres::builder()
            .binaries(programs)
            // Turn off what happens by time: it would fall into one run and not into another.
            .setting("autovacuum", "off")
            .setting("checkpoint_timeout", "1h")
            .setting("max_wal_size", "16GB")
            .setting("track_commit_timestamp", "on")
            .setting("shared_buffers", "512MB")
            .setting("max_replication_slots", "20")
            .setting("ssl", "on")
            .file("server.crt", issued.certificate.clone())
            .file("server.key", issued.key.clone())
            .start()
            .expect("Postgres starts");
        let start_kafka = move || {
            Kafka::builder()
                .partitions(PARTITIONS.unsigned_abs())
                .setting("delete.topic.enable", "true")
                .listener("ENCRYPTED", "SSL")
                .certificate("ENCRYPTED", &issued)
                .full_speed()
                .start()
        };
        let db = Db::connect(&postgres.url());
        create_outbox(&db, OUTBOX);
        db.batch(
            "CREATE TABLE polled (LIKE outbox INCLUDING DEFAULTS INCLUDING CONSTRAINTS, \
             sent_at timestamptz); \
             ALTER TABLE polled ADD PRIMARY KEY (id); \
             CREATE INDEX ON polled (seq) WHERE sent_at IS NULL",
        );
        db.batch(&format!(
            "CREATE TABLE pool (n bigint PRIMARY KEY, key text NOT NULL, payload jsonb NOT NULL); \
             INSERT INTO pool SELECT n, 'customer-' || n % {POOL}, {ORDER} \
             FROM generate_series(0, {POOL} + {MAX_ROWS} - 1) n; ANALYZE pool"
        ));
        let dir = TempDir::with_prefix("walrelay-bench-").expect("a directory");
        fs::write(dir.path().join("ca.pem"), authority.pem()).expect("a file is written");
        Self {
            postgres,
            kafka: LazyCell::new(Box::new(start_kafka)),
            db,
            binary,
            baseline,
            peers,
            recvlogical,
            bench_program: env::current_exe().expect("this program has a path"),
            offsets: OnceCell::new(),
            dir,
            logs: Cell::new(0),
        }
    }

    /// Returns the URL for TCP without TLS.
    pub(crate) fn tcp(&self) -> String {
        format!("{}?sslmode=disable", self.postgres.url_tcp())
    }

    /// Returns the URL for TCP with TLS and verification of the certificate.
    pub(crate) fn tls(&self) -> String {
        let url = self.postgres.url_tcp().replace("127.0.0.1", HOST);
        let ca = self.file("ca.pem");
        format!(
            "{url}?hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert={}",
            ca.display()
        )
    }

    /// Returns the path of a file in the directory of this benchmark.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a backlog into a table behind a slot of its own, and flushes all of it to disk.
    /// Creates the table unless it is [`OUTBOX`].
    pub(crate) fn backlog(&self, table: &str, load: Load) -> Backlog {
        if table != OUTBOX {
            create_outbox(&self.db, table);
        }
        let kept = format!("{table}_kept");
        let first = self.last_seq(table) + 1;
        // Writing the load is not measured, so its commits need not wait for the disk.
        self.db.batch("SET synchronous_commit = off");
        let mut write = format!("INSERT INTO {table} {COLUMNS} {}", load.row());
        let half = load.rows / 2;
        let fill = |write: &str, numbers| {
            for (_, sql) in load::backlog(write, numbers) {
                self.db.batch(&sql);
            }
            self.db.insert_lsn()
        };
        if load.form != Form::Rows {
            // The rows are what the records are compared with: the slot begins after them.
            assert_eq!(
                load.rows % load::BLOCK_ROWS,
                0,
                "batches end with their blocks"
            );
            fill(&write, 0..load.rows);
            self.db
                .batch(include_str!("../../../migrations/0002_emit.sql"));
            self.db
                .batch(include_str!("../../../migrations/0006_emit_all.sql"));
            self.db.batch(&format!(
                "CREATE UNIQUE INDEX ON {table} (seq); ANALYZE {table}"
            ));
            write = load.messages(table, first - 1);
        }
        self.slot_at_end(&kept);
        let begin = self.db.insert_lsn();
        let half_at = fill(&write, 0..half);
        let end = fill(&write, half..load.rows);
        self.db.batch("RESET synchronous_commit");
        self.db.batch("CHECKPOINT");
        let sql = format!(
            "SELECT count(*), avg(octet_length(payload::text))::float8, \
             pg_wal_lsn_diff($1::text::pg_lsn, $2::text::pg_lsn)::int8, max(seq) \
             FROM {table} WHERE seq >= $3"
        );
        let (from, to) = (begin.to_string(), end.to_string());
        let row = self.db.query(&sql, &[&to, &from, &first]);
        let count: i64 = row[0].get(0);
        assert_eq!(count.unsigned_abs(), load.rows, "rows of the backlog");
        Backlog {
            load,
            table: table.to_owned(),
            kept,
            half: half_at,
            end,
            payload_bytes: row[0].get(1),
            wal_bytes: row[0].get(2),
            numbers: (first, row[0].get(3)),
        }
    }

    /// Prepares the statement for [`insert_rows`](Self::insert_rows): rows like those of the
    /// backlog, with their number as type. With `returning` it returns id, key and payload of each
    /// row.
    pub(crate) fn prepare_insert(
        db: &Db,
        table: &str,
        kind: &str,
        returning_rows: bool,
    ) -> Statement {
        let returning = if returning_rows {
            "RETURNING id::text, aggregateid::text, payload::text"
        } else {
            ""
        };
        let sql = format!(
            "INSERT INTO {table} {COLUMNS} \
             SELECT '{kind}', key, ($1::int8 + n - $1::int8 % {POOL})::text, payload FROM pool \
             WHERE n >= $1::int8 % {POOL} AND n < $1::int8 % {POOL} + $2::int8 ORDER BY n {returning}"
        );
        block_on(db.client().prepare(&sql)).expect("a row can be written")
    }

    /// Commits `rows` rows in one transaction, at most [`MAX_ROWS`].
    pub(crate) fn insert_rows(
        db: &Db,
        statement: &Statement,
        first: i64,
        rows: i64,
    ) -> Result<Vec<Row>, Error> {
        assert!(rows <= MAX_ROWS, "{rows} rows");
        block_on(db.client().query(statement, &[&first, &rows]))
    }

    /// Copies the backlog into the table of a polling relay, which is then in the state of an
    /// outbox after VACUUM.
    pub(crate) fn fill_polled(&self, backlog: &Backlog) {
        self.empty_polled();
        let (first, last) = backlog.numbers;
        self.db.batch(&format!(
            "INSERT INTO polled (id, seq, aggregatetype, aggregateid, type, payload) \
             SELECT id, seq, aggregatetype, aggregateid, type, payload \
             FROM {} WHERE seq BETWEEN {first} AND {last} ORDER BY seq",
            backlog.table
        ));
        self.db.batch("VACUUM (FREEZE, ANALYZE) polled");
        self.db.batch("CHECKPOINT");
    }

    /// Empties the table of a polling relay.
    pub(crate) fn empty_polled(&self) {
        self.db.batch("TRUNCATE polled");
    }

    /// Returns the greatest `seq` so far.
    pub(crate) fn last_seq(&self, table: &str) -> i64 {
        let sql = format!("SELECT coalesce(max(seq), 0) FROM {table}");
        self.db.value(&sql)
    }

    /// Returns ids, numbers by [`insert_rows`](Self::insert_rows), and commit times in microseconds
    /// since 1970 of the rows after `first`.
    pub(crate) fn commit_times(&self, table: &str, first: i64) -> Vec<(String, i64, i64)> {
        let sql = format!(
            "SELECT id::text, type::int8, \
             (extract(epoch FROM pg_xact_commit_timestamp(written)) * 1e6)::int8 \
             FROM {table} WHERE seq > $1"
        );
        let rows = self.db.query(&sql, &[&first]);
        rows.iter()
            .map(|row| (row.get(0), row.get(1), row.get(2)))
            .collect()
    }

    /// Creates a slot that begins before the backlog.
    pub(crate) fn slot_before(&self, backlog: &Backlog, name: &str) {
        self.db.query(
            "SELECT 1 FROM pg_copy_logical_replication_slot($1, $2)",
            &[&backlog.kept, &name],
        );
    }

    /// Creates a slot at the end of the WAL.
    pub(crate) fn slot_at_end(&self, name: &str) {
        self.db.query(
            "SELECT 1 FROM pg_create_logical_replication_slot($1, 'pgoutput')",
            &[&name],
        );
    }

    /// Drops a slot as soon as its reader has gone.
    pub(crate) fn drop_slot(&self, name: &str) {
        let drop = "SELECT pg_drop_replication_slot($1)";
        eventually(PATIENCE, || self.db.try_query(drop, &[&name]).is_ok());
    }

    /// Creates the topics of a run and warms up their partitions, so that neither is measured. The
    /// broker's clock gives the timestamps. Returns the number of records in the topics.
    pub(crate) fn create_topics(&self, topics: &[String], partitions: i32) -> u64 {
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        let stamped = [("message.timestamp.type", "LogAppendTime")];
        self.kafka.create_topics(&names, partitions, &stamped);
        self.warm_up_partitions(topics, partitions)
    }

    /// Writes to each partition until the broker makes an entry in its index files. Allocating
    /// their pages costs some 50 ms of CPU per partition, once per segment, whoever sends.
    #[expect(
        clippy::disallowed_methods,
        reason = "all or nothing is what is waited for"
    )]
    fn warm_up_partitions(&self, topics: &[String], partitions: i32) -> u64 {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.kafka.bootstrap_servers());
        let producer: BaseProducer = config.create().expect("a producer");
        let value = vec![b'x'; WARM_UP_BYTES];
        // The broker makes the entry at the first append after `index.interval.bytes`.
        for _ in 0..WARM_UP_RECORDS {
            for topic in topics {
                for partition in 0..partitions {
                    let record = BaseRecord::<(), [u8]>::to(topic).partition(partition);
                    let sent = producer.send(record.payload(&value));
                    sent.map_err(|(error, _)| error).expect("a record is taken");
                }
            }
            producer.flush(PATIENCE).expect("records are delivered");
        }
        let partitions = u64::from(partitions.unsigned_abs());
        topics.len() as u64 * partitions * WARM_UP_RECORDS as u64
    }

    /// Deletes the topics and their files on disk.
    pub(crate) fn delete_topics(&self, topics: &[String]) {
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        self.kafka.delete_topics(&names);
    }

    /// Returns the number of records in a topic, by the broker's offsets.
    pub(crate) fn records(&self, topic: &str) -> u64 {
        let offsets = self.offsets.get_or_init(|| {
            let mut client = ClientConfig::new();
            client.set("bootstrap.servers", self.kafka.bootstrap_servers());
            client.create().expect("a consumer can be made")
        });
        let of = |partition| {
            eventually_some(PATIENCE, || {
                let answer = offsets.fetch_watermarks(topic, partition, PATIENCE);
                answer.ok().map(|(low, high)| high - low)
            })
        };
        (0..PARTITIONS).map(of).sum::<i64>().unsigned_abs()
    }

    /// Starts `walrelay run` of this binary with its defaults; returns when it streams.
    pub(crate) fn relay(
        &self,
        binary: &Path,
        config: &RelayConfig<'_>,
        arguments: &[&str],
    ) -> Program {
        let path = self.relay_config(config);
        let mut args = vec!["run".to_owned(), format!("--config={}", path.display())];
        args.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self.spawn(binary, &args, "\"streaming\"")
    }

    /// Returns the CPU seconds of the broker so far.
    pub(crate) fn broker_cpu(&self) -> f64 {
        let pid = self.kafka.pid().expect("the broker runs");
        proc::cpu(pid).expect("the broker runs")
    }

    /// Writes a minimal configuration file.
    pub(crate) fn relay_config(&self, config: &RelayConfig<'_>) -> PathBuf {
        let (brokers, encryption) = if config.tls {
            let ca = self.file("ca.pem");
            let lines = format!(
                "\"security.protocol\" = \"SSL\"\n\"ssl.ca.location\" = \"{}\"\n\
                 \"broker.address.family\" = \"v4\"\n",
                ca.display()
            );
            (self.kafka.listener("ENCRYPTED"), lines)
        } else {
            (self.kafka.bootstrap_servers(), String::new())
        };
        let sink = format!("[sink.kafka]\n\"bootstrap.servers\" = \"{brokers}\"\n{encryption}\n");
        self.write_config(config, &sink)
    }

    /// Writes a configuration file with these sections of the sink.
    pub(crate) fn write_config(&self, config: &RelayConfig<'_>, sink: &str) -> PathBuf {
        let RelayConfig {
            url,
            table,
            slot,
            prefix,
            messages,
            ..
        } = config;
        let messages = if *messages {
            "[source.messages]\nprefix = \"outbox\"\n\n"
        } else {
            ""
        };
        let config = format!(
            "[source]\nurl = \"{url}\"\nslot = \"{slot}\"\npublication = \"{table}\"\n\
             tables = [\"public.{table}\"]\ncreate = false\n\n{messages}\
             [router.debezium]\n\"route.topic.replacement\" = \"{prefix}${{routedByValue}}\"\n\n\
             {sink}[log]\nformat = \"json\"\n"
        );
        let path = self.file(&format!("{slot}.toml"));
        fs::write(&path, config).expect("the configuration is written");
        path
    }

    /// Starts a program; returns when its log contains `words`.
    pub(crate) fn spawn(&self, program: &Path, args: &[String], words: &str) -> Program {
        let mut command = Command::new(program);
        command.args(args);
        let running = self.start_program(&mut command);
        running.says(words);
        running
    }

    /// Starts a command with its output in a log file.
    pub(crate) fn start_program(&self, command: &mut Command) -> Program {
        self.logs.set(self.logs.get() + 1);
        let log = self.file(&format!("{}.log", self.logs.get()));
        Program::spawn(command, &log)
    }
}
