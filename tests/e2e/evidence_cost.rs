//! What it costs the primary that rows count as sent by evidence only: run by `cargo test -p walrelay --test
//! e2e evidence_cost -- --ignored --nocapture --test-threads=1`. With the path of another version of the
//! binary in `WALRELAY_BASELINE` each line is measured with both, one after the other.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_measure::proc;
use walrelay_testkit::{Db, eventually, output};

use crate::old_rows::{MARK, PRUNE, count, insert, rig, unseen};
use crate::rig::{Relay, Rig, output_with, run_command, said, unique, with_source};

/// The time of a measurement.
const SECONDS: u64 = 12;
/// Limit of a first start with ten million rows.
const FIRST_START: Duration = Duration::from_secs(15 * 60);
/// `USER_HZ` of Linux.
const TICKS_PER_SECOND: f64 = 100.0;
/// Loads: rows a second, and rows of a transaction.
const LOADS: [(u64, u64); 2] = [(1_000, 1), (10_000, 10)];
/// Lines of the configuration, by what the relay writes down.
const RECORDS: [(&str, Option<(&str, &str)>); 4] = [
    ("no relay", None),
    ("the position", Some(("", ""))),
    (
        "and an account",
        Some(("", "\n[prune]\nbefore_slot = true\n")),
    ),
    ("and marks", Some((MARK, ""))),
];

/// The binaries that are measured, each with its name.
fn binaries() -> Vec<(&'static str, Option<PathBuf>)> {
    let baseline = env::var_os("WALRELAY_BASELINE").map(PathBuf::from);
    let baseline = baseline.map(|path| ("baseline", Some(path)));
    baseline.into_iter().chain([("this", None)]).collect()
}

/// `walrelay run`, by this binary or another one.
fn relay(rig: &Rig, config: &Path, binary: Option<&Path>) -> Relay {
    let mut command = match binary {
        Some(binary) => {
            let mut command = Command::new(binary);
            command.args(["run", "--config"]).arg(config);
            command
        }
        None => run_command(config),
    };
    let relay = Relay::spawn(&mut command, &rig.path(&format!("cost-{}.log", unique())));
    // A first start accounts the rows that are there, before it makes the slot.
    eventually(FIRST_START, || relay.streams() > 0);
    relay
}

/// CPU seconds of the server's processes, also of those that have ended.
fn server_cpu(rig: &Rig) -> f64 {
    let server = rig.postgres.pid().expect("it runs").to_string();
    // After the name in brackets: state, parent, and further on the ticks of ended children (proc(5)).
    let fields = |pid: &str| -> Vec<String> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit(')').next().unwrap_or_default();
        rest.split_whitespace().map(str::to_owned).collect()
    };
    let ended = fields(&server);
    let ticks = |at: usize| ended[at].parse::<f64>().expect("ticks");
    let processes = fs::read_dir("/proc").expect("/proc");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let running: f64 = pids
        .filter(|pid| fields(pid).get(1) == Some(&server))
        .filter_map(proc::cpu)
        .sum();
    running + (ticks(13) + ticks(14)) / TICKS_PER_SECOND
}

/// Commits, bytes of WAL and CPU seconds so far.
fn costs(rig: &Rig, db: &Db) -> [f64; 3] {
    let sql = "SELECT (sum(xact_commit)::float8, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8)::text \
               FROM pg_stat_database";
    let text: String = db.value(sql);
    let mut figures = text.trim_matches(['(', ')']).split(',').map(str::parse);
    let mut next = || figures.next().expect("a figure").expect("a number");
    [next(), next(), server_cpu(rig)]
}

/// Inserts at this rate, in transactions of `size` rows. Returns the number of rows.
fn load(db: &Db, rate: u64, size: u64) -> u64 {
    let sql = format!(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) SELECT gen_random_uuid(), 'order', \
         'key-' || n, 'T', jsonb_build_object('number', n, 'text', repeat('x', 100)) FROM generate_series(1, {size}) n"
    );
    let begun = Instant::now();
    let mut rows = 0;
    while begun.elapsed().as_secs() < SECONDS {
        let due = (begun.elapsed().as_secs_f64() * rate as f64) as u64;
        while rows < due {
            db.batch(&sql);
            rows += size;
        }
        thread::sleep(Duration::from_millis(1));
    }
    rows
}

