//! A relay with nothing to do.

use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::SlotWatch;

use crate::proc::{self, Quiet};
use crate::rig::{PATIENCE, Rig};

const TIME: Duration = Duration::from_secs(10);
const SLOT: &str = "idle";

pub(crate) struct Idle {
    pub(crate) time: Duration,
    /// MB.
    pub(crate) memory: f64,
    pub(crate) memory_peak: f64,
    /// Milliseconds of CPU per second.
    pub(crate) cpu: f64,
    pub(crate) walsender_cpu: f64,
    /// Processors that were busy with anything else.
    pub(crate) others: f64,
}

pub(crate) fn run(rig: &Rig, quiet: &mut Quiet) -> Idle {
    rig.slot_at_end(SLOT);
    quiet.wait();
    let url = rig.postgres.url_tcp().expect("the server listens at TCP");
    let relay = rig.relay(&url, SLOT, "idle.");
    let watch = SlotWatch::new(&rig.postgres.url(), SLOT);
    let walsender = watch.wait_active(PATIENCE).unsigned_abs();
    let used = || [relay.pid(), walsender].map(|pid| proc::cpu(pid).expect("it runs"));

    // What the start costs is over before idleness is measured.
    thread::sleep(Duration::from_secs(1));
    let (begun, before, machine) = (Instant::now(), used(), proc::machine_cpu());
    thread::sleep(TIME);
    let (time, after) = (begun.elapsed(), used());
    let machine = proc::machine_cpu() - machine;
    let cpu = [0, 1].map(|i| (after[i] - before[i]) / time.as_secs_f64());
    let others = machine / time.as_secs_f64() - cpu.iter().sum::<f64>();
    let memory = |name| proc::memory(relay.pid(), name).expect("it runs");
    let idle = Idle {
        time,
        memory: memory("VmRSS:"),
        memory_peak: memory("VmHWM:"),
        cpu: cpu[0] * 1e3,
        walsender_cpu: cpu[1] * 1e3,
        others: others.max(0.0),
    };
    relay.terminate();
    rig.drop_slot(SLOT);
    idle
}
