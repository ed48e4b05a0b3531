use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use walrelay_throwaway::Pauses;

/// Limit of a wait for what comes soon, long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Limit of a wait in which nothing moves.
const STILL: Duration = Duration::from_secs(60);
/// Interval of the readings of a progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Waits until the condition holds; panics after `limit`.
#[track_caller]
pub fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) {
    eventually_some(limit, || condition().then_some(()));
}

/// Waits until there is a value and returns it; panics after `limit`.
#[track_caller]
pub fn eventually_some<T>(limit: Duration, mut value: impl FnMut() -> Option<T>) -> T {
    let mut pauses = Pauses::new();
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(
            pauses.waited() < limit,
            "what was awaited did not come within {limit:?}"
        );
        pauses.pause();
    }
}

/// Waits until the condition holds, for as long as the progress changes; panics when the progress
/// was the same for a minute. The progress is read about once a second. It must end to change when
/// the work is done.
#[track_caller]
pub fn eventually_while_moving<P: PartialEq + Debug>(
    mut progress: impl FnMut() -> P,
    mut condition: impl FnMut() -> bool,
) {
    let mut seen = progress();
    let (mut read_at, mut moved_at) = (Instant::now(), Instant::now());
    let mut pauses = Pauses::new();
    while !condition() {
        pauses.pause();
        if read_at.elapsed() < PROGRESS_INTERVAL {
            continue;
        }
        let now = progress();
        read_at = Instant::now();
        if now != seen {
            (seen, moved_at) = (now, read_at);
        }
        assert!(
            moved_at.elapsed() < STILL,
            "what was awaited did not come, and nothing has moved for {STILL:?}: {seen:?}"
        );
    }
}
