//! A relay with nothing to do.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use walrelay_lab::proc;

use crate::contender::{Backends, Contender, Kind};
use crate::debezium::Tuned;
use crate::quiet::{Quiet, machine_cpu};
use crate::rig::{OUTBOX, RelayConfig, Rig};

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

pub(crate) fn run(rig: &Rig, contender: Contender, time: Duration, quiet: &mut Quiet) -> Idle {
    // What a start costs is not idleness.
    let (name, settle) = match contender.kind {
        Kind::Debezium => ("Debezium Server", Duration::from_secs(10)),
        Kind::Observed => ("walrelay with [http]", Duration::from_secs(10)),
        Kind::Baseline => ("walrelay, baseline", Duration::from_secs(1)),
        _ => ("walrelay", Duration::from_secs(1)),
    };
    rig.slot_at_end(SLOT);
    quiet.wait();
    let config = RelayConfig {
        url: &rig.tcp(),
        table: OUTBOX,
        slot: SLOT,
        prefix: "idle.",
        tls: false,
    };
    let relay = contender.start(rig, &config, Tuned::Throughput, 0);
    let mut walsender = Backends::of(contender, rig, SLOT);
    let mut used = || [proc::cpu(relay.pid()).expect("it runs"), walsender.cpu()];

    thread::sleep(settle);
    let (begun, before, machine) = (Instant::now(), used(), machine_cpu());
    thread::sleep(time);
    let (time, after) = (begun.elapsed().as_secs_f64(), used());
    let machine = machine_cpu() - machine;
    let cpu = [0, 1].map(|i| (after[i] - before[i]) / time);
    let others = machine / time - cpu.iter().sum::<f64>();
    let memory = |name| relay.megabytes(name).expect("it runs");
    let idle = Idle {
        contender: name,
        seconds: time,
        memory: memory("VmRSS"),
        memory_peak: memory("VmHWM"),
        cpu: cpu[0] * 1e3,
        walsender_cpu: cpu[1] * 1e3,
        others: others.max(0.0),
    };
    contender.end(relay);
    rig.drop_slot(SLOT);
    idle
}
