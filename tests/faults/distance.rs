//! A relay that is far away from Postgres: its looks at the catalogs work, and delay no record.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use walrelay_testkit::{Db, Direction, millis_now};

use crate::context::{Context, Ragged};
use crate::outcome::Outcome;

/// Rows are written until this long after the stream began, which includes two looks and what
/// follows them.
const WRITING: Duration = Duration::from_secs(21);
/// Before this time after the stream began there is no look.
const WITHOUT_LOOKS: Duration = Duration::from_secs(8);
/// Documented limit for noticing a change of the publication, plus the end of the process.
const PROMISE: Duration = Duration::from_secs(11);
/// What a busy machine may add to the distance. A look for which the stream waited would add 500
/// ms.
const NOISE: Duration = Duration::from_millis(350);

/// Postgres is `delay` away in each direction.
pub(crate) fn looks(ctx: &mut Context, delay: Duration) -> Outcome {
    ctx.outbox();
    let (proxy, url) = ctx.proxy();
    let warns = "source.retained_wal_warning = \"1MiB\"";
    let mut relay = ctx.streaming(&ctx.config().url(&url).set(warns));
    let begun = Instant::now();
    for direction in [Direction::ToClient, Direction::ToServer] {
        proxy.delay(direction, delay);
    }
    let db = ctx.db();
    let holder = hold_wal_back(ctx);
    // The first record waits for its topic.
    db.batch("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', 'T', '{\"number\": 1}')");
    ctx.caught_up();
    let (before, during) = write(&db, begun);
    drop(holder);
    let outcome = ctx.judge(Ragged::No);
    let appended: HashMap<String, i64> = ctx
        .records(1 + before.len() + during.len())
        .into_iter()
        .filter_map(|record| Some((record.id?, record.appended?)))
        .collect();
    let [before, during] = [before, during].map(|rows| Latency::of(&rows, &appended));

    println!("{delay:?} each way, commit to Kafka: without looks {before}; with looks {during}");
    let warning = "the server keeps much WAL for the slot";
    let warned = relay.log().contains(warning);

    let name = &ctx.name;
    db.batch(&format!("ALTER PUBLICATION {name} DROP TABLE outbox"));
    let dropped = Instant::now();
    let code = relay.ended().code();
    let noticed = dropped.elapsed();
    let log = relay.log();
    println!("{delay:?} each way: a table out of the publication is noticed after {noticed:?}");
    let limit = delay + NOISE;
    outcome
        .nothing_repeated()
        .expect(before.max < limit, || format!("without looks: {before}"))
        .expect(during.max < limit, || format!("with looks: {during}"))
        .expect(warned, || format!("no warning of retained WAL: {log}"))
        .expect(code == Some(78), || format!("exit code {code:?}: {log}"))
        .expect(log.contains("[publication-lacks-table]"), || log.clone())
        .expect(noticed <= PROMISE, || format!("noticed after {noticed:?}"))
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

/// Ids of rows with their commit times in milliseconds since 1970.
type Rows = Vec<(String, i64)>;

/// Writes some 45 rows per second. Returns the rows before the first look, and the rows since then.
fn write(db: &Db, begun: Instant) -> (Rows, Rows) {
    let mut before = Vec::new();
    let mut during = Vec::new();
    for number in 2_i64.. {
        let at = begun.elapsed();
        if at > WRITING {
            break;
        }
        let id: String = db.value(&format!(
            "INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'k', 'T', \
             '{{\"number\": {number}}}') RETURNING id::text"
        ));
        let row = (id, millis_now());
        if at < WITHOUT_LOOKS {
            before.push(row);
        } else {
            during.push(row);
        }
        db.batch("SELECT pg_sleep(0.02)");
    }
    (before, during)
}

/// Time from commit to Kafka.
struct Latency {
    rows: usize,
    median: Duration,
    max: Duration,
}

impl Latency {
    fn of(rows: &[(String, i64)], appended: &HashMap<String, i64>) -> Self {
        let late = |(id, committed): &(String, i64)| {
            let appended = appended.get(id).expect("the record of each row");
            Duration::from_millis((appended - committed).max(0) as u64)
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
