//! The table of promises.

use std::time::Duration;

use super::Destination;
use super::patience;
use super::promises;
use super::run::Run;
use super::session::Limits;
use crate::seed::seed_setting;
use crate::wait::PATIENCE;

/// The longest wait for the return of a call that must not wait for the server. Shorter than the
/// minute after which many clients give a request up, so that waiting for that fails.
const STUCK: Duration = Duration::from_secs(50);

/// A promise that every sink keeps.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "it is a row of a table")]
pub struct Promise {
    /// The name of its test.
    pub name: &'static str,
    /// What it says, for a row of `docs/trust/proof.md`.
    pub rule: &'static str,
    run: fn(&mut Run<'_>),
}

/// All promises. [`conformance!`](crate::conformance!) makes a test of each.
pub const PROMISES: &[Promise] = &[
    Promise {
        name: "acknowledged_means_durable",
        rule: "an acknowledged record is on the server after a kill; none is acknowledged while the server answers nothing",
        run: promises::acknowledged_means_durable,
    },
    Promise {
        name: "order_per_key",
        rule: "first deliveries of a key come in order, through a killed and a paused server",
        run: promises::order_per_key,
    },
    Promise {
        name: "one_report_per_record",
        rule: "each accepted record is reported once, even if the sink is dropped",
        run: promises::one_report_per_record,
    },
    Promise {
        name: "back_pressure",
        rule: "a sink whose server answers nothing is full within its bounds, does not block, and asks for more later",
        run: promises::back_pressure,
    },
    Promise {
        name: "poison_is_no_outage",
        rule: "a refused record is reported as poison and never as delivered; an outage is shown, and is not poison",
        run: promises::poison_is_no_outage,
    },
    Promise {
        name: "a_refusal_concerns_its_record_only",
        rule: "a record that is refused in its place repeats no other one; its dead letter comes once",
        run: promises::a_refusal_concerns_its_record_only,
    },
    Promise {
        name: "refused_records_wait_apart",
        rule: "while records of many keys wait to be sent again, the sink names one of them, and delivers those of another topic, each once, if one may overtake another",
        run: patience::refused_records_wait_apart,
    },
    Promise {
        name: "ten_refusals_take_one_retry_for",
        rule: "ten refused records of a key wait one `retry_for`, make ten dead letters, and repeat no other, if one may overtake another",
        run: patience::ten_refusals_take_one_retry_for,
    },
    Promise {
        name: "withdrawn_records_come_back",
        rule: "a refused record comes back once, unchanged, and on demand those of its key that follow it, in order; none of them was stored, and no later one of the key is refused before",
        run: patience::withdrawn_records_come_back,
    },
    Promise {
        name: "repeats_have_the_same_id",
        rule: "a record without an answer is sent again under the same id, with the same bytes",
        run: promises::repeats_have_the_same_id,
    },
    Promise {
        name: "stops_in_time",
        rule: "closing delivers the records that the server accepts, and returns after its grace if it accepts none",
        run: promises::stops_in_time,
    },
    Promise {
        name: "nothing_in_logs",
        rule: "no log line, error or obstacle contains a key, value or header",
        run: promises::nothing_in_logs,
    },
];

/// Runs the promise of this name against a destination; panics if it is not kept.
#[track_caller]
pub fn keeps(promise: &str, destination: &dyn Destination) {
    let limits = Limits {
        patience: PATIENCE,
        stuck: STUCK,
    };
    keeps_within(promise, destination, limits);
}

/// Runs a promise with these limits of waits.
#[track_caller]
#[expect(
    clippy::print_stdout,
    reason = "the test harness shows it if the test fails"
)]
pub(super) fn keeps_within(promise: &str, destination: &dyn Destination, limits: Limits) {
    let found = PROMISES.iter().find(|known| known.name == promise);
    let Some(found) = found else {
        panic!("there is no promise {promise}")
    };
    println!("{}", seed_setting());
    (found.run)(&mut Run::new(promise, destination, limits));
}
