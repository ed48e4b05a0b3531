//! CPU of a contender, of the servers and of the whole machine; memory of a program.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use walrelay_measure::proc;
use walrelay_testkit::{PATIENCE, Program, SlotWatch};

use crate::harness::{Backlog, Harness};
use crate::quiet::machine_cpu;

/// Returns a line of `/proc/<pid>/status` in MB (10^6 bytes); `None` after the process has gone.
pub(crate) fn megabytes(program: &Program, name: &str) -> Option<f64> {
    proc::memory(program.pid(), name).map(|bytes| bytes as f64 / 1e6)
}

/// Interval of the readings of [`watch`]. Short enough to read the CPU of a walsender shortly before it ends with its
/// reader, long enough to cost nothing.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// The use of a program until its work was done.
pub(crate) struct Usage {
    pub(crate) time: Duration,
    /// CPU of the program in seconds.
    pub(crate) cpu: f64,
    /// Peak resident memory in MB.
    pub(crate) memory: f64,
}

/// Reads the CPU and the memory of a program until its work is done. Times are those since `begun`; `is_done` gets the
/// one so far.
pub(crate) fn watch(
    program: &Program,
    begun: Instant,
    mut is_done: impl FnMut(Duration) -> bool,
) -> Usage {
    let (mut cpu, mut memory) = (0.0, 0.0_f64);
    loop {
        // Read both before checking the end: those of a process that has ended are gone.
        cpu = proc::cpu(program.pid()).unwrap_or(cpu);
        memory = megabytes(program, "VmHWM").unwrap_or(0.0).max(memory);
        let done = is_done(begun.elapsed());
        let time = begun.elapsed();
        if done {
            let cpu = proc::cpu(program.pid()).unwrap_or(cpu);
            return Usage { time, cpu, memory };
        }
        assert!(time < 5 * PATIENCE, "not drained: {}", program.log());
        thread::sleep(READ_INTERVAL);
    }
}

/// Returns true once the slot has confirmed the backlog. The relay must run.
pub(crate) fn is_confirmed(relay: &Program, slot: &SlotWatch, backlog: &Backlog) -> bool {
    let ended = proc::has_ended(relay.pid());
    let confirmed = slot.read().map(|state| state.confirmed_flush);
    assert!(!ended, "{}", relay.log());
    confirmed >= Some(backlog.end)
}

/// CPU time in seconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Cpu {
    /// CPU of the contender.
    pub(crate) relay: f64,
    /// CPU of the Postgres processes that serve the contender.
    pub(crate) postgres: f64,
    pub(crate) broker: f64,
    /// CPU of this program.
    pub(crate) own: f64,
    /// CPU of the whole machine, which includes the writers and the consumer.
    pub(crate) machine: f64,
}

impl Cpu {
    pub(crate) fn so_far(harness: &Harness, relay: f64, postgres: f64) -> Self {
        Self {
            relay,
            postgres,
            broker: harness.broker_cpu(),
            own: proc::cpu("self").unwrap_or_default(),
            machine: machine_cpu(),
        }
    }

    /// Returns the CPU used since `before`, multiplied by `times`.
    pub(crate) fn since(self, before: Self, times: f64) -> Self {
        let since = |of: fn(&Self) -> f64| (of(&self) - of(&before)) * times;
        Self {
            relay: since(|cpu| cpu.relay),
            postgres: since(|cpu| cpu.postgres),
            broker: since(|cpu| cpu.broker),
            own: since(|cpu| cpu.own),
            machine: since(|cpu| cpu.machine),
        }
    }

    /// Returns the CPU used by anything else on the machine.
    pub(crate) fn others(&self) -> f64 {
        self.machine - self.relay - self.postgres - self.broker - self.own
    }
}

/// Relay / Postgres processes for the relay / broker / whole machine.
impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            relay,
            postgres,
            broker,
            machine,
            ..
        } = self;
        write!(f, "{relay:.0} / {postgres:.0} / {broker:.0} / {machine:.0}")
    }
}
