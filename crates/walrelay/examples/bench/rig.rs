//! The servers, the outbox, and the relay as a process.

use std::cell::RefCell;
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_executor::block_on;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tempfile::TempDir;
use tokio_postgres::Statement;
use walrelay_lsn::Lsn;
use walrelay_testkit::{Db, Kafka, eventually, eventually_some, servers};
use walrelay_throwaway::{Postgres, PostgresBinaries};

use crate::polling;

/// Nothing waits so long that goes well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
pub(crate) const PUBLICATION: &str = "bench";
/// Keeps the WAL of the backlog; never read itself, copied for each run.
const KEPT: &str = "kept";
pub(crate) const PARTITIONS: i32 = 8;
const TRANSACTION: u64 = 100;

/// The value as people have it: an order, some 270 bytes of jsonb.
const COLUMNS: &str = "(aggregatetype, aggregateid, type, payload)";
const ROW: &str = "SELECT 'order', 'customer-' || n % 10000, 'OrderPlaced', jsonb_build_object(\
      'orderId', n, 'customer', 'customer-' || n % 10000, 'currency', 'EUR', \
      'total', (n * 37 % 100000) / 100.0, 'reference', md5(n::text), 'address', \
      jsonb_build_object('street', 'Long Lane ' || n % 300, 'city', 'Springfield', 'zip', '04711'), \
      'note', 'at the door ' || left(md5((n + 1)::text), 22))";

pub(crate) struct Rig {
    pub(crate) postgres: Postgres,
    pub(crate) kafka: Kafka,
    pub(crate) db: Db,
    pub(crate) binary: PathBuf,
    pub(crate) recvlogical: PathBuf,
    /// This program.
    pub(crate) own: PathBuf,
    /// Held, so that the end offsets do not cost a connection each.
    offsets: BaseConsumer,
    dir: TempDir,
    files: RefCell<u32>,
}

/// What the contenders drain.
pub(crate) struct Backlog {
    pub(crate) rows: u64,
    pub(crate) end: Lsn,
    pub(crate) wal_bytes: i64,
    /// Of the payload's text, on average.
    pub(crate) payload_bytes: f64,
}

impl Rig {
    pub(crate) fn start() -> Self {
        let binary = binary();
        let programs = servers::binaries(15);
        let recvlogical = recvlogical(&programs);
        let postgres = Postgres::builder()
            .binaries(programs)
            // What happens by time would fall into one run and not into another.
            .setting("autovacuum", "off")
            .setting("checkpoint_timeout", "1h")
            .setting("max_wal_size", "16GB")
            .setting("track_commit_timestamp", "on")
            .setting("shared_buffers", "512MB")
            .start()
            .expect("Postgres starts");
        let kafka = Kafka::builder()
            .partitions(PARTITIONS.unsigned_abs())
            .full_speed()
            .start();
        let db = Db::connect(&postgres.url());
        db.batch(
            "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), \
             aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, \
             payload jsonb NOT NULL, seq bigserial NOT NULL, \
             written xid NOT NULL DEFAULT pg_current_xact_id()::xid); \
             CREATE TABLE polled (LIKE outbox INCLUDING ALL, sent_at timestamptz); \
             CREATE INDEX ON polled (seq) WHERE sent_at IS NULL",
        );
        db.batch(&format!(
            "CREATE PUBLICATION {PUBLICATION} FOR TABLE outbox WITH (publish = 'insert')"
        ));
        db.query(
            "SELECT 1 FROM pg_create_logical_replication_slot($1, 'pgoutput')",
            &[&KEPT],
        );
        let offsets = ClientConfig::new()
            .set("bootstrap.servers", kafka.bootstrap_servers())
            .create()
            .expect("a consumer can be made");
        Self {
            postgres,
            kafka,
            db,
            binary,
            recvlogical,
            own: env::current_exe().expect("this program has a path"),
            offsets,
            dir: TempDir::with_prefix("walrelay-bench-").expect("a directory"),
            files: RefCell::new(0),
        }
    }

