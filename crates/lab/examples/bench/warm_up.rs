//! A broker that has run for a while.
//!
//! Java compiles what it runs often while it runs, again and again, by what it has learned meanwhile: a
//! new broker takes five times as much CPU for the same records as one that has had some millions
//! of them, and all contenders are short of it. Nobody's broker is new for long, so what is measured is one that is
//! not: a load is repeated until it costs the broker no less than before.

/// So many loads in a row must be no better.
const STEADY: u32 = 3;
/// Than the last that was better, by this: it may become so in small steps.
const BETTER: f64 = 0.9;
/// It may go on for ever; on a machine that others use, for instance.
const MOST: u32 = 20;

/// Repeats a load, whose round it is told, and which tells what it cost the broker, in a measure of its
/// own.
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
