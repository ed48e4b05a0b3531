use std::{
    thread,
    time::{Duration, Instant},
};

/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(5);

/// Waits until the condition holds.
#[track_caller]
pub fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) {
    eventually_some(limit, || condition().then_some(()));
}

/// Waits until there is a value, and gives it.
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
        thread::sleep(LOOK);
    }
}
