use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use crate::SinkStats;

/// Bounds the records and the bytes that a sink has accepted and not reported, and so its memory.
///
/// [`Sink::try_send`](crate::Sink::try_send) takes room for a record, and answers
/// [`SendError::Full`](crate::SendError::Full) if there is none. The thread that reports the record
/// gives the room back, and calls [`Deliveries::capacity`](crate::Deliveries::capacity) if
/// [`give_back`](Self::give_back) says so.
///
/// # No lost wake-up
/// A sender that finds no room stores the number of bytes at which it is to be woken, stores
/// `waiting`, and **then checks again**. All accesses are sequentially consistent, so a give-back
/// either happened before that second check, which sees it, or sees `waiting`. If the second check
/// finds no room, records are in flight and their give-backs are still to come; the last of them
/// leaves no record in flight, which always wakes.
#[derive(Debug)]
pub struct Window {
    max_records: u64,
    max_bytes: u64,
    max_aside_bytes: u64,
    /// Of all records, also of those that are set aside: so their number is exact while one is.
    records: AtomicU64,
    bytes: AtomicU64,
    aside_records: AtomicU64,
    aside_bytes: AtomicU64,
    waiting: AtomicBool,
    /// A waiting sender is woken at this many bytes or fewer.
    wake_bytes: AtomicU64,
}

impl Window {
    /// Creates an empty window. A bound of zero counts as one.
    pub fn new(max_records: u64, max_bytes: u64) -> Self {
        Self {
            max_records: max_records.max(1),
            max_bytes: max_bytes.max(1),
            max_aside_bytes: 0,
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            aside_records: AtomicU64::new(0),
            aside_bytes: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
            wake_bytes: AtomicU64::new(0),
        }
    }

    /// Bounds the bytes of the records that are [set aside](Self::set_aside); zero, as at first, allows none.
    #[must_use]
    pub fn with_aside(self, max_bytes: u64) -> Self {
        Self {
            max_aside_bytes: max_bytes,
            ..self
        }
    }

    /// Gives back the room of a record that is not sent now, because its destination refuses records. It is in
    /// flight until [`give_back_aside`](Self::give_back_aside). Returns false if too many bytes are set aside.
    /// Called by the thread that takes room, which then tries again.
    #[must_use]
    pub fn set_aside(&self, weight: u64) -> bool {
        let aside = self.aside_bytes.load(SeqCst).saturating_add(weight);
        if aside > self.max_aside_bytes {
            return false;
        }
        self.aside_records.fetch_add(1, SeqCst);
        self.aside_bytes.fetch_add(weight, SeqCst);
        true
    }

    /// Takes room for a record that was set aside and is sent now, beyond the bounds if need be: what is in flight
    /// stays within those of the window and of the records set aside together. Called by the thread that takes room.
    pub fn take_aside(&self, weight: u64) {
        self.aside_bytes.fetch_sub(weight, SeqCst);
        self.aside_records.fetch_sub(1, SeqCst);
    }

    /// Ends the flight of a record that was set aside. True: as of [`give_back`](Self::give_back).
    #[must_use]
    pub fn give_back_aside(&self, weight: u64) -> bool {
        // In this order, no room is seen that there is not.
        self.take_aside(weight);
        self.cancel(weight);
        // Others may be set aside now.
        self.waiting.swap(false, SeqCst)
    }

    /// Takes room for one record of `weight` bytes. Returns false if there is none; then a later
    /// [`give_back`](Self::give_back) returns true. Called by one thread only.
    ///
    /// A record that is larger than the whole window is admitted when nothing is in flight;
    /// otherwise it would wait for ever.
    pub fn try_take(&self, weight: u64) -> bool {
        if !self.fits(weight) {
            self.wake_bytes.store(
                low_water(self.max_bytes).min(self.max_bytes.saturating_sub(weight)),
                SeqCst,
            );
            self.waiting.store(true, SeqCst);
            if !self.fits(weight) {
                return false;
            }
            self.waiting.store(false, SeqCst);
        }
        self.records.fetch_add(1, SeqCst);
        self.bytes.fetch_add(weight, SeqCst);
        true
    }

    /// Undoes a [`try_take`](Self::try_take) whose record was not queued.
    pub fn cancel(&self, weight: u64) {
        self.bytes.fetch_sub(weight, SeqCst);
        self.records.fetch_sub(1, SeqCst);
    }

    /// Gives back the room of a reported record. True: the sender waits, so
    /// [`Deliveries::capacity`](crate::Deliveries::capacity) must be called.
    ///
    /// The wake-up comes when an eighth of the window is free, so that a fast sender is not woken
    /// for every record.
    #[must_use]
    pub fn give_back(&self, weight: u64) -> bool {
        self.bytes.fetch_sub(weight, SeqCst);
        self.records.fetch_sub(1, SeqCst);
        // Load after both: otherwise, of two threads that give back at the same time, neither might
        // see the sum.
        let (records, bytes) = self.taken();
        self.waiting.load(SeqCst)
            && (records == 0
                || (records <= low_water(self.max_records)
                    && bytes <= self.wake_bytes.load(SeqCst)))
            && self.waiting.swap(false, SeqCst)
    }

    /// Returns the number of records that have taken room, or are set aside.
    pub fn in_flight(&self) -> u64 {
        self.records.load(SeqCst)
    }

