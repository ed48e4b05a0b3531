//! The conformance suite of sinks: what every sink must show, driven against the server that it
//! writes to.
//!
//! A sink brings one implementation of [`Destination`], and one call of
//! [`conformance!`](crate::conformance!), which makes a test of each promise in [`PROMISES`]. The
//! suite plays the relay: it makes records, offers them, receives the reports, and after a failure
//! makes a new sink and sends again from the oldest record that was not acknowledged.
//!
//! # Contents
//! - [`Destination`]: the server of a sink, and what can be done to it. [`Stored`], [`Bounds`],
//!   [`Refusal`]: its data.
//! - [`Event`]: what the suite makes a record of, in one place. [`options`]: those of the sinks' own tests.
//! - [`PROMISES`], [`keeps`]: the promises, and the run of one.
//!
//! # Invariants
//! - Every random choice comes from the [`seed`](crate::seed) of the run.
//! - Nothing waits for a time: each wait is for a report, for a return, or for a server.
//! - The suite knows no kind of sink. What differs between them is in [`Destination`].

mod captured;
mod event;
mod patience;
mod promises;
mod run;
mod session;
mod suite;
#[cfg(test)]
mod tests;

use std::time::Duration;

use walrelay_sink::{AnySinkFactory, Disposition, Poison, SinkOptions};

pub use event::Event;
pub use suite::{PROMISES, Promise, keeps};

/// The most that a sink may have accepted and not reported.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Number of records.
    pub records: u32,
    /// Bytes of their keys, values and headers.
    pub bytes: u64,
}

impl Bounds {
    /// Returns [`options`] with these bounds.
    pub fn options(self) -> SinkOptions {
        SinkOptions {
            max_in_flight_records: self.records.into(),
            max_in_flight_bytes: self.bytes,
            ..options()
        }
    }
}

/// Returns options with bounds that no test reaches by chance, short pauses and no patience.
pub fn options() -> SinkOptions {
    SinkOptions {
        max_in_flight_records: 10_000,
        max_in_flight_bytes: 64 << 20,
        max_retrying_bytes: 64 << 20,
        max_retrying_keys: 100,
        backoff_initial: Duration::from_millis(20),
        backoff_max: Duration::from_millis(200),
        retry_for: Duration::ZERO,
        dead_letters: "dead-letters".to_owned(),
    }
}

/// A record as the server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The value.
    pub value: Option<Vec<u8>>,
    /// The event's id, from where the sink puts it; empty if there is none.
    pub id: String,
}

/// A way to make a record that the destination refuses for good.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    /// The reason that the sink must report.
    pub poison: Poison,
    /// True if the sink goes on after such a record: it does not accept it, or keeps it until the relay has
    /// decided about it. Otherwise the sink ends.
    pub in_place: bool,
    /// Makes such a record of a good one.
    pub spoil: fn(&mut Event),
}

/// The server of a sink, which the test has to itself.
///
/// A call that changes the server returns when the change has taken effect. All calls panic if they
/// cannot do what they are for.
pub trait Destination {
    /// Makes a factory of sinks with these bounds, which write to the server.
    fn factory(&self, bounds: Bounds) -> AnySinkFactory;

    /// Creates what records of this topic go to, if the server needs that.
    fn create_topic(&self, topic: &str) {
        let _ = topic;
    }

    /// Reads all records of a topic. Those of one key come in the server's order.
    fn stored(&self, topic: &str) -> Vec<Stored>;

    /// Makes the server answer nothing until [`resume`](Self::resume). Connections stay open.
    fn pause(&self);

    /// Ends a [`pause`](Self::pause).
    fn resume(&self);

    /// Ends the server at once, as SIGKILL does. Connections end.
    fn kill(&self);

    /// Starts the server after [`kill`](Self::kill) with the same data, and waits until it answers.
    fn start(&self);

    /// Ways to make a record that the destination refuses for good; empty if it refuses none.
    fn refusals(&self) -> Vec<Refusal>;

    /// Makes a factory of sinks with roomy bounds that send a refused record again for `retry_for`, and returns
    /// a way to make such a record. `None` if nothing is refused for a while, or if no record may pass such a one.
    fn patient(&self, retry_for: Duration) -> Option<(AnySinkFactory, Refusal)> {
        let _ = retry_for;
        None
    }

    /// Returns the disposition of what fails because the server has ended.
    fn outage(&self) -> Disposition {
        Disposition::Retryable
    }

    /// Returns true if the server drops a record whose id it has already.
    fn drops_repeats(&self) -> bool {
        false
    }
}

/// Makes a test of each promise of the conformance suite. The argument makes the
/// [`Destination`](crate::conformance::Destination) of one test.
#[macro_export]
macro_rules! conformance {
    ($destination:expr) => {
        $crate::conformance! { $destination =>
            acknowledged_means_durable
            order_per_key
            one_report_per_record
            back_pressure
            poison_is_no_outage
            a_refusal_concerns_its_record_only
            refused_records_wait_apart
            ten_refusals_take_one_retry_for
            withdrawn_records_come_back
            repeats_have_the_same_id
            stops_in_time
            nothing_in_logs
        }
    };
    ($destination:expr => $($promise:ident)*) => {
        $(
            #[test]
            fn $promise() {
                $crate::conformance::keeps(stringify!($promise), &$destination);
            }
        )*
    };
}
