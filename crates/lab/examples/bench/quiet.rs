//! What else the machine does.

use std::thread;
use std::time::{Duration, Instant};

use walrelay_lab::proc;

/// Seconds of CPU that the machine has spent on work, of all processors.
pub(crate) fn machine_cpu() -> f64 {
    proc::machine_cpu().expect("Linux's /proc")
}

/// Waits for a machine that does nothing else, as long as its patience lasts.
pub(crate) struct Quiet {
    patience: Duration,
}

impl Quiet {
    /// Part of one processor that may be busy.
    const BUSY: f64 = 0.1;
    const LOOK: Duration = Duration::from_millis(500);

    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience }
    }

    pub(crate) fn wait(&mut self) {
        loop {
            let (begun, before) = (Instant::now(), machine_cpu());
            thread::sleep(Self::LOOK);
            let busy = (machine_cpu() - before) / begun.elapsed().as_secs_f64();
            if busy <= Self::BUSY || self.patience.is_zero() {
                return;
            }
            self.patience = self.patience.saturating_sub(begun.elapsed());
        }
    }
}
