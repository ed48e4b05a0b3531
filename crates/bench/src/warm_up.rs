//! Warms up the broker before measurements.
//!
//! The JVM compiles hot code again and again: a new broker takes five times as much CPU for the
//! same records as one that has received some millions of them. Real brokers are rarely new, so a
//! load is repeated until its cost to the broker no longer falls.

/// The broker is warm after this many loads in a row that cost at least [`BETTER`] of the least
/// cost.
const STEADY: u32 = 3;
const BETTER: f64 = 0.9;
/// Most rounds: on a machine that others use the cost might never settle.
const MAX_ROUNDS: u32 = 20;

/// Repeats `load`, which gets the number of the round and returns its cost to the broker in any
/// unit.
pub(crate) fn warm_up(mut load: impl FnMut(u32) -> f64) {
    let mut least = f64::INFINITY;
    let mut steady = 0;
    for round in 0..MAX_ROUNDS {
        let cost = load(round);
        eprintln!("warming up: the broker's CPU is {cost:.2}");
        if cost < least * BETTER {
            (least, steady) = (cost, 0);
        } else {
            steady += 1;
        }
        if steady == STEADY {
            return;
        }
    }
    eprintln!("the broker was still getting better after {MAX_ROUNDS} rounds");
}
