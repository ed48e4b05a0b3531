//! Decides the producer mode, and the delay before each read of the socket.
//!
//! Under a light load a record is read at once and sent at once. Under a heavy load that is
//! expensive: the server pays for each message that is read by itself (up to twice the CPU), and
//! the sink for each small request.
//!
//! The **lag** decides: the time from the commit of a transaction to the sending of its message.
//! Both times are of the server's clock, so ours does not matter. The lag grows when the server has
//! a backlog to decode, when it sends a large transaction, and when the relay reads more slowly
//! than the server sends.
//!
//! | mode | until | delay before a read |
//! |---|---|---|
//! | latency | the lag lasts, and the rate is high | [`READ_GAP`] at or above [`SPACING_LAG`] or [`SPACING_RATE`]; at or above both a quarter of the lag, [`LONGEST_GAP`] at most |
//! | throughput | the lag was short for a while, or the rate low; at once when no records arrive | `read_cadence.rs` |
//!
//! A pause of the server or the host also causes a lag, although latency mode could carry the load.
//! So latency mode is tried again soon. If that fails soon, the next try waits twice as long:
//! otherwise a load that only throughput mode can carry would make the mode change all the time.
//!
//! A sink without modes is sent to as in latency mode, and reads have the delays of latency mode:
//! they spare the server, whatever the sink is.
//!
//! A delay can only confirm a position later, never early. Measurements:
//! docs/adr/0013-producer-modes.md.

mod read_cadence;

use std::time::Duration;

use tokio::time::Instant;
use walrelay_sink::BatchingMode;
use walrelay_walsender::Socket;

use read_cadence::{ReadCadence, SHORTEST};

/// A lag of at least `BACKLOG_LAG` that lasts for `BACKLOG_FOR` selects throughput mode. The relay
/// catches up with a short pause of the server in less time.
const BACKLOG_LAG: Duration = Duration::from_millis(100);
const BACKLOG_FOR: Duration = Duration::from_millis(300);
/// A lag of at least `LARGE_BACKLOG_LAG`, which no short pause causes, selects throughput mode
/// after `LARGE_BACKLOG_FOR` already.
const LARGE_BACKLOG_LAG: Duration = Duration::from_secs(1);
const LARGE_BACKLOG_FOR: Duration = Duration::from_millis(50);
/// The rate in records a second below which requests cannot be filled, so that throughput mode does
/// not help.
const THROUGHPUT_RATE: f64 = 5_000.0;
/// Lag and rate (records a second) from which on reads are spaced by [`READ_GAP`].
const SPACING_LAG: Duration = Duration::from_millis(5);
const SPACING_RATE: f64 = 2_000.0;
/// Below this lag the relay has caught up. The lag includes the time to flush a commit to the disk.
const CAUGHT_UP_LAG: Duration = Duration::from_millis(50);
/// The time for which the relay must have caught up before latency mode is tried again: at first,
/// and at most after tries that failed.
const CAUGHT_UP_FOR: Duration = Duration::from_millis(500);
const LONGEST_CAUGHT_UP_FOR: Duration = Duration::from_secs(30);
/// A try of latency mode that lasted at least so long has not failed.
const SUCCESSFUL_TRY: Duration = Duration::from_secs(5);
/// The rate is measured over at least this time. If no record arrives for longer, the rate is zero.
const WINDOW: Duration = Duration::from_millis(100);
/// The delay between two reads in latency mode: the usual one, and the longest.
const READ_GAP: Duration = SHORTEST;
const LONGEST_GAP: Duration = Duration::from_micros(1_500);

/// The producer mode and the read delays of one connection.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The sink has modes; otherwise the mode stays latency.
    has_modes: bool,
    mode: BatchingMode,
    /// The recent rate, in records a second.
    rate: f64,
    /// The time for which the relay must have caught up before latency mode is tried again.
    caught_up_for: Duration,
    /// The lag of the last records.
    lag: Duration,
    /// The time when the current window of the rate began.
    window: Instant,
    /// The number of records since the window began.
    records: u64,
    /// The time when records were enqueued last.
    last: Instant,
    /// The time since which the lag or the rate asks for the other mode.
    other_since: Option<Instant>,
    /// The time when the mode was changed last.
    changed: Instant,
    /// The time when the next read may start.
    next_read: Instant,
    /// The delays of reads in throughput mode.
    cadence: ReadCadence,
}

