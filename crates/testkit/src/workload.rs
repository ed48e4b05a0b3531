use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use fastrand::Rng;
use tokio_postgres::{Client, Error, NoTls, Statement, types::ToSql};

use crate::{
    Db,
    threads::{lock, run, spawn},
};

/// Share of the transactions that are rolled back, and share with a savepoint.
const ROLLBACK: f64 = 0.1;
const SAVEPOINT: f64 = 0.2;
/// Most rows of a transaction.
const MAX_ROWS: u32 = 20;
/// Most characters that a payload is padded with. Some are not ASCII.
const MAX_PADDING: usize = 200;

/// Concurrent writers to an outbox table, like those of an application.
///
/// Each transaction writes rows for a few keys; some are rolled back, some roll back to a
/// savepoint. The payload of a row has a `number`, counted per key. The counter is a row of a table
/// that the same transaction increments, and so locks until its commit: **the order of the numbers
/// of a key is the order of its commits**. A number that was rolled back is assigned again. A
/// transaction locks its keys in one order, so that writers do not deadlock.
///
/// The seed determines what each writer does, but not how writers interleave.
#[derive(Debug, Clone)]
#[must_use]
pub struct Workload {
    url: String,
    table: String,
    writers: u32,
    rows: Option<u64>,
    aggregate_types: Vec<String>,
    keys: u32,
    rate: Option<f64>,
    seed: u64,
}

/// The rows that were written, as far as the writers know. A commit whose response was lost counts
/// among the `errors`; only the table shows its outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Written {
    /// Transactions that were committed.
    pub transactions: u64,
    pub rows: u64,
    /// Transactions that were rolled back on purpose.
    pub rolled_back: u64,
    /// Rows that were rolled back, with their transaction or with a savepoint.
    pub undone_rows: u64,
    pub savepoints: u64,
    /// Connections that were lost or refused.
    pub errors: u64,
}

#[derive(Debug, Default)]
struct Progress {
    written: Mutex<Written>,
    stop: AtomicBool,
}

impl Progress {
    fn written(&self) -> MutexGuard<'_, Written> {
        lock(&self.written)
    }
}

/// A [`Workload`] at work. Dropping it stops it.
#[derive(Debug)]
pub struct Running {
    progress: Arc<Progress>,
    writers: Vec<JoinHandle<()>>,
}

impl Workload {
    /// Creates eight writers to `public.outbox` at this URL, until stopped.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            table: "public.outbox".to_owned(),
            writers: 8,
            rows: None,
            aggregate_types: ["order", "payment", "customer"].map(str::to_owned).into(),
            keys: 100,
            rate: None,
            seed: 1,
        }
    }

    /// Sets the name of the outbox table. The table of counters has the same name with `_keys` at
    /// the end.
    pub fn table(mut self, table: &str) -> Self {
        table.clone_into(&mut self.table);
        self
    }

    /// Sets the number of connections that write concurrently.
    pub fn writers(mut self, writers: u32) -> Self {
        self.writers = writers;
        self
    }

    /// Stops when this many rows were committed; a few more may be.
    pub fn rows(mut self, rows: u64) -> Self {
        self.rows = Some(rows);
        self
    }

    /// Sets the aggregate types, each of which becomes a topic.
    pub fn aggregate_types(mut self, types: &[&str]) -> Self {
        self.aggregate_types = types.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Sets the number of keys of each aggregate type.
    pub fn keys(mut self, keys: u32) -> Self {
        self.keys = keys;
        self
    }

    /// Limits the writers to about this many rows per second in all.
    pub fn rate(mut self, rows_per_second: f64) -> Self {
        self.rate = Some(rows_per_second);
        self
    }

    /// Sets the seed of the random numbers; another seed makes other transactions.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Creates the outbox table (as in Debezium's documentation) and the counters, if they are
    /// absent.
    #[track_caller]
    pub fn create_tables(&self) {
        let (db, table) = (Db::connect(&self.url), &self.table);
        db.batch(&format!(
            "CREATE TABLE IF NOT EXISTS {table} (id uuid PRIMARY KEY, \
             aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, \
             type varchar(255) NOT NULL, payload jsonb); \
             CREATE TABLE IF NOT EXISTS {table}_keys (aggregatetype text, aggregateid text, \
             n bigint NOT NULL DEFAULT 0, PRIMARY KEY (aggregatetype, aggregateid)) \
             WITH (fillfactor = 50)"
        ));
        for kind in &self.aggregate_types {
            db.query(
                &format!(
                    "INSERT INTO {table}_keys SELECT $1, 'key-' || k, 0 \
                     FROM generate_series(0, $2::int8 - 1) k ON CONFLICT DO NOTHING"
                ),
                &[kind, &i64::from(self.keys)],
            );
        }
    }

    /// Starts the writers. The tables must exist: [`create_tables`](Self::create_tables).
    pub fn start(&self) -> Running {
        let progress = Arc::new(Progress::default());
        let writers = (0..self.writers)
            .map(|number| {
                let (plan, progress) = (self.clone(), Arc::clone(&progress));
                spawn(&format!("writer-{number}"), move || {
                    run(write(&plan, number, &progress));
                })
            })
            .collect();
        Running { progress, writers }
    }

    /// Creates the tables, writes all of [`rows`](Self::rows) and returns the counts.
    #[track_caller]
    pub fn run(&self) -> Written {
        assert!(
            self.rows.is_some(),
            "a workload that is run to its end needs rows()"
        );
        self.create_tables();
        self.start().wait()
    }
}

