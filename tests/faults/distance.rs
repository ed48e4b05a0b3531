//! A relay that is far away from Postgres: its looks at the catalogs work, and delay no record.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::{Background, Db, Direction, eventually, lock, millis_now};

use crate::context::{Context, Ragged};
use crate::control::Control;
use crate::outcome::Outcome;
use crate::rig::PATIENCE;

/// Queries that follow one another sooner are of one look, in milliseconds.
const ONE_LOOK: i64 = 3_000;
/// During this many looks records must be seen to arrive.
const SHOWN: usize = 2;
/// On a busy machine no record may arrive during a look, so that many are awaited.
const MOST_LOOKS: usize = 20;
/// Documented limit for noticing a change of the publication, plus the end of the process.
const PROMISE: Duration = Duration::from_secs(11);
/// What an idle machine may add to the distance. A look for which the stream waited would add 500
/// ms.
const NOISE: Duration = Duration::from_millis(350);

/// Postgres is `delay` away in each direction.
pub(crate) fn looks(ctx: &mut Context, delay: Duration) -> Outcome {
    // Looks are known as the queries of the one connection beside the stream.
    ctx.outbox_without_notes();
    let (proxy, url) = ctx.proxy();
    let warns = "source.retained_wal_warning = \"1MiB\"";
    let mut relay = ctx.streaming(&ctx.config().url(&url).set(warns));
    let control = Control::start(&ctx.url());
    let looks = LookTimes::start(&ctx.url());
    for direction in [Direction::ToClient, Direction::ToServer] {
        proxy.delay(direction, delay);
    }
    let db = ctx.db();
    let holder = hold_wal_back(ctx);
    // The first record waits for its topic.
    db.batch("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', 'T', '{\"number\": 1}')");
    ctx.caught_up();
    let (mut rows, mut appended) = (Vec::new(), HashMap::new());
    let (mut seen, mut shown) = (0, 0);
    while seen < MOST_LOOKS && shown < SHOWN {
        write(&db, &mut rows, || looks.times().len() > seen);
        // Rows after the look.
        let looked = Instant::now();
        write(&db, &mut rows, || looked.elapsed() > Duration::from_secs(1));
        let records = ctx.records(1 + rows.len()).into_iter();
        appended = records
            .filter_map(|record| Some((record.id?, record.appended?)))
            .collect();
        let times = looks.times();
        let moved = |look: &&i64| moved_during(**look, delay, &rows, &appended);
        shown += times[seen..].iter().filter(moved).count();
        seen = times.len();
    }
    drop(holder);
    let outcome = ctx.judge(Ragged::No);
    let first_look = looks.times()[0] - delay.as_millis() as i64;
    let (before, during): (Rows, Rows) =
        rows.into_iter().partition(|row| row.committed < first_look);
    let [before, during] = [before, during].map(|rows| Latency::new(&rows, &appended));

    println!(
        "{delay:?} each way, commit to Kafka: without looks {before}; with looks {during}; \
         records arrived during {shown} of {seen} looks"
    );
    let late = control.limit(delay + NOISE);
    let warning = "the server keeps much WAL for the slot";
    let warned = relay.log().contains(warning);

    let name = &ctx.name;
    db.batch(&format!("ALTER PUBLICATION {name} DROP TABLE outbox"));
    let dropped = Instant::now();
    let code = relay.ended().code();
    let noticed = dropped.elapsed();
    let log = relay.log();
    println!("{delay:?} each way: a table out of the publication is noticed after {noticed:?}");
    let in_time = control.limit(PROMISE);
    outcome
        .nothing_repeated()
        .expect(shown >= SHOWN, || {
            format!("records arrived during {shown} of {seen} looks")
        })
        .expect(before.max < late, || format!("without looks: {before}"))
        .expect(during.max < late, || format!("with looks: {during}"))
        .expect(warned, || format!("no warning of retained WAL: {log}"))
        .expect(code == Some(78), || format!("exit code {code:?}: {log}"))
        .expect(log.contains("\"publication-lacks-table\""), || log.clone())
        .expect(noticed <= in_time, || format!("noticed after {noticed:?}"))
}

