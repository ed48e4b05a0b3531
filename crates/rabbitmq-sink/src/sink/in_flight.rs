//! The messages of a channel that are not confirmed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use walrelay_sink::EventPosition;

/// A message that was published and is not confirmed.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    pub(super) seq: u64,
    pub(super) position: EventPosition,
    pub(super) exchange: Arc<str>,
    pub(super) sent: Instant,
    /// The reply code, if the server has returned the message.
    pub(super) returned: Option<u16>,
    /// The server has confirmed the message, and not yet an earlier one of the exchange.
    pub(super) acked: bool,
}

impl Unconfirmed {
    pub(super) fn new(
        seq: u64,
        position: EventPosition,
        exchange: Arc<str>,
        sent: Instant,
    ) -> Self {
        Self {
            seq,
            position,
            exchange,
            sent,
            returned: None,
            acked: false,
        }
    }
}

/// The answer of the server about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The message is in a queue.
    Delivered,
    /// A queue refuses the message.
    Refused,
    /// No queue is bound for the message; the reply code.
    Returned(u16),
}

/// The time at which a confirm counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counting {
    /// When it comes.
    AtOnce,
    /// When all earlier messages of its exchange have an answer.
    InOrder,
}

/// The unconfirmed messages of a channel, by delivery tag.
///
/// The server sends `basic.return` before the confirm of the returned message, so a message whose
/// confirm comes and which was not returned is in a queue. A returned message is found by the
/// position that it carries, and by nothing else.
///
/// # Confirms in order
/// With RabbitMQ before 4.0, a message counts as delivered once all earlier ones of its exchange have an answer. It
/// confirms messages to a stream that it does not store: after a change of the stream's leader it sends
/// unconfirmed messages to the new leader by their delivery tags, in place of the numbers that the
/// channel counts for the stream (`resend_all` of `rabbit_stream_queue.erl`). The leader then takes later messages
/// with numbers up to these tags for repeats, drops them and confirms them. The messages that
/// were sent again stay without a confirm, so the dropped ones are never counted.
///
/// After `confirm_timeout` the messages without a confirm are [sent again](Self::take_stuck) on a new channel.
/// Those behind them that were confirmed are sent again only when the first of the others has its confirm
/// there: until then a queue may stand that is no stream, and nothing was dropped.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    last_tag: u64,
    messages: BTreeMap<u64, Unconfirmed>,
    /// The tags of each exchange in their order, if confirms count in order. Some have left `messages`.
    tags: Option<HashMap<Arc<str>, VecDeque<u64>>>,
    /// Messages that were sent again on another channel: what is said of them here does not count.
    stuck: BTreeMap<u64, EventPosition>,
}

impl InFlight {
    pub(super) fn new(counting: Counting) -> Self {
        Self {
            tags: (counting == Counting::InOrder).then(HashMap::new),
            ..Self::default()
        }
    }

    /// Adds a message, which gets the next delivery tag of the channel.
    pub(super) fn push(&mut self, message: Unconfirmed) {
        self.last_tag += 1;
        if let Some(tags) = &mut self.tags {
            let tags = tags.entry(Arc::clone(&message.exchange)).or_default();
            tags.push_back(self.last_tag);
        }
        self.messages.insert(self.last_tag, message);
    }

    /// Marks the message of this position as returned; false if there is none.
    pub(super) fn returned(&mut self, position: EventPosition, code: u16) -> bool {
        let mut messages = self.messages.values_mut();
        let message = messages.find(|message| {
            message.position == position && message.returned.is_none() && !message.acked
        });
        if let Some(message) = message {
            message.returned = Some(code);
            return true;
        }
        self.stuck.values().any(|stuck| *stuck == position)
    }

    /// Takes a confirm (`ack`) or a refusal. `multiple`: of all up to the tag; of tag 0: of all. Removes and
    /// returns the messages whose answer is known now. `None` if the tag belongs to no message.
    pub(super) fn answered(
        &mut self,
        tag: u64,
        multiple: bool,
        ack: bool,
    ) -> Option<Vec<(Unconfirmed, Answer)>> {
        let tags: Vec<u64> = match (multiple, tag) {
            (true, _) if tag > self.last_tag => return None,
            (true, 0) => self.messages.keys().copied().collect(),
            (true, _) => self.messages.range(..=tag).map(|(tag, _)| *tag).collect(),
            (false, _) => vec![tag],
        };
        let mut known = Vec::new();
        for tag in tags {
            let Some(message) = self.messages.get_mut(&tag) else {
                // Taken with an earlier one of its exchange.
                if self.stuck.remove(&tag).is_some() || multiple {
                    continue;
                }
                return None;
            };
            if !multiple && message.acked {
                return None;
            }
            let exchange = Arc::clone(&message.exchange);
            let answer = match message.returned {
                Some(code) => Answer::Returned(code),
                None if !ack && !message.acked => Answer::Refused,
                None if self.tags.is_none() => Answer::Delivered,
                None => {
                    message.acked = true;
                    self.take_delivered(&exchange, &mut known);
                    continue;
                }
            };
            let message = self.messages.remove(&tag);
            known.extend(message.map(|message| (message, answer)));
            self.take_delivered(&exchange, &mut known);
        }
        Some(known)
    }