impl Pace {
    pub(crate) fn new(socket: Socket, has_modes: bool, now: Instant) -> Self {
        Self {
            has_modes,
            mode: BatchingMode::Latency,
            rate: 0.0,
            lag: Duration::ZERO,
            caught_up_for: CAUGHT_UP_FOR,
            window: now,
            records: 0,
            last: now,
            other_since: None,
            changed: now,
            next_read: now,
            cadence: ReadCadence::new(socket),
        }
    }

    /// Returns the mode for the batch that was just read; `None` if the sink has no modes. Call it
    /// before the batch is enqueued.
    pub(crate) fn mode(&mut self, now: Instant) -> Option<BatchingMode> {
        if now.duration_since(self.last) > WINDOW {
            self.rate = 0.0;
            self.lag = Duration::ZERO;
            self.records = 0;
            self.window = now;
            self.last = now;
            self.change(BatchingMode::Latency, now);
        }
        self.has_modes.then_some(self.mode)
    }

    /// Notes that `records` were enqueued. The server sent the last of them `lag` after its commit.
    pub(crate) fn enqueued(&mut self, records: u64, lag: Duration, now: Instant) {
        if records > 0 {
            self.last = now;
            self.lag = lag;
        }
        self.records += records;
        let elapsed = now.duration_since(self.window);
        if elapsed >= WINDOW {
            let rate = self.records as f64 / elapsed.as_secs_f64();
            self.rate = self.rate.midpoint(rate);
            self.records = 0;
            self.window = now;
        }
        if !self.has_modes {
            return;
        }
        let (asks, needed, to) = match self.mode {
            BatchingMode::Latency if lag >= LARGE_BACKLOG_LAG => {
                (true, LARGE_BACKLOG_FOR, BatchingMode::Throughput)
            }
            BatchingMode::Latency => (lag >= BACKLOG_LAG, BACKLOG_FOR, BatchingMode::Throughput),
            BatchingMode::Throughput if self.rate < THROUGHPUT_RATE => {
                (true, CAUGHT_UP_FOR, BatchingMode::Latency)
            }
            BatchingMode::Throughput => (
                lag < CAUGHT_UP_LAG,
                self.caught_up_for,
                BatchingMode::Latency,
            ),
        };
        if !asks {
            self.other_since = None;
            return;
        }
        let since = *self.other_since.get_or_insert(now);
        if now.duration_since(since) < needed {
            return;
        }
        if to == BatchingMode::Throughput {
            // Use the rate of the unfinished window, too, so that a backlog is found soon. A window
            // that is too short for a rate counts as longer.
            let elapsed = now.duration_since(self.window).max(LARGE_BACKLOG_FOR / 2);
            let current = self.records as f64 / elapsed.as_secs_f64();
            let rate = self.rate.max(current);
            if rate < THROUGHPUT_RATE {
                return;
            }
            // Keep this rate until the next is measured: `blocked` may discard the window.
            self.rate = rate;
            self.caught_up_for = if now.duration_since(self.changed) < SUCCESSFUL_TRY {
                (self.caught_up_for * 2).min(LONGEST_CAUGHT_UP_FOR)
            } else {
                CAUGHT_UP_FOR
            };
        }
        self.change(to, now);
    }

    /// Notes that the sink takes no record now. In throughput mode this time does not count for the
    /// rate: a backlog is not over because the sink is slow.
    pub(crate) fn blocked(&mut self, now: Instant) {
        if self.mode == BatchingMode::Throughput {
            self.last = now;
            self.window = now;
            self.records = 0;
        }
    }

    /// Notes a read of this many bytes, and sets the delay before the next read.
    pub(crate) fn read(&mut self, bytes: usize, now: Instant) {
        let gap = match self.mode {
            BatchingMode::Latency => self.read_gap(),
            BatchingMode::Throughput => self.cadence.read(bytes),
        };
        self.next_read = now + gap;
    }

