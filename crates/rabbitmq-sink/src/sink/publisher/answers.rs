//! What the server answers to messages.

use std::time::Instant;

use tracing::{info, warn};
use walrelay_sink::{Disposition, EventPosition, Obstacle, Poison};
use walrelay_sink_client::{RefusedRecord, pause};

use super::Publisher;
use crate::client::error::{ProtocolError, RabbitmqError};
use crate::client::wire::{Frame, Method, Reason, put_method};
use crate::client::{Input, closed, printable, protocol, reply_name};
use crate::sink::in_flight::{Answer, Unconfirmed};

impl Publisher<'_> {
    /// Handles all frames that are there.
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
                warn!(%reason, "RabbitMQ takes no messages at the moment");
                self.blocked = true;
                self.shared.set_obstacle(Some(Obstacle {
                    what: format!("RabbitMQ takes no messages at the moment: {reason}"),
                    disposition: Disposition::Retryable,
                    remedy: Some("free memory or disk space of the server, or raise its limit"),
                }));
            }
            Method::Unblocked => {
                info!("RabbitMQ takes messages again");
                self.blocked = false;
                let now = Instant::now();
                for channel in &mut self.channels {
                    channel.asked = now;
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
        // Methods of a channel that is closed mean nothing.
        let Some(channel) = self.channel(number) else {
            return Ok(());
        };
        match method {
            Method::ConfirmSelectOk => {
                channel.is_open = true;
                self.endpoints.connected(&self.address);
            }
            Method::Return { code } => channel.returning = Some(code),
            Method::Ack { tag, multiple } => {
                let messages = channel.in_flight.answered(tag, multiple, true);
                self.answered(messages)?;
                self.close_replaced();
            }
            Method::Nack { tag, multiple } => {
                let messages = channel.in_flight.answered(tag, multiple, false);
                self.answered(messages)?;
                self.replace(number);
                self.close_replaced();
            }
            Method::ChannelFlow { active } => {
                self.blocked = !active;
                put_method(&mut self.out, number, (20, 21), |out| {
                    out.push(active.into());
                });
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

    /// Marks the message that the server returns. A returned message that is not known means that
    /// the client has lost count, and no confirm can be trusted.
    fn returned(&mut self, number: u16, position: Option<&[u8]>) -> Result<(), RabbitmqError> {
        let Some(channel) = self.channel(number) else {
            return Ok(());
        };
        let Some(code) = channel.returning.take() else {
            return Ok(());
        };
        let position = position.and_then(|it| std::str::from_utf8(it).ok());
        let position = position.and_then(|it| it.parse::<EventPosition>().ok());
        if position.is_some_and(|position| channel.in_flight.returned(position, code)) {
            return Ok(());
        }
        let error = ProtocolError::Malformed("back a message that is not in flight");
        Err(protocol(&self.address, &error))
    }

    /// Takes messages with what the server says of them; `None`: it confirms what is not in flight.
    fn answered(
        &mut self,
        messages: Option<Vec<(Unconfirmed, Answer)>>,
    ) -> Result<(), RabbitmqError> {
        let Some(messages) = messages else {
            let error = ProtocolError::Malformed("a confirm of a message that is not in flight");
            return Err(protocol(&self.address, &error));
        };
        self.has_confirmed = true;
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
                            "see that consumers take messages from the queue, or raise its limit",
                        ),
                    },
                ),
            }
        }
        Ok(())
    }

    fn delivered(&self, message: &Unconfirmed) {
        let done = self.shared.state().records.done(message.seq);
        if let Some(queued) = done {
            if queued.refusals > 0 {
                let of = queued.record.with(RefusedRecord::new);
                self.shared.settings.refusals.forget(of);
            }
            self.shared.report(&queued, Ok(()));
        }
    }

    /// Sends a message that was returned again, because its queue may be bound later; refuses it
    /// for good when it has been returned for `retry_for`.
    fn unroutable(&mut self, message: &Unconfirmed, code: u16) {
        let exchange = &message.exchange;
        let of = {
            let state = self.shared.state();
            let Some(queued) = state.records.in_flight(message.seq) else {
                return;
            };
            queued.record.with(RefusedRecord::new)
        };
        let since = self.shared.settings.refusals.note(of);
        if since < self.shared.settings.retry_for {
            let obstacle = Obstacle {
                what: format!(
                    "the exchange {exchange:?} has no queue for the routing key of an event, \
                     which is refused in the end"
                ),
                disposition: Disposition::Retryable,
                remedy: Some("bind a queue for it; [poison] decides what happens otherwise"),
            };
            self.send_again(message.seq, obstacle);
            return;
        }
        let why = format!("no queue is bound for its routing key: the server returns it ({code})");
        // Not `Retryable`: the relay would give up the exchange, and so its other routing keys.
        self.refuse(message.seq, Poison::Unroutable, Disposition::Fatal, why);
    }

    /// Sends a message again after a pause.
    fn send_again(&self, seq: u64, obstacle: Obstacle) {
        let mut state = self.shared.state();
        let now = Instant::now();
        let pauses = self.shared.settings.pauses;
        state
            .records
            .retry_with(seq, |refusals| now + pause(pauses, refusals));
        state.refusal = Some(obstacle);
    }

    /// Finds the message for which the server has closed a channel. The server no longer says what
    /// becomes of the others of that channel.
    fn closed(&mut self, number: u16, reason: &Reason<'_>) -> Result<(), RabbitmqError> {
        put_method(&mut self.out, number, (20, 41), |_| ());
        let code = reason.code;
        let closed = || RabbitmqError::Closed {
            address: self.address.clone(),
            code,
            text: reply_name(code).to_owned(),
        };
        if reason.cause != (60, 40) && reason.cause != (0, 0) {
            return Err(closed());
        }
        let Some(at) = self.channels.iter().position(|it| it.number == number) else {
            return Ok(());
        };
        let mut channel = self.channels.remove(at);
        let is_replaced = channel.is_replaced;
        let in_flight = &mut channel.in_flight;
        let text = String::from_utf8_lossy(reason.text);
        // A right to single routing keys says which key, and not which message.
        let of_routing_key = code == 403 && text.contains("access to topic '");
        // 406 is also said of what the server finds wrong in the properties.
        let is_oversize = code == 311 || text.contains("message size");
        let named = |exchange: &str| text.contains(&format!("exchange '{exchange}'"));
        let guilty = match code {
            403 | 404 if !of_routing_key => in_flight.take_first(named),
            _ => None,
        };
        let guilty = match guilty {
            None if in_flight.len() == 1 => in_flight.take_first(|_| true),
            guilty => guilty,
        };
        if let Some(message) = guilty {
            let (poison, disposition) = match code {
                406 | 311 if is_oversize => (Poison::Oversize, Disposition::Fatal),
                406 | 311 => (Poison::Rejected, Disposition::Fatal),
                403 if of_routing_key => (Poison::Rejected, Disposition::Fatal),
                _ => (Poison::Rejected, Disposition::Retryable),
            };
            if disposition == Disposition::Retryable {
                // Each would close a channel again. They are given up with the first one.
                in_flight.drop_all_to(&message.exchange);
            }
            self.refuse(message.seq, poison, disposition, refusal(code, is_oversize));
        } else if in_flight.is_empty() {
            return Err(closed());
        } else {
            warn!(
                code,
                "RabbitMQ has closed the channel: its messages are sent one at a time to find the \
                 one at fault"
            );
            self.one_at_a_time = true;
        }
        self.send_again_of(channel);
        if !is_replaced {
            self.open();
        }
        Ok(())
    }
}

/// Returns the reason of a refusal by the close of a channel.
fn refusal(code: u16, is_oversize: bool) -> String {
    let why = match code {
        404 => "there is no such exchange",
        403 => "the user may not write to the exchange, or not with the event's routing key",
        406 | 311 if is_oversize => "the message is larger than the server's max_message_size",
        406 => "the server does not take the message's headers or properties",
        _ => "the server does not take the message",
    };
    format!("{why} ({code} {})", reply_name(code))
}