    /// Removes the first messages of an exchange as far as they are confirmed.
    fn take_delivered(&mut self, exchange: &str, known: &mut Vec<(Unconfirmed, Answer)>) {
        let Some(all) = &mut self.tags else {
            return;
        };
        let Some(tags) = all.get_mut(exchange) else {
            return;
        };
        while let Some(first) = tags.front() {
            match self.messages.get(first) {
                Some(message) if !message.acked => return,
                _ => {
                    let message = self.messages.remove(first);
                    known.extend(message.map(|message| (message, Answer::Delivered)));
                    tags.pop_front();
                }
            }
        }
        all.remove(exchange);
    }

    /// Removes the messages to each exchange whose first one was sent before this time and has no confirm,
    /// while a later one has.
    pub(super) fn take_stuck(&mut self, before: Instant) -> Vec<Unconfirmed> {
        let Self {
            messages,
            tags: Some(all),
            stuck,
            ..
        } = self
        else {
            return Vec::new();
        };
        let mut late = Vec::new();
        all.retain(|_, tags| {
            let mut of_exchange = tags.iter().filter_map(|tag| messages.get(tag));
            let is_late = of_exchange
                .next()
                .is_some_and(|message| message.sent <= before);
            let is_stuck = is_late && of_exchange.any(|message| message.acked);
            for tag in tags.iter().filter(|_| is_stuck) {
                if let Some(message) = messages.remove(tag) {
                    stuck.insert(*tag, message.position);
                    late.push(message);
                }
            }
            !is_stuck
        });
        late
    }

    /// Removes all: the channel is closed.
    pub(super) fn take_all(&mut self) -> Vec<Unconfirmed> {
        if let Some(tags) = &mut self.tags {
            tags.clear();
        }
        std::mem::take(&mut self.messages).into_values().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Counts the time of all from now on: the server has taken nothing meanwhile.
    pub(super) fn restart(&mut self, now: Instant) {
        for message in self.messages.values_mut() {
            message.sent = now;
        }
    }

    /// Returns the oldest message. It has no confirm.
    pub(super) fn oldest(&self) -> Option<&Unconfirmed> {
        self.messages.values().next()
    }
}

#[cfg(test)]
mod tests {
    use super::Answer::{Delivered, Refused, Returned};
    use super::*;

    fn position(row: u64) -> EventPosition {
        EventPosition::in_first_epoch(1, row)
    }

    /// Makes messages to these exchanges.
    fn to(exchanges: &[&str]) -> InFlight {
        sent(exchanges, InFlight::new(Counting::InOrder))
    }

    fn sent(exchanges: &[&str], mut in_flight: InFlight) -> InFlight {
        for (seq, exchange) in (0..).zip(exchanges) {
            let exchange = (*exchange).into();
            let message = Unconfirmed::new(seq, position(seq), exchange, Instant::now());
            in_flight.push(message);
        }
        in_flight
    }

    fn seqs(answered: Option<Vec<(Unconfirmed, Answer)>>) -> Option<Vec<(u64, Answer)>> {
        let of = |(message, answer): &(Unconfirmed, Answer)| (message.seq, *answer);
        answered.map(|all| all.iter().map(of).collect())
    }

    #[test]
    fn a_returned_message_is_the_one_of_its_position_among_many_confirmed_at_once() {
        let mut in_flight = to(&["e0", "e1", "e2"]);
        assert!(in_flight.returned(position(1), 312));
        assert!(!in_flight.returned(position(1), 312), "once");
        assert!(!in_flight.returned(position(9), 312));
        let confirmed = seqs(in_flight.answered(2, true, true));
        assert_eq!(confirmed, Some(vec![(0, Delivered), (1, Returned(312))]));
        assert_eq!(in_flight.len(), 1);
        let confirmed = seqs(in_flight.answered(3, false, true));
        assert_eq!(confirmed, Some(vec![(2, Delivered)]));
        assert!(in_flight.is_empty());
    }

