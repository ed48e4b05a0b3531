//! Throttles librdkafka's log: a broker that is down causes ten lines a second.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;

use crate::sync::lock;

/// A kind of line is logged at most once within this time.
const QUIET: Duration = Duration::from_secs(30);

/// Passes the first line of a kind and counts the suppressed ones.
#[derive(Debug, Default)]
pub(crate) struct KindThrottle(Mutex<HashMap<String, (Instant, u64)>>);

/// The number of suppressed lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Suppressed(u64);

impl Suppressed {
    /// Returns the value for a log line; `None` for zero, so that the field is left out.
    pub(crate) fn shown(self) -> Option<u64> {
        (self.0 > 0).then_some(self.0)
    }
}

impl KindThrottle {
    /// Counts a line. Returns `None` if the line is to be suppressed, otherwise the number of lines
    /// of this kind that were suppressed since the last one that passed.
    pub(crate) fn pass(&self, kind: &str) -> Option<Suppressed> {
        self.pass_at(kind, Instant::now()).map(Suppressed)
    }

    fn pass_at(&self, kind: &str, now: Instant) -> Option<u64> {
        let mut kinds = lock(&self.0);
        if let Some((since, suppressed)) = kinds.get_mut(kind) {
            if now.duration_since(*since) < QUIET {
                *suppressed += 1;
                return None;
            }
            *since = now;
            return Some(std::mem::take(suppressed));
        }
        kinds.insert(kind.to_owned(), (now, 0));
        Some(0)
    }

    /// Passes the next line of every kind again. Called when a failure has passed.
    pub(crate) fn forget(&self) {
        lock(&self.0).clear();
    }
}

/// Logs why there is no OAUTHBEARER token.
pub(crate) fn no_token(throttle: &KindThrottle, reason: &str) {
    if let Some(suppressed) = throttle.pass("OAUTHBEARER") {
        tracing::warn!(
            suppressed = suppressed.shown(),
            "no OAUTHBEARER token for Kafka: {reason}"
        );
    }
}

/// Returns whether librdkafka also passes this line to
/// [`ClientContext::error`](rdkafka::ClientContext::error): `rd_kafka_broker_set_error` does so for
/// failed connections.
pub(crate) fn is_also_an_error(level: RDKafkaLogLevel, facility: &str) -> bool {
    use RDKafkaLogLevel as L;
    facility == "FAIL" && matches!(level, L::Emerg | L::Alert | L::Critical | L::Error)
}

/// Logs a line of librdkafka, throttled. `facility` is its kind (`FAIL`, `SASL`, …).
pub(crate) fn line(throttle: &KindThrottle, level: RDKafkaLogLevel, facility: &str, message: &str) {
    use RDKafkaLogLevel as L;
    // At each start librdkafka warns that `enable.gapless.guarantee` is experimental. The tests in
    // producer/sink/tests/order.rs cover what depends on it.
    let known = facility == "CONFWARN" && message.contains("enable.gapless.guarantee");
    if known || matches!(level, L::Debug) {
        tracing::debug!(target: "librdkafka", facility, "{message}");
        return;
    }
    let Some(suppressed) = throttle.pass(facility) else {
        tracing::debug!(target: "librdkafka", facility, "{message}");
        return;
    };
    match level {
        L::Emerg | L::Alert | L::Critical => {
            tracing::error!(target: "librdkafka", facility, suppressed = suppressed.shown(), "{message}");
        }
        // librdkafka logs a failed connection as an error. It is retried, so it is a warning here.
        L::Error | L::Warning => {
            tracing::warn!(target: "librdkafka", facility, suppressed = suppressed.shown(), "{message}");
        }
        L::Notice | L::Info | L::Debug => {
            tracing::info!(target: "librdkafka", facility, suppressed = suppressed.shown(), "{message}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_suppressed_and_counted() {
        let throttle = KindThrottle::default();
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
    fn lines_that_are_also_reported_as_errors_are_recognised() {
        use RDKafkaLogLevel as L;
        assert!(is_also_an_error(L::Error, "FAIL"));
        // A broker closed an idle connection.
        assert!(!is_also_an_error(L::Info, "FAIL"));
        assert!(!is_also_an_error(L::Error, "SSL"));
    }

    #[test]
    fn a_count_of_zero_is_not_shown() {
        let passed = KindThrottle::default().pass("FAIL");
        assert_eq!(passed.map(Suppressed::shown), Some(None));
        assert_eq!(Suppressed(2).shown(), Some(2));
    }
}
