//! A blocking AMQP 0-9-1 client that declares exchanges and queues, takes messages out of them, and
//! publishes with confirms.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};

use walrelay_throwaway::Pauses;

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
    /// The body: at most 100,000 bytes, one frame.
    pub body: &'a [u8],
}

/// A connection with one channel. All calls panic if the server refuses them.
#[derive(Debug)]
pub struct AmqpClient {
    port: u16,
    stream: BufReader<TcpStream>,
    /// The delivery tag of the last message that was published.
    published: u64,
}

impl AmqpClient {
    /// Connects as the user `guest` to the virtual host `/`.
    pub fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut client = Self {
            port,
            stream: BufReader::with_capacity(1 << 16, stream),
            published: 0,
        };
        client.write(b"AMQP\0\0\x09\x01");
        client.answer((10, 10));
        let mut login = vec![0; 4];
        put_short(&mut login, "PLAIN");
        put_long(&mut login, b"\0guest\0guest");
        put_short(&mut login, "en_US");
        client.method(0, (10, 11), &login);
        let tune = client.answer((10, 30));
        // The same limits, and no heartbeats.
        client.method(0, (10, 31), &[&tune[..6], &[0, 0]].concat());
        let mut open = Vec::new();
        put_short(&mut open, "/");
        open.extend([0, 0]);
        client.call(0, (10, 40), &open);
        client.call(1, (20, 10), &[0]);
        client
    }

    /// Declares a durable exchange.
    pub fn declare_exchange(&mut self, name: &str, kind: &str) {
        let mut arguments = vec![0, 0];
        put_short(&mut arguments, name);
        put_short(&mut arguments, kind);
        arguments.extend([0b10, 0, 0, 0, 0]);
        self.call(1, (40, 10), &arguments);
    }

    /// Declares a durable queue. With `max_length` it refuses messages when it is full.
    pub fn declare_queue(&mut self, name: &str, options: QueueOptions) {
        let mut table = Vec::new();
        put_short(&mut table, "x-queue-type");
        table.push(b'S');
        put_long(&mut table, options.queue_type.as_bytes());
        if let Some(most) = options.max_length {
            put_short(&mut table, "x-overflow");
            table.push(b'S');
            put_long(&mut table, b"reject-publish");
            put_short(&mut table, "x-max-length");
            table.push(b'I');
            table.extend(most.to_be_bytes());
        }
        if let Some(most) = options.max_bytes {
            for (name, bytes) in [
                ("x-max-length-bytes", most),
                ("x-stream-max-segment-size-bytes", most / 4),
            ] {
                put_short(&mut table, name);
                table.push(b'I');
                table.extend(bytes.to_be_bytes());
            }
        }
        let mut arguments = vec![0, 0];
        put_short(&mut arguments, name);
        arguments.push(0b10);
        put_long(&mut arguments, &table);
        self.call(1, (50, 10), &arguments);
    }

    /// Deletes a queue with its messages.
    pub fn delete_queue(&mut self, name: &str) {
        let mut arguments = vec![0, 0];
        put_short(&mut arguments, name);
        arguments.push(0);
        self.call(1, (50, 40), &arguments);
    }

    /// Returns the number of messages in a queue.
    pub fn messages(&mut self, queue: &str) -> u64 {
        self.look_at(queue);
        let answer = self.answer((50, 11));
        let mut from = Fields(&answer);
        from.short();
        from.number(4)
    }

    /// Returns true if a queue can be used. A stream cannot for a moment after a start of the server.
    pub fn is_available(mut self, queue: &str) -> bool {
        self.look_at(queue);
        self.next_method().0 == (50, 11)
    }

    fn look_at(&mut self, queue: &str) {
        let mut arguments = vec![0, 0];
        put_short(&mut arguments, queue);
        // passive, and an empty table.
        arguments.extend([1, 0, 0, 0, 0]);
        self.method(1, (50, 10), &arguments);
    }

    /// Binds a queue to an exchange.
    pub fn bind(&mut self, queue: &str, exchange: &str, routing_key: &str) {
        let mut arguments = vec![0, 0];
        for text in [queue, exchange, routing_key] {
            put_short(&mut arguments, text);
        }
        arguments.extend([0; 5]);
        self.call(1, (50, 20), &arguments);
    }

    /// Makes the server confirm what this client publishes.
    pub fn select_confirms(&mut self) {
        self.call(1, (85, 10), &[0]);
    }

    /// Publishes persistent and mandatory messages, all before the first confirm is awaited, and waits
    /// until all are confirmed. Needs [`select_confirms`](Self::select_confirms).
    pub fn publish<'a>(&mut self, messages: impl IntoIterator<Item = Publication<'a>>) {
        let mut out = Vec::new();
        let mut unconfirmed = BTreeSet::new();
        for message in messages {
            put_publish(&mut out, &message);
            self.published += 1;
            unconfirmed.insert(self.published);
        }
        self.write(&out);
        while !unconfirmed.is_empty() {
            let (method, arguments) = self.next_method();
            assert_eq!(method, (60, 80), "a confirm");
            let mut from = Fields(&arguments);
            let (tag, multiple) = (from.number(8), from.number(1) == 1);
            if multiple {
                unconfirmed = unconfirmed.split_off(&(tag + 1));
            } else {
                unconfirmed.remove(&tag);
            }
        }
    }

    /// Lets the server send the messages of a queue to this client, and forget them:
    /// [`delivered`](Self::delivered).
    pub fn consume(&mut self, queue: &str) {
        let mut arguments = vec![0, 0];
        put_short(&mut arguments, queue);
        put_short(&mut arguments, "");
        // no-ack, and an empty table.
        arguments.extend([0b10, 0, 0, 0, 0]);
        self.call(1, (60, 20), &arguments);
    }

    /// Waits for the next message of the queue that is [consumed](Self::consume).
    pub fn delivered(&mut self) -> AmqpMessage {
        let (method, arguments) = self.next_method();
        assert_eq!(method, (60, 60), "a delivery");
        let mut from = Fields(&arguments);
        // The consumer's tag.
        from.short();
        self.content(from.0)
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
        let mut get = vec![0, 0];
        put_short(&mut get, queue);
        // no-ack
        get.push(1);
        let mut taken = Vec::new();
        let mut pauses = Pauses::new();
        loop {
            let count = AT_ONCE.min(most - taken.len());
            for _ in 0..count {
                self.method(1, (60, 70), &get);
            }
            let mut some = Vec::new();
            let mut closed = None;
            for _ in 0..count {
                match self.got() {
                    Ok(message) => some.extend(message),
                    Err(reason) => {
                        closed = Some(reason);
                        break;
                    }
                }
            }
            if let Some(reason) = closed {
                // A quorum queue has no leader for a moment after a start of the server.
                assert!(some.is_empty() && pauses.waited() < PATIENCE, "{reason}");
                pauses.pause();
                *self = Self::connect(self.port);
                continue;
            }
            let is_empty = some.len() < count || count == 0;
            taken.extend(some);
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
        let message = self.delivered();
        // All that were delivered, so that more are sent.
        self.method(1, (60, 80), &[0, 0, 0, 0, 0, 0, 0, 0, 1]);
        message
    }

    fn begin_stream(&mut self, stream: &str) {
        // A consumer of a stream must limit what is sent before it acknowledges.
        self.call(1, (60, 10), &[0, 0, 0, 0, 0xFF, 0xFF, 0]);
        let mut arguments = vec![0, 0];
        put_short(&mut arguments, stream);
        put_short(&mut arguments, "reader");
        arguments.push(0);
        let mut table = Vec::new();
        put_short(&mut table, "x-stream-offset");
        table.push(b'S');
        put_long(&mut table, b"first");
        put_long(&mut arguments, &table);
        self.call(1, (60, 20), &arguments);
    }

    /// Reads the answer to `basic.get`; or why the server has closed the connection.
    fn got(&mut self) -> Result<Option<AmqpMessage>, String> {
        let (method, arguments) = self.next_method();
        if method == (60, 72) {
            return Ok(None);
        }
        if method == (10, 50) {
            return Err(String::from_utf8_lossy(&arguments).into_owned());
        }
        assert_eq!(method, (60, 71), "an answer to basic.get");
        Ok(Some(self.content(&arguments)))
    }

    /// Reads the content of a message. `address`: delivery tag, exchange and routing key.
    fn content(&mut self, address: &[u8]) -> AmqpMessage {
        let mut from = Fields(address);
        from.take(9);
        let mut message = AmqpMessage {
            exchange: from.short(),
            routing_key: from.short(),
            ..AmqpMessage::default()
        };
        let (kind, header) = self.frame();
        assert_eq!(kind, 2, "a content header");
        let mut from = Fields(&header);
        from.take(4);
        let size = from.number(8) as usize;
        message.properties(&mut from);
        while message.body.len() < size {
            let (kind, bytes) = self.frame();
            assert_eq!(kind, 3, "a body");
            message.body.extend(bytes);
        }
        message
    }

    /// Sends a method whose answer has the next number.
    fn call(&mut self, channel: u16, (class, method): (u16, u16), arguments: &[u8]) {
        self.method(channel, (class, method), arguments);
        self.answer((class, method + 1));
    }

    fn method(&mut self, channel: u16, (class, method): (u16, u16), arguments: &[u8]) {
        let mut frame = vec![1];
        frame.extend(channel.to_be_bytes());
        frame.extend((arguments.len() as u32 + 4).to_be_bytes());
        frame.extend(class.to_be_bytes());
        frame.extend(method.to_be_bytes());
        frame.extend(arguments);
        frame.push(0xCE);
        self.write(&frame);
    }

    fn write(&mut self, bytes: &[u8]) {
        let written = self.stream.get_mut().write_all(bytes);
        written.expect("the server reads");
    }

    #[track_caller]
    fn answer(&mut self, wanted: (u16, u16)) -> Vec<u8> {
        let (method, arguments) = self.next_method();
        let text = String::from_utf8_lossy(&arguments);
        assert_eq!(method, wanted, "{text}");
        arguments
    }

    fn next_method(&mut self) -> ((u16, u16), Vec<u8>) {
        let (kind, payload) = self.frame();
        assert_eq!(kind, 1, "a method");
        let mut from = Fields(&payload);
        let method = (from.number(2) as u16, from.number(2) as u16);
        (method, from.0.to_vec())
    }

    /// Reads a frame that is no heartbeat.
    fn frame(&mut self) -> (u8, Vec<u8>) {
        loop {
            let mut head = [0; 7];
            self.stream.read_exact(&mut head).expect("an answer");
            let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
            let mut payload = vec![0; length as usize + 1];
            self.stream.read_exact(&mut payload).expect("an answer");
            assert_eq!(payload.pop(), Some(0xCE), "the end of a frame");
            if head[0] != 8 {
                return (head[0], payload);
            }
        }
    }
}

