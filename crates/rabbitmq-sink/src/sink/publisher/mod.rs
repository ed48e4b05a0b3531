//! The channels of a connection: publish, and read the answers.

mod answers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::select;
use tokio::time::sleep_until;
use tracing::info;
use walrelay_sink::{Disposition, Endpoints, OpenRequest, Poison};
use walrelay_sink_client::{ConnectError, FOREVER, Failure, Refused};

use super::Shared;
use super::in_flight::{Counting, InFlight, Unconfirmed};
use crate::client::declare::put_channel_close;
use crate::client::error::RabbitmqError;
use crate::client::publish::{self, put_publish};
use crate::client::wire::put_frame;
use crate::client::{Connection, io_error, put_channel_open, put_close};

/// No further message is encoded while so many bytes are to be written.
const OUTPUT_BYTES: usize = 256 * 1024;
/// The longest wait for the last bytes of a connection that is closed.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// A channel in confirm mode, and what is in flight on it.
struct Channel {
    number: u16,
    /// The time at which it was asked for.
    asked: Instant,
    /// The server has answered `confirm.select`.
    is_open: bool,
    in_flight: InFlight,
    /// Another channel has taken its place: it is closed when it has nothing in flight.
    is_replaced: bool,
    /// The code of a `basic.return` whose content header is still to come.
    returning: Option<u16>,
}

/// Publishes on the channels of a connection. A message takes any of them, because at most one message of an
/// exchange and key is in flight.
pub(super) struct Publisher<'s> {
    shared: &'s Arc<Shared>,
    endpoints: &'s mut Endpoints,
    /// Some while an answer of the server is due.
    awaited: Option<OpenRequest>,
    address: String,
    frame_max: usize,
    channels: Vec<Channel>,
    /// Numbers of channels that were closed and whose end the server has not confirmed.
    closing: Vec<u16>,
    counting: Counting,
    /// The highest number of a channel.
    max_number: u16,
    /// The number of the channel that was opened last.
    last_number: u16,
    /// The server takes no messages at the moment.
    blocked: bool,
    /// The server has closed a channel, and which message is at fault is not known: one message at a
    /// time is sent until all that were in flight then are confirmed.
    one_at_a_time: bool,
    /// The server has confirmed a message.
    pub(super) has_confirmed: bool,
    /// No new message is published while there are any.
    refused: Refused,
    out: Vec<u8>,
    written: usize,
}

impl<'s> Publisher<'s> {
    /// Opens as many channels as are configured, or as the server allows.
    pub(super) fn new(
        connection: &Connection,
        shared: &'s Arc<Shared>,
        endpoints: &'s mut Endpoints,
    ) -> Self {
        let mut all = Self {
            shared,
            endpoints,
            awaited: None,
            address: connection.address.clone(),
            frame_max: connection.frame_max,
            channels: Vec::new(),
            closing: Vec::new(),
            counting: if connection.may_drop_confirmed {
                Counting::InOrder
            } else {
                Counting::AtOnce
            },
            max_number: connection.channel_max,
            last_number: connection.last_channel,
            blocked: false,
            one_at_a_time: false,
            has_confirmed: false,
            refused: Refused::default(),
            out: Vec::new(),
            written: 0,
        };
        for _ in 0..shared.settings.channels.min(connection.channel_max) {
            all.open();
        }
        all
    }

    /// Opens a channel with the next number that no other one has.
    fn open(&mut self) {
        loop {
            self.last_number = self.last_number % self.max_number + 1;
            let number = self.last_number;
            if self.channel(number).is_none() && !self.closing.contains(&number) {
                break;
            }
        }
        put_channel_open(&mut self.out, self.last_number);
        self.channels.push(Channel {
            number: self.last_number,
            asked: Instant::now(),
            is_open: false,
            in_flight: InFlight::new(self.counting),
            is_replaced: false,
            returning: None,
        });
    }

    /// Opens another channel for one on which a queue has refused a message, if it is old. A quorum queue
    /// that was full may refuse the messages of a channel for ever, also when it takes those of others.
    fn replace(&mut self, number: u16) {
        let renew = self.shared.settings.renew;
        let numbers = self.channels.len() + self.closing.len();
        let has_number = numbers < usize::from(self.max_number);
        let Some(channel) = self.channel(number) else {
            return;
        };
        if channel.is_replaced || channel.asked.elapsed() < renew || !has_number {
            return;
        }
        channel.is_replaced = true;
        info!("a queue refuses messages: they are sent again on another channel");
        self.open();
    }

