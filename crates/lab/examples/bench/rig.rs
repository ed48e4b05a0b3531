//! The servers, the outbox, and the relay as a process.

use std::cell::Cell;
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use futures_executor::block_on;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde::Serialize;
use tempfile::TempDir;
use tokio_postgres::{Error, Row, Statement};
use walrelay_lab::servers::{ChildGuard, Postgres};
use walrelay_lab::{load, proc};
use walrelay_lsn::Lsn;
use walrelay_testkit::{Authority, Db, Kafka, eventually, eventually_some, servers};

use crate::running::{self, PATIENCE, Running};

/// The table of the ordinary load. Its publication has the same name.
pub(crate) const OUTBOX: &str = "outbox";
pub(crate) const PARTITIONS: i32 = 8;
/// The first records of each partition have no id, and values of this size: more than the broker's
/// `index.interval.bytes`.
pub(crate) const BREAK_IN_RECORDS: i64 = 2;
const BREAK_IN_BYTES: usize = 5_000;
/// The name by which the server's certificates go.
const HOST: &str = "localhost";

/// Orders that are made before, so that writing them on a schedule costs the server little.
const POOL: i64 = 10_000;
/// Rows of a transaction of them.
const MOST: i64 = 1_000;
const COLUMNS: &str = "(aggregatetype, aggregateid, type, payload)";
/// A common value: an order, some 270 bytes of jsonb.
const ORDER: &str = "jsonb_build_object(\
      'orderId', n, 'customer', 'customer-' || n % 10000, 'currency', 'EUR', \
      'total', (n * 37 % 100000) / 100.0, 'reference', md5(n::text), 'address', \
      jsonb_build_object('street', 'Long Lane ' || n % 300, 'city', 'Springfield', 'zip', '04711'), \
      'note', 'at the door ' || left(md5((n + 1)::text), 22))";

pub(crate) struct Rig {
    pub(crate) postgres: Postgres,
    pub(crate) kafka: Kafka,
    pub(crate) db: Db,
    pub(crate) binary: PathBuf,
    /// An earlier walrelay, to be measured beside it.
    pub(crate) baseline: Option<PathBuf>,
    /// Whether Debezium Server takes part.
    pub(crate) peers: bool,
    pub(crate) recvlogical: PathBuf,
    /// This program.
    pub(crate) own: PathBuf,
    /// Held, so that the end offsets do not cost a connection each.
    offsets: BaseConsumer,
    dir: TempDir,
    files: Cell<u32>,
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Load {
    pub(crate) rows: u64,
    pub(crate) topics: u32,
    pub(crate) partitions: i32,
    /// Of the payload; `None` is an order of some 270.
    pub(crate) bytes: Option<u32>,
}

impl Load {
    pub(crate) const fn orders(rows: u64) -> Self {
        Self {
            rows,
            topics: 1,
            partitions: PARTITIONS,
            bytes: None,
        }
    }

    /// A row over its number `n`.
    fn row(&self) -> String {
        let kind = if self.topics == 1 {
            "'order'".to_owned()
        } else {
            format!("'order-' || n % {}", self.topics)
        };
        let payload = match self.bytes {
            None => ORDER.to_owned(),
            Some(bytes) => format!(
                "jsonb_build_object('orderId', n, 'text', (SELECT left(string_agg(md5(n || '.' || i), ''), \
                 {bytes} - 40) FROM generate_series(1, {bytes} / 32 + 1) i))"
            ),
        };
        format!("SELECT {kind}, 'customer-' || n % 10000, 'OrderPlaced', {payload}")
    }

    /// The topics that its records go to.
    pub(crate) fn topics(&self, prefix: &str) -> Vec<String> {
        if self.topics == 1 {
            return vec![format!("{prefix}order")];
        }
        let one = |number| format!("{prefix}order-{number}");
        (0..self.topics).map(one).collect()
    }
}

/// What the contenders drain.
pub(crate) struct Backlog {
    pub(crate) load: Load,
    /// And publication.
    pub(crate) table: String,
    /// The slot that stands before it: never read itself, copied for each run.
    pub(crate) kept: String,
    /// Where the first half of the rows ends.
    pub(crate) half: Lsn,
    pub(crate) end: Lsn,
    pub(crate) wal_bytes: i64,
    /// Of the payload's text, on average.
    pub(crate) payload_bytes: f64,
    /// The first row's number, and the last one's.
    pub(crate) numbers: (i64, i64),
}

/// A table for rows, with a publication of the same name.
fn create_outbox(db: &Db, name: &str) {
    db.batch(&format!(
        "CREATE TABLE {name} (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), \
         aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, \
         payload jsonb NOT NULL, seq bigserial NOT NULL, \
         written xid NOT NULL DEFAULT pg_current_xact_id()::xid); \
         CREATE PUBLICATION {name} FOR TABLE {name} WITH (publish = 'insert')"
    ));
}

/// How a relay is started.
pub(crate) struct RelayConfig<'a> {
    pub(crate) url: &'a str,
    /// And publication.
    pub(crate) table: &'a str,
    pub(crate) slot: &'a str,
    /// Of the topics.
    pub(crate) prefix: &'a str,
    /// Encrypted to the broker.
    pub(crate) tls: bool,
}

