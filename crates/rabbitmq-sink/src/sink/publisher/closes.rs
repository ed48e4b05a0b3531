//! Channels that the server closes because of a message, and exchanges that accept none.

use std::sync::Arc;
use std::time::Instant;

use tracing::warn;
use walrelay_sink::{Disposition, Obstacle, Poison, Record};

use super::{Publisher, Role, TOO_LARGE};
use crate::client::error::RabbitmqError;
use crate::client::reply_name;
use crate::client::wire::{Reason, put_method};
use crate::sink::exchanges::Fault;
use crate::sink::in_flight::Unconfirmed;

/// The routing keys without a right that are remembered, at most.
const MAX_DENIED: usize = 10_000;

/// The reason for which the server closes a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// The exchange of a message.
    Exchange(Fault),
    /// The size of a message.
    Size,
    /// A message, for another reason.
    Message(&'static str),
}

impl Wrong {
    /// Returns what is wrong; `None` if it is no message.
    ///
    /// The text of the server quotes names that rows may choose, so only the part before the first quote
    /// counts. The name in it is not looked at.
    fn new(reason: &Reason<'_>) -> Option<Self> {
        let text = reason.text.split(|byte| *byte == b'\'').next();
        let text = String::from_utf8_lossy(text.unwrap_or_default());
        Some(match reason.code {
            404 => Self::Exchange(Fault::Missing),
            403 if text.ends_with("access to topic ") => {
                Self::Message("the user may not write with the event's routing key")
            }
            403 => Self::Exchange(Fault::Denied),
            311 => Self::Size,
            // 406 is also said of what the server finds wrong in the properties.
            406 if text.contains("message size") => Self::Size,
            406 => Self::Message("the server does not accept the message's headers or properties"),
            _ => return None,
        })
    }
}

