use std::{
    thread,
    time::{Duration, Instant},
};

/// Limit of a wait for what comes soon, long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Interval of the checks of a condition.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until the condition holds; panics after `limit`.
#[track_caller]
pub fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) {
    eventually_some(limit, || condition().then_some(()));
}

/// Waits until there is a value and returns it; panics after `limit`.
#[track_caller]
pub fn eventually_some<T>(limit: Duration, mut value: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(
            Instant::now() < deadline,
            "what was awaited did not come within {limit:?}"
        );
        thread::sleep(POLL_INTERVAL);
    }
}
