//! Waits until nothing else uses the machine.

use std::thread;
use std::time::{Duration, Instant};

use walrelay_measure::proc;

/// Returns the CPU seconds that all processors of the machine have spent on work.
pub(crate) fn machine_cpu() -> f64 {
    proc::machine_cpu().expect("Linux's /proc")
}

/// Waits for an idle machine, for `budget` in all over the whole benchmark.
pub(crate) struct Quiet {
    budget: Duration,
}

impl Quiet {
    /// Fraction of one processor that may be busy.
    const BUSY: f64 = 0.1;
    const READ_INTERVAL: Duration = Duration::from_millis(500);

    pub(crate) fn new(budget: Duration) -> Self {
        Self { budget }
    }

    pub(crate) fn wait(&mut self) {
        loop {
            let (begun, before) = (Instant::now(), machine_cpu());
            thread::sleep(Self::READ_INTERVAL);
            let busy = (machine_cpu() - before) / begun.elapsed().as_secs_f64();
            if busy <= Self::BUSY || self.budget.is_zero() {
                return;
            }
            self.budget = self.budget.saturating_sub(begun.elapsed());
        }
    }
}
