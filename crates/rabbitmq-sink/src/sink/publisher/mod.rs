//! The channels of a connection: publish, and read the answers.

mod answers;
mod channels;
mod closes;
mod repeats;
mod silence;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::select;
use tokio::time::sleep_until;
use walrelay_sink::{Endpoints, OpenRequest, Poison};
use walrelay_sink_client::{ConnectError, FOREVER, Failure};

use super::Shared;
use super::exchanges::{Exchanges, Way};
use super::in_flight::{Counting, Unconfirmed};
use crate::client::declare::put_exchange_question;
use crate::client::error::RabbitmqError;
use crate::client::publish::{self, put_publish};
use crate::client::wire::{put_frame, put_method};
use crate::client::{Connection, io_error, put_channel_open_only, put_close, put_qos};
use channels::{Channel, Role};
pub(super) use repeats::Kept;
use silence::Silence;

/// No further message is encoded while so many bytes are to be written.
const OUTPUT_BYTES: usize = 256 * 1024;
/// The longest wait for the last bytes of a connection that is closed.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);
/// The messages that are tried alone at a time, at most.
const MAX_TRIALS: usize = 8;
/// The channels besides those for messages to exchanges that accept them: one for questions, and one for
/// a message that is tried alone.
pub(crate) const SPARE_CHANNELS: u16 = 2;
/// The reason of a refusal of a large message.
const TOO_LARGE: &str = "the message is larger than the server's max_message_size";

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
    /// The server accepts no messages at the moment.
    blocked: bool,
    /// The last `channel.flow` of each channel that is not answered. The server may ask for more answers than it
    /// reads.
    owed_flows: BTreeMap<u16, bool>,
    exchanges: Exchanges,
    /// The channel on which the server is asked for exchanges.
    questions: Option<u16>,
    /// Messages that waited and are published next.
    released: VecDeque<u64>,
    kept: &'s mut Kept,
    /// Messages that may have closed a channel, and are published alone.
    suspects: VecDeque<u64>,
    /// The exchanges with routing keys that the user may not write to.
    denied: HashSet<Vec<u8>>,
    /// The size of the smallest value that the server found too large.
    too_large: usize,
    /// Since when the server has answered no message, and no question.
    silence: [Silence; 2],
    /// When an obstacle was shown for a message that waits too long.
    shown: Option<Instant>,
    /// The server has confirmed a message.
    pub(super) has_confirmed: bool,
    out: Vec<u8>,
    written: usize,
}

impl<'s> Publisher<'s> {
    /// Opens as many channels as are configured, or as the server allows.
    pub(super) fn new(
        connection: &Connection,
        shared: &'s Arc<Shared>,
        endpoints: &'s mut Endpoints,
        kept: &'s mut Kept,
    ) -> Self {
        let settings = &shared.settings;
        let declared = settings.declare.as_ref();
        let declared = declared.map(|declared| &*declared.exchange);
        let mut all = Self {
            shared,
            endpoints,
            awaited: None,
            address: connection.address.clone(),
            frame_max: connection.frame_max,
            channels: Vec::new(),
            closing: Vec::new(),
            counting: if connection.may_drop_confirmed && settings.streams {
                Counting::InOrder
            } else {
                Counting::AtOnce
            },
            max_number: connection.channel_max,
            last_number: connection.last_channel,
            blocked: false,
            owed_flows: BTreeMap::new(),
            exchanges: Exchanges::new(settings.pauses, declared),
            questions: None,
            released: VecDeque::new(),
            kept,
            suspects: VecDeque::new(),
            denied: HashSet::new(),
            too_large: usize::MAX,
            silence: [Silence::default(); 2],
            shown: None,
            has_confirmed: false,
            out: Vec::new(),
            written: 0,
        };
        let most = connection.channel_max.saturating_sub(SPARE_CHANNELS);
        for _ in 0..settings.channels.min(most).max(1) {
            all.open(Role::Main);
        }
        all
    }

    fn is_any_in_flight(&self) -> bool {
        self.channels
            .iter()
            .any(|channel| !channel.in_flight.is_empty())
    }