impl AmqpMessage {
    fn properties(&mut self, from: &mut Fields<'_>) {
        let flags = from.number(2);
        let has = |bit: u32| flags >> bit & 1 == 1;
        if has(15) {
            self.content_type = Some(from.short());
        }
        assert!(!has(14), "a content encoding");
        if has(13) {
            let table = from.long();
            let mut table = Fields(&table);
            while !table.0.is_empty() {
                let name = table.short();
                let value = match table.number(1) as u8 {
                    b'V' => None,
                    b'S' | b'x' => Some(table.long()),
                    // Added by a quorum queue and by a stream.
                    b'l' if ["x-delivery-count", "x-stream-offset"].contains(&&*name) => {
                        table.number(8);
                        continue;
                    }
                    other => panic!("the type {} of {name}", char::from(other)),
                };
                let before = self.headers.insert(name, value);
                assert_eq!(before, None, "a name stands once in a table");
            }
        }
        if has(12) {
            self.delivery_mode = Some(from.number(1) as u8);
        }
        for bit in 8..=11 {
            assert!(!has(bit), "the property of bit {bit}");
        }
        if has(7) {
            self.message_id = Some(from.short());
        }
        if has(6) {
            self.timestamp = Some(from.number(8));
        }
    }
}

/// The rest of a frame.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    fn number(&mut self, bytes: usize) -> u64 {
        let digits = self.take(bytes).iter();
        digits.fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn short(&mut self) -> String {
        let length = self.number(1) as usize;
        String::from_utf8(self.take(length).to_vec()).expect("a text")
    }

    fn long(&mut self) -> Vec<u8> {
        let length = self.number(4) as usize;
        self.take(length).to_vec()
    }
}