impl Running {
    /// Counts so far.
    pub fn written(&self) -> Written {
        *self.progress.written()
    }

    /// Stops after the current transactions; returns the counts.
    #[track_caller]
    pub fn stop(self) -> Written {
        self.progress.stop.store(true, Ordering::SeqCst);
        self.wait()
    }

    /// Waits until all rows are written; returns the counts.
    #[track_caller]
    pub fn wait(mut self) -> Written {
        for writer in self.writers.drain(..) {
            assert!(writer.join().is_ok(), "a writer failed; see above");
        }
        self.written()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.progress.stop.store(true, Ordering::SeqCst);
        for writer in self.writers.drain(..) {
            let _ = writer.join();
        }
    }
}

struct Connection {
    client: Client,
    lock: Statement,
    insert: Statement,
}

async fn connect(plan: &Workload) -> Result<Connection, Error> {
    let mut config: tokio_postgres::Config = plan.url.parse()?;
    config.connect_timeout(Duration::from_secs(5));
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    let table = &plan.table;
    let lock = client
        .prepare(&format!(
            "SELECT n FROM {table}_keys WHERE aggregatetype = $1 AND aggregateid = $2 FOR UPDATE"
        ))
        .await?;
    let insert = client
        .prepare(&format!(
            "WITH key AS (UPDATE {table}_keys SET n = n + 1 \
             WHERE aggregatetype = $1 AND aggregateid = $2 RETURNING n) \
             INSERT INTO {table} (id, aggregatetype, aggregateid, type, payload) \
             SELECT gen_random_uuid(), $1, $2, $3, jsonb_build_object(\
             'number', key.n, 'key', $2, 'text', $4::text, 'tags', jsonb_build_array(1, null, true)) \
             FROM key"
        ))
        .await?;
    Ok(Connection {
        client,
        lock,
        insert,
    })
}