/// Opens a transaction and writes 2 MiB of WAL after it, which the slot must retain.
fn hold_wal_back(ctx: &Context) -> Db {
    let holder = ctx.db();
    holder.batch("CREATE TABLE held (text text); BEGIN; INSERT INTO held VALUES ('first')");
    let db = ctx.db();
    db.batch("CREATE TABLE other (text text)");
    db.batch("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 2000)");
    holder
}

/// The times at which the server received the relay's looks, in milliseconds since 1970.
struct LookTimes {
    times: Arc<Mutex<Vec<i64>>>,
    _thread: Background<()>,
}

impl LookTimes {
    /// Starts to watch the relay's control connection. Its last query so far is no look.
    fn start(url: &str) -> Self {
        let sql = "SELECT floor(extract(epoch FROM query_start) * 1000)::int8 FROM pg_stat_activity \
                   WHERE datname = current_database() AND application_name = 'walrelay' \
                   AND backend_type = 'client backend'";
        let times = Arc::<Mutex<Vec<i64>>>::default();
        let db = Db::connect(url);
        let mut last: i64 = db.value(sql);
        let thread = Background::start("looks", {
            let times = Arc::clone(&times);
            move |stop| {
                while !stop.load(Ordering::SeqCst) {
                    if let Some(at) = db.column::<i64>(sql, &[]).pop()
                        && at != last
                    {
                        if at > last + ONE_LOOK {
                            lock(&times).push(at);
                        }
                        last = at;
                    }
                    thread::sleep(Duration::from_millis(5));
                }
            }
        });
        Self {
            times,
            _thread: thread,
        }
    }

    fn times(&self) -> Vec<i64> {
        lock(&self.times).clone()
    }
}

/// Whether a record arrived that the relay received after it had sent this look and before the
/// answer: the look left the relay `delay` before the server received it, and the answer arrived
/// `delay` later, or more.
fn moved_during(look: i64, delay: Duration, rows: &[Row], appended: &HashMap<String, i64>) -> bool {
    let delay = delay.as_millis() as i64;
    rows.iter().any(|row| {
        // Such a row reaches the relay after the look has reached the server.
        row.begun > look - delay && appended[&row.id] < look + delay
    })
}

/// A row with times in milliseconds since 1970.
struct Row {
    id: String,
    /// Before the row was written.
    begun: i64,
    /// After it was committed.
    committed: i64,
}

type Rows = Vec<Row>;

/// Writes some 45 rows per second until the condition holds.
fn write(db: &Db, rows: &mut Rows, mut condition: impl FnMut() -> bool) {
    eventually(PATIENCE, || {
        let begun = millis_now();
        let number = rows.len() + 2;
        let id = db.value(&format!(
            "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', 'T', \
             '{{\"number\": {number}}}') RETURNING id::text"
        ));
        let committed = millis_now();
        rows.push(Row {
            id,
            begun,
            committed,
        });
        db.batch("SELECT pg_sleep(0.02)");
        condition()
    });
}

/// Time from commit to Kafka.
struct Latency {
    rows: usize,
    median: Duration,
    max: Duration,
}

impl Latency {
    fn new(rows: &[Row], appended: &HashMap<String, i64>) -> Self {
        let late = |row: &Row| {
            let appended = appended.get(&row.id).expect("the record of each row");
            Duration::from_millis((appended - row.committed).max(0) as u64)
        };
        let mut all: Vec<Duration> = rows.iter().map(late).collect();
        all.sort();
        Self {
            rows: all.len(),
            median: all[all.len() / 2],
            max: *all.last().expect("rows"),
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, median, max } = self;
        write!(f, "{rows} rows, median {median:?}, max {max:?}")
    }
}