    /// Closes the channels that were replaced and have nothing in flight.
    fn close_replaced(&mut self) {
        let Self {
            channels,
            closing,
            out,
            ..
        } = self;
        channels.retain(|it| {
            let is_over = it.is_replaced && it.in_flight.is_empty();
            if is_over {
                put_channel_close(out, it.number);
                closing.push(it.number);
            }
            !is_over
        });
    }

    /// Returns the channel of this number; `None` if it was closed.
    fn channel(&mut self, number: u16) -> Option<&mut Channel> {
        self.channels.iter_mut().find(|it| it.number == number)
    }

    fn is_any_in_flight(&self) -> bool {
        self.channels.iter().any(|it| !it.in_flight.is_empty())
    }

    /// Notes whether an answer of the server is due.
    fn note_open(&mut self) {
        let opens = self.channels.iter().any(|it| !it.is_open);
        let is_due = !self.blocked && (opens || self.is_any_in_flight());
        let (stats, address) = (&self.shared.stats, &self.address);
        OpenRequest::keep(&mut self.awaited, is_due, stats, address);
    }

    /// Publishes until the sink is closed (`Ok`) or the connection breaks.
    pub(super) async fn run(&mut self, connection: Connection) -> Result<Failure, RabbitmqError> {
        let Connection {
            stream,
            mut input,
            heartbeat,
            ..
        } = connection;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let (mut last_read, mut last_write) = (Instant::now(), Instant::now());
        let mut unflushed = false;
        loop {
            self.take_frames(&mut input)?;
            let now = Instant::now();
            self.publish(now);
            self.note_open();
            if !self.refused.is_empty() && !self.is_any_in_flight() && !self.shared.is_due(now) {
                return Ok(Failure::with_another());
            }
            if self.shared.is_over() {
                put_close(&mut self.out);
                let rest = self.out.split_off(self.written.min(self.out.len()));
                let last = async {
                    writer.write_all(&rest).await?;
                    writer.flush().await
                };
                // Whether the server reads it is of no importance.
                let _ = tokio::time::timeout(CLOSE_LIMIT, last).await;
                return Ok(Failure::closed());
            }
            let timer = self.timers(now, (last_read, last_write), heartbeat)?;
            let closing = self.shared.state().closing;
            let timer = closing.map_or(timer, |at| at.min(timer));
            let io = |source| io_error(&self.address, source);
            let pending = self.out.get(self.written..).unwrap_or_default();
            // Both can be cancelled without loss.
            let write = async {
                if pending.is_empty() {
                    return writer.flush().await.map(|()| 0);
                }
                writer.write(pending).await
            };
            select! {
                read = input.fill(&mut reader) => {
                    read.map_err(io)?;
                    last_read = Instant::now();
                }
                wrote = write, if unflushed || !pending.is_empty() => {
                    let wrote = wrote.map_err(io)?;
                    unflushed = !pending.is_empty();
                    if let (Some(awaited), true) = (&self.awaited, wrote < pending.len()) {
                        // The socket is full, so the server reads: a large message takes its time.
                        awaited.answered();
                    }
                    self.written += wrote;
                    if self.written == self.out.len() {
                        self.out.clear();
                        self.written = 0;
                    }
                    last_write = Instant::now();
                }
                () = sleep_until(timer.into()) => {}
                () = self.shared.wake.notified() => {}
            }
        }
    }

    /// Returns when to look again, and appends a heartbeat if it is time.
    fn timers(
        &mut self,
        now: Instant,
        (last_read, last_write): (Instant, Instant),
        heartbeat: Duration,
    ) -> Result<Instant, RabbitmqError> {
        let timeout = |after: Duration| ConnectError::Timeout {
            address: self.address.clone(),
            seconds: after.as_secs(),
        };
        let mut next = now + FOREVER;
        if !heartbeat.is_zero() {
            // As AMQP 0-9-1 has it, section 4.2.7: two intervals without a sign.
            if now >= last_read + 2 * heartbeat {
                return Err(timeout(2 * heartbeat).into());
            }
            next = next.min(last_read + 2 * heartbeat);
            if now >= last_write + heartbeat / 2 && self.out.is_empty() {
                put_frame(&mut self.out, 8, 0, |_| ());
            }
            next = next.min(now + heartbeat / 2);
        }
        // A channel that does not open holds back all.
        let sent = self.channels.iter().filter_map(|it| {
            if it.is_open {
                it.in_flight.oldest()
            } else {
                Some(it.asked)
            }
        });
        if let Some(sent) = sent.min()
            && !self.blocked
        {
            if now >= sent + self.shared.settings.confirm {
                return Err(timeout(self.shared.settings.confirm).into());
            }
            next = next.min(sent + self.shared.settings.confirm);
        }
        // What ends the pause wakes the task, and a due record would wake it without an end.
        if self.is_paused() {
            return Ok(next);
        }
        let due = self.shared.state().records.next_due();
        Ok(due.map_or(next, |due| due.max(now).min(next)))
    }