impl Publisher<'_> {
    /// Finds the message for which the server has closed a channel. The server no longer says what
    /// becomes of the others of that channel.
    pub(super) fn closed(&mut self, number: u16, reason: &Reason<'_>) -> Result<(), RabbitmqError> {
        put_method(&mut self.out, number, (20, 41), |_| ());
        let code = reason.code;
        let address = self.address.clone();
        let closed = move || RabbitmqError::Closed {
            address,
            code,
            text: reply_name(code).to_owned(),
        };
        let now = Instant::now();
        if self.questions == Some(number) {
            self.questions = None;
            let exchange = self.exchanges.closed().ok_or_else(closed.clone())?;
            let fault = match code {
                404 => Fault::Missing,
                403 => Fault::Denied,
                _ => return Err(closed()),
            };
            self.exchange_fails(&exchange, fault, Vec::new(), now);
            return Ok(());
        }
        let Some(at) = self
            .channels
            .iter()
            .position(|channel| channel.number == number)
        else {
            return Ok(());
        };
        let wrong = Wrong::new(reason).ok_or_else(closed.clone())?;
        if reason.cause != (60, 40) && reason.cause != (0, 0) {
            return Err(closed());
        }
        let mut channel = self.channels.remove(at);
        // Confirmed messages are not at fault.
        let messages = self.keep_confirmed(channel.in_flight.take_all());
        if messages.is_empty() {
            return Err(closed());
        }
        if channel.role == Role::Main {
            self.open(Role::Main);
        }
        match wrong {
            Wrong::Exchange(fault) => self.close_for_exchange(fault, code, messages, now),
            Wrong::Size => self.close_for_message((Poison::Oversize, TOO_LARGE), code, &messages),
            Wrong::Message(why) => {
                self.close_for_message((Poison::Rejected, why), code, &messages);
            }
        }
        if let (Role::Trial(exchange), false) = (&channel.role, matches!(wrong, Wrong::Exchange(_)))
        {
            self.suspects.extend(self.exchanges.tried(exchange));
        }
        Ok(())
    }

    /// Finds the exchange for which the server has closed a channel with these messages.
    fn close_for_exchange(
        &mut self,
        fault: Fault,
        code: u16,
        messages: Vec<Unconfirmed>,
        now: Instant,
    ) {
        let mut exchanges: Vec<(Arc<str>, Vec<u64>)> = Vec::new();
        for Unconfirmed { seq, exchange, .. } in messages {
            match exchanges.iter_mut().find(|(name, _)| *name == exchange) {
                Some((_, of_exchange)) => of_exchange.push(seq),
                None => exchanges.push((exchange, vec![seq])),
            }
        }
        if let [(exchange, of_exchange)] = &mut exchanges[..] {
            let (exchange, messages) = (Arc::clone(exchange), std::mem::take(of_exchange));
            return self.exchange_fails(&exchange, fault, messages, now);
        }
        warn!(
            code,
            exchanges = exchanges.len(),
            "RabbitMQ has closed a channel because of an exchange: one message of each exchange is sent alone"
        );
        for (exchange, messages) in exchanges {
            self.suspects
                .extend(self.exchanges.suspect(&exchange, messages));
        }
    }

    /// Refuses the message for which the server has closed a channel, or tries each of them alone.
    fn close_for_message(
        &mut self,
        (poison, why): (Poison, &str),
        code: u16,
        messages: &[Unconfirmed],
    ) {
        let [message] = messages else {
            warn!(
                code,
                messages = messages.len(),
                "RabbitMQ has closed a channel because of a message: each is sent alone to find it"
            );
            self.suspects
                .extend(messages.iter().map(|message| message.seq));
            return;
        };
        let state = self.shared.state();
        if let Some(queued) = state.records.in_flight(message.seq) {
            if poison == Poison::Oversize {
                let size = |record: &Record<'_>| record.value.map_or(0, <[u8]>::len);
                self.too_large = self.too_large.min(queued.record.with(size));
            } else if code == 403 {
                if self.denied.len() >= MAX_DENIED {
                    self.denied.clear();
                }
                let denied = self.cause(queued);
                self.denied.insert(denied);
            }
        }
        drop(state);
        let reason = format!("{why} ({code} {})", reply_name(code));
        self.refuse(message.seq, poison, reason);
    }

    /// Notes that an exchange accepts no message, neither these nor those that wait for it.
    fn exchange_fails(
        &mut self,
        exchange: &Arc<str>,
        fault: Fault,
        mut messages: Vec<u64>,
        now: Instant,
    ) {
        let (again, waiting) = self.exchanges.fails(exchange, fault, now);
        messages.extend(waiting);
        self.hold_back(exchange, fault, messages, (now, again));
    }

    /// Sends messages to an exchange that fails again at a time, or refuses them for good if it has
    /// failed for `retry_for`.
    pub(super) fn hold_back(
        &mut self,
        exchange: &Arc<str>,
        fault: Fault,
        messages: Vec<u64>,
        (now, again): (Instant, Instant),
    ) {
        let (what, why, remedy) = match fault {
            Fault::Missing => (
                format!(
                    "the exchange {exchange:?} does not exist, and its events are refused in the end"
                ),
                "there is no such exchange (404 NOT_FOUND)",
                "declare it; otherwise [poison] decides",
            ),
            Fault::Denied => (
                format!(
                    "the user may not write to the exchange {exchange:?}, whose events are refused in the end"
                ),
                "the user may not write to the exchange (403 ACCESS_REFUSED)",
                "give the user the right; otherwise [poison] decides",
            ),
        };
        let patience = &self.shared.settings.refusals;
        let mut over = Vec::new();
        let mut state = self.shared.state();
        for seq in messages {
            let Some(since) = state.records.refused_since(seq, now) else {
                continue;
            };
            if patience.is_over(exchange.as_bytes(), since, now) {
                over.push(seq);
            } else {
                state.records.fail_lane(seq, again);
                state.records.retry_at(seq, why, again);
            }
        }
        state.refusal = Some(Obstacle {
            what,
            disposition: Disposition::Retryable,
            remedy: Some(remedy),
        });
        drop(state);
        for seq in over {
            self.release_kept(seq);
            let refusal = (Poison::Rejected, Disposition::Configuration);
            self.shared.refuse_for(seq, refusal, why.to_owned());
        }
    }
}
