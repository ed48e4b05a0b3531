use tokio::time::Instant;

/// The phase of the loop of one connection: whether the socket is read, and whether a stop was
/// requested.
///
/// ```text
///   Relaying ◀──────────────▶ Blocked               the frame at the front: sent, or not
///      │ stop                    │ stop
///      ▼                         ▼
///   FinishingTransaction ◀──▶ BlockedInDrain        the same
///      │ Commit                  │ Commit
///      ▼                         ▼
///   AwaitingAcknowledgements ──▶ end of the loop
/// ```
///
/// From each phase the loop also ends by an error. From each phase of a drain it ends when all
/// records are acknowledged outside a transaction, at `until`, or when the sink waits for a change
/// of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The socket is read, and what it brings is sent.
    ///
    /// - To `Blocked`: the frame at the front cannot be sent.
    /// - To `FinishingTransaction`: a stop was requested.
    Relaying,
    /// The frame at the front cannot be sent, so the socket is not read. `since`: the time
    /// of the last turn.
    ///
    /// - To `Relaying`: the frame was sent.
    /// - To `BlockedInDrain`: a stop was requested.
    Blocked { since: Instant },
    /// A stop was requested. The socket is read to the end of the open transaction: if the
    /// transaction were cut in the middle, the next start would send its first records again.
    ///
    /// - To `BlockedInDrain`: the frame at the front cannot be sent.
    /// - To `AwaitingAcknowledgements`: no transaction is open.
    FinishingTransaction { until: Instant },
    /// A stop was requested, and the frame at the front cannot be sent. `since`: the time of the
    /// last turn.
    ///
    /// - To `FinishingTransaction`: the frame was sent.
    /// - To `AwaitingAcknowledgements`: the frame was sent, and no transaction is open.
    BlockedInDrain { until: Instant, since: Instant },
    /// Nothing more is read: the records in flight are all that the stop waits for.
    AwaitingAcknowledgements { until: Instant },
}

impl Phase {
    /// Enters the drain, which ends at `until` at the latest, because a stop was requested.
    pub(super) fn stop(self, until: Instant) -> Self {
        match self.blocked_since() {
            Some(since) => Self::BlockedInDrain { until, since },
            None => Self::FinishingTransaction { until },
        }
    }

    /// Moves on after a batch was offered to the sink. `blocked`: the frame at the front cannot be
    /// sent. `inside_transaction`: a transaction is open.
    pub(super) fn after_batch(self, blocked: bool, inside_transaction: bool, now: Instant) -> Self {
        match (self.drain_until(), blocked) {
            (None, false) => Self::Relaying,
            (None, true) => Self::Blocked { since: now },
            (Some(until), true) => Self::BlockedInDrain { until, since: now },
            (Some(until), false) if inside_transaction => Self::FinishingTransaction { until },
            (Some(until), false) => Self::AwaitingAcknowledgements { until },
        }
    }

    /// Returns true if the socket is read.
    pub(super) fn reads(self) -> bool {
        matches!(self, Self::Relaying | Self::FinishingTransaction { .. })
    }

    /// Returns the time of the last turn, if its batch was blocked.
    pub(super) fn blocked_since(self) -> Option<Instant> {
        match self {
            Self::Blocked { since } | Self::BlockedInDrain { since, .. } => Some(since),
            _ => None,
        }
    }

    /// Returns the time at which a drain is given up; `None` if no stop was requested.
    pub(super) fn drain_until(self) -> Option<Instant> {
        match self {
            Self::Relaying | Self::Blocked { .. } => None,
            Self::FinishingTransaction { until }
            | Self::BlockedInDrain { until, .. }
            | Self::AwaitingAcknowledgements { until } => Some(until),
        }
    }

    /// Returns true if a stop was requested.
    pub(super) fn is_draining(self) -> bool {
        self.drain_until().is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stop_reads_to_the_end_of_the_open_transaction_and_keeps_its_deadline() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let until = at(60);
        let blocked = Phase::Relaying.after_batch(true, true, at(1));
        assert_eq!(blocked, Phase::Blocked { since: at(1) });
        assert!(!blocked.reads());
        assert_eq!(blocked.after_batch(false, true, at(2)), Phase::Relaying);

        let stopped = blocked.stop(until);
        let since = at(1);
        assert_eq!(stopped, Phase::BlockedInDrain { until, since });
        assert!(!stopped.reads());
        let finishing = stopped.after_batch(false, true, at(2));
        assert_eq!(finishing, Phase::FinishingTransaction { until });
        assert!(finishing.reads());
        let since = at(3);
        let blocked = finishing.after_batch(true, true, since);
        assert_eq!(blocked, Phase::BlockedInDrain { until, since });
        let awaiting = finishing.after_batch(false, false, at(4));
        assert_eq!(awaiting, Phase::AwaitingAcknowledgements { until });
        assert!(!awaiting.reads());
        assert_eq!(awaiting.after_batch(false, false, at(5)), awaiting);
    }

    #[test]
    fn a_stop_outside_of_a_transaction_reads_nothing_more() {
        let until = Instant::now();
        let stopped = Phase::Relaying.stop(until);
        assert_eq!(stopped.drain_until(), Some(until));
        assert!(!stopped.after_batch(false, false, until).reads());
    }
}
