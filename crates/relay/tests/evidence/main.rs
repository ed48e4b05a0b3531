//! Model check of the evidence by which rows are marked and deleted: an exhaustive search of **every**
//! order of commits, acknowledgements, notes, marks, SIGKILLs, changes by others and prunes, up to a
//! number of each (docs/adr/0054, 0055 and 0056).
//!
//! - `machine.rs`, `relay.rs`: the real core with the real account or the real queue of keys;
//! - `system.rs`, `actions.rs`, `step.rs`: log, slots, notes, changes by others, and the steps of a relay;
//! - `database.rs`: the table, the accounts, and pruning in two steps: a snapshot, then comparison and deletion;
//! - `check.rs`: the promises;
//! - `scenario.rs`, `tests/support/search.rs`: the extent of a search, and the search;
//! - `mistake.rs`: planted mistakes that the search must find, to show that it can find them.
//!
//! Checked at every step:
//! - **E1** a row is marked or deleted only if the destination of each relay that carries the row has
//!   acknowledged exactly its content, or its dead letter is resolved. A crash may write the dead letter once
//!   more: then its own relay keeps the row.
//! - **E2** the account has acknowledged inserts only, each at most once.
//! - **E4** a stream begins beyond an unacknowledged insert only if the user accepts the gap.
//! - **E5** a row is marked as that of a dead letter only if exactly its content became one.
//!
//! Checked at every end, which can be reached from every state without further faults:
//! - **E3** unless another client changed rows, publications or slots, the slot is at the end of the log,
//!   and all rows can be pruned. With `mark_dead`, these are also the rows of resolved dead letters.
//!
//! The real code computes the sums of rows and their order, the transactions that are not counted again,
//! the keys, and the position before which all keys are settled. The rest is modelled. A statement is
//! executed at one moment. The key of a locked row is stored.
//!
//! Not covered: the SQL itself (the tests against servers), rows of snapshots, partitions by time, `prune
//! --accept`, notes that fail for so long that positions are confirmed without them, promotions, other
//! clusters, and a pruning process that is killed between two statements. A test shows where a promise
//! ends: [`the_account_does_not_see_a_payload`].
//!
//! `WALRELAY_MODEL=wide` searches further, for some minutes: `make test-model-wide`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and shows what it went through"
)]

mod actions;
mod check;
mod database;
#[path = "../support/fingerprint.rs"]
mod fingerprint;
mod machine;
mod mistake;
mod relay;
mod scenario;
#[path = "../support/search.rs"]
mod search;
mod step;
mod system;

use std::time::Instant;

use crate::database::IN_PLACE;
use crate::mistake::Mistake;
use crate::scenario::{Change, Scenario, row};
use crate::search::{Counterexample, Extent, search};
use crate::system::{Model, System};

/// A transaction with a row in each bucket.
const ONE: Scenario = Scenario::new(&[&[row(0, 0, 0), row(2, 0, 0)]]);
/// The same, and a transaction with one more row of the first bucket.
const SHORT: Scenario = Scenario::new(&[&[row(0, 0, 0), row(2, 0, 0)], &[row(1, 0, 0)]]);
/// The same, and a third transaction.
const LONG: Scenario = Scenario::new(&[
    &[row(0, 0, 0), row(2, 0, 0)],
    &[row(1, 0, 0)],
    &[row(3, 0, 0)],
]);
/// The destination of the first relay refuses two events.
const REFUSED: Scenario = Scenario::new(&[&[row(0, 0, 1), row(2, 0, 0)], &[row(1, 0, 1)]]);
/// The same, when they are in flight.
const REFUSED_IN_PLACE: Scenario = Scenario::new(&[
    &[row(0, 0, 1 | IN_PLACE), row(2, 0, 0)],
    &[row(1, 0, 1 | IN_PLACE)],
]);
/// The destination of the first relay refuses the first event of a transaction.
const REFUSED_ONE: Scenario = Scenario::new(&[&[row(0, 0, 1), row(2, 0, 0)]]);
/// The destinations of two relays refuse one event.
const REFUSED_TWICE: Scenario = Scenario::new(&[&[row(0, 0, 3)]]).relays(2);
/// The same, and later that of the first relay refuses one more event of the bucket.
const REFUSED_AGAIN: Scenario = Scenario::new(&[&[row(0, 0, 3)], &[row(1, 0, 1)]]).relays(2);
/// A key and its age are used again, once the first row is pruned.
const REUSED: Scenario = Scenario::new(&[&[row(0, 0, 0)], &[row(0, 1, 0)]]);

