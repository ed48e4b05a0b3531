use std::{
    thread,
    time::{Duration, Instant},
};

/// The first pauses.
const SHORTEST: Duration = Duration::from_millis(5);
/// The pauses after a long wait, where a look takes no time.
const LONGEST: Duration = Duration::from_millis(100);
/// The pauses after a look that takes long.
const LONGEST_AFTER_LOOK: Duration = Duration::from_millis(500);

/// The pauses of a loop that looks again and again whether something has come. They grow with the
/// time waited, so that the loop notices it at most 6 % late, and with the time that a look
/// takes, so that a loop takes at most a third of a processor's time from the one it waits for. For example,
/// after one second without success, the pauses last 63 ms; if a look takes 50 ms, they last 100 ms.
#[derive(Debug)]
pub struct Pauses {
    begun: Instant,
    /// The end of the last pause, where the present look began.
    resumed: Instant,
}

impl Pauses {
    /// Starts the wait, with its first look.
    #[expect(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            resumed: now,
        }
    }

    /// Returns the time since the start of the wait.
    pub fn waited(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Pauses between two looks.
    pub fn pause(&mut self) {
        thread::sleep(pause(self.waited(), self.resumed.elapsed()));
        self.resumed = Instant::now();
    }
}

fn pause(waited: Duration, look: Duration) -> Duration {
    let by_wait = (waited / 16).min(LONGEST);
    let by_look = (look * 2).min(LONGEST_AFTER_LOOK);
    by_wait.max(by_look).max(SHORTEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_the_wait_and_with_the_looks() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(0), ms(0)), ms(5));
        assert_eq!(pause(ms(800), ms(0)), ms(50));
        assert_eq!(pause(ms(60_000), ms(0)), ms(100));
        assert_eq!(pause(ms(800), ms(50)), ms(100));
        assert_eq!(pause(ms(800), ms(60_000)), ms(500));
    }
}
