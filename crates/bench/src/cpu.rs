//! CPU of a contender, of the servers and of the whole machine; memory of a program.

use std::fmt;

use serde::Serialize;
use walrelay_measure::proc;
use walrelay_testkit::Program;

use crate::harness::Harness;
use crate::quiet::machine_cpu;

/// Returns a line of `/proc/<pid>/status` in MB (10^6 bytes); `None` after the process has gone.
pub(crate) fn megabytes(program: &Program, name: &str) -> Option<f64> {
    proc::memory(program.pid(), name).map(|bytes| bytes as f64 / 1e6)
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
