//! Decides the producer mode, and the delay before each read of the socket.
//!
//! Under a light load a record is read at once and sent at once. Under a heavy load that is expensive: the server
//! pays for each message that is read by itself (up to twice the CPU), and the broker for each small request.
//!
//! The **lag** decides: when the server sent a message, less when its transaction was committed. Both times are of
//! the server's clock, so ours does not matter. The lag grows when the server has a backlog to decode, when it
//! sends a large transaction, and when the relay reads more slowly than the server sends.
//!
//! | mode | until | delay before a read |
//! |---|---|---|
//! | latency | the lag lasts, and records come in numbers | [`READ_GAP`] at or above [`LATE`] or [`LIVELY`]; at or above both a quarter of the lag, [`LONGEST_GAP`] at most |
//! | throughput | the lag is over for a while, or few records come; at once when none come | `read_cadence.rs` |
//!
//! A lag may come of a hiccup of the server or the host, which says nothing of what latency mode can do. So
//! latency is tried again soon. If it fails soon, the next try waits twice as long: a load between what the two modes
//! can do does not make the mode change all the time.
//!
//! A delay can only confirm a position later, never early. Measurements: docs/adr/0013-producer-modes.md.

mod read_cadence;

use std::time::Duration;

use tokio::time::Instant;
use walrelay_sink::BatchingMode;
use walrelay_walsender::Socket;

use read_cadence::{ReadCadence, SHORTEST};

/// A lag that asks for throughput, and for how long it must last: a hiccup is made up for in less.
const BEHIND: Duration = Duration::from_millis(100);
const BEHIND_FOR: Duration = Duration::from_millis(300);
/// The same, of a lag that no hiccup leaves.
const FAR_BEHIND: Duration = Duration::from_secs(1);
const FAR_BEHIND_FOR: Duration = Duration::from_millis(50);
/// Records a second below which requests cannot be filled.
const MANY: f64 = 5_000.0;
/// At or above this lag or rate (records a second), reads are spaced by [`READ_GAP`].
const LATE: Duration = Duration::from_millis(5);
const LIVELY: f64 = 2_000.0;
/// Below this lag the relay is not behind: a commit's way to the disk is in it.
const CURRENT: Duration = Duration::from_millis(50);
/// For how long the lag must be over: at first, and at most after tries that failed.
const CURRENT_FOR: Duration = Duration::from_millis(500);
const LONGEST_FOR: Duration = Duration::from_secs(30);
/// A try of latency mode that lasted so long has not failed.
const PROVEN: Duration = Duration::from_secs(5);
/// A rate is measured over at least so long; without a record for so long it is zero.
const WINDOW: Duration = Duration::from_millis(100);
/// The delay between two reads in latency mode, and the longest.
const READ_GAP: Duration = SHORTEST;
const LONGEST_GAP: Duration = Duration::from_micros(1_500);

/// The pace of one connection.
#[derive(Debug)]
pub(crate) struct Pace {
    mode: BatchingMode,
    /// Records a second, lately.
    rate: f64,
    /// For how long the lag must be over before latency mode is tried again.
    patience: Duration,
    /// The lag of the last records.
    lag: Duration,
    window: Instant,
    /// Records since the window began.
    records: u64,
    /// When records came last.
    last: Instant,
    /// Since when the lag or the rate asks for the other mode.
    other_since: Option<Instant>,
    /// When the mode was changed.
    changed: Instant,
    next_read: Instant,
    /// Of the reads in throughput mode.
    cadence: ReadCadence,
}

impl Pace {
    pub(crate) fn new(socket: Socket, now: Instant) -> Self {
        Self {
            mode: BatchingMode::Latency,
            rate: 0.0,
            lag: Duration::ZERO,
            patience: CURRENT_FOR,
            window: now,
            records: 0,
            last: now,
            other_since: None,
            changed: now,
            next_read: now,
            cadence: ReadCadence::new(socket),
        }
    }

