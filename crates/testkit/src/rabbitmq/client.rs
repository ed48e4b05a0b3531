//! A blocking client that declares exchanges and queues, takes messages out of them, and publishes with
//! confirms, around the crate `lapin`: other code than the sink's reads what the sink published.
//!
//! A table of `lapin` is a map, so a name that stands twice in the headers is not seen here. The tests of
//! the sink's encoder see it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt as _;
use futures_util::future::{join_all, try_join_all};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer,
    ExchangeKind, Queue,
};
use walrelay_throwaway::Pauses;

use crate::runtime::wait;
use crate::wait::PATIENCE;

/// A message as the server has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AmqpMessage {
    /// The exchange that it was published to.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// The property `content-type`.
    pub content_type: Option<String>,
    /// The headers; `None` is a header without a value.
    pub headers: BTreeMap<String, Option<Vec<u8>>>,
    /// The property `delivery-mode`.
    pub delivery_mode: Option<u8>,
    /// The property `message-id`.
    pub message_id: Option<String>,
    /// The property `timestamp`, in seconds.
    pub timestamp: Option<u64>,
    /// The body.
    pub body: Vec<u8>,
}

impl AmqpMessage {
    /// Returns the value of a header as a text.
    ///
    /// # Panics
    /// If it is no text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let value = self.headers.get(name)?.as_deref()?;
        Some(std::str::from_utf8(value).expect("a text"))
    }
}

/// The arguments of a queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueOptions {
    /// `classic`, `quorum` or `stream`.
    pub queue_type: &'static str,
    /// The number of messages from which on the queue refuses more.
    pub max_length: Option<u32>,
    /// The bytes of a stream from which on it drops its oldest segments, which have a quarter of them.
    pub max_bytes: Option<u32>,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            queue_type: "classic",
            max_length: None,
            max_bytes: None,
        }
    }
}

/// A message to publish.
#[derive(Debug, Clone, Copy, Default)]
pub struct Publication<'a> {
    /// The exchange.
    pub exchange: &'a str,
    /// The routing key.
    pub routing_key: &'a str,
    /// The property `message-id`.
    pub message_id: &'a str,
    /// The header `walrelay.key`.
    pub key: &'a str,
    /// Other headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a [u8],
}

/// A connection with one channel. All calls panic if the server refuses them; it never reconnects but for
/// [`take`](Self::take).
#[derive(Debug)]
pub struct AmqpClient {
    port: u16,
    /// Closed when it is dropped.
    _connection: Connection,
    channel: Channel,
    consumer: Option<Consumer>,
}

impl AmqpClient {
    /// Connects as the user `guest` to the virtual host `/`.
    pub fn connect(port: u16) -> Self {
        let uri = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
        let connect = Connection::connect(&uri, ConnectionProperties::default());
        let connection = wait(connect).expect("the server takes connections");
        let channel = wait(connection.create_channel()).expect("a channel");
        Self {
            port,
            _connection: connection,
            channel,
            consumer: None,
        }
    }

    /// Declares a durable exchange.
    pub fn declare_exchange(&mut self, name: &str, kind: &str) {
        let options = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let (name, kind) = (name.into(), ExchangeKind::Custom(kind.to_owned()));
        let declare = self
            .channel
            .exchange_declare(name, kind, options, FieldTable::default());
        wait(declare).expect("the exchange is declared");
    }

    /// Declares a durable queue. With `max_length` it refuses messages when it is full.
    pub fn declare_queue(&mut self, name: &str, options: QueueOptions) {
        let mut table = FieldTable::default();
        table.insert("x-queue-type".into(), text(options.queue_type));
        if let Some(most) = options.max_length {
            table.insert("x-overflow".into(), text("reject-publish"));
            table.insert("x-max-length".into(), number(most));
        }
        if let Some(most) = options.max_bytes {
            table.insert("x-max-length-bytes".into(), number(most));
            table.insert("x-stream-max-segment-size-bytes".into(), number(most / 4));
        }
        let options = QueueDeclareOptions::durable();
        let declare = self.channel.queue_declare(name.into(), options, table);
        wait(declare).expect("the queue is declared");
    }

