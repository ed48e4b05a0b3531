//! What is asked of the server besides publishing: whether exchanges and queues exist, whether the
//! user may write, and the declaration of a queue.

use std::time::Duration;

use super::error::RabbitmqError;
use super::wire::{Method, put_frame, put_member, put_method, put_short, put_sized};
use super::{Connection, put_channel_open_only, reply_name};

/// An exchange, and a queue that is bound to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Declare {
    /// Empty: the default exchange, which has every queue by its name.
    pub(crate) exchange: String,
    pub(crate) queue: String,
    /// The routing key, if it is the same for all events.
    pub(crate) routing_key: Option<String>,
}

impl Declare {
    /// Returns the keys by which the queue is bound: all, for an exchange of the type topic, and the one
    /// that events have, for one of another type that exists already.
    fn binding_keys(&self) -> impl Iterator<Item = &str> {
        ["#"].into_iter().chain(self.routing_key.as_deref())
    }
}

/// The server has closed the channel instead of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The reply code of AMQP.
    pub(crate) code: u16,
    /// The right to a routing key is missing, and not that to the exchange.
    pub(crate) of_routing_key: bool,
}

/// The answer, or the refusal.
pub(crate) type Asked = Result<Result<(), Refused>, RabbitmqError>;

/// Declares the exchange and the queue if they do not exist, and binds them.
pub(crate) async fn declare(
    connection: &mut Connection,
    wanted: &Declare,
    limit: Duration,
) -> Result<(), RabbitmqError> {
    let Declare {
        exchange, queue, ..
    } = wanted;
    let has_exchange =
        exchange.is_empty() || connection.has_exchange(exchange, limit).await?.is_ok();
    if !has_exchange {
        let answer = connection.ask(
            limit,
            |method| matches!(method, Method::ExchangeDeclareOk),
            |out, channel| put_exchange_declare(out, channel, exchange, ("topic", DURABLE)),
        );
        let answer = answer.await?;
        answer.map_err(|refused| connection.not_declared("the exchange", exchange, refused))?;
    }
    if connection.has_queue(queue, limit).await?.is_err() {
        let made = connection.ask(
            limit,
            |method| matches!(method, Method::QueueDeclareOk { .. }),
            |out, channel| {
                put_queue_declare(out, channel, queue, DURABLE, |out| {
                    put_member(out, "x-queue-type", Some(b"quorum"));
                });
            },
        );
        let made = made.await?;
        made.map_err(|refused| connection.not_declared("the queue", queue, refused))?;
    }
    if exchange.is_empty() {
        return Ok(());
    }
    for key in wanted.binding_keys() {
        let bound = connection.ask(
            limit,
            |method| matches!(method, Method::QueueBindOk),
            |out, channel| {
                put_method(out, channel, (50, 20), |out| {
                    out.extend_from_slice(&[0, 0]);
                    put_short(out, queue.as_bytes());
                    put_short(out, exchange.as_bytes());
                    put_short(out, key.as_bytes());
                    out.push(0);
                    put_sized(out, |_| ());
                });
            },
        );
        let bound = bound.await?;
        bound.map_err(|refused| {
            connection.not_declared("the binding of the queue", queue, refused)
        })?;
    }
    Ok(())
}

pub(super) const PASSIVE: u8 = 1;
const DURABLE: u8 = 1 << 1;

/// Appends `exchange.declare` with a type and flags, without arguments.
fn put_exchange_declare(out: &mut Vec<u8>, channel: u16, name: &str, (kind, flags): (&str, u8)) {
    put_method(out, channel, (40, 10), |out| {
        out.extend_from_slice(&[0, 0]);
        put_short(out, name.as_bytes());
        put_short(out, kind.as_bytes());
        out.push(flags);
        put_sized(out, |_| ());
    });
}

/// Appends a question for an exchange. The server closes the channel if the exchange does not exist. It
/// needs no right.
pub(crate) fn put_exchange_question(out: &mut Vec<u8>, channel: u16, name: &str) {
    put_exchange_declare(out, channel, name, ("", PASSIVE));
}

/// Appends `queue.declare` with flags and arguments.
pub(super) fn put_queue_declare(
    out: &mut Vec<u8>,
    channel: u16,
    name: &str,
    flags: u8,
    arguments: impl FnOnce(&mut Vec<u8>),
) {
    put_method(out, channel, (50, 10), |out| {
        out.extend_from_slice(&[0, 0]);
        put_short(out, name.as_bytes());
        out.push(flags);
        put_sized(out, arguments);
    });
}

/// Appends `channel.close`.
pub(crate) fn put_channel_close(out: &mut Vec<u8>, channel: u16) {
    put_method(out, channel, (20, 40), |out| {
        out.extend_from_slice(&200_u16.to_be_bytes());
        put_short(out, b"");
        out.extend_from_slice(&[0; 4]);
    });
}