#[test]
#[ignore = "minutes: its figures are in docs/adr/measurements/0056-evidence.md"]
fn the_cost_of_each_row_is_measured() {
    println!("| load | | binary | commits/s beside the load | WAL, B/row | server CPU, µs/row |");
    for (rate, size) in LOADS {
        for (name, lines) in RECORDS {
            for (binary, path) in binaries() {
                if lines.is_none() && path.is_some() {
                    continue;
                }
                let rig = rig(18);
                let db = rig.db();
                let running = lines.map(|(source, more)| {
                    let config = with_source(rig.config_and(more), source);
                    relay(&rig, &config, path.as_deref())
                });
                load(&db, 100, 1);
                let before = costs(&rig, &db);
                let rows = load(&db, rate, size);
                if running.is_some() {
                    rig.caught_up();
                }
                // The last marks come after the position at the latest by a second.
                thread::sleep(Duration::from_secs(1));
                let after = costs(&rig, &db);
                let [commits, wal, cpu] = [0, 1, 2].map(|at| after[at] - before[at]);
                println!(
                    "| {rate}/s, {size} a transaction | {name} | {binary} | {:.0} | {:.0} | {:.0} |",
                    (commits - (rows / size) as f64) / SECONDS as f64,
                    wal / rows as f64,
                    cpu / rows as f64 * 1e6
                );
                if let Some(running) = running {
                    let log = running.ends_well();
                    assert!(!log.contains("\"ERROR\""), "{log}");
                }
            }
        }
    }
}

#[test]
#[ignore = "minutes: its figures are in docs/adr/measurements/0056-evidence.md"]
fn the_cost_of_pruned_rows_is_measured() {
    let rows: u64 =
        env::var("WALRELAY_ROWS").map_or(10_000_000, |rows| rows.parse().expect("a number"));
    println!("| binary | rows | first start, s | prune, s | server CPU of the prune, µs/row |");
    for (binary, path) in binaries() {
        let rig = rig(18);
        let db = rig.db();
        db.batch(&format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at) SELECT gen_random_uuid(), \
             'order', 'key-' || n, 'T', jsonb_build_object('number', n, 'text', repeat('x', 100)), \
             now() - interval '2 days' - n * interval '100 ms' FROM generate_series(1, {rows}) n; \
             CREATE INDEX ON outbox (created_at); ANALYZE outbox"
        ));
        // Rows from before the first slot may go, so none has to be sent first.
        let config = rig.config_and("\n[prune]\nbefore_slot = true\npause = \"0ms\"\n");
        let begun = Instant::now();
        let running = relay(&rig, &config, path.as_deref());
        let first = begun.elapsed().as_secs_f64();
        let (begun, before) = (Instant::now(), server_cpu(&rig));
        let program = path.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_walrelay")));
        let mut command = Command::new(program);
        let pruned = output(
            command
                .arg("prune")
                .args(PRUNE)
                .arg("--config")
                .arg(&config),
        );
        let took = begun.elapsed().as_secs_f64();
        assert!(pruned.status.success(), "{}", said(&pruned));
        assert_eq!(count(&db, "outbox"), 0);
        let cpu = server_cpu(&rig) - before;
        println!(
            "| {binary} | {rows} | {first:.1} | {took:.1} | {:.1} |",
            cpu / rows as f64 * 1e6
        );
        running.ends_well();
    }
}

#[test]
#[ignore = "minutes: its figures are in docs/how-to/where.md"]
fn the_cost_of_an_audit_is_measured() {
    let rows: u64 =
        env::var("WALRELAY_ROWS").map_or(4_000_000, |rows| rows.parse().expect("a number"));
    println!(
        "| unmarked index | rows | MB | pass, s | server CPU of the pass, s | of the same time without it, s |"
    );
    for index in [
        "",
        "CREATE INDEX ON outbox (created_at) WHERE sent_at IS NULL;",
    ] {
        let rig = rig(18);
        let db = rig.db();
        db.batch(&format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, sent_at) SELECT gen_random_uuid(), \
             'order', 'key-' || n, 'T', jsonb_build_object('number', n, 'text', repeat('x', 100)), now() \
             FROM generate_series(1, {rows}) n; {index} ANALYZE outbox"
        ));
        // Hint bits are written by the first reader.
        count(&db, "outbox");
        let bytes: i64 = db.value("SELECT pg_relation_size('outbox')");
        let (took, cpu, without) = audit_pass(&rig);
        println!(
            "| {} | {rows} | {} | {:.1} | {cpu:.2} | {without:.2} |",
            !index.is_empty(),
            bytes / 1_000_000,
            took - 10.0
        );
    }
}

/// Audits the whole table once. Returns its seconds, ten of which are before the first round, the seconds of the
/// server's processes meanwhile, and those that they use in the same time without it.
fn audit_pass(rig: &Rig) -> (f64, f64, f64) {
    let config = with_source(
        rig.config_and(
            "\n[audit]\nevery = \"10s\"\nbytes = \"100GiB\"\n\n[http]\nlisten = \"127.0.0.1:0\"\n",
        ),
        MARK,
    );
    let running = relay(rig, &config, None);
    let is_whole = || {
        let address = crate::endpoint::address(&running);
        let (_, body) = crate::endpoint::get(address, "/api/status").expect("an answer");
        body.contains("\"percent\":100")
    };
    let before = server_cpu(rig);
    let begun = Instant::now();
    // The first round begins after the interval.
    eventually(FIRST_START, is_whole);
    let took = begun.elapsed().as_secs_f64();
    let cpu = server_cpu(rig) - before;
    running.ends_well();
    let idle = relay(rig, &with_source(rig.config(), MARK), None);
    let before = server_cpu(rig);
    thread::sleep(Duration::from_secs_f64(took.min(30.0)));
    let without = (server_cpu(rig) - before) * took / took.min(30.0);
    idle.ends_well();
    (took, cpu, without)
}