impl Rig {
    pub(crate) fn start(peers: bool) -> Self {
        let binary = running::binary();
        let baseline = running::baseline();
        let programs = servers::binaries(15);
        let recvlogical = running::recvlogical(&programs);
        let authority = Authority::new("benchmark");
        let issued = authority.server(HOST);
        let postgres = Postgres::builder()
            .binaries(programs)
            // What happens by time would fall into one run and not into another.
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
        let kafka = Kafka::builder()
            .partitions(PARTITIONS.unsigned_abs())
            .setting("delete.topic.enable", "true")
            .listener("ENCRYPTED", "SSL")
            .certificate("ENCRYPTED", &issued)
            .full_speed()
            .start();
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
             FROM generate_series(0, {POOL} + {MOST} - 1) n; ANALYZE pool"
        ));
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", kafka.bootstrap_servers());
        let dir = TempDir::with_prefix("walrelay-bench-").expect("a directory");
        fs::write(dir.path().join("ca.pem"), authority.pem()).expect("a file is written");
        Self {
            postgres,
            kafka,
            db,
            binary,
            baseline,
            peers,
            recvlogical,
            own: env::current_exe().expect("this program has a path"),
            offsets: client.create().expect("a consumer can be made"),
            dir,
            files: Cell::new(0),
        }
    }

    /// A URL by TCP, in the clear.
    pub(crate) fn tcp(&self) -> String {
        let url = self.postgres.url_tcp().expect("the server listens at TCP");
        format!("{url}?sslmode=disable")
    }

    /// A URL by TCP, encrypted and verified.
    pub(crate) fn tls(&self) -> String {
        let url = self.postgres.url_tcp().expect("the server listens at TCP");
        let url = url.replace("127.0.0.1", HOST);
        let ca = self.dir.path().join("ca.pem");
        format!(
            "{url}?hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert={}",
            ca.display()
        )
    }

    /// A file of this run.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a backlog into a table, which is made if it is not [`OUTBOX`], behind a slot of its own, and
    /// brings all of it to disk.
    pub(crate) fn backlog(&self, table: &str, load: Load) -> Backlog {
        if table != OUTBOX {
            create_outbox(&self.db, table);
        }
        let kept = format!("{table}_kept");
        self.slot_at_end(&kept);
        let begin = self.wal_end();
        let first = self.rows_numbered(table) + 1;
        // The load itself is not measured, so its commits need not wait for the disk one by one.
        self.db.batch("SET synchronous_commit = off");
        let insert = format!("INSERT INTO {table} {COLUMNS} {}", load.row());
        let half = load.rows / 2;
        let fill = |numbers| {
            for (_, sql) in load::backlog(&insert, numbers) {
                self.db.batch(&sql);
            }
            self.wal_end()
        };
        let half_at = fill(0..half);
        let end = fill(half..load.rows);
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

    /// What [`put`](Self::put) executes: rows like those of the backlog, with their number as type. If they
    /// are to be `told`, it gives id, key and payload of each.
    pub(crate) fn prepare_put(db: &Db, table: &str, kind: &str, told: bool) -> Statement {
        let returning = if told {
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

    /// Commits so many rows in one transaction, [`MOST`] at the most.
    pub(crate) fn put(db: &Db, put: &Statement, first: i64, rows: i64) -> Result<Vec<Row>, Error> {
        assert!(rows <= MOST, "{rows} rows");
        block_on(db.client().query(put, &[&first, &rows]))
    }

    /// A fresh copy of the backlog for a relay that polls, as an outbox is that was vacuumed.
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

    /// The table of a relay that polls, as new.
    pub(crate) fn empty_polled(&self) {
        self.db.batch("TRUNCATE polled");
    }

    /// The greatest number of a row so far.
    pub(crate) fn rows_numbered(&self, table: &str) -> i64 {
        let sql = format!("SELECT coalesce(max(seq), 0) FROM {table}");
        self.db.query(&sql, &[])[0].get(0)
    }

    /// Ids, numbers by [`put`](Self::put), and times of commit in microseconds since 1970, of the rows
    /// after `first`.
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

    /// Where the WAL ends that was written so far.
    pub(crate) fn wal_end(&self) -> Lsn {
        let text = self.db.text("SELECT pg_current_wal_insert_lsn()::text");
        text.expect("a primary has WAL").parse().expect("an LSN")
    }

    /// A new slot that stands before the backlog.
    pub(crate) fn slot_before(&self, backlog: &Backlog, name: &str) {
        self.db.query(
            "SELECT 1 FROM pg_copy_logical_replication_slot($1, $2)",
            &[&backlog.kept, &name],
        );
    }

    /// A new slot that stands behind everything.
    pub(crate) fn slot_at_end(&self, name: &str) {
        self.db.query(
            "SELECT 1 FROM pg_create_logical_replication_slot($1, 'pgoutput')",
            &[&name],
        );
    }

    /// Removes a slot when its reader has gone.
    pub(crate) fn drop_slot(&self, name: &str) {
        let drop = "SELECT pg_drop_replication_slot($1)";
        eventually(PATIENCE, || self.db.try_query(drop, &[&name]).is_ok());
    }

    /// Creates the topics that a run's records go to and breaks them in, so that neither is measured. The
    /// broker's clock says when a record was appended. Gives the number of records in them.
    pub(crate) fn create_topics(&self, topics: &[String], partitions: i32) -> u64 {
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        let stamped = [("message.timestamp.type", "LogAppendTime")];
        self.kafka.create_topics(&names, partitions, &stamped);
        self.break_in(topics, partitions)
    }

    /// Writes to each partition until the broker makes an entry in its indices. Making their pages costs
    /// some 50 ms of CPU a partition, once in the life of a segment, whoever sends.
    #[expect(
        clippy::disallowed_methods,
        reason = "all or nothing is what is waited for"
    )]
    fn break_in(&self, topics: &[String], partitions: i32) -> u64 {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.kafka.bootstrap_servers());
        let producer: BaseProducer = config.create().expect("a producer");
        let value = vec![b'x'; BREAK_IN_BYTES];
        // The entry is made by the append that comes after `index.interval.bytes`.
        for _ in 0..BREAK_IN_RECORDS {
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
        topics.len() as u64 * partitions * BREAK_IN_RECORDS as u64
    }

    /// Removes them, and what is in them from the disk.
    pub(crate) fn delete_topics(&self, topics: &[String]) {
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        self.kafka.delete_topics(&names);
    }

    /// Records in a topic, by the broker's word.
    pub(crate) fn records(&self, topic: &str) -> u64 {
        let of = |partition| {
            eventually_some(PATIENCE, || {
                let answer = self.offsets.fetch_watermarks(topic, partition, PATIENCE);
                answer.ok().map(|(low, high)| high - low)
            })
        };
        (0..PARTITIONS).map(of).sum::<i64>().unsigned_abs()
    }

    /// Starts `walrelay run` of this binary with its defaults, and returns when it streams.
    pub(crate) fn relay(
        &self,
        binary: &Path,
        config: &RelayConfig<'_>,
        arguments: &[&str],
    ) -> Running {
        let path = self.relay_config(config);
        let mut args = vec!["run".to_owned(), format!("--config={}", path.display())];
        args.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self.spawn(binary, &args, "\"streaming\"")
    }

    /// Seconds of CPU of the broker so far.
    pub(crate) fn broker_cpu(&self) -> f64 {
        let pid = self.kafka.pid().expect("the broker runs");
        proc::cpu(pid).expect("the broker runs")
    }

    /// A configuration with nothing in it that is not needed.
    pub(crate) fn relay_config(&self, config: &RelayConfig<'_>) -> PathBuf {
        let RelayConfig {
            url,
            table,
            slot,
            prefix,
            tls,
        } = config;
        let (brokers, encryption) = if *tls {
            let ca = self.dir.path().join("ca.pem");
            let lines = format!(
                "\"security.protocol\" = \"SSL\"\n\"ssl.ca.location\" = \"{}\"\n\
                 \"broker.address.family\" = \"v4\"\n",
                ca.display()
            );
            (self.kafka.listener("ENCRYPTED"), lines)
        } else {
            (self.kafka.bootstrap_servers(), String::new())
        };
        let config = format!(
            "[source]\nurl = \"{url}\"\nslot = \"{slot}\"\npublication = \"{table}\"\n\
             tables = [\"public.{table}\"]\ncreate = false\n\n\
             [router.debezium]\n\"route.topic.replacement\" = \"{prefix}${{routedByValue}}\"\n\n\
             [sink.kafka]\n\"bootstrap.servers\" = \"{brokers}\"\n{encryption}\n\
             [log]\nformat = \"json\"\n"
        );
        let path = self.dir.path().join(format!("{slot}.toml"));
        fs::write(&path, config).expect("the configuration is written");
        path
    }

    /// Starts a program and returns when its log has these words.
    pub(crate) fn spawn(&self, program: &Path, args: &[String], words: &str) -> Running {
        let mut command = Command::new(program);
        command.args(args);
        let mut running = self.start_program(&mut command);
        running.until_said(words);
        running
    }

    /// Starts a command; what it says goes to a log.
    pub(crate) fn start_program(&self, command: &mut Command) -> Running {
        self.files.set(self.files.get() + 1);
        let log = self.dir.path().join(format!("{}.log", self.files.get()));
        let file = File::create(&log).expect("a log file");
        let both = file.try_clone().expect("a second handle");
        command.stdin(Stdio::null()).stdout(both).stderr(file);
        let child = ChildGuard::spawn(command).unwrap_or_else(|error| {
            panic!("{} cannot be run: {error}", command.get_program().display())
        });
        Running::new(child, log)
    }
}
