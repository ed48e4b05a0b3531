//! A relay while the outbox is idle.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use walrelay_measure::proc;

use crate::contender::{Backends, Contender, Kind};
use crate::cpu::megabytes;
use crate::debezium::Tuned;
use crate::harness::{Harness, OUTBOX, RelayConfig};
use crate::quiet::{Quiet, machine_cpu};

const SLOT: &str = "idle";

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Idle {
    pub(crate) contender: &'static str,
    pub(crate) seconds: f64,
    /// Resident memory in MB.
    pub(crate) memory: f64,
    pub(crate) memory_peak: f64,
    /// Milliseconds of CPU per second.
    pub(crate) cpu: f64,
    pub(crate) walsender_cpu: f64,
    /// Processors that anything else on the machine used.
    pub(crate) others: f64,
}

pub(crate) fn run(
    harness: &Harness,
    contender: Contender,
    time: Duration,
    quiet: &mut Quiet,
) -> Idle {
    // Wait for `settle` first: the start is not part of being idle.
    let (name, settle) = match contender.kind {
        Kind::Debezium => ("Debezium Server", Duration::from_secs(10)),
        Kind::Observed => ("walrelay with [http]", Duration::from_secs(10)),
        Kind::Baseline => ("walrelay, baseline", Duration::from_secs(1)),
        _ => ("walrelay", Duration::from_secs(1)),
    };
    harness.slot_at_end(SLOT);
    quiet.wait();
    let config = RelayConfig {
        url: &harness.tcp(),
        table: OUTBOX,
        slot: SLOT,
        prefix: "idle.",
        tls: false,
        messages: false,
    };
    let relay = contender.start(harness, &config, Tuned::Throughput, 0);
    let mut walsender = Backends::wait_for(contender, harness, SLOT);
    let mut used = || [proc::cpu(relay.pid()).expect("it runs"), walsender.cpu()];

    thread::sleep(settle);
    let (begun, before, machine) = (Instant::now(), used(), machine_cpu());
    thread::sleep(time);
    let (time, after) = (begun.elapsed().as_secs_f64(), used());
    let machine = machine_cpu() - machine;
    let cpu = [0, 1].map(|i| (after[i] - before[i]) / time);
    let others = machine / time - cpu.iter().sum::<f64>();
    let memory = |name| megabytes(&relay, name).expect("it runs");
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
    harness.drop_slot(SLOT);
    idle
}