/// Changes that the account tells from the rows that were sent.
const SEEN: &[Change] = &[
    Change::Age,
    Change::Key,
    Change::Delete,
    Change::Insert,
    Change::Attach,
];
const ALL: &[Change] = &[
    Change::Age,
    Change::Key,
    Change::Payload,
    Change::Delete,
    Change::Insert,
    Change::InsertSame,
    Change::Attach,
];

/// Asserts that the search finds no broken promise.
fn assert_holds(name: &str, scenario: Scenario) {
    let since = Instant::now();
    let mut model = Model::new(scenario, None);
    let Extent {
        states,
        transitions,
        ends,
        depth,
    } = search::<System>(&mut model).unwrap_or_else(|broken| panic!("{name}:\n{broken}"));
    let (processes, steps) = model.processes.size();
    println!(
        "{name}: {states} states, {transitions} transitions, {ends} ends, {depth} steps deep; of \
         processes {processes} states, {steps} steps; {:.1} s",
        since.elapsed().as_secs_f64()
    );
    assert!(ends > 0, "{name}: no end was reached");
}

#[test]
fn an_account_keeps_its_promises_over_crashes() {
    assert_holds("two crashes", SHORT.crashes(2));
    assert_holds(
        "crash, lost answer, prune",
        SHORT.crashes(1).lost(1).prunes(1),
    );
    assert_holds("crash, late statement", SHORT.crashes(1).late());
}

#[test]
fn an_account_keeps_its_promises_while_rows_are_pruned() {
    assert_holds("three prunes", SHORT.prunes(3));
    assert_holds(
        "reused key, crash, three prunes",
        REUSED.crashes(1).prunes(3),
    );
}

#[test]
fn accounts_of_two_relays_keep_their_promises() {
    assert_holds("two relays, prune", SHORT.relays(2).prunes(1));
    assert_holds(
        "two relays, crash, prune",
        ONE.relays(2).crashes(1).prunes(1),
    );
}

#[test]
fn rows_of_dead_letters_stay_while_they_are_open() {
    assert_holds("dead letters, crash, prune", REFUSED.crashes(1).prunes(1));
    assert_holds("dead letters, two prunes", REFUSED.prunes(2));
    assert_holds(
        "dead letters, two relays, prune",
        REFUSED.relays(2).prunes(1),
    );
    assert_holds("dead letters, marks, crash", REFUSED.marks().crashes(1));
    assert_holds(
        "dead letters of two relays, crash, two prunes",
        REFUSED_TWICE.crashes(1).prunes(2),
    );
    assert_holds(
        "two dead letters of two relays, prune",
        REFUSED_AGAIN.prunes(1),
    );
}

#[test]
fn rows_of_dead_letters_are_marked_as_such_until_they_are_resolved() {
    assert_holds("two crashes", REFUSED_ONE.marks_dead().crashes(2));
    assert_holds(
        "crash, lost answer",
        REFUSED.marks_dead().crashes(1).lost(1),
    );
    assert_holds(
        "refused in flight, crash",
        REFUSED_IN_PLACE.marks_dead().crashes(1),
    );
    let changes = REFUSED_ONE.marks_dead().changes(ALL, 1);
    assert_holds("change, crash, prune", changes.crashes(1).prunes(1));
}

#[test]
fn rows_of_records_that_are_refused_in_flight_stay_while_their_dead_letters_are_open() {
    let refused = REFUSED_IN_PLACE;
    assert_holds("crash, prune", refused.crashes(1).prunes(1));
    assert_holds("lost answer, prune", refused.lost(1).prunes(1));
    assert_holds("two relays, prune", refused.relays(2).prunes(1));
    assert_holds("marks, crash", refused.marks().crashes(1));
}

