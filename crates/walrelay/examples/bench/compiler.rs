//! The compiler in the broker.
//!
//! Java compiles what it runs often while it runs, and takes a quarter of two processors for it during
//! a broker's first minutes: time that every contender is short of, and the first ones most. It is
//! waited for.

use std::time::Instant;

use crate::proc;
use crate::rig::Rig;

/// The thread that optimises, by the first letters of its name.
const NAME: &str = "C2 Compiler";
/// Part of a processor below which it does not matter any more.
const IDLE: f64 = 0.05;
/// It may go on for ever with what it cannot compile.
const LOOKS: u32 = 8;

/// Repeats a load, whose round it is told, until the compiler has next to nothing to do.
pub(crate) fn warm_up(rig: &Rig, mut load: impl FnMut(u32)) {
    let mut compiler = Compiler::of(rig);
    for round in 0.. {
        load(round);
        if compiler.is_done() {
            return;
        }
    }
}

struct Compiler {
    broker: u32,
    since: Instant,
    used: f64,
    looks: u32,
}

impl Compiler {
    fn of(rig: &Rig) -> Self {
        let broker = rig.kafka.pid().expect("the broker runs");
        Self {
            broker,
            since: Instant::now(),
            used: proc::cpu_of_threads(broker, NAME),
            looks: 0,
        }
    }

    /// Whether it had next to nothing to do since it was last looked at, or was waited for often enough.
    fn is_done(&mut self) -> bool {
        let used = proc::cpu_of_threads(self.broker, NAME);
        // Fewer than before: a thread of it has ended, for want of work.
        let busy = (used - self.used).max(0.0) / self.since.elapsed().as_secs_f64();
        eprintln!("the broker's compiler: {busy:.2} processors");
        (self.since, self.used) = (Instant::now(), used);
        self.looks += 1;
        busy < IDLE || self.looks == LOOKS
    }
}