    /// Returns true if no message may be appended before the server answers or takes bytes.
    fn is_paused(&self) -> bool {
        self.blocked
            || self.out.len() >= OUTPUT_BYTES
            || (self.one_at_a_time && self.is_any_in_flight())
            || self.channels.iter().any(|it| !it.is_open)
    }

    /// Appends the messages that may be sent now.
    fn publish(&mut self, now: Instant) {
        let shared = Arc::clone(self.shared);
        while !self.is_paused() {
            if !self.refused.is_empty() && !self.shared.is_due(now) {
                return;
            }
            let channels = self.channels.iter_mut().filter(|it| !it.is_replaced);
            let Some(channel) = channels.min_by_key(|it| it.in_flight.len()) else {
                return;
            };
            let mut state = shared.state();
            if self.one_at_a_time && state.records.blocked() == 0 {
                self.one_at_a_time = false;
            }
            let Some(queued) = state.records.next(now) else {
                return;
            };
            let seq = queued.seq;
            let published = queued.record.with(|record| {
                let address = publish::address(record, &shared.settings.dead_letters);
                let put = put_publish(
                    &mut self.out,
                    channel.number,
                    record,
                    address,
                    self.frame_max,
                );
                let exchange = address.exchange.into();
                put.map(|()| Unconfirmed::new(seq, record.position, exchange, now))
            });
            drop(state);
            match published {
                Ok(message) => channel.in_flight.push(message),
                Err(publish::HeadersTooLong(bytes)) => {
                    let limit = self.frame_max;
                    let why = format!("the headers have {bytes} bytes, the server takes {limit}");
                    self.refuse(seq, Poison::Oversize, Disposition::Fatal, why);
                }
            }
        }
    }

    /// Makes all messages in flight be sent again, because the server no longer says what becomes of
    /// them.
    pub(super) fn send_all_again(&mut self) {
        for channel in std::mem::take(&mut self.channels) {
            self.send_again_of(channel);
        }
    }

    /// Makes the messages in flight on a closed channel be sent again.
    fn send_again_of(&self, mut channel: Channel) {
        let messages = channel.in_flight.take_all();
        self.shared
            .send_again(messages.iter().map(|message| message.seq));
    }

    /// Returns true if a record is refused for good and not yet reported.
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Takes a record out that the server does not take. It is reported by
    /// [`report_refused`](Self::report_refused).
    fn refuse(&mut self, seq: u64, poison: Poison, disposition: Disposition, reason: String) {
        self.refused
            .take(self.shared, seq, poison, disposition, reason);
    }

    pub(super) fn report_refused(&mut self) {
        self.refused.report(self.shared);
    }
}

#[cfg(test)]
mod tests {
    use walrelay_sink::{KeyQueues, Record, Window};
    use walrelay_testkit::Reports;

    use super::*;
    use crate::client::Input;
    use crate::sink::tests::settings;

    #[test]
    fn a_record_that_is_due_does_not_wake_the_publisher_while_the_server_takes_nothing() {
        let (stream, _server) = tokio::io::duplex(64);
        let connection = Connection {
            stream: Box::new(stream),
            address: String::new(),
            input: Input::default(),
            frame_max: 4096,
            channel_max: 8,
            last_channel: 0,
            heartbeat: Duration::ZERO,
            may_drop_confirmed: true,
            refuses_offsets: true,
        };
        let shared = Arc::new(Shared::new(
            KeyQueues::new(8),
            Window::new(8, 1 << 20),
            Arc::new(settings()),
            Arc::default(),
            Arc::<Reports>::default(),
        ));
        shared.accept(&Record::default(), 0, 1).unwrap();
        let mut endpoints = Endpoints::new(Arc::default());
        let mut publisher = Publisher::new(&connection, &shared, &mut endpoints);
        publisher.channels[0].is_open = true;
        publisher.publish(Instant::now());
        publisher.channels[0].in_flight = InFlight::default();
        shared.send_again([0]);
        let now = Instant::now();
        let mut timer = |blocked| {
            publisher.blocked = blocked;
            let timer = publisher.timers(now, (now, now), Duration::ZERO);
            timer.unwrap()
        };
        assert_eq!(timer(false), now);
        assert!(timer(true) > now);
    }
}
