//! How late this machine is by itself, to judge a time of the relay.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use walrelay_testkit::{Background, Db, lock};

/// Interval of the measurements.
const PAUSE: Duration = Duration::from_millis(100);
/// How many wake-ups and connections a limit allows for.
const ALLOWANCE: u32 = 10;
/// Most that a limit allows for, in times on an idle machine: beyond it the promise would not be
/// tested.
const MOST: u32 = 4;

/// Measures every [`PAUSE`] how late a thread wakes up, and how long a new connection to Postgres
/// with a query takes. What the relay does between two events of a scenario is some such steps.
pub(crate) struct Control {
    slowest: Arc<Mutex<Duration>>,
    _thread: Background<()>,
}

impl Control {
    /// Starts to measure with this server.
    pub(crate) fn start(url: &str) -> Self {
        let slowest = Arc::<Mutex<Duration>>::default();
        let thread = Background::start("control", {
            let (url, slowest) = (url.to_owned(), Arc::clone(&slowest));
            move |stop| {
                while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                    let begun = Instant::now();
                    thread::sleep(PAUSE);
                    // A server that is away takes no time.
                    let Ok(db) = Db::try_connect(&url) else {
                        continue;
                    };
                    if db.try_query("SELECT count(*) FROM pg_class", &[]).is_ok() {
                        let took = begun.elapsed().saturating_sub(PAUSE);
                        let mut slowest = lock(&slowest);
                        *slowest = took.max(*slowest);
                    }
                }
            }
        });
        Self {
            slowest,
            _thread: thread,
        }
    }

    /// The limit of a time that was measured since the start: `idle` on an idle machine.
    pub(crate) fn limit(&self, idle: Duration) -> Duration {
        idle + (ALLOWANCE * *lock(&self.slowest)).min(MOST * idle)
    }
}