    /// The mode for what was just read. Call it before the batch is enqueued.
    pub(crate) fn mode(&mut self, now: Instant) -> BatchingMode {
        if now.duration_since(self.last) > WINDOW {
            self.rate = 0.0;
            self.lag = Duration::ZERO;
            self.records = 0;
            self.window = now;
            self.last = now;
            self.change(BatchingMode::Latency, now);
        }
        self.mode
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
        let (asks, patience, to) = match self.mode {
            BatchingMode::Latency if lag >= FAR_BEHIND => {
                (true, FAR_BEHIND_FOR, BatchingMode::Throughput)
            }
            BatchingMode::Latency => (lag >= BEHIND, BEHIND_FOR, BatchingMode::Throughput),
            BatchingMode::Throughput if self.rate < MANY => {
                (true, CURRENT_FOR, BatchingMode::Latency)
            }
            BatchingMode::Throughput => (lag < CURRENT, self.patience, BatchingMode::Latency),
        };
        if !asks {
            self.other_since = None;
            return;
        }
        let since = *self.other_since.get_or_insert(now);
        if now.duration_since(since) < patience {
            return;
        }
        if to == BatchingMode::Throughput {
            // With a backlog the end of the window is not waited for: what there is of it counts, unless it
            // is too short to say anything.
            let elapsed = now.duration_since(self.window).max(FAR_BEHIND_FOR / 2);
            let current = self.records as f64 / elapsed.as_secs_f64();
            let rate = self.rate.max(current);
            if rate < MANY {
                return;
            }
            // Kept until a better rate is known: a sink that is blocked now says nothing of the load.
            self.rate = rate;
            self.patience = if now.duration_since(self.changed) < PROVEN {
                (self.patience * 2).min(LONGEST_FOR)
            } else {
                CURRENT_FOR
            };
        }
        self.change(to, now);
    }

    /// Notes that the sink takes nothing for now. That says nothing of the load: a backlog is not over because
    /// the broker is slow.
    pub(crate) fn blocked(&mut self, now: Instant) {
        if self.mode == BatchingMode::Throughput {
            self.last = now;
            self.window = now;
            self.records = 0;
        }
    }

    /// Notes a read of so many bytes.
    pub(crate) fn read(&mut self, bytes: usize, now: Instant) {
        let gap = match self.mode {
            BatchingMode::Latency => self.read_gap(),
            BatchingMode::Throughput => self.cadence.read(bytes),
        };
        self.next_read = now + gap;
    }

    /// The delay between two reads in latency mode. The lag of many records grows where the processors are busy
    /// with each record by itself: a quarter of the lag more coalesces them.
    fn read_gap(&self) -> Duration {
        if self.rate >= LIVELY && self.lag >= LATE {
            (self.lag / 4).min(LONGEST_GAP)
        } else {
            READ_GAP
        }
    }