    #[test]
    fn a_confirm_counts_when_the_earlier_messages_of_its_exchange_have_an_answer() {
        let mut in_flight = to(&["a", "a", "b", "a", "a", "b", "a"]);
        for tag in [2, 4, 5] {
            assert_eq!(seqs(in_flight.answered(tag, false, true)), Some(vec![]));
            assert_eq!(seqs(in_flight.answered(tag, false, true)), None, "once");
        }
        // Another exchange does not wait.
        assert_eq!(
            seqs(in_flight.answered(3, false, true)),
            Some(vec![(2, Delivered)])
        );
        // A refusal and a return wait for nothing, and let the later ones go.
        assert_eq!(
            seqs(in_flight.answered(7, false, false)),
            Some(vec![(6, Refused)])
        );
        let first = seqs(in_flight.answered(1, false, false));
        assert_eq!(
            first,
            Some(vec![
                (0, Refused),
                (1, Delivered),
                (3, Delivered),
                (4, Delivered)
            ])
        );
        assert_eq!(in_flight.len(), 1);

        let mut in_flight = to(&["a", "a", "a"]);
        assert_eq!(seqs(in_flight.answered(2, false, true)), Some(vec![]));
        let all = vec![(0, Delivered), (1, Delivered)];
        assert_eq!(seqs(in_flight.answered(2, true, true)), Some(all));

        let mut in_flight = to(&["a", "a", "a"]);
        assert_eq!(seqs(in_flight.answered(2, false, true)), Some(vec![]));
        assert!(in_flight.returned(position(0), 312));
        let confirmed = seqs(in_flight.answered(0, true, false));
        let all = vec![(0, Returned(312)), (1, Delivered), (2, Refused)];
        assert_eq!(confirmed, Some(all));
        assert!(in_flight.is_empty() && in_flight.tags.is_some_and(|tags| tags.is_empty()));
    }

    #[test]
    fn a_confirm_of_a_newer_server_waits_for_none() {
        let mut in_flight = sent(&["a", "a", "a"], InFlight::new(Counting::AtOnce));
        assert!(in_flight.returned(position(2), 312));
        let last = seqs(in_flight.answered(3, false, true));
        assert_eq!(last, Some(vec![(2, Returned(312))]));
        let second = seqs(in_flight.answered(2, false, true));
        assert_eq!(second, Some(vec![(1, Delivered)]));
        assert_eq!(
            seqs(in_flight.answered(2, true, false)),
            Some(vec![(0, Refused)])
        );
        assert!(in_flight.is_empty() && in_flight.tags.is_none());
    }

    #[test]
    fn a_message_that_is_confirmed_too_early_is_among_those_of_a_closed_channel() {
        let mut in_flight = to(&["a", "a", "a"]);
        assert_eq!(
            seqs(in_flight.answered(1, false, true)),
            Some(vec![(0, Delivered)])
        );
        assert_eq!(seqs(in_flight.answered(3, false, true)), Some(vec![]));
        assert_eq!(in_flight.oldest().unwrap().seq, 1);
        let left = in_flight.take_all().into_iter();
        let left: Vec<_> = left.map(|it| (it.seq, it.acked)).collect();
        assert_eq!(left, [(1, false), (2, true)]);
    }

    #[test]
    fn only_an_exchange_whose_first_message_is_late_is_stuck() {
        let mut in_flight = to(&["a", "b", "a", "b", "c", "a"]);
        for tag in [3, 5] {
            assert!(in_flight.answered(tag, false, true).is_some());
        }
        let now = Instant::now();
        let early = now.checked_sub(std::time::Duration::from_secs(60)).unwrap();
        assert!(in_flight.take_stuck(early).is_empty());
        let taken = in_flight.take_stuck(now).into_iter();
        let taken: Vec<_> = taken.map(|it| (it.seq, it.acked)).collect();
        assert_eq!(taken, [(0, false), (2, true), (5, false)]);
        assert_eq!(in_flight.len(), 2);
        // Late answers change nothing, and come once.
        assert!(in_flight.returned(position(5), 312));
        assert_eq!(seqs(in_flight.answered(1, false, true)), Some(vec![]));
        assert_eq!(seqs(in_flight.answered(1, false, true)), None);
        let others = vec![(1, Delivered), (3, Delivered)];
        assert_eq!(seqs(in_flight.answered(6, true, true)), Some(others));
    }

    #[test]
    fn a_confirm_of_nothing_is_noticed() {
        let three = || to(&["e0", "e1", "e2"]);
        assert_eq!(seqs(three().answered(4, false, true)), None);
        assert_eq!(seqs(three().answered(4, true, true)), None);
        let all = vec![(0, Delivered), (1, Delivered), (2, Delivered)];
        assert_eq!(seqs(three().answered(0, true, true)), Some(all));
    }
}