#[test]
#[ignore = "minutes: its figures are in docs/adr/measurements/0056-evidence.md"]
fn of_a_watched_table() {
    let rows: u64 =
        env::var("WALRELAY_ROWS").map_or(10_000_000, |rows| rows.parse().expect("a number"));
    let rig = rig(18);
    let db = rig.db();
    db.batch(&format!(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at, sent_at) SELECT \
         gen_random_uuid(), 'order', 'key-' || n, 'T', jsonb_build_object('number', n, 'text', repeat('x', 100)), \
         now() - interval '1 hour' - (n * 86400.0 / {rows}) * interval '1 second', now() \
         FROM generate_series(1, {rows}) n; CREATE INDEX ON outbox (created_at)"
    ));
    db.batch("VACUUM ANALYZE outbox");
    let bytes: i64 = db.value("SELECT pg_total_relation_size('outbox')");
    println!("{rows} rows, {} MB with indexes", bytes / 1_000_000);
    println!("| | s | server CPU, s |");
    let stuck = |what: &str, config: &Path, more: &[&str], code: i32| {
        let before = server_cpu(&rig);
        let begun = Instant::now();
        let found = output_with("stuck --timeout 600s", config, more);
        let took = begun.elapsed().as_secs_f64();
        assert_eq!(found.status.code(), Some(code), "{}", said(&found));
        let cpu = server_cpu(&rig) - before;
        println!("| stuck, {what} | {took:.2} | {cpu:.2} |");
    };

    let account = rig.config_and("\n[prune]\nbefore_slot = true\n");
    let begun = Instant::now();
    let running = relay(&rig, &account, None);
    println!(
        "| first start with [prune] | {:.1} | |",
        begun.elapsed().as_secs_f64()
    );
    unseen(&db, || insert(&db, 1, "unseen"));
    rig.caught_up();
    running.ends_well();
    stuck("account", &account, &[], 1);
    stuck("account, --since 2h", &account, &["--since", "2h"], 0);

    let marks = with_source(rig.config(), MARK);
    stuck("marks without a partial index", &marks, &[], 1);
    db.batch("CREATE INDEX ON outbox (created_at) WHERE sent_at IS NULL");
    stuck("marks with it", &marks, &[], 1);

    let (took, cpu, without) = audit_pass(&rig);
    println!(
        "| a pass of [audit] | {:.1} | {cpu:.2}; {without:.2} in the same time without it |",
        took - 10.0
    );
    println!("each look for the metrics, ms: {}", watched(&rig, &db));
}

/// Returns the time of all statements of each look at the table for the metrics, by the server's log.
fn watched(rig: &Rig, db: &Db) -> String {
    let log = rig.postgres.log_path();
    let former = fs::metadata(&log).expect("the log").len();
    db.batch("ALTER SYSTEM SET log_min_duration_statement = 0");
    rig.postgres.reload_settings().expect("reloaded");
    let config = with_source(rig.config_and("\n[http]\nlisten = \"127.0.0.1:0\"\n"), MARK);
    let running = relay(rig, &config, None);
    // Each look has a connection of its own.
    let looks = || {
        let text = fs::read_to_string(&log).expect("the log");
        let text = &text[usize::try_from(former).expect("a length")..];
        let mut of_process: HashMap<&str, (bool, f64)> = HashMap::new();
        let lines = text.lines().filter_map(|line| {
            let (head, rest) = line.split_once("duration: ")?;
            let process = head.split_once('[')?.1.split_once(']')?.0;
            let (duration, statement) = rest.split_once(" ms")?;
            Some((process, duration.parse::<f64>().ok()?, statement))
        });
        for (process, duration, statement) in lines {
            let look = of_process.entry(process).or_default();
            look.0 |= statement.contains("n_dead_tup");
            look.1 += duration;
        }
        let looks = of_process.into_values().filter(|(is_look, _)| *is_look);
        looks.map(|(_, ms)| ms).collect::<Vec<f64>>()
    };
    eventually(FIRST_START, || looks().len() >= 4);
    running.ends_well();
    let looks = looks();
    let shown: Vec<String> = looks.iter().map(|ms| format!("{ms:.1}")).collect();
    shown.join(", ")
}
