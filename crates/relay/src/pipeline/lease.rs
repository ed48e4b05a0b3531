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

use std::time::Duration;

use tokio::time::Instant;

/// The lease of the slot: valid for `term` after the last proof.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lease {
    proven_at: Instant,
    /// The server's `wal_sender_timeout`; `None` if it is switched off, so that the lease never
    /// expires.
    term: Option<Duration>,
}

impl Lease {
    /// Creates the lease of a stream that was started at `now`.
    pub(crate) fn new(now: Instant, term: Option<Duration>) -> Self {
        Self {
            proven_at: now,
            term: term.filter(|term| !term.is_zero()),
        }
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
        now.saturating_duration_since(self.proven_at)
    }

    /// Returns the time when the lease expires if it is not renewed.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        self.term.map(|term| self.proven_at + term)
    }

    /// Returns the time when a new proof should be requested at the latest: after a quarter of the
    /// term, so that there is time for a slow answer and a second try.
    pub(crate) fn prove_at(&self) -> Option<Instant> {
        self.term.map(|term| self.proven_at + term / 4)
    }
}

#[cfg(test)]
mod tests {
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
