//! When to give librdkafka `bootstrap.servers` again (rebootstrap): it can lose all brokers for good
//! (docs/adr/0017-rebootstrap.md). `rd_kafka_brokers_add` recovers it and keeps producer id,
//! sequence numbers and queues. librdkafka does not report how many brokers it knows, so the
//! function is called whenever no record was reported for long. Where brokers are known it changes
//! little: librdkafka does not connect to an added broker while another one is up, and the next
//! metadata remove it.

use std::time::{Duration, Instant};

/// The time without a report before the first rebootstrap. The interval doubles with each one.
const FIRST_INTERVAL: Duration = Duration::from_secs(2);
/// The longest interval: 2,880 calls a day. librdkafka keeps a copy of the list for each call.
const MAX_INTERVAL: Duration = Duration::from_secs(30);

/// The schedule of rebootstraps. Belongs to the poll thread of one producer.
#[derive(Debug, Default)]
pub(crate) struct Rebootstrap {
    /// The time of the next rebootstrap and the interval before it; `None`: no record waits for a
    /// report since the last one.
    next: Option<(Instant, Duration)>,
}

impl Rebootstrap {
    /// Returns true if a rebootstrap is due. `in_flight`: some record is in flight. `reported`:
    /// some record was reported since the last call.
    pub(crate) fn is_due(&mut self, in_flight: bool, reported: bool, now: Instant) -> bool {
        if reported || !in_flight {
            self.next = None;
            return false;
        }
        let (at, pause) = *self
            .next
            .get_or_insert((now + FIRST_INTERVAL, FIRST_INTERVAL));
        if now < at {
            return false;
        }
        let pause = (pause * 2).min(MAX_INTERVAL);
        self.next = Some((now + pause, pause));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds at which a rebootstrap is due, if records are in flight all the time;
    /// asked five times a second.
    fn due(rebootstrap: &mut Rebootstrap, start: Instant, seconds: u64) -> Vec<u64> {
        (0..=seconds * 5)
            .map(|fifth| Duration::from_millis(fifth * 200))
            .filter(|passed| rebootstrap.is_due(true, false, start + *passed))
            .map(|passed| passed.as_secs())
            .collect()
    }

    #[test]
    fn intervals_grow_while_nothing_is_reported() {
        let mut rebootstrap = Rebootstrap::default();
        let start = Instant::now();
        assert_eq!(
            due(&mut rebootstrap, start, 125),
            [2, 6, 14, 30, 60, 90, 120]
        );
        // It does not end.
        let later = start + Duration::from_secs(120);
        for day in 0..40 {
            let now = later + MAX_INTERVAL * (day + 1);
            assert!(rebootstrap.is_due(true, false, now), "{day}");
        }
    }

    #[test]
    fn a_report_restarts_the_schedule() {
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
