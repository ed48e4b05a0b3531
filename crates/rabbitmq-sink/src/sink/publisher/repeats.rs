//! Messages that are sent again because nothing says what has become of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::{Publisher, Role};
use crate::sink::in_flight::Unconfirmed;

/// Messages that the server has confirmed, by an earlier one that it has not: they are sent again when
/// that one is settled.
pub(crate) type Kept = HashMap<u64, Vec<u64>>;

impl Publisher<'_> {
    /// Makes all messages in flight be sent again, because the server no longer says what becomes of
    /// them.
    pub(in crate::sink) fn send_all_again(&mut self) {
        let mut all = self.exchanges.take_waiting();
        all.extend(self.released.drain(..).chain(self.suspects.drain(..)));
        for mut channel in std::mem::take(&mut self.channels) {
            let messages = self.keep_confirmed(channel.in_flight.take_all());
            all.extend(messages.iter().map(|message| message.seq));
        }
        self.shared.send_again(all);
    }

    /// Keeps the messages of a channel that are confirmed, behind others that are not. Returns the others.
    pub(super) fn keep_confirmed(&mut self, messages: Vec<Unconfirmed>) -> Vec<Unconfirmed> {
        let mut first: HashMap<Arc<str>, u64> = HashMap::new();
        let mut others = Vec::new();
        for message in messages {
            let exchange = Arc::clone(&message.exchange);
            let first = *first.entry(exchange).or_insert(message.seq);
            if message.acked && first != message.seq {
                self.kept.entry(first).or_default().push(message.seq);
            } else {
                others.push(message);
            }
        }
        others
    }

    /// Sends the messages again that were kept behind one that is settled now.
    pub(super) fn release_kept(&mut self, seq: u64) {
        if let Some(kept) = self.kept.remove(&seq) {
            self.released.extend(kept);
        }
    }

    /// Sends messages again, on a new channel, that hold back the confirms of others since before this time.
    pub(super) fn send_stuck_again(&mut self, before: Instant) {
        for at in 0..self.channels.len() {
            if !self.has_number() {
                return;
            }
            let channel = &mut self.channels[at];
            let messages = channel.in_flight.take_stuck(before);
            if messages.is_empty() {
                continue;
            }
            if channel.role == Role::Main {
                channel.role = Role::Last;
                self.open(Role::Main);
            }
            let messages = self.keep_confirmed(messages);
            self.released
                .extend(messages.iter().map(|message| message.seq));
        }
        self.close_unused();
    }
}