    /// Deletes a queue with its messages.
    pub fn delete_queue(&mut self, name: &str) {
        let options = QueueDeleteOptions::default();
        let delete = self.channel.queue_delete(name.into(), options);
        wait(delete).expect("the queue is deleted");
    }

    /// Returns the number of messages in a queue.
    pub fn messages(&mut self, queue: &str) -> u64 {
        let queue = self.look_at(queue).expect("the queue exists");
        queue.message_count().into()
    }

    /// Returns true if a queue can be used. A stream cannot for a moment after a start of the server.
    pub fn is_available(self, queue: &str) -> bool {
        self.look_at(queue).is_ok()
    }

    fn look_at(&self, queue: &str) -> lapin::Result<Queue> {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let declare = self
            .channel
            .queue_declare(queue.into(), options, FieldTable::default());
        wait(declare)
    }

    /// Binds a queue to an exchange.
    pub fn bind(&mut self, queue: &str, exchange: &str, routing_key: &str) {
        let bind = self.channel.queue_bind(
            queue.into(),
            exchange.into(),
            routing_key.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        wait(bind).expect("the queue is bound");
    }

    /// Makes the server confirm what this client publishes.
    pub fn select_confirms(&mut self) {
        let select = self.channel.confirm_select(ConfirmSelectOptions::default());
        wait(select).expect("confirms");
    }

    /// Publishes persistent and mandatory messages, all before the first confirm is awaited, and waits
    /// until all are confirmed. Needs [`select_confirms`](Self::select_confirms).
    pub fn publish<'a>(&mut self, messages: impl IntoIterator<Item = Publication<'a>>) {
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let sent = messages.into_iter().map(|message| {
            let (exchange, key) = (message.exchange.into(), message.routing_key.into());
            let properties = message.properties();
            self.channel
                .basic_publish(exchange, key, options, message.body, properties)
        });
        // Sent in this order, though not one after the answer to the other.
        let confirms = wait(try_join_all(sent)).expect("the messages are sent");
        for confirmation in wait(try_join_all(confirms)).expect("confirms") {
            // A message that is returned is in no queue.
            assert_eq!(confirmation, Confirmation::Ack(None));
        }
    }

    /// Lets the server send the messages of a queue to this client, and forget them:
    /// [`delivered`](Self::delivered).
    pub fn consume(&mut self, queue: &str) {
        let options = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        self.begin(queue, options, FieldTable::default());
    }

    fn begin(&mut self, queue: &str, options: BasicConsumeOptions, arguments: FieldTable) {
        let consume = self
            .channel
            .basic_consume(queue.into(), "".into(), options, arguments);
        self.consumer = Some(wait(consume).expect("the queue is consumed"));
    }

    /// Waits for the next message of the queue that is [consumed](Self::consume).
    pub fn delivered(&mut self) -> AmqpMessage {
        AmqpMessage::from(self.delivery())
    }

    fn delivery(&mut self) -> Delivery {
        let consumer = self.consumer.as_mut().expect("a queue is consumed");
        let delivery = wait(consumer.next()).expect("the queue still exists");
        delivery.expect("a delivery")
    }

    /// Takes all messages out of a queue, in its order.
    pub fn take(&mut self, queue: &str) -> Vec<AmqpMessage> {
        self.take_some(queue, usize::MAX)
    }

    /// Takes the first messages out of a queue, `most` at most.
    pub fn take_some(&mut self, queue: &str, most: usize) -> Vec<AmqpMessage> {
        // Requests that are sent before their answers are read: a few, so that both sides' buffers
        // have room.
        const AT_ONCE: usize = 100;
        let options = BasicGetOptions { no_ack: true };
        let mut taken = Vec::new();
        let mut pauses = Pauses::new();
        loop {
            let count = AT_ONCE.min(most - taken.len());
            let gets = (0..count).map(|_| self.channel.basic_get(queue.into(), options));
            let (mut some, mut fault) = (Vec::new(), None);
            for answer in wait(join_all(gets)) {
                match answer {
                    Ok(message) => some.extend(message.map(|it| it.delivery)),
                    Err(error) => fault = fault.or(Some(error)),
                }
            }
            if let Some(error) = fault {
                // A quorum queue has no leader for a moment after a start of the server.
                let lost = some.is_empty() && error.is_amqp_hard_error();
                assert!(lost && pauses.waited() < PATIENCE, "{error}");
                pauses.pause();
                *self = Self::connect(self.port);
                continue;
            }
            some.sort_by_key(|delivery| delivery.delivery_tag);
            let is_empty = some.len() < count || count == 0;
            taken.extend(some.into_iter().map(AmqpMessage::from));
            if is_empty {
                return taken;
            }
        }
    }