impl Connection {
    /// Asks whether an exchange exists. It needs no right.
    pub(crate) async fn has_exchange(&mut self, name: &str, limit: Duration) -> Asked {
        self.ask(
            limit,
            |method| matches!(method, Method::ExchangeDeclareOk),
            |out, channel| put_exchange_question(out, channel, name),
        )
        .await
    }

    /// Asks whether a queue exists. It needs no right.
    pub(crate) async fn has_queue(&mut self, name: &str, limit: Duration) -> Asked {
        self.ask(
            limit,
            |method| matches!(method, Method::QueueDeclareOk { .. }),
            |out, channel| put_queue_declare(out, channel, name, PASSIVE, |_| ()),
        )
        .await
    }

    /// Asks whether the user may write to an exchange. No message gets into a queue: the server
    /// checks the rights first, and then refuses a message with the name of another user, and one
    /// whose expiration is no number (both 406).
    pub(crate) async fn may_write(
        &mut self,
        exchange: &str,
        routing_key: &str,
        limit: Duration,
    ) -> Asked {
        let asked = self.ask(
            limit,
            |method| matches!(method, Method::ChannelCloseOk),
            |out, channel| {
                put_method(out, channel, (60, 40), |out| {
                    out.extend_from_slice(&[0, 0]);
                    put_short(out, exchange.as_bytes());
                    put_short(out, routing_key.as_bytes());
                    out.push(0);
                });
                put_frame(out, 2, channel, |out| {
                    out.extend_from_slice(&[0, 60, 0, 0]);
                    out.extend_from_slice(&[0; 8]);
                    // The properties expiration and user-id.
                    out.extend_from_slice(&(1_u16 << 8 | 1 << 4).to_be_bytes());
                    put_short(out, b"never");
                    put_short(out, b"walrelay check, which is no user");
                });
                put_channel_close(out, channel);
            },
        );
        Ok(match asked.await? {
            Err(Refused { code: 406, .. }) => Ok(()),
            other => other,
        })
    }

    /// Sends methods on their own channel, and waits for the answer or the close of the channel by the
    /// server. Closes the channel: the server allows so many, which the publisher may need.
    pub(super) async fn ask(
        &mut self,
        limit: Duration,
        is_answer: fn(&Method<'_>) -> bool,
        methods: impl FnOnce(&mut Vec<u8>, u16),
    ) -> Asked {
        let answer = self.ask_and_keep(limit, is_answer, methods).await?;
        if answer.is_ok() && !is_answer(&Method::ChannelCloseOk) {
            let channel = self.last_channel;
            let mut out = Vec::new();
            put_channel_close(&mut out, channel);
            self.send(&out).await?;
            let closed = self.answer(channel, limit, |method| match method {
                Method::ChannelCloseOk => Ok(()),
                other => Err(other),
            });
            closed.await?;
        }
        Ok(answer)
    }

    /// Asks as [`ask`](Self::ask) does, on the channel [`last_channel`](Self::last_channel). The channel stays
    /// open unless the server closes it.
    pub(super) async fn ask_and_keep(
        &mut self,
        limit: Duration,
        is_answer: fn(&Method<'_>) -> bool,
        methods: impl FnOnce(&mut Vec<u8>, u16),
    ) -> Asked {
        self.last_channel = self.last_channel % self.channel_max + 1;
        let channel = self.last_channel;
        let mut out = Vec::new();
        put_channel_open_only(&mut out, channel);
        methods(&mut out, channel);
        self.send(&out).await?;
        self.answer(channel, limit, |method| match method {
            Method::ChannelOpenOk => Ok(()),
            other => Err(other),
        })
        .await?;
        let answer = self.answer(channel, limit, |method| match method {
            Method::ChannelClose(reason) => {
                let text = String::from_utf8_lossy(reason.text);
                Ok(Err(Refused {
                    code: reason.code,
                    of_routing_key: text.contains("access to topic '"),
                }))
            }
            method if is_answer(&method) => Ok(Ok(())),
            other => Err(other),
        });
        let answer = answer.await?;
        if answer.is_err() {
            let mut out = Vec::new();
            put_method(&mut out, channel, (20, 41), |_| ());
            self.send(&out).await?;
        }
        Ok(answer)
    }

    pub(super) fn not_declared(&self, what: &str, name: &str, refused: Refused) -> RabbitmqError {
        RabbitmqError::Declare {
            address: self.address.clone(),
            what: format!("{what} {name:?}"),
            code: refused.code,
            why: reply_name(refused.code),
        }
    }
}
