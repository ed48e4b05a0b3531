//! How a socket is read by one who is behind.
//!
//! The walsender flushes each message by itself. While its socket may send, each becomes a segment, which
//! costs it more than decoding the row did; while it may not for a moment, the kernel puts them together.
//! So what it costs is decided by **who holds the server back**, and a reader has a say in that only by
//! when it reads. A unix socket knows no segments: there a short rest before each read is enough.
//!
//! By TCP it is the window of congestion that should hold the server back, and with BBR that follows
//! the acknowledgements: it grows by what is acknowledged at once, and a system acknowledges what was read.
//! - **Lumps**: a rest before each read, in which many messages come together. But each lump is one
//!   acknowledgement of many segments, for which the window grows until it holds nothing back.
//! - **Prompt reads**: each acknowledges next to nothing, and after some ten of them the window is small
//!   again.
//!
//! Neither is any good by itself. In turns they keep the window small most of the time; that is measured in
//! docs/adr/0018-lumps-and-prompt-reads.md, which also says what the kernel does and where this brings nothing (CUBIC).
//!
//! A rest is as long as a lump of a good size takes to come: no longer, for a window of **reception** that
//! is full makes the server wait. How large that window is nobody tells a reader, but what once came in one
//! read fits in. (Less than 32 KiB is not reckoned with: Linux begins with 64.)

use std::time::Duration;

use walrelay_walsender::Socket;

/// The shortest rest, and the only one with a unix socket. Measured: docs/adr/0013-two-gears.md.
pub(crate) const SHORTEST: Duration = Duration::from_micros(300);
/// The longest: what comes so slowly is not worth waiting for.
const LONGEST: Duration = Duration::from_millis(2);
/// Lumps in a row, then prompt reads in a row.
const LUMPS: u32 = 4;
const PROMPT: u32 = 20;
/// Bytes that a lump should have, at least and at most.
const SMALL: usize = 32 * 1024;
const LARGE: usize = 96 * 1024;

/// The rhythm of one connection.
#[derive(Debug)]
pub(crate) struct Rhythm {
    socket: Socket,
    /// Which read of a round is the next one, from 0: lumps first.
    turn: u32,
    rest: Duration,
    /// The largest read of late, in bytes.
    largest: usize,
}

impl Rhythm {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            turn: 0,
            rest: SHORTEST,
            // The window of a new connection, on Linux.
            largest: 64 * 1024,
        }
    }

    /// Notes a read of so many bytes. How long to leave the socket alone from then on.
    pub(crate) fn read(&mut self, bytes: usize) -> Duration {
        if self.socket == Socket::Unix {
            return SHORTEST;
        }
        // A window may become smaller, too.
        self.largest = bytes.max(self.largest - self.largest / 64);
        if self.turn < LUMPS {
            let lump = (self.largest / 4 * 3).clamp(SMALL, LARGE);
            let times = lump as f64 / bytes.max(1) as f64;
            // By half or double at most: one read says little.
            let rest = self.rest.mul_f64(times.clamp(0.5, 2.0));
            self.rest = rest.clamp(SHORTEST, LONGEST);
        }
        self.turn = (self.turn + 1) % (LUMPS + PROMPT);
        if self.turn < LUMPS {
            self.rest
        } else {
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends so many bytes a second, through a window. Reads for a second; returns how
    /// long each read was waited for, and what came in all.
    fn read_from(rhythm: &mut Rhythm, rate: f64, window: usize) -> (Vec<Duration>, usize) {
        let prompt = Duration::from_micros(10);
        let (mut rests, mut elapsed, mut total) = (Vec::new(), Duration::ZERO, 0);
        let mut rest = prompt;
        while elapsed < Duration::from_secs(1) {
            let waited = rest.max(prompt);
            let bytes = ((rate * waited.as_secs_f64()) as usize).clamp(1, window);
            elapsed += waited;
            total += bytes;
            rest = rhythm.read(bytes);
            rests.push(rest);
        }
        (rests, total)
    }

    #[test]
    fn lumps_and_prompt_reads_take_turns() {
        let mut rhythm = Rhythm::new(Socket::Tcp);
        let (rests, _) = read_from(&mut rhythm, 50e6, 1 << 20);
        let round = (LUMPS + PROMPT) as usize;
        for rests in rests.chunks_exact(round) {
            let prompt = rests.iter().filter(|rest| rest.is_zero()).count();
            assert_eq!(prompt, PROMPT as usize);
        }
    }

    #[test]
    fn a_rest_is_as_long_as_a_lump_takes_to_come() {
        let longest = |rate| {
            let mut rhythm = Rhythm::new(Socket::Tcp);
            let (rests, _) = read_from(&mut rhythm, rate, 1 << 20);
            rests.into_iter().rev().take(100).max().unwrap_or_default()
        };
        assert_eq!(longest(1e6), LONGEST);
        assert!(longest(40e6) > Duration::from_micros(800));
        assert!(longest(40e6) < LONGEST);
        assert_eq!(longest(400e6), SHORTEST);
    }

    /// A rest that grows because little came, of which little comes because the
    /// window is full, would be the end of it.
    #[test]
    fn a_window_that_is_full_does_not_make_rests_longer() {
        for window in [48 * 1024, 64 * 1024, 128 * 1024, 1024 * 1024] {
            let mut rhythm = Rhythm::new(Socket::Tcp);
            // Larger once, before it shrank.
            read_from(&mut rhythm, 150e6, 1 << 20);
            let (_, before) = read_from(&mut rhythm, 150e6, window);
            let (rests, total) = read_from(&mut rhythm, 150e6, window);
            let most = rests.iter().max().unwrap();
            // What the window lets through with the shortest rest, or what the server sends.
            let possible = (window as f64 / SHORTEST.as_secs_f64()).min(150e6);
            assert!(
                total as f64 > 0.9 * possible,
                "{window}: {before}, {total}, {most:?}"
            );
        }
    }

    #[test]
    fn a_unix_socket_gets_the_shortest_rest() {
        let mut rhythm = Rhythm::new(Socket::Unix);
        for bytes in [1, 1000, 200_000, 1, 1] {
            assert_eq!(rhythm.read(bytes), SHORTEST);
        }
    }

    #[test]
    fn a_read_of_nothing_is_no_trouble() {
        let mut rhythm = Rhythm::new(Socket::Tcp);
        for _ in 0..1000 {
            assert!(rhythm.read(0) <= LONGEST);
        }
    }
}
