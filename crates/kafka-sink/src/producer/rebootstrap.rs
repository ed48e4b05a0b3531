//! When `bootstrap.servers` are named to librdkafka again.
//!
//! A cluster may say that it has no brokers, as one does for a moment while its last broker stops.
//! librdkafka forgets all that it knows then, and while it does it may cancel the very timer that would
//! have it begin anew, for good: it has no broker to ask, and looks for none
//! (confluentinc/librdkafka#5301; `tests/e2e/confirming.rs` met it). `rd_kafka_brokers_add` helps, and
//! loses nothing: producer id, sequence numbers and queues are as they were. How many brokers it knows
//! librdkafka tells nobody, so it is called whenever nothing was reported for long. Where brokers are
//! known that changes little: one that is named again is not connected to while another is up, and the
//! next metadata remove it.

use std::time::{Duration, Instant};

/// How long nothing is reported before the first time. Each is twice as far from the one before.
const FIRST: Duration = Duration::from_secs(2);
/// librdkafka keeps a copy of the list for each time, so they must not come too often: this is 2,880 a day.
const LONGEST: Duration = Duration::from_secs(30);

/// Whether it is time. Belongs to the poll thread of one producer.
#[derive(Debug, Default)]
pub(crate) struct Rebootstrap {
    /// When it is due, and how long after the time before; while something waits to be reported.
    next: Option<(Instant, Duration)>,
}

impl Rebootstrap {
    /// `reported`: something was since the last call. `in_flight`: something is that was not.
    pub(crate) fn is_due(&mut self, in_flight: bool, reported: bool, now: Instant) -> bool {
        if reported || !in_flight {
            self.next = None;
            return false;
        }
        let (at, pause) = *self.next.get_or_insert((now + FIRST, FIRST));
        if now < at {
            return false;
        }
        let pause = (pause * 2).min(LONGEST);
        self.next = Some((now + pause, pause));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asked five times a second for so long, with something in flight all the time: the seconds at which it
    /// was due.
    fn due(rebootstrap: &mut Rebootstrap, start: Instant, seconds: u64) -> Vec<u64> {
        (0..=seconds * 5)
            .map(|fifth| Duration::from_millis(fifth * 200))
            .filter(|passed| rebootstrap.is_due(true, false, start + *passed))
            .map(|passed| passed.as_secs())
            .collect()
    }

    #[test]
    fn it_is_due_ever_more_seldom_while_nothing_is_reported() {
        let mut rebootstrap = Rebootstrap::default();
        let start = Instant::now();
        assert_eq!(
            due(&mut rebootstrap, start, 125),
            [2, 6, 14, 30, 60, 90, 120]
        );
        // For days.
        let later = start + Duration::from_secs(120);
        for day in 0..40 {
            let now = later + LONGEST * (day + 1);
            assert!(rebootstrap.is_due(true, false, now), "{day}");
        }
    }

    #[test]
    fn a_report_begins_it_anew() {
        let mut rebootstrap = Rebootstrap::default();
        let start = Instant::now();
        assert_eq!(due(&mut rebootstrap, start, 10), [2, 6]);
        let start = start + Duration::from_secs(10);
        assert!(!rebootstrap.is_due(true, true, start));
        assert_eq!(due(&mut rebootstrap, start, 10), [2, 6]);
    }

    #[test]
    fn it_is_not_due_while_nothing_is_in_flight() {
        let mut rebootstrap = Rebootstrap::default();
        let start = Instant::now();
        assert_eq!(due(&mut rebootstrap, start, 1), Vec::<u64>::new());
        assert!(!rebootstrap.is_due(false, false, start + Duration::from_secs(3_600)));
        assert_eq!(
            due(&mut rebootstrap, start + Duration::from_secs(7_200), 3),
            [2]
        );
    }
}
