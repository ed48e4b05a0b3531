//! A relay with nothing to do, and one with a steady load.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::{Db, SlotWatch};

use crate::proc::{self, Quiet};
use crate::rig::{PATIENCE, Rig};

/// Rows a second, each in a transaction of its own.
pub(crate) const RATE: u64 = 1000;
const WRITERS: u64 = 8;
const IDLE: Duration = Duration::from_secs(10);
const LOAD: Duration = Duration::from_secs(20);
const SLOT: &str = "steady";

pub(crate) struct Steady {
    pub(crate) idle: Duration,
    /// MB.
    pub(crate) idle_memory: f64,
    pub(crate) idle_memory_peak: f64,
    /// Milliseconds of CPU per second.
    pub(crate) idle_cpu: f64,
    pub(crate) idle_walsender_cpu: f64,
    pub(crate) load: Duration,
    pub(crate) rows: u64,
    /// Milliseconds, as the relay logs them when it ends.
    pub(crate) p50: String,
    pub(crate) p99: String,
    pub(crate) samples: String,
    /// Milliseconds of CPU per second, of relay, walsender and broker.
    pub(crate) load_cpu: [f64; 3],
    /// Milliseconds that the last writer was late at the most.
    pub(crate) behind: f64,
    /// Processors that were busy with anything else while idle.
    pub(crate) others: f64,
}

/// Both, one after the other, of one relay over TCP.
pub(crate) fn run(rig: &Rig, quiet: &mut Quiet) -> Steady {
    rig.create_topic("steady.order");
    rig.slot_at_end(SLOT);
    quiet.wait();
    let url = rig.postgres.url_tcp().expect("the server listens at TCP");
    let relay = rig.relay(&url, SLOT, "steady.");
    let watch = SlotWatch::new(&rig.postgres.url(), SLOT);
    let walsender = watch.wait_active(PATIENCE).unsigned_abs();
    let broker = rig.kafka.pid().expect("the broker runs");
    let used = || [relay.pid(), walsender, broker].map(|pid| proc::cpu(pid).expect("it runs"));
    let per_second = |before: [f64; 3], now: [f64; 3], time: Duration| {
        [0, 1, 2].map(|i| (now[i] - before[i]) * 1e3 / time.as_secs_f64())
    };

    // What the start costs is over before idleness is measured.
    thread::sleep(Duration::from_secs(1));
    let (begun, before, machine) = (Instant::now(), used(), proc::machine_cpu());
    thread::sleep(IDLE);
    let (idle, after) = (begun.elapsed(), used());
    let machine = proc::machine_cpu() - machine;
    let cpu = per_second(before, after, idle);
    let ours = cpu.iter().sum::<f64>() / 1e3;
    let others = machine / idle.as_secs_f64() - ours;
    let memory = |name| proc::memory(relay.pid(), name).expect("it runs");
    let (idle_memory, idle_memory_peak) = (memory("VmRSS:"), memory("VmHWM:"));

    let rows = RATE * LOAD.as_secs();
    let (begun, before) = (Instant::now(), used());
    let behind = write(&rig.postgres.url(), rows);
    let (load, after) = (begun.elapsed(), used());
    watch.wait_until(watch.wal_end(), PATIENCE);
    let log = relay.terminate();
    rig.drop_slot(SLOT);
    assert_eq!(
        rig.records("steady.order"),
        rows,
        "records of the steady load"
    );
    let summary = log
        .lines()
        .find(|line| line.contains("\"relayed\""))
        .unwrap_or_else(|| panic!("the relay says what it did: {log}"));
    Steady {
        idle,
        idle_memory,
        idle_memory_peak,
        idle_cpu: cpu[0],
        idle_walsender_cpu: cpu[1],
        load,
        rows,
        p50: member(summary, "commit_to_ack_p50_ms"),
        p99: member(summary, "commit_to_ack_p99_ms"),
        samples: member(summary, "latency_samples"),
        load_cpu: per_second(before, after, load),
        behind: behind.as_secs_f64() * 1e3,
        others: others.max(0.0),
    }
}

/// Writes at a rate that does not heed how long a commit takes. How late a row was at the most.
fn write(url: &str, rows: u64) -> Duration {
    let together = Barrier::new(WRITERS as usize);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let together = &together;
                scope.spawn(move || {
                    let db = Db::connect(url);
                    Rig::prepare_put(&db);
                    together.wait();
                    let begun = Instant::now();
                    let mut behind = Duration::ZERO;
                    for row in (writer..rows).step_by(WRITERS as usize) {
                        let due = Duration::from_secs(row) / RATE as u32;
                        thread::sleep(due.saturating_sub(begun.elapsed()));
                        behind = behind.max(begun.elapsed().saturating_sub(due));
                        db.batch(&format!("EXECUTE put({row})"));
                    }
                    behind
                })
            })
            .collect();
        let late = writers
            .into_iter()
            .map(|writer| writer.join().expect("a writer ends well"));
        late.max().unwrap_or_default()
    })
}

/// The value of a member in a flat line of JSON.
fn member(line: &str, name: &str) -> String {
    let json: serde_json::Value = serde_json::from_str(line).expect("JSON");
    match &json[name] {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => panic!("{name} is not in {line}"),
        other => other.to_string(),
    }
}