fn put_publish(out: &mut Vec<u8>, message: &Publication<'_>) {
    let mut method = vec![0, 60, 0, 40, 0, 0];
    put_short(&mut method, message.exchange);
    put_short(&mut method, message.routing_key);
    // mandatory
    method.push(1);
    put_frame(out, 1, &method);
    let mut header = vec![0, 60, 0, 0];
    header.extend((message.body.len() as u64).to_be_bytes());
    // The properties headers, delivery-mode (persistent) and message-id.
    header.extend((1_u16 << 13 | 1 << 12 | 1 << 7).to_be_bytes());
    let mut table = Vec::new();
    for (name, value) in [("walrelay.key", message.key)]
        .iter()
        .chain(message.headers)
    {
        put_short(&mut table, name);
        table.push(b'S');
        put_long(&mut table, value.as_bytes());
    }
    put_long(&mut header, &table);
    header.push(2);
    put_short(&mut header, message.message_id);
    put_frame(out, 2, &header);
    if !message.body.is_empty() {
        put_frame(out, 3, message.body);
    }
}

/// Appends a frame of the channel.
fn put_frame(out: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    out.extend([kind, 0, 1]);
    put_long(out, payload);
    out.push(0xCE);
}

fn put_short(out: &mut Vec<u8>, text: &str) {
    out.push(u8::try_from(text.len()).expect("a short text"));
    out.extend(text.as_bytes());
}

fn put_long(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_be_bytes());
    out.extend(bytes);
}