    /// Reads all messages of a stream from its begin, on a connection of its own. Publishes one more with an
    /// empty key and id, which marks the end and stays there; it is not among those returned.
    pub fn read_stream(mut self, stream: &str) -> Vec<AmqpMessage> {
        static READS: AtomicU64 = AtomicU64::new(0);
        let end = format!("end of read {}", READS.fetch_add(1, Ordering::Relaxed));
        self.select_confirms();
        self.publish([Publication {
            exchange: "",
            routing_key: stream,
            message_id: "",
            key: "",
            body: end.as_bytes(),
            ..Publication::default()
        }]);
        let mut read = Vec::new();
        self.begin_stream(stream);
        loop {
            let message = self.delivered_of_stream();
            if message.message_id.as_deref() != Some("") {
                read.push(message);
            } else if message.body == end.as_bytes() {
                return read;
            }
        }
    }

    /// Reads the first messages of a stream, which has so many, on a connection of its own.
    pub fn first_of_stream(mut self, stream: &str, count: usize) -> Vec<AmqpMessage> {
        self.begin_stream(stream);
        (0..count).map(|_| self.delivered_of_stream()).collect()
    }

    fn delivered_of_stream(&mut self) -> AmqpMessage {
        let delivery = self.delivery();
        // So that more are sent.
        wait(delivery.ack(BasicAckOptions::default())).expect("it is acknowledged");
        AmqpMessage::from(delivery)
    }

    fn begin_stream(&mut self, stream: &str) {
        // A consumer of a stream must limit what is sent before it acknowledges.
        let limit = self.channel.basic_qos(u16::MAX, BasicQosOptions::default());
        wait(limit).expect("a limit");
        let mut table = FieldTable::default();
        table.insert("x-stream-offset".into(), text("first"));
        self.begin(stream, BasicConsumeOptions::default(), table);
    }
}

impl From<Delivery> for AmqpMessage {
    fn from(delivery: Delivery) -> Self {
        let from = delivery.properties;
        // content-encoding, priority, correlation-id, reply-to and expiration
        let unwanted = 1 << 14 | 0b1111 << 8;
        assert_eq!(from.bitmask() & unwanted, 0, "{from:?}");
        let text = |text: &Option<ShortString>| text.as_ref().map(ToString::to_string);
        let mut headers = BTreeMap::new();
        for (name, value) in from.headers().iter().flatten() {
            let value = match value {
                AMQPValue::Void => None,
                AMQPValue::LongString(value) => Some(value.as_bytes().to_vec()),
                AMQPValue::ByteArray(value) => Some(value.as_slice().to_vec()),
                // Added by a quorum queue and by a stream.
                AMQPValue::LongLongInt(_)
                    if ["x-delivery-count", "x-stream-offset"].contains(&name.as_str()) =>
                {
                    continue;
                }
                other => panic!("{name}: {other:?}"),
            };
            headers.insert(name.to_string(), value);
        }
        Self {
            exchange: delivery.exchange.to_string(),
            routing_key: delivery.routing_key.to_string(),
            content_type: text(from.content_type()),
            headers,
            delivery_mode: *from.delivery_mode(),
            message_id: text(from.message_id()),
            timestamp: *from.timestamp(),
            body: delivery.data,
        }
    }
}

impl Publication<'_> {
    fn properties(&self) -> BasicProperties {
        let mut headers = FieldTable::default();
        headers.insert("walrelay.key".into(), text(self.key));
        for (name, value) in self.headers {
            headers.insert((*name).into(), text(value));
        }
        BasicProperties::default()
            .with_headers(headers)
            // persistent
            .with_delivery_mode(2)
            .with_message_id(self.message_id.into())
    }
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn number(number: u32) -> AMQPValue {
    AMQPValue::LongInt(number.try_into().expect("a small number"))
}
