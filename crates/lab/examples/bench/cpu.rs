//! CPU of a contender, of the servers and of the machine.

use std::fmt;

use serde::Serialize;
use walrelay_lab::proc;

use crate::quiet::machine_cpu;
use crate::rig::Rig;

/// Seconds of CPU.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Cpu {
    /// Of the contender.
    pub(crate) relay: f64,
    /// Of the server's processes that serve it.
    pub(crate) postgres: f64,
    pub(crate) broker: f64,
    /// Of this program.
    pub(crate) own: f64,
    /// Of everything: the server's writers, and this program's, and its consumer, too.
    pub(crate) machine: f64,
}

impl Cpu {
    pub(crate) fn so_far(rig: &Rig, relay: f64, postgres: f64) -> Self {
        Self {
            relay,
            postgres,
            broker: rig.broker_cpu(),
            own: proc::cpu("self").unwrap_or_default(),
            machine: machine_cpu(),
        }
    }

    /// What was used since, so many times.
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

    /// What anything else on the machine used.
    pub(crate) fn others(&self) -> f64 {
        self.machine - self.relay - self.postgres - self.broker - self.own
    }
}

/// Of the relay, the server for it, the broker, and the whole machine.
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