#[test]
fn an_account_keeps_its_promises_whatever_others_change() {
    let change = SHORT.changes(SEEN, 1).prunes(1);
    assert_holds("two changes, two prunes", SHORT.changes(SEEN, 2).prunes(2));
    assert_holds("change, crash, prune", change.crashes(1));
    assert_holds(
        "change, two changes of the publication, prune",
        change.ddl(2),
    );
    let change = ONE.relays(2).changes(SEEN, 1).prunes(1);
    assert_holds(
        "two relays, change, change of a publication, prune",
        change.ddl(1),
    );
}

#[test]
fn nothing_is_passed_over_if_a_slot_is_moved() {
    assert_holds(
        "moved slot, crash, prune",
        SHORT.moves(1).crashes(1).prunes(1),
    );
    assert_holds(
        "moved slot, crash, marks",
        SHORT.moves(1).crashes(1).marks(),
    );
}

#[test]
fn marks_keep_their_promises() {
    assert_holds(
        "marks, crash, lost answer",
        SHORT.marks().crashes(1).lost(1),
    );
    assert_holds(
        "marks, two changes, prune",
        SHORT.marks().changes(ALL, 2).prunes(1),
    );
    let change = ONE.marks().changes(ALL, 1).crashes(1).prunes(1);
    assert_holds(
        "marks, change, crash, change of the publication, prune",
        change.ddl(1),
    );
}

#[test]
fn more_faults_keep_the_promises() {
    if std::env::var_os("WALRELAY_MODEL").is_none_or(|value| value != "wide") {
        println!("left out: WALRELAY_MODEL is not wide");
        return;
    }
    assert_holds("three crashes", SHORT.crashes(3));
    assert_holds("two crashes, two lost answers", SHORT.crashes(2).lost(2));
    assert_holds("two crashes, late statements", SHORT.crashes(2).late());
    assert_holds("longer log, two crashes", LONG.crashes(2));
    assert_holds("longer log, crash, lost answer", LONG.crashes(1).lost(1));
    let two = SHORT.relays(2).prunes(1);
    assert_holds("two relays, crash, prune", two.crashes(1));
    assert_holds("longer log, two prunes", LONG.prunes(2));
    assert_holds(
        "dead letters, lost answer, two prunes",
        REFUSED.lost(1).prunes(2),
    );
    assert_holds(
        "two dead letters of two relays, two prunes",
        REFUSED_AGAIN.prunes(2),
    );
    let change = SHORT.changes(SEEN, 1).prunes(1);
    assert_holds(
        "change, crash, lost answer, prune",
        change.crashes(1).lost(1),
    );
    // Without an age, which could become that of the row before.
    let three = SHORT.changes(&[Change::Key, Change::Delete, Change::Insert], 3);
    assert_holds("three changes, prune", three.prunes(1));
    let marks = SHORT.marks().crashes(1);
    assert_holds("marks, crash, two lost answers", marks.lost(2));
    let marks = SHORT.marks().crashes(2).lost(1);
    assert_holds("marks, two crashes, lost answer", marks);
    assert_holds(
        "dead letters, two crashes, prune",
        REFUSED.crashes(2).prunes(1),
    );
    let marks = SHORT.marks().changes(ALL, 1).prunes(1);
    assert_holds("marks, change, crash, prune", marks.crashes(1));
}

/// Otherwise the search must not take two processes for one, see `machine.rs`.
#[test]
fn a_separate_process_does_the_same() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut steps = 0;
    for scenario in [
        LONG.crashes(3).lost(3),
        REFUSED.crashes(3),
        LONG.marks().crashes(3).lost(2),
    ] {
        let mut model = Model::new(scenario, None);
        for _ in 0..150 {
            model.processes.record();
            let mut system = System::new(&model);
            for _ in 0..60 {
                let mut actions = Vec::new();
                system.actions(&model, &mut actions);
                let Some(action) = random.choice(&actions) else {
                    break;
                };
                let next = system.step(*action, &mut model);
                system = next.expect("no promise is broken");
            }
            steps += model.processes.audit();
        }
    }
    println!("{steps} steps of processes repeated");
    assert!(steps > 5_000, "{steps}");
}

