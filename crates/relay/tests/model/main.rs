//! An exhaustive search of the relay's core with everything around it that can go wrong: **every**
//! order of messages, acknowledgements, failed deliveries, broken connections, restarts of the server
//! that set the slot back, and crashes, up to a number of faults.
//!
//! - `core.rs`: the real `Core`, and why it is searched without cutting a corner;
//! - `log.rs`, `world.rs`, `step.rs`: the server, the broker, and what the pipeline does between them;
//! - `search.rs`: the search;
//! - `mistake.rs`: what the search must find, to be believed when it finds nothing.
//!
//! In every state:
//! - **G1** whatever was confirmed, reported or taken by the server lies before the first transaction
//!   with a row that the broker has not acknowledged, and is the end of a commit or what an idle
//!   server said;
//! - **G2** first deliveries of a key come in the order of the log, and a repetition begins at an
//!   earlier one and leaves nothing out;
//! - **G3** nothing is sent again that the slot is past, or that this sink got whole, or while nothing
//!   has gone wrong;
//! - and from it, once nothing goes wrong any more, there is a way to an end; at each end all events
//!   are at the broker and the slot stands at the end of the log.
//!
//! Out of its reach: a ring that is full (`walrelay-checkpoint`'s tests), threads (its loom model), and
//! what the pipeline's task does otherwise than `step.rs` (the tests against servers).
//!
//! `WALRELAY_MODEL=wide` searches further, for some minutes: `make test-model-wide`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and shows what it went through"
)]

mod core;
mod fingerprint;
mod log;
mod mistake;
mod search;
mod step;
mod world;

use std::time::Instant;

use crate::core::Automaton;
use crate::log::{Log, Written, foreign, rows};
use crate::mistake::Mistake;
use crate::search::{Counterexample, Extent, search};
use crate::world::{Model, World};

fn model(log: &[Written], faults: u8, drains: u8, mistake: Option<Mistake>) -> Model {
    Model {
        log: Log::new(log),
        core: Automaton::new(),
        mistake,
        faults,
        drains,
    }
}

fn holds(name: &str, log: &[Written], faults: u8, drains: u8) {
    let since = Instant::now();
    let mut model = model(log, faults, drains, None);
    match search(&mut model) {
        Err(broken) => panic!("{name}:\n{broken}"),
        Ok(Extent {
            states,
            transitions,
            ends,
            depth,
        }) => {
            let (cores, steps) = model.core.size();
            println!(
                "{name}: {states} states, {transitions} transitions, {ends} ends, {depth} steps \
                 deep; of the core {cores} states, {steps} steps; {:.1} s",
                since.elapsed().as_secs_f64()
            );
        }
    }
}

fn is_wide() -> bool {
    std::env::var_os("WALRELAY_MODEL").is_some_and(|value| value == "wide")
}

/// Two keys in a transaction, one of them again, and a transaction of other tables right behind.
const SHORT: [Written; 3] = [rows(&[0, 1]), rows(&[0]), foreign()];
/// A key twice in a transaction, so that a cut falls between two of its rows.
const TWICE: [Written; 2] = [rows(&[0, 0]), rows(&[0])];
/// The end of one transaction is not the beginning of the next, but for one of other tables.
const APART: [Written; 3] = [rows(&[0, 1]), foreign(), rows(&[1, 0])];
/// Four transactions, up to three rows.
const LONG: [Written; 4] = [rows(&[0, 1]), foreign(), rows(&[1, 0, 0]), rows(&[1])];

#[test]
fn of_a_short_log_with_two_faults_keeps_the_promises() {
    holds("a short log, two faults", &SHORT, 2, 1);
}

#[test]
fn of_one_key_with_two_faults_keeps_the_promises() {
    holds("one key, two faults", &TWICE, 2, 1);
}

#[test]
fn of_a_longer_log_with_one_fault_keeps_the_promises() {
    holds("a longer log, one fault", &APART, 1, 1);
}

#[test]
fn of_more_faults_keeps_the_promises() {
    if is_wide() {
        holds("one key, three faults", &TWICE, 3, 1);
        holds("a longer log, two faults", &APART, 2, 1);
        holds("a long log, one fault", &LONG, 1, 1);
    } else {
        println!("left out: WALRELAY_MODEL is not wide");
    }
}

/// The search with a mistake planted: the promise it breaks, and how.
fn finds(mistake: Mistake, log: &[Written], promise: &str) {
    let mut model = model(log, 2, 1, Some(mistake));
    match search(&mut model) {
        Ok(extent) => panic!("{mistake:?} was not found: {extent:?}"),
        Err(broken) => {
            println!("{mistake:?}:\n{broken}\n");
            let Counterexample { what, path } = &broken;
            assert!(what.starts_with(promise), "{mistake:?} breaks {what}");
            assert!(!path.is_empty() && path.iter().all(|line| !line.is_empty()));
            assert!(path.len() <= 30, "no person reads this:\n{broken}");
        }
    }
}

#[test]
fn finds_what_confirms_early() {
    finds(Mistake::ConfirmAtReceipt, &SHORT, "G1");
    finds(Mistake::ConfirmRow, &SHORT, "G1");
    finds(Mistake::SkipNack, &SHORT, "G1");
    finds(Mistake::TrustKeepalive, &SHORT, "G1");
    finds(Mistake::PassOverLostSink, &SHORT, "G1");
    finds(Mistake::StaleReport, &SHORT, "G1");
    finds(Mistake::StartAhead, &SHORT, "G1");
}

#[test]
fn finds_what_reorders() {
    finds(Mistake::ReorderRetry, &TWICE, "G2");
}

#[test]
fn finds_what_repeats() {
    finds(Mistake::ForgetHandedOver, &SHORT, "G3");
    finds(Mistake::StopUnreported, &SHORT, "G3");
}

/// That the search may carry out each step of a core once, see `core.rs`.
#[test]
fn a_core_of_its_own_does_the_same() {
    let mut model = model(&LONG, 3, 1, None);
    let mut random = fastrand::Rng::with_seed(7);
    let mut steps = 0;
    for _ in 0..3_000 {
        model.core.record();
        let mut world = World::new(&model);
        for _ in 0..80 {
            let mut actions = Vec::new();
            world.actions(&model, &mut actions);
            let Some(action) = random.choice(&actions) else {
                break;
            };
            world = world
                .step(*action, &mut model)
                .expect("no promise is broken");
        }
        steps += model.core.audit(&model.log);
    }
    println!("{steps} steps of cores repeated");
    assert!(steps > 50_000, "{steps}");
}
