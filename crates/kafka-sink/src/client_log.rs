//! librdkafka's log, throttled: a broker that is down is one line, not ten a second.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;

use crate::sync::lock;

/// The same kind of line is not repeated within this time.
const QUIET: Duration = Duration::from_secs(30);

/// Lets the first line of a kind through and counts the others.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<HashMap<String, (Instant, u64)>>);

/// How many lines were held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldBack(u64);

impl HeldBack {
    /// For a log line, which leaves a zero out.
    pub(crate) fn shown(self) -> Option<u64> {
        (self.0 > 0).then_some(self.0)
    }
}

impl LogThrottle {
    /// How many lines of this kind were held back since the last one that passed; `None` to hold
    /// this one back too.
    pub(crate) fn pass(&self, kind: &str) -> Option<HeldBack> {
        self.pass_at(kind, Instant::now()).map(HeldBack)
    }

    fn pass_at(&self, kind: &str, now: Instant) -> Option<u64> {
        // A panic elsewhere while the lock was held leaves counts, not invariants.
        let mut kinds = lock(&self.0);
        if let Some((since, held_back)) = kinds.get_mut(kind) {
            if now.duration_since(*since) < QUIET {
                *held_back += 1;
                return None;
            }
            *since = now;
            return Some(std::mem::take(held_back));
        }
        kinds.insert(kind.to_owned(), (now, 0));
        Some(0)
    }

    /// Lets the next line of every kind through again, after things have changed for the better.
    pub(crate) fn forget(&self) {
        lock(&self.0).clear();
    }
}

/// Logs that there is no OAUTHBEARER token, and why.
pub(crate) fn no_token(throttle: &LogThrottle, reason: &str) {
    if let Some(held_back) = throttle.pass("OAUTHBEARER") {
        tracing::warn!(
            held_back = held_back.shown(),
            "no OAUTHBEARER token for Kafka: {reason}"
        );
    }
}

/// Whether librdkafka gives the same words to [`ClientContext::error`](rdkafka::ClientContext::error), too:
/// `rd_kafka_broker_set_error` does so for failed connections.
pub(crate) fn is_also_an_error(level: RDKafkaLogLevel, facility: &str) -> bool {
    use RDKafkaLogLevel as L;
    facility == "FAIL" && matches!(level, L::Emerg | L::Alert | L::Critical | L::Error)
}

/// A line of librdkafka's log. `facility` is its kind (`FAIL`, `SASL`, …).
pub(crate) fn line(throttle: &LogThrottle, level: RDKafkaLogLevel, facility: &str, message: &str) {
    use RDKafkaLogLevel as L;
    // It says that `enable.gapless.guarantee` is experimental, at each start: nothing to act on. What
    // rests on it is tested (producer/sink/tests/order.rs).
    let known = facility == "CONFWARN" && message.contains("enable.gapless.guarantee");
    if known || matches!(level, L::Debug) {
        tracing::debug!(target: "librdkafka", facility, "{message}");
        return;
    }
    let Some(held_back) = throttle.pass(facility) else {
        tracing::debug!(target: "librdkafka", facility, "{message}");
        return;
    };
    match level {
        L::Emerg | L::Alert | L::Critical => {
            tracing::error!(target: "librdkafka", facility, held_back = held_back.shown(), "{message}");
        }
        // A connection that fails is librdkafka's "error" and an operator's warning: it is retried.
        L::Error | L::Warning => {
            tracing::warn!(target: "librdkafka", facility, held_back = held_back.shown(), "{message}");
        }
        L::Notice | L::Info | L::Debug => {
            tracing::info!(target: "librdkafka", facility, held_back = held_back.shown(), "{message}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_held_back_and_counted() {
        let throttle = LogThrottle::default();
        let start = Instant::now();
        assert_eq!(throttle.pass_at("FAIL", start), Some(0));
        assert_eq!(throttle.pass_at("FAIL", start + QUIET / 2), None);
        assert_eq!(throttle.pass_at("FAIL", start + QUIET / 2), None);
        assert_eq!(throttle.pass_at("SASL", start + QUIET / 2), Some(0));
        assert_eq!(throttle.pass_at("FAIL", start + QUIET), Some(2));
        throttle.forget();
        assert_eq!(throttle.pass_at("FAIL", start + QUIET), Some(0));
    }
    #[test]
    fn only_what_librdkafka_reports_as_an_error_is_left_to_it() {
        use RDKafkaLogLevel as L;
        assert!(is_also_an_error(L::Error, "FAIL"));
        // A connection that an idle broker closed.
        assert!(!is_also_an_error(L::Info, "FAIL"));
        assert!(!is_also_an_error(L::Error, "SSL"));
    }

    #[test]
    fn a_line_before_which_none_was_held_back_has_no_count() {
        let passed = LogThrottle::default().pass("FAIL");
        assert_eq!(passed.map(HeldBack::shown), Some(None));
        assert_eq!(HeldBack(2).shown(), Some(2));
    }
}
