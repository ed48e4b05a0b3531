//! The messages of a channel that are not confirmed.

use std::collections::BTreeMap;
use std::time::Instant;

use walrelay_sink::EventPosition;

/// A message that was published and is not confirmed.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    pub(super) seq: u64,
    pub(super) position: EventPosition,
    pub(super) exchange: Box<str>,
    pub(super) sent: Instant,
    /// The reply code, if the server has returned the message.
    pub(super) returned: Option<u16>,
}

/// The unconfirmed messages of a channel, by delivery tag.
///
/// The server sends `basic.return` before the confirm of the returned message, so a message whose
/// confirm comes and which was not returned is in a queue. A returned message is found by the
/// position that it carries, and by nothing else.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    last_tag: u64,
    messages: BTreeMap<u64, Unconfirmed>,
}

impl InFlight {
    /// Adds a message, which gets the next delivery tag of the channel.
    pub(super) fn push(&mut self, message: Unconfirmed) {
        self.last_tag += 1;
        self.messages.insert(self.last_tag, message);
    }

    /// Marks the message of this position as returned; false if there is none.
    pub(super) fn returned(&mut self, position: EventPosition, code: u16) -> bool {
        let mut messages = self.messages.values_mut();
        let found = messages.find(|it| it.position == position && it.returned.is_none());
        if let Some(message) = found {
            message.returned = Some(code);
            return true;
        }
        false
    }

    /// Removes the confirmed messages, in their order. `multiple`: all up to the tag; of tag 0: all.
    /// `None` if the tag belongs to no message.
    pub(super) fn confirmed(&mut self, tag: u64, multiple: bool) -> Option<Vec<Unconfirmed>> {
        if !multiple {
            return self.messages.remove(&tag).map(|message| vec![message]);
        }
        if tag > self.last_tag {
            return None;
        }
        let later = match tag {
            0 => BTreeMap::new(),
            tag => self.messages.split_off(&(tag + 1)),
        };
        let confirmed = std::mem::replace(&mut self.messages, later);
        Some(confirmed.into_values().collect())
    }

    /// Removes the first message to an exchange for which this is true.
    pub(super) fn take_first(&mut self, is: impl Fn(&str) -> bool) -> Option<Unconfirmed> {
        let found = self
            .messages
            .iter()
            .find(|(_, message)| is(&message.exchange));
        let tag = *found?.0;
        self.messages.remove(&tag)
    }

    /// Removes all messages to an exchange.
    pub(super) fn drop_all_to(&mut self, exchange: &str) {
        self.messages
            .retain(|_, message| &*message.exchange != exchange);
    }

    /// Removes all: the channel is closed.
    pub(super) fn take_all(&mut self) -> Vec<Unconfirmed> {
        std::mem::take(self).messages.into_values().collect()
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

    /// Returns when the oldest message was sent.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.messages.values().next().map(|message| message.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(row: u64) -> EventPosition {
        EventPosition { lsn: 1, row }
    }

    fn three() -> InFlight {
        let mut in_flight = InFlight::default();
        for seq in 0..3 {
            in_flight.push(Unconfirmed {
                seq,
                position: position(seq),
                exchange: format!("e{seq}").into(),
                sent: Instant::now(),
                returned: None,
            });
        }
        in_flight
    }

    fn seqs(confirmed: Option<Vec<Unconfirmed>>) -> Option<Vec<(u64, bool)>> {
        let of = |message: &Unconfirmed| (message.seq, message.returned.is_some());
        confirmed.map(|all| all.iter().map(of).collect())
    }

    #[test]
    fn a_returned_message_is_the_one_of_its_position_among_many_confirmed_at_once() {
        let mut in_flight = three();
        assert!(in_flight.returned(position(1), 312));
        assert!(!in_flight.returned(position(1), 312), "once");
        assert!(!in_flight.returned(position(9), 312));
        let confirmed = seqs(in_flight.confirmed(2, true));
        assert_eq!(confirmed, Some(vec![(0, false), (1, true)]));
        assert_eq!(in_flight.len(), 1);
        assert_eq!(seqs(in_flight.confirmed(3, false)), Some(vec![(2, false)]));
        assert!(in_flight.is_empty());
    }

    #[test]
    fn a_confirm_of_nothing_is_noticed() {
        assert_eq!(seqs(three().confirmed(4, false)), None);
        assert_eq!(seqs(three().confirmed(4, true)), None);
        let all = vec![(0, false), (1, false), (2, false)];
        assert_eq!(seqs(three().confirmed(0, true)), Some(all));
    }

    #[test]
    fn the_message_that_closed_the_channel_is_found_by_its_exchange() {
        let mut in_flight = three();
        let guilty = in_flight.take_first(|exchange| exchange == "e1").unwrap();
        assert_eq!(guilty.seq, 1);
        assert_eq!(in_flight.take_all().len(), 2);
    }
}
