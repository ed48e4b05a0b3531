//! For how long this process may take the slot to be its own.
//!
//! A server gives a walsender up when it has heard nothing from the client for `wal_sender_timeout`, and from
//! then on another relay may read the slot. So each proof that the server still has our walsender is good for
//! that long. When the last proof is older, nothing more may be relayed from the connection, and what the sink
//! still holds must not be delivered: it would come after the records of the other relay.
//!
//! Proofs are bytes that the connection delivered while it was being read, and a look at the catalogs that
//! shows our walsender at the slot. A process that was stopped (SIGSTOP, a suspended machine) finds out by the
//! same rule, before it uses anything that lay in the socket meanwhile.

use std::time::Duration;

use tokio::time::Instant;

/// The right to relay from the slot, as long as it is proven.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lease {
    proven_at: Instant,
    /// `wal_sender_timeout`; `None` where the server waits for ever.
    term: Option<Duration>,
}

impl Lease {
    /// The stream was started just now.
    pub(crate) fn new(now: Instant, term: Option<Duration>) -> Self {
        Self {
            proven_at: now,
            term: term.filter(|term| !term.is_zero()),
        }
    }

    /// The server had our walsender at `at`. An older proof than the last one changes nothing.
    pub(crate) fn renew(&mut self, at: Instant) {
        self.proven_at = self.proven_at.max(at);
    }

    /// How long ago it was proven, if that is longer than the term.
    pub(crate) fn expired(&self, now: Instant) -> Option<Duration> {
        let age = self.age(now);
        self.term.filter(|term| age > *term).map(|_| age)
    }

    /// How long ago it was proven.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.proven_at)
    }

    /// When it expires unless it is renewed.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        self.term.map(|term| self.proven_at + term)
    }

    /// When it should be proven again at the latest, if nothing else renews it: with time for an answer
    /// from afar, and for a second try.
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
    fn a_server_that_waits_for_ever_ends_no_lease() {
        let start = Instant::now();
        for term in [None, Some(Duration::ZERO)] {
            let lease = Lease::new(start, term);
            assert_eq!(lease.expired(start + 1_000 * SECOND), None);
            assert_eq!(lease.expires_at(), None);
        }
    }
}
