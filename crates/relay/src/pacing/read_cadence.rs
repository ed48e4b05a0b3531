//! The read cadence: how long the relay waits between two reads of a socket while it has a backlog.
//!
//! The walsender flushes each message by itself. While its socket accepts data, each message
//! becomes a segment, and a segment costs the walsender more than decoding the row. While the
//! socket accepts nothing for a moment, the kernel puts many messages into one segment. The times
//! of our reads decide how often that happens.
//!
//! A unix socket has no segments: a short delay before each read is enough.
//!
//! With TCP the congestion window should limit the server. With BBR that window follows the
//! acknowledgements: it grows by the amount that is acknowledged at once, and the kernel
//! acknowledges what was read.
//! - **Coalesced reads** have a delay before each, in which many messages arrive. But each such
//!   read acknowledges many segments at once, so the window grows until it limits nothing.
//! - **Immediate reads** acknowledge little each. After about ten of them the window is small
//!   again.
//!
//! Neither alone helps. Alternating keeps the window small most of the time. Measurements, and why
//! CUBIC gains nothing: docs/adr/0013-producer-modes.md.
//!
//! A delay lasts until a coalesced read reaches its target size, and no longer: a full **receive**
//! window stops the server. A reader does not know the size of that window, but the largest read so
//! far fits into it. (A window below 32 KiB is not expected: Linux begins with 64.)

use std::time::Duration;

use walrelay_walsender::Socket;

/// The shortest delay, and the only one with a unix socket. Measured:
/// docs/adr/0013-producer-modes.md.
pub(crate) const SHORTEST: Duration = Duration::from_micros(300);
/// The longest delay: a longer one would cost more latency than it saves work.
const LONGEST: Duration = Duration::from_millis(2);
/// Coalesced reads in a row, then immediate reads in a row.
const COALESCED: u32 = 4;
const IMMEDIATE: u32 = 20;
/// The target size of a coalesced read in bytes, at least and at most.
const SMALL: usize = 32 * 1024;
const LARGE: usize = 96 * 1024;

/// The read cadence of one connection.
#[derive(Debug)]
pub(crate) struct ReadCadence {
    socket: Socket,
    /// The next read's number in its round, from 0. Coalesced reads come first.
    turn: u32,
    /// The delay before each coalesced read.
    delay: Duration,
    /// The largest recent read, in bytes.
    largest: usize,
}

impl ReadCadence {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            turn: 0,
            delay: SHORTEST,
            // The receive window of a new connection on Linux.
            largest: 64 * 1024,
        }
    }

    /// Notes a read of this many bytes. Returns the delay before the next read.
    pub(crate) fn read(&mut self, bytes: usize) -> Duration {
        if self.socket == Socket::Unix {
            return SHORTEST;
        }
        // Decays, because a window may shrink.
        self.largest = bytes.max(self.largest - self.largest / 64);
        if self.turn < COALESCED {
            let target = (self.largest / 4 * 3).clamp(SMALL, LARGE);
            let times = target as f64 / bytes.max(1) as f64;
            // One read is weak evidence, so a step is half or double at most.
            let delay = self.delay.mul_f64(times.clamp(0.5, 2.0));
            self.delay = delay.clamp(SHORTEST, LONGEST);
        }
        self.turn = (self.turn + 1) % (COALESCED + IMMEDIATE);
        if self.turn < COALESCED {
            self.delay
        } else {
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads for a second from a server that sends `rate` bytes a second through a receive window
    /// of `window` bytes. Returns the delay before each next read, and the number of bytes read.
    fn read_from(cadence: &mut ReadCadence, rate: f64, window: usize) -> (Vec<Duration>, usize) {
        let immediate = Duration::from_micros(10);
        let (mut delays, mut elapsed, mut total) = (Vec::new(), Duration::ZERO, 0);
        let mut delay = immediate;
        while elapsed < Duration::from_secs(1) {
            let waited = delay.max(immediate);
            let bytes = ((rate * waited.as_secs_f64()) as usize).clamp(1, window);
            elapsed += waited;
            total += bytes;
            delay = cadence.read(bytes);
            delays.push(delay);
        }
        (delays, total)
    }

    #[test]
    fn coalesced_and_immediate_reads_take_turns() {
        let mut cadence = ReadCadence::new(Socket::Tcp);
        let (delays, _) = read_from(&mut cadence, 50e6, 1 << 20);
        let round = (COALESCED + IMMEDIATE) as usize;
        for delays in delays.chunks_exact(round) {
            let immediate = delays.iter().filter(|delay| delay.is_zero()).count();
            assert_eq!(immediate, IMMEDIATE as usize);
        }
    }

    #[test]
    fn a_delay_lasts_until_a_coalesced_read_has_its_size() {
        let longest = |rate| {
            let mut cadence = ReadCadence::new(Socket::Tcp);
            let (delays, _) = read_from(&mut cadence, rate, 1 << 20);
            delays.into_iter().rev().take(100).max().unwrap_or_default()
        };
        assert_eq!(longest(1e6), LONGEST);
        assert!(longest(40e6) > Duration::from_micros(800));
        assert!(longest(40e6) < LONGEST);
        assert_eq!(longest(400e6), SHORTEST);
    }

    /// A full window limits a read. If a small read lengthened the delay, the delay would grow for
    /// ever.
    #[test]
    fn a_full_window_does_not_lengthen_the_delay() {
        for window in [48 * 1024, 64 * 1024, 128 * 1024, 1024 * 1024] {
            let mut cadence = ReadCadence::new(Socket::Tcp);
            // The window is larger at first, then shrinks.
            read_from(&mut cadence, 150e6, 1 << 20);
            let (_, before) = read_from(&mut cadence, 150e6, window);
            let (delays, total) = read_from(&mut cadence, 150e6, window);
            let longest = delays.iter().max().unwrap();
            // Bytes a second: limited by the window at the shortest delay, or by the server.
            let possible = (window as f64 / SHORTEST.as_secs_f64()).min(150e6);
            assert!(
                total as f64 > 0.9 * possible,
                "{window}: {before}, {total}, {longest:?}"
            );
        }
    }

    #[test]
    fn a_unix_socket_gets_the_shortest_delay() {
        let mut cadence = ReadCadence::new(Socket::Unix);
        for bytes in [1, 1000, 200_000, 1, 1] {
            assert_eq!(cadence.read(bytes), SHORTEST);
        }
    }

    #[test]
    fn an_empty_read_keeps_the_delay_in_bounds() {
        let mut cadence = ReadCadence::new(Socket::Tcp);
        for _ in 0..1000 {
            assert!(cadence.read(0) <= LONGEST);
        }
    }
}