    /// The delay before the next read.
    pub(crate) fn before_read(&self, now: Instant) -> Option<Duration> {
        let delay = self.next_read.checked_duration_since(now)?;
        let lively =
            self.lag >= LATE || self.rate >= LIVELY || self.mode == BatchingMode::Throughput;
        (lively && !delay.is_zero()).then_some(delay)
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
                pace: Pace::new(Socket::Unix, now),
                now,
                changes: 0,
            }
        }

        /// So many records a second with such a lag, for a time.
        fn of(&mut self, rate: u64, lag_ms: u64, time_ms: u64) -> BatchingMode {
            let mut mode = self.pace.mode(self.now);
            for tick in 0..time_ms {
                self.now += TICK;
                let due = rate * (tick + 1) / 1000 - rate * tick / 1000;
                if due > 0 {
                    let next = self.pace.mode(self.now);
                    self.changes += usize::from(next != mode);
                    mode = next;
                    let lag = Duration::from_millis(lag_ms);
                    self.pace.enqueued(due, lag, self.now);
                }
            }
            self.pace.mode(self.now)
        }

        /// The sink takes nothing for a time, and the mode stays.
        fn is_held_up_in_throughput(&mut self, time_ms: u64) {
            for _ in 0..time_ms {
                self.now += TICK;
                self.pace.blocked(self.now);
                self.pace.enqueued(0, Duration::from_secs(1), self.now);
                assert_eq!(self.pace.mode(self.now), BatchingMode::Throughput);
            }
        }
    }

    #[test]
    fn records_without_lag_are_sent_at_once_at_any_rate() {
        let mut load = Load::new();
        for rate in [1, 100, 1_000, 10_000, 50_000, 200_000] {
            assert_eq!(load.of(rate, 5, 1_000), BatchingMode::Latency, "{rate}");
        }
    }

    #[test]
    fn reads_are_spaced_when_records_are_many_or_late() {
        let delay_at = |rate, lag_ms| {
            let mut load = Load::new();
            assert_eq!(load.of(rate, lag_ms, 1_000), BatchingMode::Latency);
            load.pace.read(1, load.now);
            load.pace.before_read(load.now)
        };
        assert_eq!(delay_at(1_000, 2), None);
        assert_eq!(delay_at(10_000, 2), Some(READ_GAP));
        assert_eq!(delay_at(1_000, 20), Some(READ_GAP));
        assert_eq!(delay_at(10_000, 5), Some(Duration::from_micros(1_250)));
        assert_eq!(delay_at(10_000, 50), Some(LONGEST_GAP));
        // And no longer when nothing comes any more.
        let mut load = Load::new();
        load.of(10_000, 2, 1_000);
        load.of(0, 0, 250);
        load.pace.mode(load.now);
        load.pace.read(1, load.now);
        assert_eq!(load.pace.before_read(load.now), None);
    }

    #[test]
    fn a_backlog_is_for_throughput_and_its_end_for_latency() {
        let mut load = Load::new();
        assert_eq!(load.of(60_000, 1_000, 100), BatchingMode::Throughput);
        load.pace.read(1, load.now);
        assert_eq!(load.pace.before_read(load.now), Some(READ_GAP));
        assert_eq!(load.pace.before_read(load.now + READ_GAP), None);
        assert_eq!(load.of(120_000, 900, 5_000), BatchingMode::Throughput);
        assert_eq!(load.of(1_000, 2, 1_000), BatchingMode::Latency);
    }

    /// A broker that stops for a moment would otherwise get the rest of a backlog in the smallest requests.
    #[test]
    fn a_sink_that_takes_nothing_ends_no_backlog() {
        let mut load = Load::new();
        assert_eq!(load.of(60_000, 1_000, 100), BatchingMode::Throughput);
        for _ in 0..20 {
            load.is_held_up_in_throughput(300);
            assert_eq!(load.of(120_000, 900, 50), BatchingMode::Throughput);
        }
        // Its end does.
        assert_eq!(load.of(120_000, 2, 2_000), BatchingMode::Latency);
    }

    /// The first window may not have ended yet when the mode is changed, and then a sink that finds its way to
    /// hundreds of partitions takes nothing for a while.
    #[test]
    fn a_sink_that_takes_nothing_at_first_ends_no_backlog() {
        let mut load = Load::new();
        assert_eq!(load.of(60_000, 5_000, 60), BatchingMode::Throughput);
        load.is_held_up_in_throughput(2_000);
        // What comes then says more.
        assert_eq!(load.of(1_000, 60_000, 2_000), BatchingMode::Latency);
    }

    #[test]
    fn a_few_late_records_are_not_worth_a_full_request() {
        let mut load = Load::new();
        assert_eq!(load.of(1_000, 60_000, 5_000), BatchingMode::Latency);
    }

    #[test]
    fn a_moment_behind_changes_nothing() {
        let mut load = Load::new();
        for _ in 0..20 {
            load.of(30_000, 2, 200);
            load.of(30_000, 400, 200);
        }
        assert_eq!((load.pace.mode, load.changes), (BatchingMode::Latency, 0));
    }

    #[test]
    fn a_hiccup_is_over_soon_at_any_rate() {
        let mut load = Load::new();
        load.of(10_000, 2, 6_000);
        assert_eq!(load.of(10_000, 150, 400), BatchingMode::Throughput);
        assert_eq!(load.of(10_000, 2, 600), BatchingMode::Latency);
    }

    #[test]
    fn a_load_between_the_modes_does_not_make_it_go_up_and_down() {
        let mut load = Load::new();
        // For a minute: too much for single records, and easy for full requests.
        for _ in 0..600 {
            let lag = match load.pace.mode {
                BatchingMode::Latency => 200,
                BatchingMode::Throughput => 2,
            };
            load.of(50_000, lag, 100);
        }
        assert!(load.changes < 16, "{} changes", load.changes);
        // And when it is over, it is over.
        load.of(50_000, 2, 31_000);
        assert_eq!(load.pace.mode(load.now), BatchingMode::Latency);
    }

    #[test]
    fn the_first_record_after_a_pause_does_not_wait() {
        let mut load = Load::new();
        assert_eq!(load.of(100_000, 1_000, 1_000), BatchingMode::Throughput);
        load.of(0, 0, 250);
        assert_eq!(load.pace.mode(load.now), BatchingMode::Latency);
    }

    #[test]
    fn a_trickle_of_slow_commits_is_sent_at_once() {
        let mut load = Load::new();
        assert_eq!(load.of(100_000, 1_000, 1_000), BatchingMode::Throughput);
        assert_eq!(load.of(500, 80, 2_000), BatchingMode::Latency);
    }
}
