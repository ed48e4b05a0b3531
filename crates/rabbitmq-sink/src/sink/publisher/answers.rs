//! What the server answers to messages.

use std::time::Instant;

use tracing::{info, warn};
use walrelay_sink::{Disposition, EventPosition, Obstacle, Poison, QueuedRecord};
use walrelay_sink_client::pause;

use super::{Publisher, Role};
use crate::client::error::{ProtocolError, RabbitmqError};
use crate::client::publish;
use crate::client::wire::{Frame, Method};
use crate::client::{Input, closed, printable, protocol};
use crate::sink::in_flight::{Answer, Unconfirmed};

impl Publisher<'_> {
    /// Handles all received frames.
    pub(super) fn take_frames(&mut self, input: &mut Input) -> Result<(), RabbitmqError> {
        while let Some(frame) = input
            .next()
            .map_err(|error| protocol(&self.address, &error))?
        {
            match frame {
                Frame::Header {
                    channel, position, ..
                } => self.returned(channel, position)?,
                Frame::Method { channel: 0, method } => self.handle_connection(method)?,
                Frame::Method { channel, method } => self.handle_channel(channel, method)?,
                Frame::Heartbeat | Frame::Body { .. } => {}
            }
        }
        Ok(())
    }

    fn handle_connection(&mut self, method: Method<'_>) -> Result<(), RabbitmqError> {
        match method {
            Method::Close(reason) => return Err(closed(&self.address, &reason)),
            Method::Blocked { reason } => {
                let reason = printable(reason);
                warn!(%reason, "RabbitMQ accepts no messages at the moment");
                self.blocked = true;
                self.shared.set_obstacle(Some(Obstacle {
                    what: format!("RabbitMQ accepts no messages at the moment: {reason}"),
                    disposition: Disposition::Retryable,
                    remedy: Some("free memory or disk space of the server, or raise its limit"),
                }));
            }
            Method::Unblocked => {
                info!("RabbitMQ accepts messages again");
                self.blocked = false;
                let now = Instant::now();
                for channel in &mut self.channels {
                    channel.in_flight.restart(now);
                }
                self.shared.set_obstacle(None);
            }
            Method::Other { class, method } => {
                let error = ProtocolError::Unexpected(class, method);
                return Err(protocol(&self.address, &error));
            }
            _ => {}
        }
        Ok(())
    }

    fn handle_channel(&mut self, number: u16, method: Method<'_>) -> Result<(), RabbitmqError> {
        if let Method::ChannelCloseOk = method {
            self.closing.retain(|closing| *closing != number);
        }
        if self.questions == Some(number) {
            return self.handle_questions(number, method);
        }
        // Methods of a channel that is closed mean nothing.
        let Some(channel) = self.channel(number) else {
            return Ok(());
        };
        match method {
            Method::ConfirmSelectOk => {
                channel.is_open = true;
                self.silence[1].broken();
                self.endpoints.connected(&self.address);
            }
            Method::Return { code } => channel.returning = Some(code),
            Method::Ack { tag, multiple } => {
                let messages = channel.in_flight.answered(tag, multiple, true);
                self.answered(messages)?;
                self.close_unused();
            }
            Method::Nack { tag, multiple } => {
                let messages = channel.in_flight.answered(tag, multiple, false);
                self.answered(messages)?;
                self.replace(number);
                self.close_unused();
            }
            Method::QosOk => {
                let role = std::mem::replace(&mut channel.role, Role::Last);
                if let Role::Trial(exchange) = role {
                    let waiting = self.exchanges.accepts(&exchange);
                    self.released.extend(waiting.into_iter().flatten());
                }
                self.close_unused();
            }
            Method::ChannelFlow { active } => {
                self.blocked = !active;
                self.owed_flows.insert(number, active);
            }
            Method::ChannelClose(reason) => self.closed(number, &reason)?,
            Method::Other { class, method } => {
                let error = ProtocolError::Unexpected(class, method);
                return Err(protocol(&self.address, &error));
            }
            _ => {}
        }
        Ok(())
    }

    fn handle_questions(&mut self, number: u16, method: Method<'_>) -> Result<(), RabbitmqError> {
        self.silence[1].broken();
        match method {
            Method::ExchangeDeclareOk => {
                let waiting = self.exchanges.exists();
                self.released.extend(waiting.into_iter().flatten());
                Ok(())
            }
            Method::ChannelClose(reason) => self.closed(number, &reason),
            _ => Ok(()),
        }
    }

    /// Marks the message that the server returns. A returned message that is not known means that
    /// the client has lost count, and no confirm can be trusted.
    fn returned(&mut self, number: u16, position: Option<&[u8]>) -> Result<(), RabbitmqError> {
        let Some(channel) = self.channel(number) else {
            return Ok(());
        };
        let Some(code) = channel.returning.take() else {
            return Ok(());
        };
        let position = position.and_then(|text| std::str::from_utf8(text).ok());
        let position = position.and_then(|text| text.parse::<EventPosition>().ok());
        if position.is_some_and(|position| channel.in_flight.returned(position, code)) {
            self.silence[0].broken();
            return Ok(());
        }
        let error = ProtocolError::Malformed("back a message that is not in flight");
        Err(protocol(&self.address, &error))
    }

    /// Removes messages, with the server's answer on them; `None`: it confirms what is not in flight.
    fn answered(
        &mut self,
        messages: Option<Vec<(Unconfirmed, Answer)>>,
    ) -> Result<(), RabbitmqError> {
        let Some(messages) = messages else {
            let error = ProtocolError::Malformed("a confirm of a message that is not in flight");
            return Err(protocol(&self.address, &error));
        };
        self.has_confirmed = true;
        self.silence[0].broken();
        if let Some((newest, answer)) = messages.last() {
            let refused = *answer == Answer::Refused;
            self.endpoints
                .attempt(&self.address, Some(newest.sent.elapsed()), refused);
        }
        for (message, answer) in messages {
            match answer {
                Answer::Returned(code) => self.unroutable(&message, code),
                Answer::Delivered => self.delivered(&message),
                Answer::Refused => self.send_again(
                    message.seq,
                    Obstacle {
                        what: format!(
                            "a queue of the exchange {:?} is full and refuses events",
                            message.exchange
                        ),
                        disposition: Disposition::Retryable,
                        remedy: Some(
                            "see that consumers receive messages from the queue, or raise its limit",
                        ),
                    },
                ),
            }
        }
        Ok(())
    }

    fn delivered(&mut self, message: &Unconfirmed) {
        self.release_kept(message.seq);
        let done = self.shared.state().records.done(message.seq);
        let Some(queued) = done else {
            return;
        };
        let patience = &self.shared.settings.refusals;
        if !patience.is_unused() || !self.denied.is_empty() {
            let cause = self.cause(&queued);
            patience.forget(message.exchange.as_bytes());
            patience.forget(&cause);
            self.denied.remove(&cause);
        }
        self.shared.report(&queued, Ok(()));
    }

    /// Returns the cause for which a message is returned: its exchange and routing key.
    pub(super) fn cause(&self, queued: &QueuedRecord) -> Vec<u8> {
        queued.record.with(|record| {
            let address = publish::address(record, &self.shared.settings.dead_letters);
            [address.exchange, address.routing_key].join("\0").into()
        })
    }

    /// Sends a message that was returned again, because its queue may be bound later; refuses it
    /// for good when its address has been without a queue for `retry_for`.
    fn unroutable(&mut self, message: &Unconfirmed, code: u16) {
        let (seq, exchange) = (message.seq, &message.exchange);
        let now = Instant::now();
        let is_over = {
            let mut state = self.shared.state();
            let Some(since) = state.records.refused_since(seq, now) else {
                return;
            };
            let cause = state
                .records
                .in_flight(seq)
                .map(|queued| self.cause(queued));
            let patience = &self.shared.settings.refusals;
            patience.is_over(&cause.unwrap_or_default(), since, now)
        };
        if is_over {
            let why =
                format!("no queue is bound for its routing key: the server returns it ({code})");
            self.refuse(seq, Poison::Unroutable, why);
            return;
        }
        let obstacle = Obstacle {
            what: format!(
                "the exchange {exchange:?} has no queue for the routing key of an event, \
                 which is refused in the end"
            ),
            disposition: Disposition::Retryable,
            remedy: Some("bind a queue for it; otherwise [poison] decides"),
        };
        self.send_again(seq, obstacle);
    }

    /// Sends a message again after a pause.
    fn send_again(&self, seq: u64, obstacle: Obstacle) {
        let mut state = self.shared.state();
        let now = Instant::now();
        let pauses = self.shared.settings.pauses;
        state.records.retry_with(seq, &obstacle.what, |refusals| {
            now + pause(pauses, refusals)
        });
        state.refusal = Some(obstacle);
    }
}