async fn write(plan: &Workload, number: u32, progress: &Progress) {
    let seed = plan.seed.wrapping_mul(0x9E37_79B9);
    let mut rng = Rng::with_seed(seed.wrapping_add(number.into()));
    let mut connection = None;
    let begun = tokio::time::Instant::now();
    let mut mine = 0_u64;
    let done = || {
        progress.stop.load(Ordering::SeqCst)
            || plan
                .rows
                .is_some_and(|rows| progress.written().rows >= rows)
    };
    while !done() {
        let result = async {
            let connection = match &mut connection {
                Some(connection) => connection,
                none => none.insert(connect(plan).await?),
            };
            transaction(plan, connection, &mut rng, progress).await
        }
        .await;
        match result {
            Ok(rows) => mine += rows,
            Err(error) => {
                // Classes: connection exceptions, operator intervention, insufficient resources.
                let mut classes = ["08", "57", "53"].iter();
                let lost = error
                    .code()
                    .is_none_or(|code| classes.any(|class| code.code().starts_with(class)));
                // heapam_tuple_lock reports this rarely, when it follows the versions of a row
                // while the transaction that made the next version is ending (seen with 18.1, on a
                // busy machine). The server has rolled the transaction back, and the row is sound.
                let raced = error.as_db_error().is_some_and(|error| {
                    error.code().code() == "XX001"
                        && error.message().contains("is uncommitted in tuple")
                });
                let lost = lost || raced;
                assert!(lost, "a writer to {} failed: {error:?}", plan.table);
                progress.written().errors += 1;
                connection = None;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        if let Some(rate) = plan.rate {
            let share = rate / f64::from(plan.writers);
            let due = begun + Duration::from_secs_f64(mine as f64 / share);
            // Sleep in short steps, so that a stop is noticed.
            while tokio::time::Instant::now() < due && !done() {
                let step = tokio::time::Instant::now() + Duration::from_millis(50);
                tokio::time::sleep_until(due.min(step)).await;
            }
        }
    }
}

/// Runs one transaction; returns the number of rows that it committed.
async fn transaction(
    plan: &Workload,
    Connection {
        client,
        lock,
        insert,
    }: &Connection,
    rng: &mut Rng,
    progress: &Progress,
) -> Result<u64, Error> {
    let rows = rng.u32(1..=MAX_ROWS);
    let types = &plan.aggregate_types;
    let mut keys = BTreeSet::new();
    for _ in 0..rng.u32(1..=4) {
        keys.insert((rng.usize(..types.len()), rng.u32(..plan.keys)));
    }
    client.batch_execute("BEGIN").await?;
    let keys = keys.into_iter();
    let keys = keys.map(|(kind, key)| (&*types[kind], format!("key-{key}")));
    let keys: Vec<(&str, String)> = keys.collect();
    for (kind, key) in &keys {
        client.query_one(lock, &[kind, key]).await?;
    }
    // The first and the last row that a savepoint undoes.
    let undone = (rows >= 2 && rng.f64() < SAVEPOINT).then(|| {
        let first = rng.u32(..rows);
        (first, rng.u32(first..rows))
    });
    let (mut written, mut undone_rows) = (0_u64, 0_u64);
    for row in 0..rows {
        if undone.is_some_and(|(first, _)| first == row) {
            client.batch_execute("SAVEPOINT part").await?;
        }
        let (kind, key) = &keys[rng.usize(..keys.len())];
        let text = text(rng);
        let event = ["Created", "Changed", "Deleted"][rng.usize(..3)];
        let parameters: [&(dyn ToSql + Sync); 4] = [kind, key, &event, &text];
        client.execute(insert, &parameters).await?;
        written += 1;
        if let Some((first, last)) = undone
            && last == row
        {
            client.batch_execute("ROLLBACK TO SAVEPOINT part").await?;
            undone_rows += u64::from(last - first + 1);
            progress.written().savepoints += 1;
        }
    }
    if rng.f64() < ROLLBACK {
        client.batch_execute("ROLLBACK").await?;
        let mut all = progress.written();
        all.rolled_back += 1;
        all.undone_rows += written;
        return Ok(0);
    }
    client.batch_execute("COMMIT").await?;
    let mut all = progress.written();
    all.transactions += 1;
    all.rows += written - undone_rows;
    all.undone_rows += undone_rows;
    Ok(written - undone_rows)
}

/// Returns a text with characters that need care in JSON, UTF-8 or SQL.
fn text(rng: &mut Rng) -> String {
    const SPECIAL: [char; 8] = ['"', '\\', '\n', 'é', '√', '🦀', '\u{2028}', '\''];
    let length = rng.usize(..=MAX_PADDING);
    let mut character = |_| match rng.u8(..) {
        0..8 => SPECIAL[rng.usize(..8)],
        _ => rng.lowercase(),
    };
    (0..length).map(&mut character).collect()
}
