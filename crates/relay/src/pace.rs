//! Whether latency or throughput matters now.
//!
//! Under a light load a record is read as soon as it comes and handed over at once. Under a heavy one
//! that is dear: the server pays for each message by itself when it is read as soon as it comes (it
//! may need twice the CPU), and the broker for each small request. What was read in lumps and sent in
//! full requests is late by some milliseconds; who is behind anyway does not mind.
//!
//! So the sign to go by is the **lag that the server itself sees**: the time of its clock at which it
//! sent a message, less the time of the transaction's commit. Two readings of one clock: it does not
//! matter what ours says. It grows when the server has a backlog to decode, when a large transaction
//! is being sent, and when we do not read as fast as it could send.
//!
//! - **Up**, to throughput: the lag was long for a while, and records come in numbers.
//! - **Down**, to latency: the lag is over and the rate well below the one that was too much; or so
//!   little comes that there is nothing to be filled; at once when nothing comes any more.
//!
//! The rate that was too much is remembered, so that a load between what the two gears can do does not
//! make it go up and down; and it fades, because what made it too much may pass.
//!
//! What is read later can only be confirmed later, never early.

use std::time::Duration;

use tokio::time::Instant;
use walrelay_sink::Favour;

/// A lag that is worth being caught up with, and for how long it must last.
const BEHIND: Duration = Duration::from_millis(100);
const BEHIND_FOR: Duration = Duration::from_millis(50);
/// Records a second below which a full request is not to be had.
const MANY: f64 = 5_000.0;
/// A lag that is none: a commit's way to the disk is in it.
const CURRENT: Duration = Duration::from_millis(50);
/// For how long it must be so easy.
const CURRENT_FOR: Duration = Duration::from_millis(500);
/// Below this share of the rate that was too much, it is not.
const EASY: f64 = 0.6;
/// What is assumed before there was a rate that was too much.
const ASSUMED: f64 = 40_000.0;
/// A rate is that of at least so long, and without a record for so long there is none.
const WINDOW: Duration = Duration::from_millis(100);
/// By so much a second the rate that was too much grows again.
const FADING: f64 = 0.02;
/// Between two reads when throughput matters. Measured: docs/adr/0013-two-gears.md.
const READ_GAP: Duration = Duration::from_micros(300);

