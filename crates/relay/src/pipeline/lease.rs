//! The lease: how long this process may consider the slot its own.
//!
//! A server ends a walsender when it has received nothing from the client for `wal_sender_timeout`.
//! From then on another relay may read the slot. So each proof that the server still has our
//! walsender is valid for that time. When the last proof is older, nothing more may be relayed from
//! the connection, and the records in the sink must not be delivered: they would be delivered after
//! the records of the other relay.
//!
//! Proofs are bytes that the connection delivered while it was being read, and a slot
//! check that shows our walsender at the slot. For the rows of a snapshot only a check is a proof:
//! it shows that the session lives that holds the lock of the slot's setup. The same rule applies after the process was
//! suspended (SIGSTOP, a suspended machine): the lease is checked before the bytes that waited in
//! the socket are used.
//!
//! On Linux an `Instant` does not count the time for which the machine is suspended, for example by a cloud's
//! "suspend". So that time is measured by the boot clock, for the whole stream: a proof does not end it, because the
//! answer to a question from before may be read after it.

use std::time::Duration;

use tokio::time::Instant;

/// The lease of the slot: valid for `term` after the last proof.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lease {
    proven_at: Instant,
    /// The server's `wal_sender_timeout`; `None` if it is switched off, so that the lease never
    /// expires.
    term: Option<Duration>,
    /// The start of the stream: by a clock that stops while the machine is suspended, and by the boot clock. No
    /// `Instant` of tokio, which tests stop.
    awake: std::time::Instant,
    booted: Duration,
    boot_clock: fn() -> Duration,
}

/// Returns the time since the machine started, with the time for which it was suspended.
#[cfg(target_os = "linux")]
fn boot_clock() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // Neither is negative.
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

/// Returns zero: no suspension is noticed.
#[cfg(not(target_os = "linux"))]
fn boot_clock() -> Duration {
    Duration::ZERO
}

impl Lease {
    /// Creates the lease of a stream that was started at `now`.
    pub(crate) fn new(now: Instant, term: Option<Duration>) -> Self {
        Self::by_clock(now, term, boot_clock)
    }

    /// Creates a lease that measures suspensions of the machine by another clock, for tests.
    pub(crate) fn by_clock(
        now: Instant,
        term: Option<Duration>,
        boot_clock: fn() -> Duration,
    ) -> Self {
        Self {
            proven_at: now,
            term: term.filter(|term| !term.is_zero()),
            awake: std::time::Instant::now(),
            booted: boot_clock(),
            boot_clock,
        }
    }

    /// Returns for how long the machine was suspended since the stream started.
    fn suspended(&self) -> Duration {
        let booted = (self.boot_clock)().saturating_sub(self.booted);
        booted.saturating_sub(self.awake.elapsed())
    }

    /// Notes a proof that the server had our walsender at `at`. A proof older than the last one
    /// changes nothing.
    pub(crate) fn renew(&mut self, at: Instant) {
        self.proven_at = self.proven_at.max(at);
    }

    /// Returns the age of the last proof if the lease has expired.
    pub(crate) fn expired(&self, now: Instant) -> Option<Duration> {
        let age = self.age(now);
        self.term.filter(|term| age > *term).map(|_| age)
    }

    /// Returns the age of the last proof.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.proven_at) + self.suspended()
    }

    /// Returns the time when the lease expires if it is not renewed.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        let left = |term: Duration| term.saturating_sub(self.suspended());
        self.term.map(|term| self.proven_at + left(term))
    }

    /// Returns the time when a new proof should be requested at the latest: after a quarter of the
    /// term, so that there is time for a slow answer and a second try.
    pub(crate) fn prove_at(&self) -> Option<Instant> {
        self.term.map(|term| self.proven_at + term / 4)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_expires_when_the_last_proof_is_older_than_the_term() {
        let start = Instant::now();
        let mut lease = Lease::new(start, Some(5 * SECOND));
        assert_eq!(lease.expired(start + 5 * SECOND), None);
        assert_eq!(lease.expired(start + 6 * SECOND), Some(6 * SECOND));
        lease.renew(start + 4 * SECOND);
        lease.renew(start + 2 * SECOND);
        assert_eq!(lease.expires_at(), Some(start + 9 * SECOND));
        assert!(lease.prove_at() < lease.expires_at());
        assert_eq!(lease.expired(start + 9 * SECOND), None);
    }

    /// The seconds by which the boot clock of a test is ahead.
    static SUSPENDED: AtomicU64 = AtomicU64::new(0);

    fn suspended_clock() -> Duration {
        boot_clock() + Duration::from_secs(SUSPENDED.load(Ordering::Relaxed))
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_lease_expires_while_the_machine_is_suspended() {
        let start = Instant::now();
        let mut lease = Lease::by_clock(start, Some(5 * SECOND), suspended_clock);
        assert_eq!(lease.expired(start + 2 * SECOND), None);
        SUSPENDED.store(600, Ordering::Relaxed);
        let age = lease.expired(start + 2 * SECOND).expect("it has expired");
        assert!(age > 590 * SECOND, "{age:?}");
        assert_eq!(lease.expires_at(), Some(start));
        // A proof that was requested before the suspension does not count.
        lease.renew(start + 2 * SECOND);
        assert!(lease.expired(start + 2 * SECOND).is_some());
        // A stream that starts later does not count the suspension.
        let lease = Lease::by_clock(start, Some(5 * SECOND), suspended_clock);
        assert_eq!(lease.expired(start + 5 * SECOND), None);
    }

    #[test]
    fn without_wal_sender_timeout_a_lease_never_expires() {
        let start = Instant::now();
        for term in [None, Some(Duration::ZERO)] {
            let lease = Lease::new(start, term);
            assert_eq!(lease.expired(start + 1_000 * SECOND), None);
            assert_eq!(lease.expires_at(), None);
        }
    }
}