    /// Returns the delay between two reads in latency mode. If the rate and the lag are both high,
    /// the CPU is busy with single messages, so a longer delay coalesces them.
    fn read_gap(&self) -> Duration {
        if self.rate >= SPACING_RATE && self.lag >= SPACING_LAG {
            (self.lag / 4).min(LONGEST_GAP)
        } else {
            READ_GAP
        }
    }

    /// Returns the delay before the next read. `None`: read at once.
    pub(crate) fn before_read(&self, now: Instant) -> Option<Duration> {
        let delay = self.next_read.checked_duration_since(now)?;
        let spaced = self.lag >= SPACING_LAG
            || self.rate >= SPACING_RATE
            || self.mode == BatchingMode::Throughput;
        (spaced && !delay.is_zero()).then_some(delay)
    }

    fn change(&mut self, to: BatchingMode, now: Instant) {
        if self.mode != to {
            self.mode = to;
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
                pace: Pace::new(Socket::Unix, true, now),
                now,
                changes: 0,
            }
        }

        /// Enqueues `rate` records a second with a lag, for `time_ms`. Returns the mode at the end.
        fn apply(&mut self, rate: u64, lag_ms: u64, time_ms: u64) -> BatchingMode {
            let mut mode = self.mode();
            for tick in 0..time_ms {
                self.now += TICK;
                let due = rate * (tick + 1) / 1000 - rate * tick / 1000;
                if due > 0 {
                    let next = self.mode();
                    self.changes += usize::from(next != mode);
                    mode = next;
                    let lag = Duration::from_millis(lag_ms);
                    self.pace.enqueued(due, lag, self.now);
                }
            }
            self.mode()
        }

        fn mode(&mut self) -> BatchingMode {
            self.pace.mode(self.now).expect("the sink has modes")
        }

