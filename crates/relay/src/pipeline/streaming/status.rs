//! Standby status updates. They are also sent while the sink is blocked.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use walrelay_lsn::CommitEnd;
use walrelay_sink::SinkFactory;
use walrelay_walsender::StatusUpdate;

use super::connection::Streaming;
use crate::interface::observer::{Failpoint, Observer};
use crate::interface::source::{Source, WalStream};

/// Shortest time between two status updates. A status update wakes the walsender, which must not be
/// woken for every transaction.
const STATUS_GAP: Duration = Duration::from_millis(50);

/// Updates [`STATUS_GAP`] apart while the source writes the acknowledged position. A write that takes
/// longer is looked for at the usual interval: it may be delayed on purpose.
const REPEATS: u32 = 4;

/// Shortest time between two reports of the topics that have records in flight.
const TOPICS_INTERVAL: Duration = Duration::from_millis(500);

/// The position that was reported to the server last, and when the next status update is due.
pub(super) struct Feedback {
    /// The longest time between two updates.
    interval: Duration,
    sent_at: Instant,
    /// The position that the last update confirmed.
    confirmed: CommitEnd,
    /// The position that was acknowledged then.
    acknowledged: CommitEnd,
    /// Updates since then that confirmed less.
    repeated: u32,
    /// An update is queued and not written yet.
    pending: bool,
    /// The queued update confirms a higher position than the one before.
    confirms: bool,
    /// The server asked for an update. It is due [`STATUS_GAP`] after the last one, not at once: a
    /// server that shuts down asks again after each answer.
    pub(super) asked: bool,
    /// When the topics that have records in flight were reported.
    topics_at: Option<Instant>,
}

impl Feedback {
    /// Returns the time when the next update is due. `acknowledged`: the position up to which
    /// everything is acknowledged.
    pub(super) fn due(&self, acknowledged: CommitEnd) -> Instant {
        let progress = self.pending
            || self.asked
            || acknowledged > self.acknowledged
            || self.confirmed < acknowledged && self.repeated < REPEATS;
        self.sent_at
            + if progress {
                STATUS_GAP.min(self.interval)
            } else {
                self.interval
            }
    }

    /// Notes that an update was queued that confirms this position, at most the acknowledged one.
    fn queued(&mut self, confirmed: CommitEnd, acknowledged: CommitEnd) {
        self.sent_at = Instant::now();
        self.confirms = confirmed > self.confirmed;
        self.confirmed = confirmed;
        self.repeated = if acknowledged > self.acknowledged {
            0
        } else {
            self.repeated + 1
        };
        self.acknowledged = acknowledged;
        self.pending = true;
        self.asked = false;
    }
}

impl<S: Source, F: SinkFactory, W: Observer> Streaming<'_, S, F, W> {
    /// Returns the longest time between two status updates.
    pub(super) fn interval(&self) -> Duration {
        let half = self
            .server_timeout
            .map_or(Duration::MAX, |timeout| timeout / 2);
        self.settings.status_interval.min(half)
    }

    pub(super) fn first_feedback(&self) -> Feedback {
        Feedback {
            interval: self.interval(),
            sent_at: Instant::now(),
            confirmed: self.session.core.acknowledged_position(),
            acknowledged: self.session.core.acknowledged_position(),
            repeated: 0,
            pending: false,
            confirms: false,
            asked: false,
            topics_at: None,
        }
    }

    /// Queues a status update if one is due, and writes it. Waits at most a millisecond for a
    /// server that does not read: the update then stays pending and is written later, while reading
    /// and acknowledging go on.
    pub(super) async fn send_feedback(
        &mut self,
        feedback: &mut Feedback,
        now: Instant,
    ) -> Result<(), S::Error> {
        if !feedback.pending && now >= feedback.due(self.session.core.acknowledged_position()) {
            self.queue_status(feedback)?;
        }
        if !feedback.pending {
            return Ok(());
        }
        if feedback.confirms {
            self.observer.failpoint(Failpoint::BeforeConfirm);
        }
        if let Ok(written) = timeout(Duration::from_millis(1), self.stream.flush()).await {
            written?;
            feedback.pending = false;
        }
        Ok(())
    }

    /// Reports the topics, if that is due: it takes a step for each transaction in flight.
    fn report_topics(&mut self, feedback: &mut Feedback) {
        let core = &self.session.core;
        let at = feedback.topics_at;
        if core.in_flight() == 0 || at.is_none_or(|at| at.elapsed() >= TOPICS_INTERVAL) {
            feedback.topics_at = Some(Instant::now());
            self.observer.topics(&core.by_topic());
        }
    }

    pub(super) fn queue_status(&mut self, feedback: &mut Feedback) -> Result<(), S::Error> {
        self.observer.progress(&self.session.core.progress());
        self.report_topics(feedback);
        let acknowledged = self.session.core.acknowledged_position();
        // A server that shuts down asks until all WAL is confirmed.
        let soon = if feedback.asked {
            acknowledged
        } else {
            self.session.core.end_of_rows()
        };
        let confirmed = self.source.persist_position(acknowledged, soon)?;
        self.stream.queue_status(StatusUpdate {
            written: self.session.core.received(),
            flushed: confirmed,
            applied: confirmed,
            clock_us_since_2000: self.observer.wall_clock().get(),
            // Ask for a reply: an idle server answers with a keepalive, whose position moves an
            // idle slot. Do not ask in an answer to a keepalive: both sides would reply for ever.
            reply_requested: !feedback.asked,
        });
        feedback.queued(confirmed, acknowledged);
        Ok(())
    }
}
