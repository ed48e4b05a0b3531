//! [`SloSeconds`]: the seconds of this run in which events were later than `[slo] commit_to_ack`.
//!
//! Seconds are counted and not events: while nothing is acknowledged there is no event to measure, and the lag
//! tells that they are late.

use std::collections::BTreeMap;

use crate::report::SloReport;
use crate::sections::Slo;

const DAY: u64 = 86_400;
/// Days of the budget.
const DAYS: u64 = 30;

/// Counts the seconds of this run.
#[derive(Debug)]
pub(super) struct SloSeconds {
    seconds: u64,
    missed: u64,
    /// Missed seconds by the day, of counted seconds, since the beginning.
    by_day: BTreeMap<u64, u64>,
}

impl SloSeconds {
    pub(super) fn new() -> Self {
        Self {
            seconds: 0,
            missed: 0,
            by_day: BTreeMap::new(),
        }
    }

    /// Ends a second. `lag`: the age of the oldest unacknowledged event in seconds. `p99_ms`: of the events that
    /// were acknowledged in this second.
    pub(super) fn end_second(&mut self, slo: &Slo, lag: f64, p99_ms: Option<f64>) {
        let Some(objective) = slo.commit_to_ack else {
            return;
        };
        let objective = objective.as_secs_f64();
        self.seconds += 1;
        if lag > objective || p99_ms.is_some_and(|millis| millis / 1000.0 > objective) {
            self.missed += 1;
            *self.by_day.entry(self.day()).or_default() += 1;
        }
        let day = self.day();
        if let Some(oldest) = self.by_day.first_entry()
            && oldest.key() + DAYS <= day
        {
            oldest.remove();
        }
    }

    fn day(&self) -> u64 {
        self.seconds / DAY
    }

    /// Returns the figures; `None` without an objective.
    pub(super) fn report(&self, slo: &Slo) -> Option<SloReport> {
        let objective = slo.commit_to_ack?;
        let missed: u64 = self.by_day.values().sum();
        let allowed = (DAYS * DAY) as f64 * slo.budget();
        Some(SloReport {
            commit_to_ack_seconds: objective.as_secs_f64(),
            target_percent: slo.target,
            seconds: self.seconds,
            missed_seconds: self.missed,
            budget_left_percent: 100.0 * (1.0 - missed as f64 / allowed),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_second_is_missed_by_its_lag_or_by_late_acknowledgements() {
        let mut slo = Slo {
            commit_to_ack: None,
            target: 99.9,
            lag: Duration::from_secs(30),
        };
        let mut seconds = SloSeconds::new();
        seconds.end_second(&slo, 99.0, None);
        assert!(seconds.report(&slo).is_none());
        slo.commit_to_ack = Some(Duration::from_secs(2));
        for (lag, p99_ms) in [
            (0.0, None),
            (2.0, Some(2000.0)),
            (2.1, None),
            (0.0, Some(2001.0)),
        ] {
            seconds.end_second(&slo, lag, p99_ms);
        }
        let report = seconds.report(&slo).expect("an objective");
        assert_eq!((report.seconds, report.missed_seconds), (4, 2));
        // Of 2,592 seconds in 30 days.
        assert!(
            (report.budget_left_percent - 99.923).abs() < 0.001,
            "{report:?}"
        );
    }

    #[test]
    fn a_missed_second_is_forgotten_after_thirty_days() {
        let slo = Slo {
            commit_to_ack: Some(Duration::from_secs(2)),
            target: 99.9,
            lag: Duration::from_secs(30),
        };
        let mut seconds = SloSeconds::new();
        seconds.end_second(&slo, 9.0, None);
        let left = |seconds: &SloSeconds| {
            seconds
                .report(&slo)
                .expect("an objective")
                .budget_left_percent
        };
        for _ in 2..DAYS * DAY {
            seconds.end_second(&slo, 0.0, None);
        }
        assert!(left(&seconds) < 100.0);
        seconds.end_second(&slo, 0.0, None);
        assert!((left(&seconds) - 100.0).abs() < f64::EPSILON);
    }
}