    /// Returns the bytes of those records.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    /// Writes the figures of the window into a sink's statistics.
    pub fn update_stats(&self, stats: &SinkStats) {
        let (records, bytes) = (self.in_flight(), self.bytes());
        stats.in_flight_records.store(records, Relaxed);
        stats.in_flight_bytes.store(bytes, Relaxed);
    }

    fn fits(&self, weight: u64) -> bool {
        let (records, bytes) = self.taken();
        records == 0
            || (records < self.max_records && bytes.saturating_add(weight) <= self.max_bytes)
    }

    /// Returns the records that take room, and their bytes. Others may be accepted and set aside meanwhile.
    fn taken(&self) -> (u64, u64) {
        let (records, bytes) = (self.records.load(SeqCst), self.bytes.load(SeqCst));
        (
            records.saturating_sub(self.aside_records.load(SeqCst)),
            bytes.saturating_sub(self.aside_bytes.load(SeqCst)),
        )
    }
}

fn low_water(max: u64) -> u64 {
    max - max.div_ceil(8)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn what_is_set_aside_takes_no_room_and_is_in_flight() {
        let window = Window::new(2, 1_000).with_aside(150);
        assert!(window.try_take(100) && window.try_take(100));
        assert!(!window.try_take(10), "two records are in flight");
        assert!(window.set_aside(100));
        assert!(!window.set_aside(100), "too many bytes are set aside");
        assert!(window.try_take(10));
        assert_eq!((window.in_flight(), window.bytes()), (3, 210));
        assert!(!window.try_take(10));
        assert!(window.give_back_aside(100), "the sender waits");
        assert_eq!((window.in_flight(), window.bytes()), (2, 110));
        assert!(!Window::new(2, 1_000).set_aside(1));
    }

    #[test]
    fn a_record_that_was_set_aside_is_sent_beyond_the_bound() {
        let window = Window::new(1, 1_000).with_aside(100);
        assert!(window.try_take(100) && window.set_aside(100) && window.try_take(10));
        window.take_aside(100);
        assert_eq!((window.in_flight(), window.bytes()), (2, 110));
        assert!(!window.try_take(10), "two records are in flight");
        assert!(!window.give_back(10), "one is, and one may be");
        assert!(window.give_back(100), "the sender waits");
        assert!(
            window.try_take(100) && window.set_aside(100),
            "none is aside"
        );
    }

    #[test]
    fn counts_and_bytes_bound_and_wake_with_hysteresis() {
        let window = Window::new(8, 1_000);
        for _ in 0..8 {
            assert!(window.try_take(10));
        }
        assert!(!window.try_take(10), "eight records are in flight");
        assert!(window.give_back(10), "an eighth is free");
        assert!(!window.give_back(10), "nobody waits any more");
        assert!(window.try_take(900));
        assert!(!window.try_take(500), "bytes");
        assert!(!window.give_back(10), "not enough room for 500 bytes yet");
        assert!(window.give_back(900));
        assert_eq!(window.in_flight(), 5);
    }

    #[test]
    fn a_record_larger_than_the_window_passes_alone() {
        let window = Window::new(10, 100);
        assert!(window.try_take(1));
        assert!(!window.try_take(1_000));
        assert!(
            window.give_back(1),
            "nothing is in flight: the giant may go"
        );
        assert!(window.try_take(1_000));
        assert!(!window.try_take(1));
        assert!(window.give_back(1_000));
    }

    #[test]
    fn a_window_of_one_works() {
        let window = Window::new(1, 0);
        for _ in 0..3 {
            assert!(window.try_take(1));
            assert!(!window.try_take(1));
            assert!(window.give_back(1));
        }
    }

    #[test]
    fn cancel_leaves_no_trace() {
        let window = Window::new(2, 100);
        assert!(window.try_take(60));
        assert!(window.try_take(40));
        window.cancel(40);
        assert!(window.try_take(40));
        assert_eq!(window.in_flight(), 2);
    }

    /// A sender and two reporters race over a tiny window: a lost wake-up would hang the test. One
    /// record is never reported, as if its partition were down, so no give-back leaves the window
    /// empty.
    #[test]
    fn no_wake_up_is_lost() {
        let window = Arc::new(Window::new(5, 65));
        assert!(window.try_take(1), "this one stays");
        let (wake, woken) = mpsc::channel::<()>();
        let (queues, reporters): (Vec<_>, Vec<_>) = (0..2)
            .map(|_| {
                let (queue, reports) = mpsc::channel::<u64>();
                let (window, wake) = (Arc::clone(&window), wake.clone());
                let reporter = thread::spawn(move || {
                    for weight in reports {
                        if window.give_back(weight) {
                            let _ = wake.send(());
                        }
                    }
                });
                (queue, reporter)
            })
            .unzip();
        for i in 0..200_000_usize {
            let weight = [1, 7, 30, 56][i % 4];
            while !window.try_take(weight) {
                woken.recv().expect("the reporters live");
            }
            queues[i % 2].send(weight).expect("the reporter lives");
        }
        drop(queues);
        for reporter in reporters {
            reporter.join().expect("the reporter ends well");
        }
        assert_eq!(window.in_flight(), 1);
    }
}
