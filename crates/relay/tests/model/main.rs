//! Model check of the relay's core: an exhaustive search of **every** order of messages,
//! acknowledgements, failed deliveries, broken connections, restarts of the server that set the
//! slot back, and crashes, up to a number of faults.
//!
//! - `core.rs`: the real `Core`, and why the search covers all its states;
//! - `log.rs`, `system.rs`, `step.rs`: the server, the broker, and the pipeline between them;
//! - `tests/support/search.rs`: the search;
//! - `mistake.rs`: planted mistakes that the search must find, to show that it can find them.
//!
//! Checked in every state:
//! - **G1** every position that was confirmed, reported or received by the server is at or before
//!   the commit record of the first transaction with a row that the broker has not acknowledged. It
//!   is the end of a commit or a position in a keepalive of an idle server.
//! - **G2** first deliveries of a key are in the order of the WAL. A repetition starts at an
//!   earlier record and leaves nothing out.
//! - **G3** a row is not sent again if the slot is past it, or if this sink got its whole
//!   transaction, or if the row and all before it were acknowledged when the last sink was dropped,
//!   or if no fault happened.
//! - Without further faults an end can be reached. At each end all events are at the broker, and
//!   the slot is at the end of the WAL.
//!
//! Not covered: a full ring (`walrelay-checkpoint`'s tests), threads (its loom model), and
//! differences between the pipeline's task and `step.rs` (the tests against servers).
//!
//! `WALRELAY_MODEL=wide` searches further, for some minutes: `make test-model-wide`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and shows what it went through"
)]

mod core;
#[path = "../support/fingerprint.rs"]
mod fingerprint;
mod log;
mod mistake;
#[path = "../support/search.rs"]
mod search;
mod step;
mod system;

use std::time::Instant;

use crate::core::Automaton;
use crate::log::{Log, TransactionSpec, foreign, rows};
use crate::mistake::Mistake;
use crate::search::{Counterexample, Extent, search};
use crate::system::{Model, System};

fn model(log: &[TransactionSpec], faults: u8, drains: u8, mistake: Option<Mistake>) -> Model {
    Model {
        log: Log::new(log),
        core: Automaton::new(),
        mistake,
        faults,
        drains,
    }
}

/// Asserts that the search finds no broken promise.
fn assert_holds(name: &str, log: &[TransactionSpec], faults: u8, drains: u8) {
    let since = Instant::now();
    let mut model = model(log, faults, drains, None);
    match search::<System>(&mut model) {
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

/// A transaction with two keys, one with one of the keys, and an adjacent transaction of other
/// tables.
const SHORT: [TransactionSpec; 3] = [rows(&[0, 1]), rows(&[0]), foreign()];
/// A transaction with a key twice, so that a lost connection can cut between two rows of the key.
const TWICE: [TransactionSpec; 2] = [rows(&[0, 0]), rows(&[0])];
/// An adjacent transaction of other tables between two others.
const APART: [TransactionSpec; 3] = [rows(&[0, 1]), foreign(), rows(&[1, 0])];
/// Four transactions with up to three rows.
const LONG: [TransactionSpec; 4] = [rows(&[0, 1]), foreign(), rows(&[1, 0, 0]), rows(&[1])];

#[test]
fn every_order_of_a_short_log_with_one_fault_keeps_the_promises() {
    assert_holds("a short log, one fault", &SHORT, 1, 1);
}

#[test]
fn every_order_of_one_key_with_two_faults_keeps_the_promises() {
    assert_holds("one key, two faults", &TWICE, 2, 1);
}

#[test]
fn every_order_of_a_longer_log_with_one_fault_keeps_the_promises() {
    assert_holds("a longer log, one fault", &APART, 1, 1);
}

#[test]
fn every_order_of_more_faults_keeps_the_promises() {
    if is_wide() {
        assert_holds("a short log, two faults", &SHORT, 2, 1);
        assert_holds("one key, three faults", &TWICE, 3, 1);
        assert_holds("a longer log, two faults", &APART, 2, 1);
        assert_holds("a long log, one fault", &LONG, 1, 1);
    } else {
        println!("left out: WALRELAY_MODEL is not wide");
    }
}

/// Asserts that the search finds a planted mistake, as a breach of this promise.
fn assert_finds(mistake: Mistake, log: &[TransactionSpec], promise: &str) {
    let mut model = model(log, 2, 1, Some(mistake));
    match search::<System>(&mut model) {
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
fn the_search_finds_what_confirms_early() {
    assert_finds(Mistake::ConfirmAtReceipt, &SHORT, "G1");
    assert_finds(Mistake::ConfirmRow, &SHORT, "G1");
    assert_finds(Mistake::SkipNack, &SHORT, "G1");
    assert_finds(Mistake::TrustKeepalive, &SHORT, "G1");
    assert_finds(Mistake::SkipAfterLostSink, &SHORT, "G1");
    assert_finds(Mistake::SkipEnqueued, &SHORT, "G1");
    assert_finds(Mistake::StaleReport, &SHORT, "G1");
    assert_finds(Mistake::StartAhead, &SHORT, "G1");
}

#[test]
fn the_search_finds_what_reorders() {
    assert_finds(Mistake::ReorderRetry, &TWICE, "G2");
}

#[test]
fn the_search_finds_what_repeats() {
    assert_finds(Mistake::ForgetEnqueued, &SHORT, "G3");
    assert_finds(Mistake::StopUnreported, &SHORT, "G3");
}

/// Otherwise the search must not reuse the steps of a core, see `core.rs`.
#[test]
fn a_separate_core_does_the_same() {
    let mut model = model(&LONG, 3, 1, None);
    let mut random = fastrand::Rng::with_seed(7);
    let mut steps = 0;
    for _ in 0..3_000 {
        model.core.record();
        let mut system = System::new(&model);
        for _ in 0..80 {
            let mut actions = Vec::new();
            system.actions(&model, &mut actions);
            let Some(action) = random.choice(&actions) else {
                break;
            };
            system = system
                .step(*action, &mut model)
                .expect("no promise is broken");
        }
        steps += model.core.audit(&model.log);
    }
    println!("{steps} steps of cores repeated");
    assert!(steps > 50_000, "{steps}");
}
