use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use walrelay_sink::Sink;

use super::sink_session::SinkSession;
use crate::pipeline::lease::Lease;

/// Longest time between two looks at the lease: a timer stands still while the machine is suspended.
const LOOK: Duration = Duration::from_millis(100);

/// Waits while there is no connection, and polls the sink meanwhile, so that it goes on sending the
/// records that it has accepted. `None`: the lease has expired, so the sink must be dropped.
pub(in crate::pipeline) async fn poll_while<K: Sink, T>(
    session: &mut Option<SinkSession<K>>,
    lease: Option<Lease>,
    wait: impl Future<Output = T>,
) -> Option<T> {
    let Some(session) = session else {
        return Some(wait.await);
    };
    let mut wait = pin!(wait);
    loop {
        let now = Instant::now();
        if lease.is_some_and(|lease| lease.expired(now).is_some()) {
            return None;
        }
        let look = async {
            match lease.and_then(|lease| lease.expires_at()) {
                // A moment later, because at `at` itself the lease is still valid.
                Some(at) => sleep_until((now + LOOK).min(at + Duration::from_millis(1))).await,
                None => std::future::pending().await,
            }
        };
        session.reports.ring().park();
        session.sink.poll();
        let done = tokio::select! {
            biased;
            done = &mut wait => Some(done),
            () = look => None,
            () = session.reports.woken() => None,
        };
        session.reports.ring().unpark();
        if done.is_some() {
            return done;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use tokio::sync::Notify;
    use tokio::time::timeout;
    use walrelay_checkpoint::AckRing;
    use walrelay_event_router::{Options, Router};
    use walrelay_lsn::{CommitEnd, Lsn};
    use walrelay_sink::{Deliveries, Record, SendError};

    use super::*;
    use crate::core::Core;
    use crate::pipeline::session::reports::Reports;

    /// The number of times that a sink was polled.
    #[derive(Default)]
    struct Polled {
        times: AtomicUsize,
        changed: Notify,
    }

    struct CountingSink(Arc<Polled>);

    impl Sink for CountingSink {
        fn try_send(&mut self, _: &Record<'_>, _: u64) -> Result<(), SendError> {
            Err(SendError::Full)
        }

        fn poll(&mut self) {
            self.0.times.fetch_add(1, Ordering::SeqCst);
            self.0.changed.notify_one();
        }

        fn close(self: Box<Self>, _: Duration) {}
    }

    fn session(polled: &Arc<Polled>) -> SinkSession<CountingSink> {
        let ring = Arc::new(AckRing::new(64));
        let reports = Reports::new(Arc::clone(&ring));
        let core = Core::new(
            Router::new(Options::default()),
            Arc::new([]),
            ring,
            CommitEnd::from_slot(Lsn::new(1_000)),
        );
        SinkSession {
            core,
            sink: CountingSink(Arc::clone(polled)),
            reports,
            withdrawn: VecDeque::new(),
        }
    }

    /// The seconds by which the boot clock of a test is ahead.
    static SUSPENDED: AtomicU64 = AtomicU64::new(0);

    fn suspended_clock() -> Duration {
        Duration::from_secs(SUSPENDED.load(Ordering::Relaxed))
    }

    /// Suspends the machine while there is no connection: timers do not count that time, and another relay may read
    /// the slot meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_sink_is_given_up_after_the_machine_was_suspended_without_a_connection() {
        let polled = Arc::new(Polled::default());
        let mut session = Some(session(&polled));
        let begun = Instant::now();
        let term = Duration::from_secs(60);
        let lease = Lease::by_clock(begun, Some(term), suspended_clock);
        let suspend = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            SUSPENDED.store(600, Ordering::Relaxed);
            std::future::pending::<()>().await;
        };
        let done = poll_while(&mut session, Some(lease), suspend).await;
        assert_eq!(done, None, "the sink is to be given up");
        let after = begun.elapsed();
        assert!(after >= Duration::from_secs(5) && after < term, "{after:?}");
    }

    /// Otherwise the sink would not send the records that it has accepted while the database is
    /// down.
    #[tokio::test]
    async fn a_sink_goes_on_while_there_is_no_connection() {
        let polled = Arc::new(Polled::default());
        let session = session(&polled);
        let reports = Arc::clone(&session.reports);
        let mut session = Some(session);
        let connected = async {
            // Polled once at the beginning, and once for each wake-up by the sink.
            for times in 1..4 {
                while polled.times.load(Ordering::SeqCst) < times {
                    polled.changed.notified().await;
                }
                reports.capacity();
            }
            "connected"
        };
        let done = timeout(
            Duration::from_secs(30),
            poll_while(&mut session, None, connected),
        )
        .await;
        assert_eq!(done, Ok(Some("connected")));
        let lease = Lease::new(Instant::now(), Some(Duration::from_millis(300)));
        let never = poll_while(&mut session, Some(lease), std::future::pending::<()>());
        assert_eq!(never.await, None, "the sink is to be given up");
        let before = polled.times.load(Ordering::SeqCst);
        let expired = poll_while(&mut session, Some(lease), async { "connected" }).await;
        assert_eq!(expired, None);
        assert_eq!(
            polled.times.load(Ordering::SeqCst),
            before,
            "not polled again"
        );
        let none: Option<SinkSession<CountingSink>> = None;
        let done = poll_while(&mut { none }, Some(lease), async { "connected" }).await;
        assert_eq!(done, Some("connected"));
    }
}
