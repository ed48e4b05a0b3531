//! The suite can pass, and can fail: each broken sink is caught by the promise that it breaks.

mod model;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use self::model::{Fault, Model};
use super::PROMISES;
use super::session::Limits;
use super::suite::keeps_within;
use crate::wait::PATIENCE;

mod sound {
    use super::Model;

    crate::conformance!(Model::new(None));
}

mod without_repeats {
    use super::Model;

    crate::conformance!(Model::dropping_repeats());
}

/// Returns the message of the panic by which a promise fails; `None` if it does not fail. `limit`:
/// of waits for what a broken sink never does.
fn failure(promise: &str, fault: Fault, limit: Duration) -> Option<String> {
    let limits = Limits {
        patience: limit,
        stuck: limit,
    };
    let model = Model::new(Some(fault));
    let run = AssertUnwindSafe(|| keeps_within(promise, &model, limits));
    let panic = catch_unwind(run).err()?;
    let message = panic.downcast_ref::<String>().cloned();
    Some(message.unwrap_or_else(|| {
        panic
            .downcast_ref::<&str>()
            .map_or(String::new(), |s| (*s).into())
    }))
}

/// Asserts that a broken sink fails this promise, with these words.
#[track_caller]
fn is_caught(fault: Fault, promise: &str, words: &str) {
    // A fault that shows by the order of the threads may need several runs.
    let message = (0..50).find_map(|_| failure(promise, fault, PATIENCE));
    let message = message.expect("the promise is not kept, and the suite passes");
    assert!(message.contains(words), "{fault:?}: {message}");
}

/// Asserts the same, of a fault that shows only by a wait without end.
#[track_caller]
fn is_caught_waiting(fault: Fault, promise: &str, words: &str) {
    // Each wait of a busy machine that passes this limit is longer than the wait without end.
    let mut limit = Duration::from_secs(1);
    loop {
        let message = failure(promise, fault, limit);
        let message = message.expect("the promise is not kept, and the suite passes");
        if message.contains(words) {
            return;
        }
        limit *= 2;
        assert!(limit < PATIENCE, "{fault:?}: {message}");
    }
}

#[test]
fn a_sink_that_acknowledges_early_is_caught() {
    is_caught(
        Fault::AcknowledgesEarly,
        "acknowledged_means_durable",
        "delivered by a paused server",
    );
}

#[test]
fn a_sink_that_acknowledges_what_a_kill_loses_is_caught() {
    is_caught(
        Fault::AcknowledgesUnwritten,
        "acknowledged_means_durable",
        "delivered, and not on the server",
    );
}

#[test]
fn a_sink_that_reorders_after_an_outage_is_caught() {
    is_caught(
        Fault::ReordersAfterAnOutage,
        "order_per_key",
        "comes behind event",
    );
}

#[test]
fn a_sink_that_reports_twice_is_caught() {
    is_caught(
        Fault::ReportsTwice,
        "one_report_per_record",
        "reported twice",
    );
}

#[test]
fn a_sink_that_reports_a_refused_record_is_caught() {
    is_caught(
        Fault::ReportsTheRefused,
        "one_report_per_record",
        "reported, and not accepted",
    );
}

#[test]
fn a_sink_that_never_reports_is_caught() {
    is_caught_waiting(
        Fault::NeverReports,
        "one_report_per_record",
        "the report of an accepted record did not come",
    );
    is_caught(
        Fault::NeverReports,
        "acknowledged_means_durable",
        "accepted, and not reported",
    );
}

#[test]
fn a_sink_that_blocks_is_caught() {
    is_caught_waiting(Fault::Blocks, "back_pressure", "try_send did not return");
}

#[test]
fn a_sink_without_bounds_is_caught() {
    is_caught(Fault::IsNeverFull, "back_pressure", "were accepted, beyond");
}

#[test]
fn a_sink_that_never_calls_for_more_is_caught() {
    is_caught_waiting(
        Fault::NeverCallsForMore,
        "back_pressure",
        "did not call `capacity`",
    );
}

#[test]
fn a_sink_that_calls_outages_poison_is_caught() {
    is_caught(
        Fault::CallsOutagesPoison,
        "poison_is_no_outage",
        "an outage is no poison",
    );
}

#[test]
fn a_sink_that_calls_poison_an_outage_is_caught() {
    is_caught(
        Fault::CallsPoisonAnOutage,
        "poison_is_no_outage",
        "of a refused record",
    );
}

#[test]
fn a_sink_that_swallows_refusals_is_caught() {
    is_caught(
        Fault::SwallowsRefusals,
        "poison_is_no_outage",
        "of a refused record: None",
    );
}

#[test]
fn a_sink_that_repeats_others_at_a_refusal_is_caught() {
    is_caught(
        Fault::RepeatsAtARefusal,
        "a_refusal_concerns_its_record_only",
        "is on the server so often",
    );
}

#[test]
fn a_sink_that_stops_for_refused_records_is_caught() {
    is_caught_waiting(
        Fault::StopsForTheRefused,
        "refused_records_wait_apart",
        "the delivery of a record of another topic did not come",
    );
}

#[test]
fn a_sink_that_names_none_that_waits_is_caught() {
    is_caught_waiting(
        Fault::NamesNoneThatWaits,
        "refused_records_wait_apart",
        "what was awaited did not come",
    );
}

#[test]
fn a_sink_that_is_patient_with_each_record_is_caught() {
    is_caught(
        Fault::IsPatientWithEach,
        "ten_refusals_take_one_retry_for",
        "ten refused records take",
    );
}

#[test]
fn a_sink_that_keeps_the_records_behind_a_withdrawn_one_is_caught() {
    is_caught(
        Fault::KeepsThoseBehind,
        "withdrawn_records_come_back",
        "taken back with record",
    );
}

#[test]
fn a_sink_that_refuses_a_later_record_of_a_key_first_is_caught() {
    is_caught(
        Fault::RefusesTheLastOfAKey,
        "withdrawn_records_come_back",
        "a later record of the key is refused before",
    );
}

#[test]
fn a_sink_that_hides_an_outage_is_caught() {
    is_caught_waiting(
        Fault::HidesOutages,
        "poison_is_no_outage",
        "what was awaited did not come",
    );
}

#[test]
fn a_sink_that_makes_ids_is_caught() {
    is_caught(
        Fault::MakesIds,
        "repeats_have_the_same_id",
        "an id that no event has",
    );
}

#[test]
fn a_sink_that_closes_late_is_caught() {
    is_caught_waiting(Fault::ClosesLate, "stops_in_time", "did not return within");
}

#[test]
fn a_sink_that_gives_up_early_is_caught() {
    is_caught(
        Fault::GivesUpEarly,
        "stops_in_time",
        "given up though the server answers",
    );
}

#[test]
fn a_sink_that_logs_a_value_is_caught() {
    is_caught(Fault::LogsAValue, "nothing_in_logs", "logged: ");
}

#[test]
fn a_sink_that_shows_a_key_is_caught() {
    is_caught(Fault::ShowsAKey, "nothing_in_logs", "shown: ");
}

#[test]
fn each_promise_has_a_test_in_the_macro() {
    let source = include_str!("../mod.rs");
    let (_, macro_rules) = source
        .split_once("macro_rules! conformance")
        .expect("it is there");
    let names: BTreeSet<&str> = macro_rules.split_whitespace().collect();
    for promise in PROMISES {
        assert!(names.contains(promise.name), "{} is no test", promise.name);
    }
}
