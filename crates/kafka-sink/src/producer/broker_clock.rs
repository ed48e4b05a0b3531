use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::Timestamp;
use rdkafka::message::{BorrowedMessage, Message as _};
use walrelay_sink::{ServerClocks, clock_offset, lock, micros_now};

use crate::ffi;

/// Shortest time between two comparisons.
const INTERVAL: Duration = Duration::from_secs(1);

/// The append time that librdkafka's mock cluster, which is the embedded broker, answers for each record
/// (`rd_kafka_mock_handle_Produce` in `rdkafka_mock_handlers.c`): it shows no clock.
const MOCK_APPEND_TIME: i64 = 1234;

/// Compares the clocks of brokers with this machine's, by the records that they acknowledge.
#[derive(Default)]
pub(super) struct BrokerClock {
    compared: Mutex<Option<Instant>>,
}

impl BrokerClock {
    /// Compares the clock of the broker that acknowledged this record, if that is due. Only an append
    /// time is by that clock.
    pub(super) fn acknowledged(
        &self,
        message: &BorrowedMessage<'_>,
        now: Instant,
        clocks: &ServerClocks,
    ) {
        let appended = match message.timestamp() {
            Timestamp::LogAppendTime(appended) if appended != MOCK_APPEND_TIME => appended,
            _ => return,
        };
        let mut compared = lock(&self.compared);
        if compared.is_some_and(|at| now < at + INTERVAL) {
            return;
        }
        if let Some(age) = ffi::age_of(message) {
            *compared = Some(now);
            clocks.note(append_offset(micros_now(), age, appended));
        }
    }
}

/// Returns the seconds by which a broker's clock is ahead, at least, by the report of a record at
/// `now` (µs) that was enqueued `age` µs before, and appended at `appended` (ms) by that clock.
fn append_offset(now: i64, age: i64, appended: i64) -> f64 {
    // The broker cuts its time to a millisecond.
    let enqueued = now.saturating_sub(age).saturating_sub(1_000);
    clock_offset(enqueued, appended.saturating_mul(1_000), now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_apart_only_beyond_enqueueing_and_acknowledgement() {
        // Enqueued at 7 s, reported at 10 s.
        for (appended, offset) in [
            (7_000, 0.0),
            (6_999, 0.0),
            (10_000, 0.0),
            (12_500, 2.5),
            (3_999, -3.0),
        ] {
            let found = append_offset(10_000_000, 3_000_000, appended);
            assert!((found - offset).abs() < 1e-9, "{appended}: {found}");
        }
    }
}