    /// Writes the backlog and brings all of it to disk.
    pub(crate) fn backlog(&self, rows: u64) -> Backlog {
        let begin = self.wal_end();
        // The load itself is not measured, so its commits need not wait for the disk one by one.
        self.db.batch(&format!(
            "CREATE PROCEDURE fill(rows bigint) LANGUAGE plpgsql AS $$ \
             DECLARE done bigint := 0; BEGIN \
             WHILE done < rows LOOP \
               INSERT INTO outbox {COLUMNS} {ROW} FROM generate_series(done + 1, least(done + {TRANSACTION}, rows)) n; \
               COMMIT; done := done + {TRANSACTION}; \
             END LOOP; END $$; \
             SET synchronous_commit = off"
        ));
        self.db.batch(&format!("CALL fill({rows})"));
        let end = self.wal_end();
        self.db.batch("RESET synchronous_commit; CHECKPOINT");
        let row = self.db.query(
            "SELECT count(*), avg(octet_length(payload::text))::float8, \
             pg_wal_lsn_diff($1::text::pg_lsn, $2::text::pg_lsn)::int8 FROM outbox",
            &[&end.to_string(), &begin.to_string()],
        );
        let count: i64 = row[0].get(0);
        assert_eq!(count.unsigned_abs(), rows, "rows of the backlog");
        Backlog {
            rows,
            end,
            payload_bytes: row[0].get(1),
            wal_bytes: row[0].get(2),
        }
    }

    /// What [`put`](Self::put) executes.
    pub(crate) fn prepare_put(db: &Db, table: &str) -> Statement {
        let sql = format!("INSERT INTO {table} {COLUMNS} {ROW} FROM (SELECT $1::int8 AS n) one");
        block_on(db.client().prepare(&sql)).expect("a row can be written")
    }

    /// Commits one row like those of the backlog.
    pub(crate) fn put(db: &Db, put: &Statement, n: i64) {
        block_on(db.client().execute(put, &[&n])).expect("a row is written");
    }