        /// Blocks the sink for `time_ms`, and asserts that the mode stays throughput.
        fn assert_throughput_while_blocked(&mut self, time_ms: u64) {
            for _ in 0..time_ms {
                self.now += TICK;
                self.pace.blocked(self.now);
                self.pace.enqueued(0, Duration::from_secs(1), self.now);
                assert_eq!(self.mode(), BatchingMode::Throughput);
            }
        }
    }

    #[test]
    fn records_without_lag_are_sent_at_once_at_any_rate() {
        let mut load = Load::new();
        for rate in [1, 100, 1_000, 10_000, 50_000, 200_000] {
            assert_eq!(load.apply(rate, 5, 1_000), BatchingMode::Latency, "{rate}");
        }
    }

    #[test]
    fn reads_are_spaced_when_records_are_many_or_late() {
        let delay_at = |rate, lag_ms| {
            let mut load = Load::new();
            assert_eq!(load.apply(rate, lag_ms, 1_000), BatchingMode::Latency);
            load.pace.read(1, load.now);
            load.pace.before_read(load.now)
        };
        assert_eq!(delay_at(1_000, 2), None);
        assert_eq!(delay_at(10_000, 2), Some(READ_GAP));
        assert_eq!(delay_at(1_000, 20), Some(READ_GAP));
        assert_eq!(delay_at(10_000, 5), Some(Duration::from_micros(1_250)));
        assert_eq!(delay_at(10_000, 50), Some(LONGEST_GAP));
        // Reads are not spaced when no records arrive any more.
        let mut load = Load::new();
        load.apply(10_000, 2, 1_000);
        load.apply(0, 0, 250);
        load.pace.mode(load.now);
        load.pace.read(1, load.now);
        assert_eq!(load.pace.before_read(load.now), None);
    }

    #[test]
    fn a_backlog_selects_throughput_and_its_end_latency() {
        let mut load = Load::new();
        assert_eq!(load.apply(60_000, 1_000, 100), BatchingMode::Throughput);
        load.pace.read(1, load.now);
        assert_eq!(load.pace.before_read(load.now), Some(READ_GAP));
        assert_eq!(load.pace.before_read(load.now + READ_GAP), None);
        assert_eq!(load.apply(120_000, 900, 5_000), BatchingMode::Throughput);
        assert_eq!(load.apply(1_000, 2, 1_000), BatchingMode::Latency);
    }

    /// Otherwise the rest of a backlog would be sent in the smallest requests after a pause of the
    /// sink.
    #[test]
    fn a_sink_that_takes_nothing_ends_no_backlog() {
        let mut load = Load::new();
        assert_eq!(load.apply(60_000, 1_000, 100), BatchingMode::Throughput);
        for _ in 0..20 {
            load.assert_throughput_while_blocked(300);
            assert_eq!(load.apply(120_000, 900, 50), BatchingMode::Throughput);
        }
        // A short lag ends the backlog.
        assert_eq!(load.apply(120_000, 2, 2_000), BatchingMode::Latency);
    }

    /// The first window may not have ended when the mode changes. A sink that connects to the
    /// leaders of hundreds of partitions then takes nothing for a while.
    #[test]
    fn a_sink_that_takes_nothing_at_first_ends_no_backlog() {
        let mut load = Load::new();
        assert_eq!(load.apply(60_000, 5_000, 60), BatchingMode::Throughput);
        load.assert_throughput_while_blocked(2_000);
        // A low rate after that ends the backlog.
        assert_eq!(load.apply(1_000, 60_000, 2_000), BatchingMode::Latency);
    }

    #[test]
    fn a_low_rate_with_a_long_lag_stays_in_latency_mode() {
        let mut load = Load::new();
        assert_eq!(load.apply(1_000, 60_000, 5_000), BatchingMode::Latency);
    }

    #[test]
    fn a_short_lag_changes_nothing() {
        let mut load = Load::new();
        for _ in 0..20 {
            load.apply(30_000, 2, 200);
            load.apply(30_000, 400, 200);
        }
        assert_eq!((load.pace.mode, load.changes), (BatchingMode::Latency, 0));
    }

    #[test]
    fn throughput_mode_ends_soon_after_a_short_lag() {
        let mut load = Load::new();
        load.apply(10_000, 2, 6_000);
        assert_eq!(load.apply(10_000, 150, 400), BatchingMode::Throughput);
        assert_eq!(load.apply(10_000, 2, 600), BatchingMode::Latency);
    }

    #[test]
    fn a_load_that_only_throughput_mode_carries_changes_the_mode_rarely() {
        let mut load = Load::new();
        // For a minute: a load that only throughput mode can carry.
        for _ in 0..600 {
            let lag = match load.pace.mode {
                BatchingMode::Latency => 200,
                BatchingMode::Throughput => 2,
            };
            load.apply(50_000, lag, 100);
        }
        assert!(load.changes < 16, "{} changes", load.changes);
        // Latency mode returns when the lag is short.
        load.apply(50_000, 2, 31_000);
        assert_eq!(load.mode(), BatchingMode::Latency);
    }

    #[test]
    fn the_first_record_after_a_pause_does_not_wait() {
        let mut load = Load::new();
        assert_eq!(load.apply(100_000, 1_000, 1_000), BatchingMode::Throughput);
        load.apply(0, 0, 250);
        assert_eq!(load.mode(), BatchingMode::Latency);
    }

    #[test]
    fn a_low_rate_ends_throughput_mode_despite_a_lag() {
        let mut load = Load::new();
        assert_eq!(load.apply(100_000, 1_000, 1_000), BatchingMode::Throughput);
        assert_eq!(load.apply(500, 80, 2_000), BatchingMode::Latency);
    }

    #[test]
    fn without_modes_a_backlog_is_read_with_the_delays_of_latency_mode() {
        let mut load = Load::new();
        load.pace.has_modes = false;
        for _ in 0..2_000 {
            load.now += TICK;
            assert_eq!(load.pace.mode(load.now), None);
            load.pace.enqueued(100, Duration::from_secs(1), load.now);
        }
        load.pace.read(1 << 16, load.now);
        assert_eq!(load.pace.before_read(load.now), Some(LONGEST_GAP));
        assert_eq!(load.pace.mode, BatchingMode::Latency);
    }
}
