//! A relay with nothing to do.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use walrelay_testkit::SlotWatch;

use crate::debezium::{self, Tuned};
use crate::proc::{self, Quiet};
use crate::rig::{OUTBOX, PATIENCE, RelayConfig, Rig};

const SLOT: &str = "idle";

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Idle {
    pub(crate) contender: &'static str,
    pub(crate) seconds: f64,
    /// MB.
    pub(crate) memory: f64,
    pub(crate) memory_peak: f64,
    /// Milliseconds of CPU per second.
    pub(crate) cpu: f64,
    pub(crate) walsender_cpu: f64,
    /// Processors that were busy with anything else.
    pub(crate) others: f64,
}

/// Whom it is about, and what its start may cost before idleness is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idler {
    Relay,
    Baseline,
    Debezium,
}

pub(crate) fn run(rig: &Rig, idler: Idler, time: Duration, quiet: &mut Quiet) -> Idle {
    rig.slot_at_end(SLOT);
    quiet.wait();
    let url = rig.tcp();
    let (relay, settle) = match idler {
        Idler::Relay | Idler::Baseline => {
            let config = RelayConfig {
                url: &url,
                table: OUTBOX,
                slot: SLOT,
                prefix: "idle.",
                tls: false,
            };
            let relay = match idler {
                Idler::Baseline => rig.baseline_relay(&config),
                _ => rig.relay(&config),
            };
            (relay, Duration::from_secs(1))
        }
        Idler::Debezium => (
            debezium::start(rig, SLOT, "idle.", Tuned::Throughput),
            Duration::from_secs(10),
        ),
    };
    let watch = SlotWatch::new(&rig.postgres.url(), SLOT);
    let walsender = watch.wait_active(PATIENCE).unsigned_abs();
    let used = || [relay.pid(), walsender].map(|pid| proc::cpu(pid).expect("it runs"));

    thread::sleep(settle);
    let (begun, before, machine) = (Instant::now(), used(), proc::machine_cpu());
    thread::sleep(time);
    let (time, after) = (begun.elapsed(), used());
    let machine = proc::machine_cpu() - machine;
    let cpu = [0, 1].map(|i| (after[i] - before[i]) / time.as_secs_f64());
    let others = machine / time.as_secs_f64() - cpu.iter().sum::<f64>();
    let memory = |name| proc::memory(relay.pid(), name).expect("it runs");
    let idle = Idle {
        contender: match idler {
            Idler::Relay => "walrelay",
            Idler::Baseline => "walrelay, baseline",
            Idler::Debezium => "Debezium Server",
        },
        seconds: time.as_secs_f64(),
        memory: memory("VmRSS:"),
        memory_peak: memory("VmHWM:"),
        cpu: cpu[0] * 1e3,
        walsender_cpu: cpu[1] * 1e3,
        others: others.max(0.0),
    };
    match idler {
        Idler::Relay | Idler::Baseline => drop(relay.terminate()),
        Idler::Debezium => drop(relay),
    }
    rig.drop_slot(SLOT);
    idle
}