    /// A fresh copy of the backlog for a relay that polls, as an outbox is that was vacuumed.
    pub(crate) fn fill_polled(&self) {
        self.empty_polled();
        self.db.batch(&format!(
            "INSERT INTO polled {COLUMNS} SELECT aggregatetype, aggregateid, type, payload \
             FROM outbox ORDER BY seq"
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

    /// Ids, and times of commit in microseconds since 1970, of the rows numbered above `first`.
    pub(crate) fn commit_times(&self, table: &str, first: i64) -> Vec<(String, i64)> {
        let sql = format!(
            "SELECT id::text, (extract(epoch FROM pg_xact_commit_timestamp(written)) * 1e6)::int8 \
             FROM {table} WHERE seq > $1"
        );
        let rows = self.db.query(&sql, &[&first]);
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// The process of the server that serves a relay that polls.
    pub(crate) fn polling_backend(&self) -> u32 {
        let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = $1";
        let name = polling::APPLICATION;
        let pid: i32 = eventually_some(PATIENCE, || {
            self.db.query(sql, &[&name]).first().map(|row| row.get(0))
        });
        pid.unsigned_abs()
    }

    /// Where the WAL ends that was written so far.
    pub(crate) fn wal_end(&self) -> Lsn {
        let text = self.db.text("SELECT pg_current_wal_insert_lsn()::text");
        text.expect("a primary has WAL").parse().expect("an LSN")
    }

    /// A new slot that stands before the backlog.
    pub(crate) fn slot_before_backlog(&self, name: &str) {
        self.db.query(
            "SELECT 1 FROM pg_copy_logical_replication_slot($1, $2)",
            &[&KEPT, &name],
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

    /// Creates the topic that a run's records go to, so that its creation is not measured.
    pub(crate) fn create_topic(&self, topic: &str) {
        self.create_topic_with(topic, &[]);
    }

    /// The same with settings.
    pub(crate) fn create_topic_with(&self, topic: &str, settings: &[(&str, &str)]) {
        self.kafka.create_topic(topic, PARTITIONS, settings);
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

    /// Starts `walrelay run` with its defaults, to topics that begin with `prefix`, and returns when
    /// it streams.
    pub(crate) fn relay(&self, url: &str, slot: &str, prefix: &str) -> Running {
        let config = format!(
            "[source]\nurl = \"{url}\"\nslot = \"{slot}\"\npublication = \"{PUBLICATION}\"\n\
             tables = [\"public.outbox\"]\ncreate = false\n\n\
             [router.debezium]\n\"route.topic.replacement\" = \"{prefix}${{routedByValue}}\"\n\n\
             [sink.kafka]\n\"bootstrap.servers\" = \"{}\"\n\n[log]\nformat = \"json\"\n",
            self.kafka.bootstrap_servers()
        );
        let path = self.dir.path().join(format!("{slot}.toml"));
        fs::write(&path, config).expect("the configuration is written");
        let args = ["run".to_owned(), format!("--config={}", path.display())];
        self.spawn(&self.binary, &args, "\"streaming\"")
    }

    /// Starts a program and returns when its log has these words.
    pub(crate) fn spawn(&self, program: &Path, args: &[String], words: &str) -> Running {
        // The kernel ends it should this program be killed; its drop would not run then.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--"]).arg(program);
        command.args(args);
        *self.files.borrow_mut() += 1;
        let log = self.dir.path().join(format!("{}.log", self.files.borrow()));
        let file = File::create(&log).expect("a log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("setpriv, of util-linux, cannot be run: {error}"));
        let mut running = Running { child, log };
        running.until_said(words);
        running
    }
}

/// A program under measurement. Dropped, it is killed.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn until_said(&mut self, words: &str) {
        eventually(PATIENCE, || {
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none(), "{ended:?}: {}", self.log());
            self.log().contains(words)
        });
    }

    /// Waits for its end, which must be a success, and gives its log.
    pub(crate) fn ended(mut self) -> String {
        let status = eventually_some(PATIENCE, || self.child.try_wait().expect("a child"));
        assert!(status.success(), "{status}: {}", self.log());
        self.log()
    }

    /// SIGTERM; then as [`ended`](Self::ended).
    pub(crate) fn terminate(self) -> String {
        let kill = Command::new("kill").arg(self.pid().to_string()).status();
        assert!(kill.expect("kill runs").success(), "kill {}", self.pid());
        self.ended()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The walrelay to be measured.
fn binary() -> PathBuf {
    let named = env::args_os()
        .nth(1)
        .or_else(|| env::var_os("WALRELAY_BIN"));
    let path = named.map_or_else(beside_this_program, PathBuf::from);
    assert!(
        path.is_file(),
        "{} is not there: build it with `make build`, or name another one",
        path.display()
    );
    path
}

/// `<target>/release/walrelay`; this program is `<target>/<profile>/examples/bench`.
fn beside_this_program() -> PathBuf {
    let own = env::current_exe().expect("this program has a path");
    let target = own.ancestors().nth(3).unwrap_or(Path::new("target"));
    target.join("release").join("walrelay")
}

/// Beside the server's programs, in `PATH`, or where Debian puts it.
fn recvlogical(programs: &PostgresBinaries) -> PathBuf {
    const NAME: &str = "pg_recvlogical";
    let path = env::var_os("PATH").unwrap_or_default();
    let debian = Path::new("/usr/lib/postgresql/15/bin").to_path_buf();
    [programs.dir().to_path_buf(), debian]
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|dir| dir.join(NAME))
        .find(|file| file.is_file())
        .unwrap_or_else(|| panic!("{NAME} is needed: apt-get install postgresql-15"))
}
