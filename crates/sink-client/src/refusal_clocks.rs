use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use walrelay_sink::{EventPosition, Record, RecordKind, lock};

/// The positions that are remembered at least, for a sink with a small window.
const MIN_POSITIONS: usize = 4_096;

/// A record as clocks of refusals know it: a dead letter has the position of its event, and a clock of
/// its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RefusedRecord {
    position: EventPosition,
    is_dead_letter: bool,
}

impl RefusedRecord {
    /// Returns what is remembered of a record.
    pub fn new(record: &Record<'_>) -> Self {
        Self {
            position: record.position,
            is_dead_letter: record.kind == RecordKind::DeadLetter,
        }
    }
}

/// The times since which records are refused. Clones share them, so they outlive a sink: the relay makes
/// another one to send a refused event alone.
///
/// All records in flight are remembered, so no clock begins anew.
#[derive(Debug, Clone)]
pub struct RefusalClocks {
    since: Arc<Mutex<HashMap<RefusedRecord, Clock>>>,
    limit: usize,
}

#[derive(Debug, Clone, Copy)]
struct Clock {
    started: Instant,
    noted: Instant,
}

impl Default for RefusalClocks {
    fn default() -> Self {
        Self::new(0)
    }
}

impl RefusalClocks {
    /// Creates no clock yet. `in_flight`: the records of a sink that are in flight at most.
    pub fn new(in_flight: u64) -> Self {
        let in_flight = usize::try_from(in_flight).unwrap_or(usize::MAX / 2);
        Self {
            since: Arc::default(),
            limit: in_flight.saturating_mul(2).max(MIN_POSITIONS),
        }
    }

    /// Notes a refusal of this record. Returns for how long the record has been refused.
    pub fn note(&self, record: RefusedRecord) -> Duration {
        let now = Instant::now();
        let mut since = lock(&self.since);
        if let Some(clock) = since.get_mut(&record) {
            clock.noted = now;
            return now.duration_since(clock.started);
        }
        if since.len() >= self.limit {
            // Those that were noted longest ago are in flight no more.
            let mut noted: Vec<Instant> = since.values().map(|clock| clock.noted).collect();
            let half = noted.len() / 2;
            let (_, &mut median, _) = noted.select_nth_unstable(half);
            since.retain(|_, clock| clock.noted > median);
        }
        let clock = Clock {
            started: now,
            noted: now,
        };
        since.insert(record, clock);
        Duration::ZERO
    }

    /// Notes that this record was taken.
    pub fn forget(&self, record: RefusedRecord) {
        lock(&self.since).remove(&record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: RecordKind, row: u64) -> RefusedRecord {
        RefusedRecord::new(&Record {
            kind,
            position: EventPosition { lsn: 1, row },
            ..Record::default()
        })
    }

    #[test]
    fn the_clock_of_each_record_in_flight_goes_on() {
        let event = |row| record(RecordKind::Event, row);
        let refused = RefusalClocks::new(5_000);
        for row in 0..5_000 {
            assert_eq!(refused.note(event(row)), Duration::ZERO);
        }
        // The clock of the system may stand between two calls.
        let begun = Instant::now();
        while begun.elapsed().is_zero() {}
        for _ in 0..3 {
            for row in 0..5_000 {
                assert!(!refused.note(event(row)).is_zero(), "{row}");
            }
        }
        // Others come, as many as there may be, and those that are noted no more are forgotten.
        for row in 5_000..100_000 {
            refused.note(event(row));
        }
        assert!(lock(&refused.since).len() <= 10_000);
        assert!(!refused.note(event(99_999 - 4_000)).is_zero());
        refused.forget(event(99_999));
        assert_eq!(refused.note(event(99_999)), Duration::ZERO);
    }

    #[test]
    fn a_dead_letter_has_another_clock_than_its_event() {
        let refused = RefusalClocks::default();
        refused.note(record(RecordKind::Event, 1));
        let begun = Instant::now();
        while begun.elapsed().is_zero() {}
        let of_dead_letter = refused.note(record(RecordKind::DeadLetter, 1));
        assert_eq!(of_dead_letter, Duration::ZERO);
        assert!(!refused.note(record(RecordKind::Event, 1)).is_zero());
    }
}
