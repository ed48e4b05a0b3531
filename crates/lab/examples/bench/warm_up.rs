//! A broker that has run for a while.
//!
//! Java compiles hot code again and again: a new broker takes five times as much CPU for the same records
//! as one that has had some millions of them. Real brokers are rarely new, so a load is repeated until it
//! costs the broker no less than before.

/// The broker is warm after so many loads in a row that cost no less than [`BETTER`] of the least.
const STEADY: u32 = 3;
const BETTER: f64 = 0.9;
/// On a machine that others use it might go on for ever.
const MOST: u32 = 20;

/// Repeats a load. It gets the number of the round and returns its cost to the broker, in any unit.
pub(crate) fn warm_up(mut load: impl FnMut(u32) -> f64) {
    let mut least = f64::INFINITY;
    let mut steady = 0;
    for round in 0..MOST {
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
    eprintln!("the broker was still getting better after {MOST} rounds");
}