    /// Notes whether an answer of the server is due.
    fn note_open(&mut self) {
        let opens = self.channels.iter().any(|channel| !channel.is_open);
        let is_asking = opens || self.exchanges.is_asking();
        let is_due = !self.blocked && (is_asking || self.is_any_in_flight());
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
            if self.shared.is_over() {
                if self.shared.window.in_flight() > 0 {
                    // What is not delivered is given up: nothing more of it is sent.
                    return Ok(Failure::closed());
                }
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
            let now = Instant::now();
            self.answer_flows();
            self.publish(now);
            self.ask();
            self.note_open();
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

    /// Answers the last `channel.flow` of each channel, if there is room.
    fn answer_flows(&mut self) {
        if self.out.len() >= OUTPUT_BYTES {
            return;
        }
        for (number, active) in std::mem::take(&mut self.owed_flows) {
            put_method(&mut self.out, number, (20, 21), |out| {
                out.push(active.into());
            });
        }
    }

    /// Returns when to look again, and appends a heartbeat if it is time.
    fn timers(
        &mut self,
        now: Instant,
        (last_read, last_write): (Instant, Instant),
        heartbeat: Duration,
    ) -> Result<Instant, RabbitmqError> {
        let mut next = now + FOREVER;
        if !heartbeat.is_zero() {
            // As AMQP 0-9-1 has it, section 4.2.7: two intervals without a sign.
            if now >= last_read + 2 * heartbeat {
                return Err(self.timeout(2 * heartbeat));
            }
            next = next.min(last_read + 2 * heartbeat);
            if now >= last_write + heartbeat / 2 && self.out.is_empty() {
                put_frame(&mut self.out, 8, 0, |_| ());
            }
            next = next.min(now + heartbeat / 2);
        }
        if let Some(silent) = self.silent_until(now) {
            if now >= silent {
                return Err(self.timeout(self.shared.settings.confirm));
            }
            next = next.min(silent);
        }
        next = next.min(self.show_overdue(now));
        // What ends the pause wakes the task, and a due record would wake it without an end.
        if self.is_paused() {
            return Ok(next);
        }
        let due = self.shared.state().records.next_due();
        Ok(due.map_or(next, |due| due.max(now).min(next)))
    }

    fn timeout(&self, after: Duration) -> RabbitmqError {
        let address = self.address.clone();
        let seconds = after.as_secs();
        ConnectError::Timeout { address, seconds }.into()
    }

    /// Returns true if no message may be appended before the server answers or reads bytes.
    fn is_paused(&self) -> bool {
        let mut main = self
            .channels
            .iter()
            .filter(|channel| channel.role == Role::Main);
        self.blocked || self.out.len() >= OUTPUT_BYTES || main.any(|channel| !channel.is_open)
    }

    /// Appends the messages that may be sent now.
    fn publish(&mut self, now: Instant) {
        while !self.is_paused() {
            if let Some(seq) = self.next_suspect() {
                self.try_alone(seq, now);
                continue;
            }
            let next = self.released.pop_front();
            let mut state = self.shared.state();
            let next = next.or_else(|| state.records.next(now).map(|queued| queued.seq));
            let Some(queued) = next.and_then(|seq| state.records.in_flight(seq)) else {
                if next.is_some() {
                    continue;
                }
                return;
            };
            let seq = queued.seq;
            // Another one would close the channel, too.
            if !self.denied.is_empty() && self.denied.contains(&self.cause(queued)) {
                drop(state);
                self.suspects.push_back(seq);
                continue;
            }
            let way = queued.record.with(|record| {
                let address = publish::address(record, &self.shared.settings.dead_letters);
                self.exchanges.way(address.exchange, seq, now)
            });
            drop(state);
            match way {
                Way::Publish(exchange) => {
                    let main = self
                        .channels
                        .iter()
                        .filter(|channel| channel.role == Role::Main);
                    let least = main.min_by_key(|channel| channel.in_flight.len());
                    if let Some(number) = least.map(|channel| channel.number) {
                        self.put(seq, &exchange, number, now);
                    }
                }
                Way::Alone => self.suspects.push_back(seq),
                Way::Wait => {}
                Way::Fails(exchange, fault, again) => {
                    self.hold_back(&exchange, fault, vec![seq], (now, again));
                }
            }
        }
    }

    /// Takes a message that is to be published alone, if one more may be.
    fn next_suspect(&mut self) -> Option<u64> {
        let trials = self.channels.iter();
        let trials = trials.filter(|channel| matches!(channel.role, Role::Trial(_)));
        if self.suspects.is_empty() || trials.count() >= MAX_TRIALS || !self.has_number() {
            return None;
        }
        self.suspects.pop_front()
    }

    /// Publishes a message on its own channel.
    fn try_alone(&mut self, seq: u64, now: Instant) {
        let exchange = {
            let state = self.shared.state();
            let dead_letters = &self.shared.settings.dead_letters;
            let queued = state.records.in_flight(seq);
            queued.map(|queued| {
                queued.record.with(|record| {
                    let address = publish::address(record, dead_letters);
                    Arc::<str>::from(address.exchange)
                })
            })
        };
        let Some(exchange) = exchange else {
            return;
        };
        let number = self.open(Role::Trial(Arc::clone(&exchange))).number;
        if self.put(seq, &exchange, number, now) {
            put_qos(&mut self.out, number, 0);
            return;
        }
        // Nothing is said of the exchange.
        if let Some(channel) = self.channel(number) {
            channel.role = Role::Last;
        }
        self.close_unused();
        self.suspects.extend(self.exchanges.tried(&exchange));
    }

    /// Appends a message. Returns false if it is refused because the server would refuse it.
    fn put(&mut self, seq: u64, exchange: &Arc<str>, number: u16, now: Instant) -> bool {
        let shared = self.shared;
        let state = shared.state();
        let Some(queued) = state.records.in_flight(seq) else {
            return false;
        };
        let put = queued.record.with(|record| {
            let size = record.value.map_or(0, <[u8]>::len);
            if size >= self.too_large {
                return Err(format!("the value has {size} bytes: {TOO_LARGE}"));
            }
            let address = publish::address(record, &shared.settings.dead_letters);
            let put = put_publish(&mut self.out, number, record, address, self.frame_max);
            put.map_err(|publish::HeadersTooLong(bytes)| {
                let limit = self.frame_max;
                format!("the headers have {bytes} bytes, the server accepts {limit}")
            })?;
            let exchange = Arc::clone(exchange);
            Ok(Unconfirmed::new(seq, record.position, exchange, now))
        });
        drop(state);
        match put {
            Ok(message) => {
                if let Some(channel) = self.channel(number) {
                    channel.in_flight.push(message);
                }
                true
            }
            Err(why) => {
                self.refuse(seq, Poison::Oversize, why);
                false
            }
        }
    }

    /// Reports that the server refuses a message for good.
    fn refuse(&mut self, seq: u64, poison: Poison, reason: String) {
        self.release_kept(seq);
        self.shared.refuse(seq, poison, reason);
    }

    /// Asks the server for exchanges that messages wait for.
    fn ask(&mut self) {
        if self.exchanges.has_question() && self.questions.is_none() {
            let number = self.next_number();
            put_channel_open_only(&mut self.out, number);
            self.questions = Some(number);
        }
        let Some(number) = self.questions else {
            return;
        };
        for exchange in self.exchanges.next_questions() {
            put_exchange_question(&mut self.out, number, exchange);
        }
    }
}

#[cfg(test)]
mod tests {
    use walrelay_sink::{KeyQueues, Record, Window};
    use walrelay_testkit::Reports;

    use super::*;
    use crate::client::Input;
    use crate::sink::in_flight::InFlight;
    use crate::sink::tests::settings;

    fn connection() -> Connection {
        let (stream, _server) = tokio::io::duplex(64);
        Connection {
            stream: Box::new(stream),
            address: String::new(),
            input: Input::default(),
            frame_max: 4096,
            channel_max: 8,
            last_channel: 0,
            heartbeat: Duration::ZERO,
            may_drop_confirmed: true,
            refuses_offsets: true,
        }
    }

    fn shared() -> Arc<Shared> {
        Arc::new(Shared::new(
            KeyQueues::new(8),
            Window::new(8, 1 << 20),
            Arc::new(settings()),
            Arc::default(),
            Arc::<Reports>::default(),
        ))
    }

    /// Heartbeats have no answer, and a server that asks for `channel.flow-ok` without an end and reads nothing gets
    /// few answers.
    #[tokio::test]
    async fn answers_that_the_server_provokes_are_bounded() {
        const QUESTIONS: usize = 200_000;
        let (connection, shared) = (connection(), shared());
        let mut endpoints = Endpoints::new(Arc::default());
        let mut kept = Kept::new();
        let mut publisher = Publisher::new(&connection, &shared, &mut endpoints, &mut kept);
        let before = publisher.out.len();
        let mut frames = Vec::new();
        for number in 0..QUESTIONS {
            put_frame(&mut frames, 8, 0, |_| ());
            put_method(&mut frames, 1, (20, 20), |out| out.push((number % 2) as u8));
        }
        let (mut input, mut frames) = (Input::default(), &*frames);
        while !frames.is_empty() {
            input.fill(&mut frames).await.unwrap();
            publisher.take_frames(&mut input).unwrap();
        }
        assert!(!publisher.blocked, "the last one says so");
        publisher.answer_flows();
        let answers = publisher.out.len() - before;
        assert_eq!(answers, 13, "one channel.flow-ok");
        publisher.answer_flows();
        assert_eq!(publisher.out.len() - before, answers);
    }

    #[test]
    fn a_record_that_is_due_does_not_wake_the_publisher_while_the_server_takes_nothing() {
        let (connection, shared) = (connection(), shared());
        shared.accept(&Record::default(), "", 0, 1).unwrap();
        let mut endpoints = Endpoints::new(Arc::default());
        let mut kept = Kept::new();
        let mut publisher = Publisher::new(&connection, &shared, &mut endpoints, &mut kept);
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