/// The pace of one connection.
#[derive(Debug)]
pub(crate) struct Pace {
    favour: Favour,
    /// Records a second, lately.
    rate: f64,
    /// The rate that was too much to be sent at once.
    too_much: f64,
    window: Instant,
    /// Records since the window began.
    records: u64,
    /// When there were records last.
    last: Instant,
    /// Since when there is the lag, or the lack of it, that asks for the other gear.
    other_since: Option<Instant>,
    /// When the gear was changed.
    changed: Instant,
    next_read: Instant,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            favour: Favour::Latency,
            rate: 0.0,
            too_much: ASSUMED,
            window: now,
            records: 0,
            last: now,
            other_since: None,
            changed: now,
            next_read: now,
        }
    }

    /// What to favour with what was just read. Call it before that is handed over.
    pub(crate) fn favour(&mut self, now: Instant) -> Favour {
        if now.duration_since(self.last) > WINDOW {
            self.rate = 0.0;
            self.records = 0;
            self.window = now;
            self.last = now;
            self.change(Favour::Latency, now);
        }
        self.favour
    }

    /// Notes that `records` were handed over, of which the last was sent by the server `lag` after its
    /// commit.
    pub(crate) fn handed_over(&mut self, records: u64, lag: Duration, now: Instant) {
        if records > 0 {
            self.last = now;
        }
        self.records += records;
        let elapsed = now.duration_since(self.window);
        if elapsed >= WINDOW {
            let rate = self.records as f64 / elapsed.as_secs_f64();
            self.rate = self.rate.midpoint(rate);
            self.records = 0;
            self.window = now;
            if self.favour == Favour::Throughput {
                self.too_much *= 1.0 + FADING * elapsed.as_secs_f64();
            }
        }
        let (asks, patience, to) = match self.favour {
            Favour::Latency => (lag >= BEHIND, BEHIND_FOR, Favour::Throughput),
            Favour::Throughput => {
                let easy = lag < CURRENT && self.rate < self.too_much * EASY;
                (easy || self.rate < MANY, CURRENT_FOR, Favour::Latency)
            }
        };
        if !asks {
            self.other_since = None;
            return;
        }
        let since = *self.other_since.get_or_insert(now);
        if now.duration_since(since) < patience {
            return;
        }
        if to == Favour::Throughput {
            // What there is of the window counts, unless it is too short to say anything: with a
            // backlog its end is not waited for.
            let elapsed = now.duration_since(self.window).max(BEHIND_FOR / 2);
            let current = self.records as f64 / elapsed.as_secs_f64();
            if self.rate.max(current) < MANY {
                return;
            }
            // Only a rate that was kept for some time says what is too much.
            if now.duration_since(self.changed) > CURRENT_FOR + WINDOW {
                self.too_much = self.rate.max(MANY);
            }
        }
        self.change(to, now);
    }

    /// Notes a read.
    pub(crate) fn read(&mut self, now: Instant) {
        self.next_read = now + READ_GAP;
    }

    /// How long to leave the socket alone.
    pub(crate) fn before_read(&self, now: Instant) -> Option<Duration> {
        let rest = self.next_read.checked_duration_since(now)?;
        (self.favour == Favour::Throughput && !rest.is_zero()).then_some(rest)
    }

    fn change(&mut self, to: Favour, now: Instant) {
        if self.favour != to {
            self.favour = to;
            self.changed = now;
        }
        self.other_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(1);

    struct Load {
        pace: Pace,
        now: Instant,
        changes: usize,
    }

    impl Load {
        fn new() -> Self {
            let now = Instant::now();
            Self {
                pace: Pace::new(now),
                now,
                changes: 0,
            }
        }

        /// So many records a second with such a lag, for a time.
        fn of(&mut self, rate: u64, lag_ms: u64, time_ms: u64) -> Favour {
            let mut favour = self.pace.favour(self.now);
            for tick in 0..time_ms {
                self.now += TICK;
                let due = rate * (tick + 1) / 1000 - rate * tick / 1000;
                if due > 0 {
                    let next = self.pace.favour(self.now);
                    self.changes += usize::from(next != favour);
                    favour = next;
                    let lag = Duration::from_millis(lag_ms);
                    self.pace.handed_over(due, lag, self.now);
                }
            }
            self.pace.favour(self.now)
        }
    }

    #[test]
    fn what_is_in_time_is_sent_at_once_at_any_rate() {
        let mut load = Load::new();
        for rate in [1, 100, 1_000, 10_000, 50_000, 200_000] {
            assert_eq!(load.of(rate, 5, 1_000), Favour::Latency, "{rate}");
            assert_eq!(load.pace.before_read(load.now), None);
        }
    }

    #[test]
    fn a_backlog_is_for_throughput_and_its_end_for_latency() {
        let mut load = Load::new();
        assert_eq!(load.of(60_000, 900, 100), Favour::Throughput);
        load.pace.read(load.now);
        assert_eq!(load.pace.before_read(load.now), Some(READ_GAP));
        assert_eq!(load.pace.before_read(load.now + READ_GAP), None);
        assert_eq!(load.of(120_000, 900, 5_000), Favour::Throughput);
        assert_eq!(load.of(1_000, 2, 1_000), Favour::Latency);
    }

    #[test]
    fn a_few_late_records_are_not_worth_a_full_request() {
        let mut load = Load::new();
        assert_eq!(load.of(1_000, 60_000, 5_000), Favour::Latency);
    }

    #[test]
    fn a_moment_behind_changes_nothing() {
        let mut load = Load::new();
        for _ in 0..20 {
            load.of(30_000, 2, 200);
            load.of(30_000, 150, 30);
        }
        assert_eq!((load.pace.favour, load.changes), (Favour::Latency, 0));
    }

    #[test]
    fn a_rate_that_was_too_much_does_not_make_it_go_up_and_down() {
        let mut load = Load::new();
        load.of(30_000, 2, 2_000);
        // Too much for single records, easy for full requests.
        load.of(50_000, 300, 400);
        load.of(50_000, 2, 10_000);
        assert_eq!((load.pace.favour, load.changes), (Favour::Throughput, 1));
        assert_eq!(load.of(20_000, 2, 2_000), Favour::Latency);
        // What was too much on a bad day is tried again some time.
        load.of(20_000, 300, 2_000);
        load.of(20_000, 2, 5_000);
        assert_eq!(load.pace.favour, Favour::Throughput);
        assert_eq!(load.of(20_000, 2, 40_000), Favour::Latency);
    }

    #[test]
    fn the_first_record_after_a_rest_does_not_wait() {
        let mut load = Load::new();
        assert_eq!(load.of(100_000, 1_000, 1_000), Favour::Throughput);
        load.of(0, 0, 250);
        assert_eq!(load.pace.favour(load.now), Favour::Latency);
    }

    #[test]
    fn a_trickle_of_slow_commits_is_sent_at_once() {
        let mut load = Load::new();
        assert_eq!(load.of(100_000, 1_000, 1_000), Favour::Throughput);
        assert_eq!(load.of(500, 80, 2_000), Favour::Latency);
    }
}
