//! How long the server has answered nothing, and which message waits longest.

use std::time::{Duration, Instant};

use walrelay_sink::{Disposition, Obstacle};
use walrelay_sink_client::FOREVER;

use super::{Publisher, Role};

/// The interval in which the age of a message without a confirm is shown again.
const SHOWN: Duration = Duration::from_secs(1);

/// The time since which an answer is due and none has come.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Silence(Option<Instant>);

impl Silence {
    /// Notes whether an answer is due. Returns since when none has come.
    fn note(&mut self, is_due: bool, now: Instant) -> Option<Instant> {
        self.0 = if is_due { self.0.or(Some(now)) } else { None };
        self.0
    }

    /// Notes an answer.
    pub(super) fn broken(&mut self) {
        self.0 = None;
    }
}

impl Publisher<'_> {
    /// Returns when the connection is given up if no answer comes; `None` if none is due.
    ///
    /// Answers to questions are counted apart from those to messages: a server may go on to answer the
    /// ones, and not the others.
    pub(super) fn silent_until(&mut self, now: Instant) -> Option<Instant> {
        let opens = |channel: &super::Channel| channel.role == Role::Main && !channel.is_open;
        let is_asking = self.exchanges.is_asking() || self.channels.iter().any(opens);
        let is_due = [self.is_any_in_flight(), is_asking];
        let confirm = self.shared.settings.confirm;
        let silent = self.silence.iter_mut().zip(is_due);
        let silent =
            silent.filter_map(|(silence, is_due)| silence.note(is_due && !self.blocked, now));
        silent.min().map(|since| since + confirm)
    }

    /// Shows the message that waits longest, if it waits longer than `confirm_timeout`. Returns when to
    /// look again.
    pub(super) fn show_overdue(&mut self, now: Instant) -> Instant {
        let oldest = self
            .channels
            .iter()
            .filter_map(|channel| channel.in_flight.oldest());
        let oldest = oldest.min_by_key(|message| message.sent);
        let Some(oldest) = oldest.filter(|_| !self.blocked) else {
            self.clear_overdue();
            return now + FOREVER;
        };
        let due = oldest.sent + self.shared.settings.confirm;
        if now < due {
            self.clear_overdue();
            return due;
        }
        if let Some(shown) = self.shown
            && now < shown + SHOWN
        {
            return shown + SHOWN;
        }
        let exchange = &oldest.exchange;
        self.shared.set_obstacle(Some(Obstacle {
            what: format!(
                "an event of the exchange {exchange:?} has no confirm, and its key waits"
            ),
            disposition: Disposition::Retryable,
            remedy: Some(
                "see that a majority of the nodes of each queue of the exchange runs: rabbitmq-queues \
                 check_if_node_is_quorum_critical",
            ),
        }));
        self.shown = Some(now);
        if let Some(before) = now.checked_sub(self.shared.settings.confirm) {
            self.send_stuck_again(before);
        }
        now + SHOWN
    }

    /// Shows no message any more, unless others wait for one that was sent again.
    fn clear_overdue(&mut self) {
        if !self.kept.is_empty() {
            return;
        }
        if self.shown.take().is_some() && !self.blocked {
            self.shared.set_obstacle(None);
        }
    }
}
