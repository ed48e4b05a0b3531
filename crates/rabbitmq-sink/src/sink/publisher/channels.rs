//! Opens and closes the channels of a connection.

use std::sync::Arc;
use std::time::Instant;

use tracing::info;

use super::Publisher;
use crate::client::declare::put_channel_close;
use crate::client::put_channel_open;
use crate::sink::in_flight::InFlight;

/// A channel in confirm mode, and the records in flight on it.
pub(super) struct Channel {
    pub(super) number: u16,
    /// The time at which it was asked for.
    pub(super) asked: Instant,
    /// The server has answered `confirm.select`.
    pub(super) is_open: bool,
    pub(super) in_flight: InFlight,
    pub(super) role: Role,
    /// The code of a `basic.return` whose content header is still to come.
    pub(super) returning: Option<u16>,
}

/// The messages that a channel gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// Those of exchanges that accept messages.
    Main,
    /// One, to this exchange, which may be refused. The server closes the channel then, and otherwise
    /// answers the `basic.qos` behind the message.
    Trial(Arc<str>),
    /// No more. It is closed when it has nothing in flight.
    Last,
}

impl Publisher<'_> {
    /// Returns the next number that no channel has.
    pub(super) fn next_number(&mut self) -> u16 {
        loop {
            self.last_number = self.last_number % self.max_number + 1;
            let number = self.last_number;
            if self.channel(number).is_none()
                && self.questions != Some(number)
                && !self.closing.contains(&number)
            {
                return number;
            }
        }
    }

    /// Opens a channel. There must be a [number](Self::has_number).
    pub(super) fn open(&mut self, role: Role) -> &mut Channel {
        let number = self.next_number();
        put_channel_open(&mut self.out, number);
        let at = self.channels.len();
        self.channels.push(Channel {
            number,
            asked: Instant::now(),
            is_open: false,
            in_flight: InFlight::new(self.counting),
            role,
            returning: None,
        });
        &mut self.channels[at]
    }

    /// Returns true if one more channel may be opened, and one to ask for exchanges.
    pub(super) fn has_number(&self) -> bool {
        let numbers = self.channels.len() + self.closing.len() + 1;
        numbers < usize::from(self.max_number)
    }

    /// Opens another channel for one on which a queue has refused a message, if it is old. A quorum queue
    /// that was full may refuse the messages of a channel for ever, also when it takes those of others.
    pub(super) fn replace(&mut self, number: u16) {
        let renew = self.shared.settings.renew;
        let has_number = self.has_number();
        let Some(channel) = self.channel(number) else {
            return;
        };
        if channel.role != Role::Main || channel.asked.elapsed() < renew || !has_number {
            return;
        }
        channel.role = Role::Last;
        info!("a queue refuses messages: they are sent again on another channel");
        self.open(Role::Main);
    }

    /// Closes the channels that get no more messages and have nothing in flight.
    pub(super) fn close_unused(&mut self) {
        let Self {
            channels,
            closing,
            out,
            ..
        } = self;
        channels.retain(|channel| {
            let is_over = channel.role == Role::Last && channel.in_flight.is_empty();
            if is_over {
                put_channel_close(out, channel.number);
                closing.push(channel.number);
            }
            !is_over
        });
    }

    /// Returns the channel of this number; `None` if it was closed.
    pub(super) fn channel(&mut self, number: u16) -> Option<&mut Channel> {
        self.channels
            .iter_mut()
            .find(|channel| channel.number == number)
    }
}
