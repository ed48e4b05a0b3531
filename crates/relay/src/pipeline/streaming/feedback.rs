use std::time::Duration;

use tokio::time::Instant;
use walrelay_lsn::CommitEnd;

/// Least time between two status updates: progress is reported at once, but a server that decodes
/// for us is not woken for every transaction.
const STATUS_GAP: Duration = Duration::from_millis(50);

/// What was reported to the server, and when.
pub(super) struct Feedback {
    interval: Duration,
    sent_at: Instant,
    confirmed: CommitEnd,
    /// Queued and not written yet.
    pub(super) pending: bool,
    /// What is queued reports progress.
    pub(super) confirms: bool,
    /// The server wants one. Not at once if one has just been sent: a server that shuts down asks
    /// again after each answer.
    pub(super) asked: bool,
}

impl Feedback {
    /// Of a stream that begins at `confirmed`. `interval`: the longest time between two updates.
    pub(super) fn new(interval: Duration, confirmed: CommitEnd) -> Self {
        Self {
            interval,
            sent_at: Instant::now(),
            confirmed,
            pending: false,
            confirms: false,
            asked: false,
        }
    }

    /// When the next update is due.
    pub(super) fn due(&self, confirmed: CommitEnd) -> Instant {
        let progress = self.pending || self.asked || confirmed > self.confirmed;
        self.sent_at
            + if progress {
                STATUS_GAP.min(self.interval)
            } else {
                self.interval
            }
    }

    /// An update was queued that reports this position.
    pub(super) fn queued(&mut self, confirmed: CommitEnd) {
        self.sent_at = Instant::now();
        self.confirms = confirmed > self.confirmed;
        self.confirmed = confirmed;
        self.pending = true;
        self.asked = false;
    }
}