/// Asserts that the search finds a breach of this promise.
fn assert_finds(mistake: impl Into<Option<Mistake>>, scenario: Scenario, promise: &str) {
    let mistake = mistake.into();
    let mut model = Model::new(scenario, mistake);
    match search::<System>(&mut model) {
        Ok(extent) => panic!("{mistake:?} was not found: {extent:?}"),
        Err(broken) => {
            println!("{mistake:?}:\n{broken}\n");
            let Counterexample { what, path } = &broken;
            assert!(what.starts_with(promise), "{mistake:?} breaks {what}");
            let is_short = (1..=30).contains(&path.len());
            assert!(is_short, "no person reads this:\n{broken}");
        }
    }
}

#[test]
fn the_search_finds_rows_that_were_never_sent() {
    assert_finds(Mistake::TwoSnapshots, REUSED.prunes(2), "E1");
    let age = SHORT.changes(&[Change::Age], 1).prunes(1);
    assert_finds(Mistake::DeleteByKey, age, "E1");
    let payload = SHORT.changes(&[Change::Payload], 1).marks();
    assert_finds(Mistake::MarkByKey, payload, "E1");
    let payload = REFUSED_ONE.changes(&[Change::Payload], 1).marks_dead();
    assert_finds(Mistake::MarkDeadByKey, payload, "E5");
    assert_finds(Mistake::SettleAll, REFUSED.prunes(2), "E1");
    assert_finds(Mistake::MergeUnsettled, REFUSED_TWICE.prunes(1), "E1");
    assert_finds(Mistake::StaySettled, REFUSED_AGAIN.prunes(2), "E1");
    assert_finds(Mistake::AskOneAccount, SHORT.relays(2).prunes(1), "E1");
}

#[test]
fn the_search_finds_rows_that_are_counted_twice() {
    assert_finds(Mistake::CountTwice, SHORT.lost(1), "E2");
}

#[test]
fn the_search_finds_rows_that_stay_for_ever() {
    assert_finds(Mistake::MarkAfterConfirm, SHORT.marks().crashes(1), "E3");
    let dead = REFUSED_ONE.marks_dead();
    assert_finds(Mistake::MarkAfterConfirm, dead.crashes(1), "E3");
    assert_finds(Mistake::ForgetDead, dead, "E3");
    assert_finds(Mistake::ConfirmBeforeAccount, SHORT.crashes(1), "E3");
    assert_finds(Mistake::ForgetBucket, SHORT, "E3");
    assert_finds(Mistake::NoteBeyondSums, SHORT.lost(1), "E3");
    assert_finds(Mistake::LateStatement, SHORT.crashes(1).late(), "E3");
}

#[test]
fn the_search_finds_events_that_are_passed_over() {
    assert_finds(Mistake::IgnoreNote, SHORT.moves(1), "E4");
}

/// The account hashes key, event id and age (docs/how-to/pruning.md). For the account, an update of another
/// column leaves the row that was sent, and so does a new row with the same key and age.
#[test]
fn the_account_does_not_see_a_payload() {
    let updated = SHORT.changes(&[Change::Payload], 1);
    assert_finds(None, updated.prunes(1), "E1");
    let replaced = SHORT.changes(&[Change::Delete, Change::InsertSame], 2);
    assert_finds(None, replaced.prunes(1), "E1");
}

/// A connection is lost in a transaction, a row of the part that was read is acknowledged, and the sink fails
/// before the transaction is read again. The next core passes over the row: it must know the row's key, and
/// whether the row became a dead letter.
#[test]
fn a_cut_transaction_and_a_failed_sink_break_no_promise() {
    assert_holds("marks, two crashes", ONE.marks().crashes(2));
    assert_holds(
        "dead letter, two crashes, prune",
        REFUSED_ONE.crashes(2).prunes(1),
    );
}
